"""Sequential stopping, seeds, and the rules of a trace."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters, Precision, StudyPlan
from experiments.studies.sweeps.sweep import is_precise, rounds, wanted_trials
from experiments.studies.trace.schema import TraceError, TraceRow, TrialResult, check_trace
from experiments.studies.trials.batch import Batch, TrialFailed, run_batch, trial_seed
from tests.spark.trial_helpers import fake_trial

PARAMETERS = CellParameters(duration_ms=3_600_000)
CELL = "0123456789abcdef"


def study_of(**changes: object) -> StudyPlan:
    raw = {"name": "s", "seed": 1, "trials": 20, "duration": "1h", "sweep": {"min_insync_replicas": [1, 2]}}
    return study_from({name: value for name, value in (raw | changes).items() if value is not None}, "s.yaml")


@settings(deadline=None)
@given(st.integers(1, 100_000))
def test_rounds_grow_up_to_the_largest_number_of_trials(max_trials: int) -> None:
    steps = list(rounds(max_trials))
    assert steps == sorted(set(steps))
    assert steps[-1] == max_trials


def test_sequential_study_stops_at_the_first_precise_round() -> None:
    study = study_of(trials=None, precision={"relative_error": 0.2, "max_trials": 1000})
    precision = Precision(relative_error=0.2, max_trials=1000)
    samples = ([0] * 500, [1, 1, 1], [1] * 150)
    assert [is_precise(precision, np.array(counts), PARAMETERS.partition_years) for counts in samples] == [
        False,
        False,
        True,
    ]
    grown: list[list[int]] = [[], [1] * 64, [1] * 96, [1] * 144, [0] * 1000]
    assert [wanted_trials(study, 0, np.array(counts)) for counts in grown] == [64, 96, 144, 144, 1000]


def test_seed_depends_on_study_seed_and_trial_number_and_on_the_cell_without_pairing() -> None:
    cells = (PARAMETERS, PARAMETERS.model_copy(update={"min_insync_replicas": 1}), None)
    seeds = [trial_seed(study, trial, cell) for study in (1, 2) for cell in cells for trial in (0, 1)]
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert trial_seed(1, 0) == 4595320837383450133


def test_batch_size_does_not_change_the_tables() -> None:
    whole = run_batch(fake_trial, PARAMETERS, Batch(CELL, 0, 6), 1)
    parts = [run_batch(fake_trial, PARAMETERS, Batch(CELL, first, first + 3), 1) for first in (0, 3)]
    for table, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert table.equals(pa.concat_tables(pieces))


def test_error_of_a_failed_trial_names_its_seed() -> None:
    def broken(parameters: CellParameters, seed: int) -> TrialResult:
        raise ValueError("no")

    with pytest.raises(TrialFailed, match=str(trial_seed(1, 4))):
        run_batch(broken, PARAMETERS, Batch(CELL, 4, 5), 1)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [TraceRow(0, "state", 0)],
        [TraceRow(5, "state", 0), TraceRow(9, "end")],
        [TraceRow(0, "loss", 0, value=1), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "loss", 0, value=0), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "crash"), TraceRow(3, "start"), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "crush"), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(4, "end"), TraceRow(9, "end")],
        [TraceRow(0, "state", 0), TraceRow(8, "end")],
        [TraceRow(0, "state", 1), TraceRow(9, "end")],
    ],
)
def test_trace_that_breaks_a_rule_is_refused(rows: list[TraceRow]) -> None:
    with pytest.raises(TraceError):
        check_trace(rows, partitions=1, duration_ms=9)
