"""The trial of a cell by the cell's estimator: what a sweep runs."""

from __future__ import annotations

from dataclasses import replace

from experiments.engines.sim.memory import rare_collections
from experiments.studies.design.estimator import choose
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.kinds import TrialResult
from experiments.studies.trials.importance import RegenerativeTrial, run_importance_trial
from experiments.studies.trials.multifidelity import drawn_trial, run_multifidelity_trial
from experiments.studies.trials.reasons import attributed
from experiments.studies.trials.splitting import Path, losing_path, run_splitting_trial
from experiments.studies.trials.trial import Trial, plain_timeline, run_trial, simulated

TRIALS = {
    "plain": run_trial,
    "importance": run_importance_trial,
    "splitting": run_splitting_trial,
    "multifidelity": run_multifidelity_trial,
}


def run_cell_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial with the estimator that `choose` gives, and attributes its losses and outages; a pure function of
    its arguments."""
    found = TRIALS[choose(params).estimator](params, seed)
    return found if choose(params).estimator == "splitting" else replace(found, rows=attributed(params, found))


def trial_to_replay(params: CellParameters, seed: int) -> Trial:
    """The simulated trial of a cell, not yet run. In splitting it is the first path that counts a loss, which takes as
    long as the trial to find, otherwise the plain one."""
    choice = choose(params)
    if choice.in_cycles:
        return RegenerativeTrial(params, seed)
    if choice.estimator == "splitting":
        with rare_collections():
            return losing_path(params, seed) or Path(params, seed, (), None)
    drawn = drawn_trial(params, seed).seed if choice.estimator == "multifidelity" else seed
    return simulated(params, drawn, plain_timeline(params, drawn))
