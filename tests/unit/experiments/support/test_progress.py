"""Progress in a log: a line when the stage changes, and lines while a stage lasts. The clock is a fake."""

from __future__ import annotations

import io

import pytest
from rich import progress as rich
from rich.console import Console

from experiments.studies.pipeline.analysis import show_output
from experiments.studies.pipeline.options import GOLD, READING, SILVER_STAGE, report
from experiments.support.progress import Bar, LogLines, duration_words

LONGEST_SILENCE_S = 10


class FakeClock:
    """Time that passes only in `wait`, which ends after `limit_s` seconds."""

    def __init__(self, limit_s: float = 0) -> None:
        self.now_s, self.limit_s = 100.0, 100.0 + limit_s

    def wait(self, duration_s: float) -> bool:
        self.now_s += duration_s
        return self.now_s >= self.limit_s


def test_line_when_the_stage_changes_with_count_and_elapsed_seconds() -> None:
    lines: list[str] = []
    clock = FakeClock()
    log = LogLines("isray study", "trials", lines.append, lambda: clock.now_s)
    log.show("starting Ray")
    clock.wait(35)
    log.show("sweep", 80, 800)
    clock.wait(20)
    log.show("sweep", 120, 800, "min_insync_replicas 2")
    assert lines == ["isray study: starting Ray, 0 s", "isray study: sweep, 80 of 800 trials, 35 s"]
    log.write_line()
    at_work = "2 trials/s, 6 min left, at min_insync_replicas 2"
    assert lines[-1] == f"isray study: sweep, 120 of 800 trials, {at_work}, 55 s"
    log.note("3 trials are kept")
    assert lines[-1] == "isray study: 3 trials are kept"


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (720, "12 min"), (9_000, "2.5 h"), (345_600, "4.0 d")])
def test_time_left_is_in_its_natural_unit(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_bar_shows_count_rate_time_left_and_cell_at_work() -> None:
    clock, stream = FakeClock(), io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, color_system=None)
    with rich.Progress(*Bar.COLUMNS, console=console, auto_refresh=False) as bar:
        shown = Bar(bar, "trials", lambda: clock.now_s)
        shown.show("sweep", 0, 800)
        clock.wait(10)
        shown.show("sweep", 200, 800, "generation kip-966")
        bar.refresh()
    assert "200/800 20 trials/s, 30 s left, generation kip-966" in stream.getvalue()


def test_long_stage_gets_a_line_at_least_every_10_seconds() -> None:
    times_s: list[float] = []
    clock = FakeClock(limit_s=600)
    log = LogLines("isray study", "trials", lambda line: times_s.append(clock.now_s), lambda: clock.now_s)
    log.show("silver")
    log.write_until(clock.wait)
    ends_s = [*times_s[1:], clock.now_s]
    assert all(end_s - time_s <= LONGEST_SILENCE_S for time_s, end_s in zip(times_s, ends_s, strict=True))


def test_stages_of_the_spark_process_are_shown_and_its_other_output_is_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for stage in (READING, SILVER_STAGE, GOLD):
        report("stage", stage)
    printed = capsys.readouterr().out.splitlines(keepends=True)
    lines, log = [], io.StringIO()
    shown = LogLines("s", "trials", lines.append, lambda: 0.0)
    assert show_output([*printed[:2], "WARNING: a JVM\n", *printed[2:]], shown, log) is None
    assert lines == [f"s: {stage}, 0 s" for stage in (READING, SILVER_STAGE, GOLD)]
    assert log.getvalue() == "WARNING: a JVM\n"


def test_notes_of_the_spark_process_are_shown_and_its_refusal_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    report("note", "one file is quarantined")
    report("refused", "no trial")
    printed = capsys.readouterr().out.splitlines(keepends=True)
    lines: list[str] = []
    assert show_output(printed, LogLines("s", "trials", lines.append, lambda: 0.0), io.StringIO()) == "no trial"
    assert len(lines) == 1
    assert lines[0].endswith("one file is quarantined")
