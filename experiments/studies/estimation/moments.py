"""The sums over a cell's trials that every estimate is made of, and the ratio estimator with its variance.

docs/statistics.md has the theory: value x and exposure w of a trial, the ratio r = sum(x) / sum(w), and, by
linearisation with the residuals e = x - r w,

    Var(r) = n / (n - 1) sum(e^2) / (sum w)^2,    sum(e^2) = sum(x^2) - 2 r sum(x w) + r^2 sum(w^2).

Only sums occur, so that Spark adds them up and Python needs no trial.

*The health of weights.* With importance sampling or splitting a few trials may carry most of the total weight: then the
variance over trials is as unknown as the total, and an interval made of it is too narrow, without a sign of it in the
interval. The signs are in the weights (:func:`degeneracy`). Trials count because events of one trial may be copies of
each other, as the paths of splitting are. The interval of a degenerate estimate is from 0 to an upper bound that does
not rest on the weights of its events. Plain sampling, with all weights 1, is never degenerate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

Numbers = Sequence[float] | NDArray[np.float64]
ALPHA = 1.0 - 0.95
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % confidence interval.

    `one_sided`: nothing was observed, `ci_low` is 0 and `ci_high` the upper bound at one-sided 95 %. `degenerate`: the
    weights are too uneven for an interval (`moments.py`); `ci_low` is 0 and `ci_high` an upper bound that does not rest
    on them. `events`: the events or episodes seen; `effective_sample_size`: as many events of equal weight say as much.
    """

    estimate: float
    ci_low: float
    ci_high: float
    events: int = 0
    effective_sample_size: float = 0.0
    one_sided: bool = False
    degenerate: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether only the upper limit says something: nothing was seen, or the weights degenerate."""
        return self.one_sided or self.degenerate

    @property
    def half_width(self) -> float:
        """Half the length of the interval, in the unit of the estimate."""
        return (self.ci_high - self.ci_low) / 2.0


@dataclass(frozen=True, slots=True)
class Sums:
    """What a cell's trials add up to for one metric.

    `trials`: n. `value`, `value_squares`: sums of x and x^2. `exposure`, `exposure_squares`, `value_exposure`: sums of
    w, w^2 and x w. `years`: the exposure without weights, in partition-years. `events`: the events or episodes seen;
    `weight`, `weight_squares`, `largest_weight`: the sums of their weights and squared weights, and the largest.
    `size_squares`, `largest_size`: of the single events' contributions to x; an event contributes its weight, or its
    weight times the records lost. For a share of time they are 0: an episode's contribution is part of its trial's.
    `gain`: by what factor controls have reduced the variance (`controlled.py`).
    """

    trials: int
    value: float
    value_squares: float
    exposure: float
    exposure_squares: float
    value_exposure: float
    years: float
    events: int
    weight: float
    weight_squares: float
    largest_weight: float
    size_squares: float = 0.0
    largest_size: float = 0.0
    gain: float = 1.0

    @classmethod
    def of(cls, values: Numbers, exposures: Numbers, events: int | None = None) -> Sums:
        """The sums of unweighted trials, with one value and one exposure each, and events of one size. `events`: how
        many events the values count; by default the values' sum, events that count as one each."""
        x, w = np.asarray(values, float), np.asarray(exposures, float)
        value, exposure = float(x.sum()), float(w.sum())
        seen = round(value) if events is None else events
        size = value / seen if seen else 0.0
        return cls(
            trials=len(x),
            value=value,
            value_squares=float(x @ x),
            exposure=exposure,
            exposure_squares=float(w @ w),
            value_exposure=float(x @ w),
            years=exposure,
            events=seen,
            weight=float(seen),
            weight_squares=float(seen),
            largest_weight=float(seen > 0),
            size_squares=size * size * seen,
            largest_size=size,
        )

    def with_mean_weight(self, size: float) -> Sums:
        """The sums of weighted trials whose events' weights are not known one by one: an event is taken to weigh as
        much as those seen do on average. `size`: the assumed size of an event of weight 1."""
        return replace(self, largest_weight=self.value / (self.events * size)) if self.events else self

    @property
    def ratio(self) -> float:
        """The estimate r = sum(x) / sum(w); 0 without exposure."""
        return self.value / self.exposure if self.exposure > 0.0 else 0.0

    @property
    def variance(self) -> float:
        """The variance of the total sum(x) about r sum(w): Var(r) times the squared exposure; 0 with one trial, and
        where sum(e^2) is not distinguished from the rounding of its terms."""
        ratio, cross = self.ratio, 2.0 * self.ratio * self.value_exposure
        found = self.value_squares - cross + ratio * ratio * self.exposure_squares
        is_known = self.trials > 1 and found > _ROUNDING * max(self.value_squares, cross)
        return found * self.trials / (self.trials - 1) if is_known else 0.0

    @property
    def effective_sample_size(self) -> float:
        """Kish's (sum w)^2 / sum w^2 over the weights of the events; 0 without events."""
        return self.weight * self.weight / self.weight_squares if self.weight_squares > 0.0 else 0.0


def widening(trials: int, alpha: float) -> float:
    """(t / z)^2: by how much a variance that is estimated from so many trials has to grow before normal quantiles or
    quantiles of counts are taken of it; 1 with one trial, which has no estimate of a variance."""
    if trials < 2:
        return 1.0
    return float((stdtrit(trials - 1, 1.0 - alpha / 2.0) / ndtri(1.0 - alpha / 2.0)) ** 2)


LEAST_EFFECTIVE_SAMPLE_SIZE = 10.0
LARGEST_SHARE = 0.2
MEAN_WEIGHT = 2.0
_EQUAL = 1e-9


def is_weighted(sums: Sums) -> bool:
    """Whether any weight differs from 1."""
    by_exposure = abs(sums.exposure - sums.years) > _EQUAL * sums.years
    return by_exposure or abs(sums.weight - sums.events) > _EQUAL * sums.events


def degeneracy(sums: Sums) -> str | None:
    """What is wrong with the weights, in words; None if nothing is."""
    if not is_weighted(sums):
        return None
    if sums.events and sums.effective_sample_size < LEAST_EFFECTIVE_SAMPLE_SIZE:
        return f"{sums.events} events are worth {sums.effective_sample_size:.1f} of equal weight"
    if sums.events and sums.largest_weight > LARGEST_SHARE * sums.weight:
        return f"one event has {100.0 * sums.largest_weight / sums.weight:.0f} % of the weight"
    if sums.value**2 < LEAST_EFFECTIVE_SAMPLE_SIZE * sums.variance:
        return f"{sums.trials} trials are worth {sums.value**2 / sums.variance:.1f} independent events"
    mean = sums.exposure / sums.years
    if not 1.0 / MEAN_WEIGHT <= mean <= MEAN_WEIGHT:
        return f"the mean weight of the exposure is {mean:.2g}, not 1"
    return None


def effective_years(sums: Sums) -> float:
    """The exposure that trials of equal weight would need to say as much as these: Kish's size of the trials' exposures
    times the mean length of a trial; in plain sampling the exposure itself."""
    if not is_weighted(sums) or sums.exposure_squares <= 0.0:
        return sums.years
    return sums.exposure**2 / sums.exposure_squares / sums.trials * sums.years
