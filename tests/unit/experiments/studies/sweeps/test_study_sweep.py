"""Sequential stopping, seeds, and the rules of a trace."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.sweep import task_name, trials_needed
from experiments.studies.sweeps.worker import values_of
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trials.batch import Batch, TrialFailed, run_batch, trial_seed
from tests.spark.trial_helpers import fake_trial

PARAMETERS = CellParameters(duration_ms=3_600_000)
CELL = "0123456789abcdef"


def study_of(**changes: object) -> StudyPlan:
    raw = {"name": "s", "seed": 1, "trials": 20, "duration": "1h", "sweep": {"min_insync_replicas": [1, 2]}}
    return study_from({name: value for name, value in (raw | changes).items() if value is not None}, "s.yaml")


def test_sequential_cell_needs_trials_until_the_stopping_rule_has_enough() -> None:
    study = study_of(trials=None, precision={"relative_error": 0.2, "max_trials": 1000})

    def needed(*losses: float) -> int:
        measured = [(value, PARAMETERS.partition_years, value, *(0.0,) * 5) for value in losses]
        return trials_needed(study, study.cells[0], np.array(measured))

    assert needed() == 64
    assert needed(*[0.0] * 64) == 128
    assert needed(*[3.0, 4.0] * 32) == 64
    assert needed(*[0.0, 1.0] * 500) < 400


def test_the_task_of_a_batch_names_seed_cell_and_trials() -> None:
    study = study_of()
    assert (
        task_name(study, study.cells[1], Batch(CELL, 10, 15))
        == "s seed 1 cell 1 (min_insync_replicas 2) trials 10 to 14"
    )
    single = study_of(sweep=None)
    assert task_name(single, single.cells[0], Batch(CELL, 0, 1)) == "s seed 1 cell 0 trials 0 to 0"


def test_stopping_rule_gets_value_exposure_and_events_of_each_trial() -> None:
    _, trials = run_batch(fake_trial, PARAMETERS, Batch(CELL, 0, 6), 1)
    values = values_of(trials, "offline")
    assert values is not None
    assert values.shape == (6, 8)
    assert not values[:, 3:].any()
    assert values[:, 1] == pytest.approx([PARAMETERS.partition_years] * 6)
    assert (values[:, 0] * 365 * 24 * 60 > 0.9).all()
    assert values[:, 2].tolist() == [1.0] * 6


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
