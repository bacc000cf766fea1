"""The control variate: from the sums of trials and controls to coefficients, and to sums with a smaller variance.

Each trial i has, besides its value x and exposure w, those of its *control* (`trials/control.py`), c and v, which sees
the same failures, and the means C and V over R further controls with failures of their own. All controls have one
distribution, so that d = c - C and g = v - V have mean 0, and

    x' = x - beta (d - s g)

has the mean of x for any fixed beta and s, however little the control has to do with the trial. Everything that follows
from x (rates, shares of time, intervals, pairs of cells) follows from x' as well, and the variance of x' over trials
has both parts: what control and trial do not share, and that of the R controls. With e = x - r w the residual of the
ratio r = sum(x) / sum(w), f = c - v sum(c) / sum(v) that of the control, rho their correlation and s = sum(C) / sum(V)
the rate of the other controls, the variance is least for

    beta = Cov(e, f) / Var(f) R / (1 + R),       Var(x) / Var(x') = 1 / (1 - rho^2 R / (1 + R)),

since C and V are means of R independent controls: Cov(e, d - s g) = Cov(e, f), Var(d - s g) = Var(f) (1 + 1 / R). So
beta, rho and the gain come from trials and their own controls alone. The covariance with d has the same mean, but the
noise of C as well: in a study of 8 trials that all agree with their controls, it may give rho = 0.7.

`trials/multifidelity.py` decides on R. Source: Peherstorfer, Willcox and Gunzburger, SIAM Journal on Scientific
Computing 38, 2016.

*Honest intervals.* beta and s would be biased towards the trials that they come from. So trials are in `FOLDS` folds by
their numbers, and those of a fold have the coefficients of all others (cross-fitting: Avramidis and Wilson, Operations
Research 41, 1993, on splitting of samples). A metric with fewer than `LEAST_EVENTS` events, or `LEAST_ELSEWHERE`
outside of a fold, has beta = 0 there: that is the estimate without controls.

Where all trials agree with their controls the variance over trials is that of the controls only. But a disagreement may
be rare and have been missed. With n events and none in disagreement, a share of up to -ln(alpha / 2) / n of them may
disagree (the rule of three at two-sided 95 %: 3.7 / n). So the variance of a rate is never taken for less than

    sum((x - c)^2) + 3.7 q,

q the mean squared size of an event, nor its interval for narrower than these, unless that of the events without control
is smaller. That of a share of time rests on as many episodes and years as were seen, times the gain, which is
never taken for more than the number of events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from experiments.studies.estimation.moments import ALPHA, Numbers, Sums, is_weighted

FOLDS = 5
LEAST_EVENTS, LEAST_ELSEWHERE = 10, 5
_NO_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class ControlSums:
    """Sums over trials with controls, of one metric. `runs`: of R; `control_mean`, `exposure_mean`: of C and V; the
    other names are x (`value`), w (`exposure`), c (`control`), v (`length`) and their products; `apart`: of
    (x - c)^2."""

    trials: float
    runs: float
    events: float
    value: float
    exposure: float
    control: float
    length: float
    control_mean: float
    exposure_mean: float
    value_value: float
    value_exposure: float
    exposure_exposure: float
    value_control: float
    value_length: float
    exposure_control: float
    exposure_length: float
    control_control: float
    control_length: float
    length_length: float
    apart: float

    def plus(self, other: ControlSums) -> ControlSums:
        """The sums over the trials of both."""
        return ControlSums(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def rate(self) -> float:
        """s, the rate of the controls."""
        return _ratio(self.control_mean, self.exposure_mean)

    @property
    def covariance(self) -> float:
        """The sum of e f."""
        ratio, own = _ratio(self.value, self.exposure), _ratio(self.control, self.length)
        return (
            self.value_control - own * self.value_length - ratio * (self.exposure_control - own * self.exposure_length)
        )

    @property
    def spread(self) -> float:
        """The sum of f^2."""
        own = _ratio(self.control, self.length)
        return self.control_control - 2.0 * own * self.control_length + own * own * self.length_length

    @property
    def residual(self) -> float:
        """The sum of e^2, without control."""
        ratio = _ratio(self.value, self.exposure)
        return self.value_value - 2.0 * ratio * self.value_exposure + ratio * ratio * self.exposure_exposure

    @property
    def correlation(self) -> float | None:
        """rho of a trial and its control; None where one of them does not vary."""
        spread, residual = self.spread, self.residual
        if spread <= _NO_VARIANCE * self.control_control or residual <= _NO_VARIANCE * self.value_value:
            return None
        return max(-1.0, min(1.0, self.covariance / math.sqrt(spread * residual)))

    @property
    def share(self) -> float:
        """R / (1 + R), the share of the controls' variance that is not that of C; 0 without trials."""
        return _ratio(self.runs, self.runs + self.trials)

    @property
    def gain(self) -> float:
        """Var(x) / Var(x'); 1 where there is no correlation."""
        return 1.0 / (1.0 - (self.correlation or 0.0) ** 2 * self.share)


def _ratio(of: float, to: float) -> float:
    return of / to if to > 0.0 else 0.0


NO_SUMS = ControlSums(*(0.0,) * 20)


@dataclass(frozen=True, slots=True)
class Coefficient:
    """beta and s of the trials of a fold."""

    beta: float
    rate: float


NO_CONTROL = Coefficient(0.0, 0.0)


def total_of(folds: Sequence[ControlSums]) -> ControlSums:
    """The sums over all folds."""
    found = NO_SUMS
    for fold in folds:
        found = found.plus(fold)
    return found


def coefficients(folds: Sequence[ControlSums]) -> list[Coefficient]:
    """Those of each fold, by the trials of all others."""
    if total_of(folds).events < LEAST_EVENTS:
        return [NO_CONTROL] * len(folds)
    return [_coefficient(total_of([*folds[:index], *folds[index + 1 :]])) for index in range(len(folds))]


def _coefficient(sums: ControlSums) -> Coefficient:
    if sums.events < LEAST_ELSEWHERE or sums.correlation is None:
        return NO_CONTROL
    return Coefficient(sums.covariance / sums.spread * sums.share, sums.rate)


@dataclass(frozen=True, slots=True)
class Controls:
    """The columns of controls of trials 0, 1, ...: R, v, V, and of one metric c and C. All 0 for trials without."""

    runs: Numbers
    exposures: Numbers
    exposure_means: Numbers
    values: Numbers
    means: Numbers

    def first(self, trials: int) -> Controls:
        """Those of so many trials."""
        return Controls(*(getattr(self, each.name)[:trials] for each in fields(self)))


def drawing_gain(sums: Sums) -> float | None:
    """By what factor drawing reduces the variance of the number of events, where as many plain trials have the variance
    sum(w) of rare ones and drawn ones have sum(w^2), w the weights of the events; None if none is weighted."""
    return sums.weight / sums.weight_squares if sums.events and is_weighted(sums) else None


def folded(values: Numbers, exposures: Numbers, events: Numbers, controls: Controls) -> list[ControlSums]:
    """The sums of each fold."""
    x, w = np.asarray(values, float), np.asarray(exposures, float)
    c, v = np.asarray(controls.values, float), np.asarray(controls.exposures, float)
    fold = np.arange(len(x)) % FOLDS
    firsts = (np.ones(len(x)), controls.runs, events, x, w, c, v, controls.means, controls.exposure_means)
    products = (x * x, x * w, w * w, x * c, x * v, w * c, w * v, c * c, c * v, v * v, (x - c) ** 2)
    sums = [np.bincount(fold, np.asarray(each, float), FOLDS) for each in (*firsts, *products)]
    return [ControlSums(*(float(each[index]) for each in sums)) for index in range(FOLDS)]


def controlled_values(values: Numbers, controls: Controls, found: Sequence[Coefficient]) -> Numbers:
    """x' of trials 0, 1, ..."""
    fold = np.arange(len(values)) % FOLDS
    beta, s = (np.array(each)[fold] for each in zip(*((each.beta, each.rate) for each in found), strict=True))
    d, g = np.subtract(controls.values, controls.means), np.subtract(controls.exposures, controls.exposure_means)
    corrected: Numbers = np.asarray(values, float) - beta * (d - s * g)
    return corrected


def controlled(sums: Sums, without: ControlSums) -> Sums:
    """The sums of x', which `sums` has with the events of the trials, with the limits that the events of `without` set.
    Without a gain, or with a total that is not positive, those of x."""
    plain = replace(sums, value=without.value, value_squares=without.value_value, value_exposure=without.value_exposure)
    if sums.events < LEAST_EVENTS or sums.value <= 0.0 or sums.variance >= plain.variance:
        return plain
    size = sums.size_squares / sums.events
    unseen = without.apart - math.log(ALPHA / 2.0) * size
    measured = plain.variance / sums.variance if sums.variance > 0.0 else math.inf
    return replace(
        sums,
        size_squares=min(sums.size_squares, unseen),
        largest_size=min(sums.largest_size, math.sqrt(size)),
        gain=min(without.gain, measured, float(sums.events)),
    )
