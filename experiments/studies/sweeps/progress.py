"""Progress of `isray study`, on standard error: a bar on a terminal, lines elsewhere (the log of a job, a pipe).

A line is written when the stage changes, and by a thread at least every 15 s within a stage.
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

    def show(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """The command is in `stage`, of which `done` of `total` trials are complete (None: it has no trials)."""


SILENT = Progress()


class LogLines(Progress):
    """Writes lines such as `isray study: sweep, 120 of 800 trials, 35 s`. `now_s` is the clock, in seconds."""

    def __init__(self, name: str, write: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._name, self._write, self._now_s = name, write, now_s
        self._began_s = now_s()
        self._stage, self._done = "started", 0
        self._total: int | None = None

    def show(self, stage: str, done: int = 0, total: int | None = None) -> None:
        changed = stage != self._stage
        self._stage, self._done, self._total = stage, done, total
        if changed:
            self.write_line()

    def write_line(self) -> None:
        """Writes the present stage and the seconds since the command began."""
        count = "" if self._total is None else f", {self._done} of {self._total} trials"
        self._write(f"{self._name}: {self._stage}{count}, {self._now_s() - self._began_s:.0f} s")

    def write_until(self, wait: Callable[[float], bool]) -> None:
        """Writes a line after each interval. `wait` sleeps for some seconds and returns whether to stop."""
        while not wait(INTERVAL_S):
            self.write_line()


class _Bar(Progress):
    """One task of rich's progress per stage, since a task that has a total keeps it."""

    def __init__(self, bar: rich.Progress) -> None:
        self._bar, self._stage, self._task = bar, "", bar.add_task("", total=None)

    def show(self, stage: str, done: int = 0, total: int | None = None) -> None:
        if stage != self._stage:
            self._bar.remove_task(self._task)
            self._stage, self._task = stage, self._bar.add_task(stage, total=None)
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def progress(name: str) -> Iterator[Progress]:
    """Progress of the command `name` for the block."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn())
        with rich.Progress(*columns, rich.TimeElapsedColumn(), rich.TimeRemainingColumn(), console=console) as bar:
            yield _Bar(bar)
        return
    lines, ended = LogLines(name, lambda line: print(line, file=sys.stderr, flush=True)), threading.Event()
    thread = threading.Thread(target=lines.write_until, args=(ended.wait,), daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()
