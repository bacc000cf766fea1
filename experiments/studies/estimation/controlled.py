"""The control variate: from the sums of trials and controls to coefficients, and to sums with a smaller variance.

Each trial i has, besides its value x and exposure w, those of its *control* (`trials/control.py`), c and v, which sees
the same failures, and the means C and V over R further controls with failures of their own. All controls have one
distribution, so that d = c - C and g = v - V have mean 0, and

    x' = x - beta (d - s g)

has the mean of x for any fixed beta and s, however little the control has to do with the trial. Everything that follows
from x (rates, shares of time, intervals, pairs of cells) follows from x' as well, and the variance of x' over trials
has both parts: what control and trial do not share, and that of the R controls. With e = x - r w the residual of the
ratio r = sum(x) / sum(w), and s = sum(C) / sum(V) the rate of the controls, the variance is least for

    beta = Cov(e, d - s g) / Var(d - s g).

`trials/multifidelity.py` decides on R. Source: Peherstorfer, Willcox and Gunzburger, SIAM Journal on Scientific
Computing 38, 2016.

*Honest intervals.* beta and s would be biased towards the trials that they come from. So trials are in `FOLDS` folds by
their numbers, and those of a fold have the coefficients of all others (cross-fitting: Avramidis and Wilson, Operations
Research 41, 1993, on splitting of samples). A metric with fewer than `LEAST_EVENTS` events outside of a fold has
beta = 0 there: that is the estimate without controls.

Where all trials agree with their controls the variance over trials is that of the controls only. But a disagreement may
be rare and have been missed. With n events and none in disagreement, a share of up to -ln(alpha / 2) / n of them may
disagree (the rule of three at two-sided 95 %: 3.7 / n). So the variance of a rate is never taken for less than

    sum((x - c)^2) + 3.7 q,

q the mean squared size of an event, nor its interval for narrower than these, unless that of the events without control
is smaller. That of a share of time rests on as many episodes as were seen, times the gain (`moments.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from experiments.studies.estimation.moments import ALPHA, Numbers, Sums

FOLDS = 5
LEAST_EVENTS = 10
_NO_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class ControlSums:
    """Sums over trials with controls, of one metric. `runs`: of R; `control_mean`, `exposure_mean`: of C and V; the
    other names are products of x (`value`), w (`exposure`), d (`difference`) and g (`gap`); `apart`: of (x - c)^2."""

    trials: float
    runs: float
    events: float
    value: float
    exposure: float
    control_mean: float
    exposure_mean: float
    value_value: float
    value_exposure: float
    exposure_exposure: float
    value_difference: float
    value_gap: float
    exposure_difference: float
    exposure_gap: float
    difference_difference: float
    difference_gap: float
    gap_gap: float
    apart: float

    def plus(self, other: ControlSums) -> ControlSums:
        """The sums over the trials of both."""
        return ControlSums(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def rate(self) -> float:
        """s, the rate of the controls."""
        return self.control_mean / self.exposure_mean if self.exposure_mean > 0.0 else 0.0

    @property
    def covariance(self) -> float:
        """The sum of e (d - s g)."""
        ratio, s = self.value / self.exposure if self.exposure > 0.0 else 0.0, self.rate
        of_value = self.value_difference - s * self.value_gap
        return of_value - ratio * (self.exposure_difference - s * self.exposure_gap)

    @property
    def spread(self) -> float:
        """The sum of (d - s g)^2."""
        s = self.rate
        return self.difference_difference - 2.0 * s * self.difference_gap + s * s * self.gap_gap

    @property
    def residual(self) -> float:
        """The sum of e^2, without control."""
        ratio = self.value / self.exposure if self.exposure > 0.0 else 0.0
        return self.value_value - 2.0 * ratio * self.value_exposure + ratio * ratio * self.exposure_exposure

    @property
    def correlation(self) -> float | None:
        """rho of a trial and its control; None where one of them does not vary."""
        controls = self.runs / self.trials if self.trials else 0.0
        spread, residual = self.spread * controls / (1.0 + controls), self.residual
        if spread <= 0.0 or residual <= _NO_VARIANCE * self.value_value:
            return None
        return max(-1.0, min(1.0, self.covariance / math.sqrt(spread * residual)))


NO_SUMS = ControlSums(*(0.0,) * 18)


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
    return [_coefficient(total_of([*folds[:index], *folds[index + 1 :]])) for index in range(len(folds))]


def _coefficient(sums: ControlSums) -> Coefficient:
    spread = sums.spread
    if sums.events < LEAST_EVENTS or spread <= _NO_VARIANCE * sums.difference_difference or spread <= 0.0:
        return NO_CONTROL
    return Coefficient(sums.covariance / spread, sums.rate)


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


def folded(values: Numbers, exposures: Numbers, events: Numbers, controls: Controls) -> list[ControlSums]:
    """The sums of each fold."""
    x, w, d = np.asarray(values, float), np.asarray(exposures, float), np.subtract(controls.values, controls.means)
    g, away = np.subtract(controls.exposures, controls.exposure_means), np.subtract(values, controls.values)
    fold = np.arange(len(x)) % FOLDS
    firsts = (np.ones(len(x)), controls.runs, events, x, w, controls.means, controls.exposure_means)
    products = (x * x, x * w, w * w, x * d, x * g, w * d, w * g, d * d, d * g, g * g, away * away)
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
    gain = plain.variance / sums.variance if sums.variance > 0.0 else float(sums.events)
    return replace(
        sums,
        size_squares=min(sums.size_squares, unseen),
        largest_size=min(sums.largest_size, math.sqrt(size)),
        gain=max(1.0, min(gain, float(sums.events))),
    )
