"""A trial with its controls: the control variate of the same failures, and R controls whose mean is subtracted.

`estimation/controlled.py` has the estimator. The seeds of the further controls follow from the trial's, so a trial and
its controls are one pure function of parameters and seed, pairs of cells have pairs of controls, and a batch that is
run again is the same.

*The split of effort* (Peherstorfer, Willcox and Gunzburger, SIAM Journal on Scientific Computing 38, 2016). With the
correlation rho of trial and control, and a trial as costly as k controls, cost times variance is least at

    R = sqrt(k rho^2 / (1 - rho^2)),       Var with controls / Var without = 1 - rho^2 R / (1 + R).

A pilot says what rho and k are: `PILOT` trials of seeds that no study has, with their controls; k in events of the
simulator and steps of the control, never in measured time. So R is a function of the parameters alone.
The pilot estimates nothing else: a bad guess costs time, not correctness. Where controls gain little R is 0, and the
trial has none: it is then the trial of the estimator without controls, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from experiments.studies.design.estimator import choose
from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.controlled import LEAST_EVENTS, Controls, ControlSums, folded, total_of
from experiments.studies.trace.kinds import CONTROLLED, ControlResult, TrialResult
from experiments.studies.trace.metrics import Measures, measure
from experiments.studies.trials.batch import hashed_seed
from experiments.studies.trials.control import ControlMeasures, control_model
from experiments.studies.trials.importance import run_importance_trial
from experiments.studies.trials.trial import run_trial

PILOT = 8
STEP_EVENTS, CYCLE_STEP_EVENTS = 0.35, 0.8
"""What a step of a control costs, plain and in cycles, whose biased failures cost more to draw; in events of the
simulator (docs/rare-events.md has the measurement)."""
HIGHEST_CORRELATION = 0.995
"""That a pilot shows: so few trials do not see the rare ones that differ from their controls."""
MOST_CONTROLS = 200
MOST_WORK = 0.5
"""Controls that do not halve the work are not worth the pilot, which takes as long as `PILOT` trials."""


def run_multifidelity_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial and its controls; a pure function of its arguments."""
    in_cycles, runs = choose(params).in_cycles, further_controls(params)
    found = _run(params, seed, in_cycles)
    if not runs:
        return found
    model = control_model(params)
    own = model.run(seed, in_cycles)
    others = [model.run(control_seed(seed, number), in_cycles) for number in range(runs)]
    means = tuple(sum(values) / runs for values in zip(*(each.values for each in others), strict=True))
    exposure_mean = sum(each.exposure for each in others) / runs
    return replace(found, controls=ControlResult(runs, own.exposure, exposure_mean, own.values, means))


def _run(params: CellParameters, seed: int, in_cycles: bool) -> TrialResult:
    return run_importance_trial(params, seed) if in_cycles else run_trial(params, seed)


def control_seed(seed: int, number: int) -> int:
    """The seed of a trial's further control: 63 bits of BLAKE2b over the trial's seed and the control's number."""
    return hashed_seed(f"{seed}\ncontrol {number}")


@lru_cache(maxsize=64)
def further_controls(params: CellParameters) -> int:
    """R: the controls per trial besides its own, by the correlation of the losses or, where the pilot has none, by the
    highest one of another metric. Where `auto` has chosen, the correlation of losses has to rest on as many as an
    estimate with controls needs; of fewer, one may be 1 by chance."""
    in_cycles, model = choose(params).in_cycles, control_model(params)
    seeds = [control_seed(-1, number) for number in range(PILOT)]
    trials = [_run(params, seed, in_cycles) for seed in seeds]
    controls = [model.run(seed, in_cycles) for seed in seeds]
    steps = sum(each.steps for each in controls)
    step_events = CYCLE_STEP_EVENTS if in_cycles else STEP_EVENTS
    cost_ratio = sum(each.events for each in trials) / (step_events * max(1, steps))
    sums = _sums([measure(each.rows) for each in trials], controls)
    if params.estimator == "auto" and sums["losses"].events < LEAST_EVENTS:
        return 0
    found = {name: each.correlation or 0.0 for name, each in sums.items()}
    best = found["losses"] if sums["losses"].value > 0.0 else max(found.values(), key=abs)
    return controls_per_trial(best, cost_ratio)


def _sums(trials: Sequence[Measures], controls: Sequence[ControlMeasures]) -> dict[str, ControlSums]:
    """The sums of trials and their own controls, by `CONTROLLED`."""
    none = np.zeros(len(trials))
    exposures, lengths = [each.exposure for each in trials], [each.exposure for each in controls]
    found = {}
    for index, name in enumerate(CONTROLLED):
        own = Controls(none, lengths, none, [each.values[index] for each in controls], none)
        values, events = [each.values[name] for each in trials], [each.events[name] for each in trials]
        found[name] = total_of(folded(values, exposures, events, own))
    return found


def controls_per_trial(correlation: float, cost_ratio: float) -> int:
    """R for the least product of cost and variance; 0 where that is more than `MOST_WORK` of the product without
    controls. `cost_ratio`: k."""
    squared = min(abs(correlation), HIGHEST_CORRELATION) ** 2
    wanted = min(MOST_CONTROLS, round(math.sqrt(cost_ratio * squared / (1.0 - squared))))
    work = (1.0 - squared * wanted / (1.0 + wanted)) * (1.0 + (1.0 + wanted) / cost_ratio)
    return wanted if work <= MOST_WORK else 0
