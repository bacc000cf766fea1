"""A trial with its controls: the control variate of the same failures, and R controls whose mean is subtracted.

`estimation/controlled.py` has the estimator. The seeds of the further controls follow from the trial's, so a trial and
its controls are one pure function of parameters and seed, pairs of cells have pairs of controls, and a batch that is
run again is the same.

*The split of effort* (Peherstorfer, Willcox and Gunzburger, SIAM Journal on Scientific Computing 38, 2016). With the
correlation rho of trial and control, and a trial as costly as k controls, cost times variance is least at

    R = sqrt(k rho^2 / (1 - rho^2)),       Var with controls / Var without = 1 - rho^2 R / (1 + R).

R is rounded to a power of two, which costs little as the minimum is flat: cells whose pilots differ a little have the
same controls, so that trials that see the same events have the same corrected values, and pairs of cells lose nothing.

A pilot says what rho and k are: `PILOT` trials of seeds that no study has, with their controls; k in events of the
simulator and steps of the control, never in measured time. So R is a function of the parameters alone, and independent
of the trials of every study.

*No bias.* For each R, 0 too, the mean of the estimate is that of the trials (`estimation/controlled.py`). Given the
pilot R is a constant, so the same holds for the R that the pilot finds, whatever rule finds it: a bad guess costs time.
That would be otherwise if R followed from the trials that are corrected: trials whose controls happened to agree would
count more. Where controls gain little R is 0, and the trial is that of the estimator without controls, row by row.

*Which of the R + 1 failures the trial has.* In cycles its own. Otherwise they are drawn by what the controls have seen,
so that few trials see what is rare: of the M = R + 1 controls, j is drawn with

    q_j = (1 / M) (1 + sum over k of s_k M y_jk / (y_1k + ... + y_Mk)) / (1 + sum over k of s_k),

where y_jk is what control j has seen of k: incidents (chains of losses, s = 2), and time without writes (s = 1), each
if at most half of the M controls have seen any, but not none. The trial has the weight 1 / (M q_j), at most 4. For
any value x of a trial the expectation of x / (M q_j) over j is the mean of the M trials, so the estimate stays without
bias whatever the controls see; where they see the wrong things it has a larger variance. With c and v that of j times
the weight, and C = ((R + 1) mean - c) / R, the distance c - C has mean 0 given the M controls, as it has without
weights, where C is the mean of the R others. All cells draw by one uniform number, and so the same failures where their
controls see the same.

*Whether drawing pays.* With y the value of a control, of mean m, weights widen what the controls do not see by the mean
weight W, and narrow what they see to

    D = sum of w (y - m)^2 / sum of (y - m)^2

of its variance. With the correlation rho of weighted trials and controls, the part rho^2 of the variance of drawn
trials is what controls see, and the controls correct that: a study of drawn trials has the events for it. So

    Var drawn / Var plain = (1 - rho^2 R / (1 + R)) D W / (rho^2 W + (1 - rho^2) D),

which is D / (1 + R) where trials and controls agree, and W where they have nothing to do with each other. Times the
cost, 1 + (1 + R) / k, it has to be `MOST_WORK` at most for a number to be drawn by. D and W follow from the controls of
the pilot alone; for rho the pilot's trials are drawn as well, by the controls of their length, of which there are as
many as make up `RARE_PILOT` trials. Numbers that more than half of the trials see, and losses that the pilot of a
cell has corrected by controls, gain nothing by it: these are estimated as above, where weights would only widen.

What is rare is seen in 1 of 1 / p controls, so R is about 8 / p, p by `RARE_PILOT` controls, if that is more than the
above and not too costly.

A trial measures several numbers. R follows from the losses if the pilot has `LEAST_EVENTS` of them and that pays,
otherwise from the number with the highest correlation of those with so many events: the time without writes, where
losses are rare. With fewer events a correlation may be 1 by chance; n events in agreement show rho^2 = n / (n + 1).
Trials of a pilot are as long as `LEAST_FAILURES` failures take, if those of the cell are longer: their correlation is
that of long ones, which are sums of such parts, and a pilot costs `PILOT` times `LEAST_FAILURES` failures at most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from experiments.studies.design.estimator import LEAST_FAILURES, choose, failures_per_trial
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
MOST_CONTROLS = 256
MOST_COST = 1.0 / 3.0
"""What controls may cost, in trials, where losses do not decide on R: with k = 50 they still reduce a variance by up to
15, not by 50, and losses, of which few are seen and which get nothing of it, take a third longer, not twice as long."""
RARE_PILOT, SEEN, LEAST_DRAWN, MOST_DRAWN_COST = 256, 8.0, 8, 0.25
"""Controls that say how rare losses and times without writes are; how many of those from which a trial is drawn are to
see what is rarest; their least number and, in trials, their largest cost for its sake by steps (by the clock up to
twice as much)."""
_LOSSES, _ANY_LOSSES = "losses", ("losses", "acknowledged_losses")
_DRAWN_BY = {"incidents": 2.0, "unwritable": 1.0}
"""What a trial is drawn by, and the part of the probability that it has; all alike have 1."""
_SHOWN_BY = {"incidents": "losses", "unwritable": "unwritable"}
"""The number of a trial that shows whether it and its control agree on what it is drawn by."""
MOST_WORK = 0.5
"""Controls that do not halve the work are not worth the pilot, which takes as long as `PILOT` trials."""


class Drawn(NamedTuple):
    """A trial to be run: its seed, and its weight; None of `controls` where it has none."""

    seed: int
    weight: float = 1.0
    controls: ControlResult | None = None


class Effort(NamedTuple):
    """What a pilot has decided. `controls`: R. `drawn_by`: the numbers by which trials are drawn from the R + 1."""

    controls: int = 0
    drawn_by: tuple[str, ...] = ()


def run_multifidelity_trial(params: CellParameters, seed: int) -> TrialResult:
    """Runs one trial with its controls; a pure function of its arguments."""
    drawn = drawn_trial(params, seed)
    found = _run(params, drawn.seed, choose(params).in_cycles)
    if drawn.weight != 1.0:
        log_weight = math.log(drawn.weight)
        found = replace(found, rows=[row._replace(log_weight=log_weight) for row in found.rows])
    return replace(found, controls=drawn.controls)


def drawn_trial(params: CellParameters, seed: int) -> Drawn:
    """Which of the failures of R + 1 controls the trial has: in cycles those of its own seed, otherwise those drawn."""
    in_cycles, (runs, drawn_by) = choose(params).in_cycles, effort(params)
    if not runs:
        return Drawn(seed)
    seeds = [seed, *(control_seed(seed, number) for number in range(runs))]
    model = control_model(params)
    controls = [model.run(each, in_cycles) for each in seeds]
    weights = draw_weights(controls, drawn_by)
    place = _drawn(weights, Random(f"{seed}/drawn").random()) if drawn_by else 0
    own, weight = controls[place], weights[place]

    def others(values: Iterable[float], value: float) -> float:
        return (sum(values) - weight * value) / runs

    values = zip(*(each.values for each in controls), strict=True)
    means = tuple(others(each, value) for each, value in zip(values, own.values, strict=True))
    exposure_mean = others((each.exposure for each in controls), own.exposure)
    weighted = tuple(weight * value for value in own.values)
    return Drawn(seeds[place], weight, ControlResult(runs, weight * own.exposure, exposure_mean, weighted, means))


def draw_weights(controls: Sequence[ControlMeasures], drawn_by: Collection[str] = tuple(_DRAWN_BY)) -> list[float]:
    """The weight that the trial has if it is drawn with the failures of each control by these numbers, 1 / (M q)."""
    shares = [(_DRAWN_BY[name], _values(controls, name)) for name in drawn_by]
    rare = [(share, part) for share, part in shares if 0 < sum(value > 0.0 for value in part) <= len(part) / 2]
    relative = [[share * value * len(part) / sum(part) for value in part] for share, part in rare]
    whole = 1.0 + sum(share for share, _ in rare)
    return [whole / (1.0 + sum(part[place] for part in relative)) for place in range(len(controls))]


def _drawn(weights: Sequence[float], uniform: float) -> int:
    """The place whose part of [0, 1) holds the number; parts are 1 / (M weight) long."""
    left = uniform * len(weights)
    for place, weight in enumerate(weights):
        left -= 1.0 / weight
        if left < 0.0:
            return place
    return len(weights) - 1


def _run(params: CellParameters, seed: int, in_cycles: bool) -> TrialResult:
    return run_importance_trial(params, seed) if in_cycles else run_trial(params, seed)


def control_seed(seed: int, number: int) -> int:
    """The seed of a trial's further control: 63 bits of BLAKE2b over the trial's seed and the control's number."""
    return hashed_seed(f"{seed}\ncontrol {number}")


@lru_cache(maxsize=64)
def effort(params: CellParameters) -> Effort:
    """R, and what trials are drawn by. A study that asks for controls has them by the highest correlation of the pilot
    where no number has `LEAST_EVENTS` events."""
    in_cycles, piloted = choose(params).in_cycles, _shortened(params)
    model, parts = control_model(piloted), max(1, round(params.duration_ms / piloted.duration_ms))
    seeds = [control_seed(-1, number) for number in range(PILOT if in_cycles else parts * RARE_PILOT)]
    seen = [model.run(seed, in_cycles) for seed in seeds]
    weights = [1.0] * len(seen) if in_cycles else draw_weights(seen)
    places = piloted_places(weights)
    trials = [_run(piloted, seeds[place], in_cycles) for place in places]
    controls, own_weights = [seen[place] for place in places], [weights[place] for place in places]
    step_events = CYCLE_STEP_EVENTS if in_cycles else STEP_EVENTS
    cost_ratio = sum(each.events for each in trials) / (step_events * max(1, sum(each.steps for each in controls)))
    measured = [measure(each.rows, params.counts) for each in trials]
    sums, weighted = (_sums(measured, controls, each) for each in ([1.0] * len(places), own_weights))
    whole = [] if in_cycles else joined(seen, parts)
    rare = {name for name in CONTROLLED if 0.0 < _share(whole, name) <= 0.5}
    frequent = {name: each for name, each in sums.items() if each.events >= LEAST_EVENTS and name not in rare}
    known = {name: _shown_correlation(each) for name, each in frequent.items()}
    if params.estimator != "auto" and not known:
        known = {name: _shown_correlation(each) for name, each in sums.items()}
    by_losses = controls_per_trial(known.get(_LOSSES, 0.0), cost_ratio)
    found = by_losses or controls_per_trial(max(known.values(), default=0.0), cost_ratio, MOST_COST)
    if any(controls_per_trial(known.get(name, 0.0), cost_ratio) for name in _ANY_LOSSES):
        return Effort(found)
    drawn = {}
    for name in rare.intersection(_DRAWN_BY):
        runs = controls_to_draw_from(_share(whole, name), cost_ratio)
        work = drawing_work(whole, name, runs, _shown_correlation(weighted[_SHOWN_BY[name]]), cost_ratio)
        if runs and work <= MOST_WORK:
            drawn[name] = runs
    return Effort(max([found, *drawn.values()]), tuple(sorted(drawn)))


def piloted_places(weights: Sequence[float]) -> list[int]:
    """Which controls' failures the trials of a pilot have: the first ones, or, if they are drawn, those at equal
    distances of the probability; one that is drawn twice counts once."""
    if all(weight == 1.0 for weight in weights):
        return list(range(PILOT))
    return sorted({_drawn(weights, (number + 0.5) / PILOT) for number in range(PILOT)})


def joined(controls: Sequence[ControlMeasures], parts: int) -> list[ControlMeasures]:
    """Controls that are as long as so many of these one after the other, which are independent."""
    found = []
    for first in range(0, len(controls) - parts + 1, parts):
        of = controls[first : first + parts]
        values = tuple(map(sum, zip(*(each.values for each in of), strict=True)))
        found.append(ControlMeasures(sum(each.exposure for each in of), values, sum(each.steps for each in of)))
    return found


def _values(controls: Sequence[ControlMeasures], name: str) -> list[float]:
    return [each.values[CONTROLLED.index(name)] for each in controls]


def _share(controls: Sequence[ControlMeasures], name: str) -> float:
    """The share of controls that have seen any of it; 0 without controls."""
    return sum(value > 0.0 for value in _values(controls, name)) / max(1, len(controls))


def controls_to_draw_from(share: float, cost_ratio: float) -> int:
    """R, a power of two, of which some see what the share of the controls does; 0 where that is too costly."""
    most = min(SEEN / share, MOST_DRAWN_COST * cost_ratio, MOST_CONTROLS)
    return 2 ** math.floor(math.log2(most)) if most >= LEAST_DRAWN else 0


def drawing_work(
    controls: Sequence[ControlMeasures], name: str, runs: int, correlation: float, cost_ratio: float
) -> float:
    """The product of cost and variance of trials that are drawn by a number from `runs` + 1 controls, relative to that
    of plain ones. `controls`: of a pilot, which a trial is taken to be drawn from, so many at a time."""
    size = runs + 1
    groups = [controls[first : first + size] for first in range(0, max(1, len(controls) - size + 1), size)]
    weights = np.array([weight for group in groups for weight in draw_weights(group, (name,))])
    values = np.array([value for group in groups for value in _values(group, name)])
    squares = (values - values.mean()) ** 2
    if not squares.any():
        return math.inf
    narrowed, widened, squared = float(weights @ squares / squares.sum()), float(weights.mean()), correlation**2
    variance = narrowed * widened / (squared * widened + (1.0 - squared) * narrowed)
    return (1.0 - squared * runs / size) * variance * (1.0 + size / cost_ratio)


def _shown_correlation(sums: ControlSums) -> float:
    """What the pilot shows of |rho|: after n events in agreement 1 in n + 1 is expected to differ (Laplace's rule)."""
    return min(abs(sums.correlation or 0.0), math.sqrt(sums.events / (sums.events + 1.0)))


def _shortened(params: CellParameters) -> CellParameters:
    """The cell with trials of `LEAST_FAILURES` failures, if its own are longer."""
    share = LEAST_FAILURES / max(LEAST_FAILURES, failures_per_trial(params))
    return params.model_copy(update={"duration_ms": round(params.duration_ms * share)})


def _sums(
    trials: Sequence[Measures], controls: Sequence[ControlMeasures], weights: Sequence[float]
) -> dict[str, ControlSums]:
    """The weighted sums of trials and their own controls, by `CONTROLLED`."""
    none, factors = np.zeros(len(trials)), np.array(weights)
    exposures = factors * [each.exposure for each in trials]
    lengths = factors * [each.exposure for each in controls]
    found = {}
    for index, name in enumerate(CONTROLLED):
        if name not in trials[0].values:
            continue
        own = Controls(none, lengths, none, factors * [each.values[index] for each in controls], none)
        values, events = factors * [each.values[name] for each in trials], [each.events[name] for each in trials]
        found[name] = total_of(folded(values, exposures, events, own))
    return found


def controls_per_trial(correlation: float, cost_ratio: float, most_cost: float = math.inf) -> int:
    """R, a power of two, for about the least product of cost and variance; 0 where that is more than `MOST_WORK` of the
    product without controls. `cost_ratio`: k. `most_cost`: what R controls may cost, in trials."""
    squared = min(abs(correlation), HIGHEST_CORRELATION) ** 2
    best = min(math.sqrt(cost_ratio * squared / (1.0 - squared)), most_cost * cost_ratio)
    wanted = min(MOST_CONTROLS, 2 ** round(math.log2(best))) if best >= 1.0 else 0
    work = (1.0 - squared * wanted / (1.0 + wanted)) * (1.0 + (1.0 + wanted) / cost_ratio)
    return wanted if work <= MOST_WORK else 0
