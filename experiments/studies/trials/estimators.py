"""The trial of a cell by the cell's estimator: what a sweep runs."""

from __future__ import annotations

from experiments.studies.design.estimator import choose
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.schema import TrialResult
from experiments.studies.trials.importance import run_importance_trial
from experiments.studies.trials.splitting import run_splitting_trial
from experiments.studies.trials.trial import run_trial

TRIALS = {"plain": run_trial, "importance": run_importance_trial, "splitting": run_splitting_trial}


def run_cell_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial with the estimator that `choose` gives; a pure function of its arguments."""
    return TRIALS[choose(params).estimator](params, seed)
