"""Differences and ratios between two cells whose trials are pairs: trial k of both saw the same failures.

What the failures add to both cells cancels in the difference. docs/statistics.md has the covariance, the limits of the
difference, which recover the variances from the limits of each cell (Zou and Donner, Statistics in Medicine 27, 2008;
with correlation: Zou, Psychological Methods 12, 2007), and the gain of pairing. Cells that are not paired have rho = 0.

The limits of the ratio are those of the difference of the logarithms, but not closer to 1 than those of the difference
allow, 1 / (1 - low / r_b) and 1 + high / r_a: where few pairs differ, the logarithms are too narrow. Where a limit is 0
it has no logarithm. Then the limits invert the test that the difference makes (Fieller, JRSS B 16, 1954; from limits:
Newcombe, Statistical Methods in Medical Research 25, 2016): the interval has the t for which that of r_b - t r_a, by
the formula of the difference, includes 0. At t = 1 this is the difference itself, so the two exclude no difference
together.

Two settings may meet the same events by structure: in every pair of trials both have the same value, down to rounding.
Then the difference is not unknown, it is 0 under these failures, and more trials of them do not change that; only
events that were seen say so (:attr:`Comparison.identical`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from experiments.studies.estimation.moments import Sums, degeneracy

ROUNDING = 1e-9
"""Relative to the larger of two estimates: a smaller difference is that of rounded sums. A weight is the exponential of
a sum of logarithms (relative error about 1e-14), and Spark adds up to 1e7 rows in an order of its own, so that equal
estimates differ by up to about 1e-10 of themselves. No interval is so narrow."""
Limits = tuple[float, float]
Bounded = tuple[float, float, float]
"""A number and its limits."""


@dataclass(frozen=True, slots=True)
class Products:
    """Sums over the common trials of two cells: `pairs` is their number; of the products of this cell's value or
    exposure (first) with the reference's (second). `differing`: pairs whose values differ by more than rounding."""

    pairs: int
    value_value: float
    value_exposure: float
    exposure_value: float
    exposure_exposure: float
    differing: int

    def turned(self) -> Products:
        """The same with the two cells exchanged."""
        return replace(self, value_exposure=self.exposure_value, exposure_value=self.value_exposure)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference with its 95 % interval."""

    estimate: float
    ci_low: float
    ci_high: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval; None where it has no value or no upper limit, as the reference may be 0."""

    estimate: float | None
    ci_low: float
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a cell against a reference cell. `pairs`: the number of pairs of trials, 0 for independent cells.
    `pairing_gain`: by what factor pairing saved trials; None without pairs or variance. `identical`: all trials are
    pairs, something was seen, and no pair differs. `degenerate`: the limits of one of the cells do not rest on its
    weights (`moments.py`), so the comparison shows nothing."""

    difference: Difference
    ratio: Ratio
    pairs: int
    pairing_gain: float | None
    identical: bool = False
    degenerate: bool = False


def compare(
    mine: Sums, reference: Sums, my_limits: Limits, its_limits: Limits, products: Products | None
) -> Comparison:
    """This cell against the reference; the limits are those of each cell at the confidence of the comparison."""
    covariance = 0.0 if products is None else _covariance(mine, reference, products)
    mine_variance, its_variance = _variance(mine), _variance(reference)
    scale = math.sqrt(mine_variance * its_variance)
    rho = max(-1.0, min(1.0, covariance / scale)) if scale > 0.0 else 0.0
    left = mine_variance + its_variance - 2.0 * rho * scale
    mine_bounded, its_bounded = (mine.ratio, *my_limits), (reference.ratio, *its_limits)
    is_paired = products is not None and products.pairs == mine.trials == reference.trials
    return Comparison(
        Difference(*_difference(mine_bounded, its_bounded, rho)),
        _ratio(mine_bounded, its_bounded, rho),
        products.pairs if products else 0,
        pairing_gain=(mine_variance + its_variance) / left if products and left > 1e-9 * scale > 0.0 else None,
        identical=is_paired and mine.events > 0 and products is not None and products.differing == 0,
        degenerate=degeneracy(mine) is not None or degeneracy(reference) is not None,
    )


def _variance(sums: Sums) -> float:
    return sums.variance / sums.exposure**2 if sums.exposure > 0.0 else 0.0


def _covariance(mine: Sums, reference: Sums, products: Products) -> float:
    if products.pairs < 2:
        return 0.0
    residuals = (
        products.value_value
        - reference.ratio * products.value_exposure
        - mine.ratio * products.exposure_value
        + mine.ratio * reference.ratio * products.exposure_exposure
    )
    return residuals * products.pairs / (products.pairs - 1) / (mine.exposure * reference.exposure)


def _difference(mine: Bounded, other: Bounded, rho: float) -> Bounded:
    (b, low_b, high_b), (a, low_a, high_a) = mine, other
    down, up = _reach(b - low_b, high_a - a, rho), _reach(high_b - b, a - low_a, rho)
    difference = 0.0 if math.isclose(a, b, rel_tol=ROUNDING) else b - a
    return difference, difference - down, difference + up


def _reach(mine: float, other: float, rho: float) -> float:
    return math.sqrt(max(0.0, mine * mine + other * other - 2.0 * rho * mine * other))


def _ratio(mine: Bounded, other: Bounded, rho: float) -> Ratio:
    (b, low_b, high_b), (a, low_a, high_a) = mine, other
    if min(a, b, low_a, low_b) <= 0.0:
        return _inverted(mine, other, rho)
    _, low, high = _difference(mine, other, rho)
    mine_logs = math.log(b), math.log(low_b), math.log(high_b)
    logs = _difference(mine_logs, (math.log(a), math.log(low_a), math.log(high_a)), rho)
    return Ratio(b / a, min(math.exp(logs[1]), b / (b - low)), max(math.exp(logs[2]), 1.0 + high / a))


def _inverted(mine: Bounded, other: Bounded, rho: float) -> Ratio:
    """The ratios t about the estimate for which the interval of b - t a includes 0. Its limits meet 0 where

        (b - t a)^2 = p^2 + t^2 q^2 - 2 rho p t q

    with the distances p, q of the limits that count on that side from b and a."""
    (b, low_b, high_b), (a, low_a, high_a) = mine, other
    estimate = b / a if a > 0.0 else None
    around = math.inf if estimate is None else estimate
    below = [root for root in _meeting(b, a, b - low_b, high_a - a, rho) if root <= around * (1.0 - ROUNDING)]
    above = [root for root in _meeting(b, a, high_b - b, a - low_a, rho) if root >= around * (1.0 + ROUNDING)]
    return Ratio(estimate, max(below, default=0.0), min(above, default=None) if a > 0.0 else None)


def _meeting(b: float, a: float, p: float, q: float, rho: float) -> list[float]:
    """The positive t at which (b - t a)^2 = p^2 + t^2 q^2 - 2 rho p t q."""
    square, half, rest = a * a - q * q, a * b - rho * p * q, b * b - p * p
    if abs(square) <= ROUNDING * (a * a + q * q):
        return [rest / (2.0 * half)] if half and rest / half > 0.0 else []
    inside = half * half - square * rest
    roots = [(half + sign * math.sqrt(inside)) / square for sign in (-1.0, 1.0)] if inside >= 0.0 else []
    return [root for root in roots if root > 0.0]
