"""Progress of a long command, on standard error: a bar on a terminal, lines elsewhere (the log of a job, a pipe).

A line is written when the stage changes, and by a thread every 10 s within a stage. The rate is that of what this
command completed in the present stage; the time left assumes the same rate for the rest, unless the command estimates
it from what the trials of each cell cost (`studies/sweeps/remaining.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as rich
from rich.console import Console

INTERVAL_S = 10.0
"""Time between two lines of one stage."""


class Progress:
    """Shows nothing; the subclasses show progress as a bar or as lines."""

    def show(
        self, stage: str, done: int = 0, total: int | None = None, at: str = "", left_s: float | None = None
    ) -> None:
        """The command is in `stage`, of which `done` of `total` units are complete (None: it has no units); `at` names
        what is at work. `left_s`: the time left, in seconds, where the caller knows better than by the rate so far."""

    def note(self, text: str) -> None:
        """Something that the user should know, in one line."""


SILENT = Progress()


class Pace:
    """The units per second of a stage, from its first count on. `now_s` is the clock, in seconds."""

    def __init__(self, unit: str, now_s: Callable[[], float]) -> None:
        self._unit, self._now_s = unit, now_s
        self._stage, self._began_s, self._began_with = "", 0.0, 0

    def words(self, stage: str, done: int, total: int | None, left_s: float | None = None) -> str:
        """`3.2 trials/s, 2 min left`; empty before the first unit of the stage is complete. `left_s`: the time left;
        None: by the rate."""
        if stage != self._stage:
            self._stage, self._began_s, self._began_with = stage, self._now_s(), done
        elapsed_s, ran = self._now_s() - self._began_s, done - self._began_with
        if total is None or ran <= 0 or elapsed_s <= 0:
            return ""
        rate = ran / elapsed_s
        return f"{rate:.3g} {self._unit}/s, {duration_words((total - done) / rate if left_s is None else left_s)} left"


def duration_words(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2.1 d`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5_400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 129_600 else f"{seconds / 86_400:.1f} d"


class LogLines(Progress):
    """Writes lines such as `isray study: sweep, 120 of 800 trials, 3.4 trials/s, 3 min left, at generation kip-966,
    35 s`, where `unit` is `trials`. `now_s` is the clock, in seconds.
    """

    def __init__(
        self, name: str, unit: str, write: Callable[[str], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._unit, self._write, self._now_s = name, unit, write, now_s
        self._began_s, self._pace = now_s(), Pace(unit, now_s)
        self._stage, self._done, self._at = "started", 0, ""
        self._total: int | None = None
        self._left_s: float | None = None

    def show(
        self, stage: str, done: int = 0, total: int | None = None, at: str = "", left_s: float | None = None
    ) -> None:
        changed = stage != self._stage
        self._stage, self._done, self._total, self._at, self._left_s = stage, done, total, at, left_s
        if changed:
            self._pace.words(stage, done, total)
            self.write_line()

    def note(self, text: str) -> None:
        self._write(f"{self._name}: {text}")

    def write_line(self) -> None:
        """Writes the present stage and the seconds since the command began."""
        count = "" if self._total is None else f"{self._done} of {self._total} {self._unit}"
        pace = self._pace.words(self._stage, self._done, self._total, self._left_s)
        parts = (self._stage, count, pace, self._at and f"at {self._at}", f"{self._now_s() - self._began_s:.0f} s")
        self._write(f"{self._name}: {', '.join(filter(None, parts))}")

    def write_until(self, wait: Callable[[float], bool]) -> None:
        """Writes a line after each interval. `wait` sleeps for some seconds and returns whether to stop."""
        while not wait(INTERVAL_S):
            self.write_line()


class Bar(Progress):
    """One task of rich's progress per stage, since a task that has a total keeps it."""

    COLUMNS = ("{task.description}", rich.BarColumn(), "{task.fields[count]}", "{task.fields[words]}")

    def __init__(self, bar: rich.Progress, unit: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._bar, self._stage, self._task = bar, "", bar.add_task("", total=None, count="", words="")
        self._pace = Pace(unit, now_s)

    def show(
        self, stage: str, done: int = 0, total: int | None = None, at: str = "", left_s: float | None = None
    ) -> None:
        if stage != self._stage:
            self._bar.remove_task(self._task)
            self._stage, self._task = stage, self._bar.add_task(stage, total=None, count="", words="")
        words = ", ".join(filter(None, (self._pace.words(stage, done, total, left_s), at)))
        count = "" if total is None else f"{done}/{total}"
        self._bar.update(self._task, completed=done, total=total, count=count, words=words)

    def note(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)


@contextmanager
def progress(name: str, unit: str = "trials") -> Iterator[Progress]:
    """Progress of the command `name` for the block; `unit` is what it counts."""
    console = Console(stderr=True)
    if console.is_terminal:
        with rich.Progress(*Bar.COLUMNS, rich.TimeElapsedColumn(), console=console) as bar:
            yield Bar(bar, unit)
        return
    lines, ended = LogLines(name, unit, lambda line: print(line, file=sys.stderr, flush=True)), threading.Event()
    thread = threading.Thread(target=lines.write_until, args=(ended.wait,), daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()
