"""`isray bench history`: the measured history is correct, and every operation is checked."""

from __future__ import annotations

import pytest

from experiments.bench.history_check import SyntheticHistory, measure, run
from experiments.check.history import Ended, Invoked, LostRecord, Seen, judge


def test_the_history_is_complete_and_has_the_given_size() -> None:
    history = SyntheticHistory(1_000)
    operations = list(history)
    assert (len(operations), history.operations) == (960, 960)
    kinds = [sum(isinstance(it, kind) for it in operations) for kind in (Invoked, Ended, Seen)]
    assert kinds == [320, 320, 320]
    assert sum(it.size for it in operations if isinstance(it, Invoked)) == history.records
    assert sum(run.size for final in history.finals() for run in final.replicas[0]) == history.records
    assert judge(history, history.finals()) == []


def test_the_check_reads_every_operation() -> None:
    history = SyntheticHistory(500)
    finals = history.finals()
    finals[3].replicas[0] = list(finals[3].replicas[0])[:-1]  # type: ignore[index]
    lost = [found for found in judge(history, finals) if isinstance(found, LostRecord)]
    assert len(lost) == 10


@pytest.mark.slow
def test_the_report_has_a_row_per_size() -> None:
    row = measure(300)
    assert row.operations == 240
    report = run([300, 100])
    assert [size["operations"] for size in report.document["sizes"]] == [120, 240]  # type: ignore[attr-defined]
    assert report.document["growth_exponent"] is not None
    assert [len(line) for line in report.rows] == [len(report.columns)] * 2
    assert "grows with size" in report.notes[0]


@pytest.mark.slow
def test_one_size_has_no_growth_exponent() -> None:
    report = run([100])
    assert report.document["growth_exponent"] is None
    assert report.notes == ["400 records in the largest history"]


@pytest.mark.parametrize("size", [1, 119])
def test_the_smallest_history_has_one_round(size: int) -> None:
    assert SyntheticHistory(size).operations == 120
