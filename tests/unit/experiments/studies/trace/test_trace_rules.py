"""The rules of a trace, which the kinds declare, held against whole and broken traces."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.trace.kinds import TraceError
from experiments.studies.trace.rules import broken_rule
from experiments.studies.trace.schema import TraceRow
from experiments.studies.trials.batch import Batch, run_batch
from tests.spark.trial_helpers import fake_trial
from tests.trace_rows import check_trace

PARTITIONS, TRIALS = 2, 3
STUDY = study_from(
    {"name": "s", "trials": TRIALS, "duration": "1h", "base": {"partitions": PARTITIONS}, "sweep": {"acks": ["all"]}},
    "s.yaml",
)
CELL = STUDY.cells[0].parameters
Change = Callable[[list[TraceRow]], list[TraceRow]]


def tables() -> tuple[pa.Table, pa.Table]:
    """The rows of a batch of whole trials, and its trials."""
    return run_batch(fake_trial, CELL, Batch("c", 0, TRIALS), STUDY.seed)


def changed(change: Change) -> tuple[pa.Table, pa.Table, list[TraceRow]]:
    """A batch whose second trial is changed, and the rows of that trial."""
    trace, trials = tables()
    groups = [[row for row in trace.to_pylist() if row["trial"] == trial] for trial in range(TRIALS)]
    mine = [TraceRow(**{name: row[name] for name in TraceRow._fields}) for row in groups[1]]
    mine = change(mine)
    groups[1] = [{"cell": "c", "trial": 1, "seq": seq, **row._asdict()} for seq, row in enumerate(mine)]
    rows = pa.Table.from_pylist([row for group in groups for row in group], trace.schema)
    lengths = pa.array([len(group) for group in groups], pa.int32())
    at = trials.schema.get_field_index("trace_rows")
    return rows, trials.set_column(at, trials.schema.field(at), lengths), mine


def test_whole_trials_break_no_rule_and_a_trial_without_rows_does() -> None:
    assert broken_rule(*tables()) is None
    with pytest.raises(TraceError):
        check_trace([], PARTITIONS, CELL.duration_ms)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows: [*rows[:-1], rows[-1]._replace(time_ms=rows[-1].time_ms - 1)], "the last row of trial 1"),
        (lambda rows: [*rows[:2], rows[3]._replace(time_ms=9), rows[2]._replace(time_ms=8), *rows[4:]], "goes back"),
        (lambda rows: rows[:-1], "the last row"),
        (lambda rows: [*rows[:2], rows[-1]._replace(time_ms=0), *rows[2:]], "another row than the last one"),
        (lambda rows: [*rows[:2], rows[2]._replace(kind="crush"), *rows[3:]], "crush"),
        (lambda rows: [rows[1], *rows[2:]], "no state of partition 0 at the begin of trial 1"),
        (lambda rows: [rows[0], rows[1]._replace(time_ms=1), *rows[2:]], "no state of partition 1 at the begin"),
        (lambda rows: [rows[0], rows[1]._replace(partition=PARTITIONS), *rows[2:]], "2 in trial 1"),
        (
            lambda rows: [*rows[:2], TraceRow(5, "loss", 0, 1), *rows[2:]],
            "a loss of no records in trial 1",
        ),
    ],
    ids=["short", "time", "no end", "end within", "kind", "no state", "late state", "partition", "empty loss"],
)  # fmt: skip
def test_a_broken_rule_names_the_trial(change: Change, found: str) -> None:
    rows, trials, mine = changed(change)
    broken = broken_rule(rows, trials)
    assert broken is not None
    assert found in broken.found
    with pytest.raises(TraceError):
        check_trace(mine, PARTITIONS, CELL.duration_ms)
