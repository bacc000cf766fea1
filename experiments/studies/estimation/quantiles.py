"""Distribution-free intervals of the quantiles of failover times, from order statistics.

Of n independent times, B ~ Binomial(n, p) lie below the p-quantile, so that the order statistics of ranks l and u with
P(B < l) <= alpha / 2 and P(B >= u) <= alpha / 2 enclose it with probability 1 - alpha, whatever the distribution (David
and Nagaraja, Order Statistics, 2003, 7.1). If no such u exists, the times have no upper limit for that quantile: 99 %
of 100 outages say nothing about the longest of 1,000.

Outages of one trial depend on each other. So n is not their number m but n* = m / deff (Woodruff, JASA 47, 1952): the
share of times up to the estimated quantile is a ratio estimator over trials, with the residuals of `moments.py`; n* is
p (1 - p) / Var(share), Var widened by (t / z)^2, at most the effective sample size of the outages' weights. The ranks
of n* are then shares l / n*, u / n* of the (weighted) empirical distribution. The smaller n* of the two quantiles is
used for both: the outages above the 99 % quantile are too few to show their dependence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scipy.special import bdtrik

from experiments.studies.estimation.moments import ALPHA, Sums, widening

LEVELS = {"p50": 0.5, "p99": 0.99}
"""The quantiles that are published, by their keys."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of the empirical distribution between which a quantile lies; None without a limit on that side."""

    low: float | None
    high: float | None


def shares_of(levels: Iterable[tuple[float, Sums]]) -> list[Shares]:
    """The limits of each quantile: its p, and the sums of the outages up to it (value) and of all (exposure)."""
    found = list(levels)
    independent = min((independent_times(p, sums) for p, sums in found), default=0.0)
    return [rank_shares(p, independent) for p, _ in found]


def independent_times(p: float, sums: Sums) -> float:
    """n*: how many independent times say as much about the p-quantile as these."""
    most = sums.effective_sample_size
    variance = sums.variance / sums.exposure**2 * widening(sums.trials, ALPHA)
    return min(most, p * (1.0 - p) / variance) if variance > 0.0 else most


def rank_shares(p: float, independent: float) -> Shares:
    """The ranks of the order statistics about the p-quantile of so many independent times, as shares."""
    n = math.floor(independent + 1e-9)
    if n < 1:
        return Shares(None, None)
    low, high = math.ceil(bdtrik(ALPHA / 2.0, n, p)), math.ceil(bdtrik(1.0 - ALPHA / 2.0, n, p)) + 1
    return Shares(low / n if low >= 1 else None, high / n if high <= n else None)
