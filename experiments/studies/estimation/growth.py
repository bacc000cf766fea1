"""How far one cause of failure may grow before a target is no longer shown to be met, by the same trials.

If the events of a cause come s times as often, a harm counts with the likelihood ratio of what led to it. A cluster
that is whole forgets what was before (`trials/importance.py`), so that is what came since the cluster was last whole: a
*cycle*. With n events of the cause since the cycle began, of which e were expected at the present rate, the ratio of
two Poisson processes is

    w(s) = s^n exp(-(s - 1) e).

The events that begin cycles come s times as often, which the first of the n factors says. So r(s) = sum of w(s) over
harms / exposure, with the limits of `intervals.py`, whose variance over trials is that of the weighted values.

*Harms that were not seen.* The next harm may be of any cycle, one that did no harm too: it counts with the largest w(s)
of any cycle, in the limits and in the bound where nothing was seen. So after harmless events the bound grows as s does:
-ln(alpha) s / T. In importance sampling, where a cycle with the likelihood ratio v may count more than any harm seen,
it is v (w(s) - 1) that it adds to the limit at s = 1. Trials that are drawn by their controls have one weight each, at
most that of the harms seen if the control sees harm (`trials/multifidelity.py`), and the limit at s = 1 takes no unseen
harm for heavier: so the next one has the largest weight of those seen, with the largest w(s) of any cycle. And a cycle
may have more events of the cause than any that was seen. With rate l, mean absence d and n events at most in the cycles
seen, cycles with n + 1 come at the rate l s (l s d)^n (each further one before the end of an absence); all of them
beyond those of s = 1 count as harmful. With n = 0, all events of the cause do. A pause of seconds has a short d, but
may come while others keep replicas absent for D: these begin L cycles a year, in which n + 1 events come at the rate L
(l s D)^(n + 1), which is added.

*Controls.* They see the failures of their trials, so w(s) applies to the corrected values x' of `controlled.py` as to
x. With b the mean w(s) of the harms, b x' has the variance b^2 Var(x'), and b one of its own, by the harms after few
and after many events that were seen. The variance is the sum of both; without controls that is the one of x w(s).

*Validity.* The answer goes as far as the harms are worth 10 of equal weight, or half of what they are worth at s = 1;
as the cluster is whole for most of the time, s l d <= 1/2; and to `MOST`. Beyond, nothing is said. Causes without a
constant rate (Weibull times, recorded failures, rolling restarts) do not grow. What was under way when a trial began
counts as it is, and shared events that find all their brokers down are not seen, which both are rare where s l d is
small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.studies.estimation.intervals import fraction_limits, rate_limits, zero_bound
from experiments.studies.estimation.moments import (
    LEAST_EFFECTIVE_SAMPLE_SIZE,
    Sums,
    degeneracy,
    effective_years,
)
from experiments.studies.estimation.targets import Growth, Measured, TargetAnswer
from experiments.studies.trace.metrics import FRACTION

MOST = 100.0
MOST_ABSENT = 0.5
_STEP = 1.02
_BISECTIONS = 20
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failure: events a year in the whole cluster, and how long one keeps a replica out of sync, in years.
    `others_per_year`, `others_years`: the events of causes that do so for longer, and for how long at most."""

    name: str
    events_per_year: float
    absence_years: float
    others_per_year: float = 0.0
    others_years: float = 0.0

    def unseen(self, events: int) -> float:
        """Cycles a year with one event more."""
        rate = self.events_per_year
        within = self.others_per_year * (rate * self.others_years) ** (events + 1)
        return rate * (rate * self.absence_years) ** events + within


class Cycle(NamedTuple):
    """Of the cycles with one number of events: how many were expected at least, and in importance sampling the largest
    likelihood ratio. None of it otherwise, where the weight of a cycle is that of its trial."""

    expected: float
    weight: float | None


@dataclass(frozen=True, slots=True)
class Harms:
    """The harms of a cell by trial and number of events of one cause since the cycle began; arrays of one length.
    `trial`: whole numbers from 0 on, one for each trial that has harms; `expected`: the mean number of events expected
    at the present rate; `value`, `weight`, `weight_squares`: sums. `cycles`: of all cycles of the cell, harmful or not,
    by number of events."""

    trial: NDArray[np.int64]
    events: Array
    expected: Array
    value: Array
    weight: Array
    weight_squares: Array
    cycles: Mapping[int, Cycle]

    @classmethod
    def none(cls) -> Harms:
        """Of a cause of which nothing was seen."""
        no = np.zeros(0)
        return cls(np.zeros(0, np.int64), no, no, no, no, no, {})

    def ratios(self, factor: float) -> Array:
        """w(s) of each."""
        found: Array = factor**self.events * np.exp(-(factor - 1.0) * self.expected)
        return found

    def largest(self, factor: float, present: float) -> float:
        """What the next harm counts at most, if it is `present` at the present rate."""
        seen = present * max(1.0, float(self.ratios(factor).max(initial=0.0)))
        unseen = 0.0
        for events, (expected, weight) in self.cycles.items():
            ratio = factor**events * math.exp(-(factor - 1.0) * expected)
            counts = present * ratio if weight is None else weight * (ratio - 1.0) + min(weight, present)
            unseen = max(unseen, counts)
        return max(seen, unseen)

    def effective_sample_size(self, factor: float) -> float:
        """Kish's, of the harms' weights."""
        ratios = self.ratios(factor)
        squares = float(self.weight_squares @ ratios**2)
        return float(self.weight @ ratios) ** 2 / squares if squares > 0.0 else math.inf

    def grown(self, sums: Sums, factor: float) -> Sums:
        """The sums of the cell, as those of trials with the weights w(s)."""
        ratios = self.ratios(factor)
        before, after = (np.bincount(self.trial, self.value * each) for each in (np.ones_like(ratios), ratios))
        by_value = float(after.sum() / before.sum())
        by_weight = float(self.weight @ ratios / self.weight.sum())
        by_square = float(self.weight_squares @ ratios**2 / self.weight_squares.sum())
        added = max(0.0, float(after @ after - by_value**2 * (before @ before)))
        return replace(
            sums,
            value=sums.value * by_value,
            value_squares=by_value**2 * sums.value_squares + (sums.value / float(before.sum())) ** 2 * added,
            value_exposure=sums.value_exposure * by_value,
            weight=sums.weight * by_weight,
            weight_squares=sums.weight_squares * by_square,
            largest_weight=self.largest(factor, sums.largest_weight),
            size_squares=sums.size_squares * by_square,
            largest_size=self.largest(factor, sums.largest_size) if sums.largest_size else 0.0,
        )


def upper_limit(
    asked: Measured, sums: Sums, size: float, harms: Harms, cause: Cause, factor: float, alpha: float
) -> float:
    """The upper limit, one-sided at 1 - `alpha`, of what a target is about if the cause comes `factor` times as often.
    `size`: the assumed size of a harm."""
    if len(harms.value):
        limits_of = fraction_limits if asked.metric.estimator is FRACTION else rate_limits
        _, high = limits_of(harms.grown(sums, factor), size, 2.0 * alpha)
    else:
        high = zero_bound(effective_years(sums), alpha) * size * harms.largest(factor, 1.0)
    most = max(harms.cycles, default=0)
    return asked.factor * (high + (factor ** (most + 1) - 1.0) * cause.unseen(most) * size)


def growth(asked: Measured, sums: Sums, size: float, harms: Harms, cause: Cause, alpha: float) -> Growth | None:
    """How many times as often the cause may come; None where the weights of the trials degenerate."""
    if degeneracy(sums) is not None or bool(sums.value) != bool(len(harms.value)):
        return None
    absent = cause.events_per_year * cause.absence_years
    most = min(MOST, MOST_ABSENT / absent) if absent > 0.0 else MOST
    least = min(LEAST_EFFECTIVE_SAMPLE_SIZE, harms.effective_sample_size(1.0) / 2.0)

    def fails(factor: float) -> bool:
        return upper_limit(asked, sums, size, harms, cause, factor, alpha) > asked.limit

    reached = 1.0
    while reached < most:
        following = min(most, reached * _STEP)
        if harms.effective_sample_size(following) < least:
            break
        if fails(following):
            low, high = reached, following
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2.0
                low, high = (low, middle) if fails(middle) else (middle, high)
            return Growth(cause.name, rounded_down(low), is_limit=True)
        reached = following
    return Growth(cause.name, rounded_down(reached), is_limit=False)


def rounded_down(factor: float) -> float:
    """Two significant digits, never more than the factor; from 1 on."""
    digits = 10.0 ** (1 - math.floor(math.log10(factor)))
    return max(1.0, math.floor(factor * digits * (1.0 + 1e-12)) / digits)


@dataclass(frozen=True, slots=True)
class Reweighting:
    """What says how far the failures of one cell may grow: its causes by name, and for each target by name the harms by
    cause; a cause without any is one of which nothing was seen."""

    causes: Mapping[str, Cause]
    harms: Mapping[str, Mapping[str, Harms]]

    def applied(self, found: TargetAnswer, asked: Measured, sums: Sums, size: float) -> TargetAnswer:
        """The answer with the growth that each cause allows, the tightest first, if the target is met."""
        if found.verdict != "met":
            return found
        alpha, of = 1.0 - found.level, self.harms[asked.name]
        each = (growth(asked, sums, size, of.get(name, Harms.none()), self.causes[name], alpha) for name in self.causes)
        grown = [item for item in each if item is not None]
        return replace(found, growth=tuple(sorted(grown, key=lambda item: (not item.is_limit, item.factor))))
