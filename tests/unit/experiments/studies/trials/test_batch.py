"""A batch runs its trials with rare garbage collections, which no trial ends."""

from __future__ import annotations

import gc

import pytest

from experiments.engines.sim.memory import YOUNG_OBJECTS
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trials.batch import Batch, run_batch
from experiments.studies.trials.trial import run_trial

pytestmark = pytest.mark.unit

CELL = CellParameters(duration_ms=3_600_000, start="fresh")


def test_garbage_collections_stay_rare_from_one_trial_to_the_next() -> None:
    before, found = gc.get_threshold(), []

    def trial(parameters: CellParameters, seed: int) -> TrialResult:
        result = run_trial(parameters, seed)
        found.append(gc.get_threshold()[0])
        return result

    run_batch(trial, CELL, Batch("c", 0, 2), 1)
    assert found == [max(before[0], YOUNG_OBJECTS)] * 2
    assert gc.get_threshold() == before
