"""Confidence limits of shares of time: offline, rejecting, stalled.

A share p has the effective sample size n* = p (1 - p) / Var(p) (Korn and Graubard, Survey Methodology 24, 1998): so
many independent observations have a mean of the same variance. Var(p) is taken over trials (`moments.py`) and widened
by (t / z)^2, which is their adjustment for design degrees of freedom, here trials - 1. The limits are Clopper and
Pearson's (Biometrika 26, 1934) with p n* of n* successes:

    low = Beta(alpha / 2; p n*, n* - p n* + 1),    high = Beta(1 - alpha / 2; p n* + 1, n* - p n*).

Few episodes say little about how long the next one lasts. Var(p) is therefore at least that of independent episodes of
exponential length, 2 p^2 / k after k episodes, and the upper limit is at least the gamma limit (`rates.py`) with one
more episode of length D (of the largest weight), the assumed mean length of an episode: a repair, or the detection of
a failure (`sizes.py`). With no episode in T years it is the bound of the episodes' rate times D: 3.00 / T x D as a
one-sided 95 % bound.
"""

from __future__ import annotations

from scipy.special import betaincinv

from experiments.studies.estimation.moments import ALPHA, Sums, widening
from experiments.studies.estimation.rates import gamma_limits, zero_bound


def fraction_limits(sums: Sums, size: float, alpha: float = ALPHA) -> tuple[float, float]:
    """The two-sided limits of the share `sums.ratio` at confidence 1 - `alpha`. `size`: D, in years."""
    if sums.value <= 0.0:
        return 0.0, min(1.0, zero_bound(sums.years, alpha / 2.0) * size)
    share = min(1.0, sums.ratio)
    n = effective_trials(sums, alpha)
    low = float(betaincinv(share * n, n - share * n + 1.0, alpha / 2.0))
    if share >= 1.0:
        return low, 1.0
    high = float(betaincinv(share * n + 1.0, n - share * n, 1.0 - alpha / 2.0))
    variance = share * (1.0 - share) / n * sums.exposure**2
    _, bound = gamma_limits(sums.value, variance, size * sums.largest_weight, alpha)
    return low, min(1.0, max(high, bound / sums.exposure))


def effective_trials(sums: Sums, alpha: float = ALPHA) -> float:
    """Korn and Graubard's n*, adjusted for the degrees of freedom; the number of trials if they all agree."""
    share = min(1.0, sums.ratio)
    variance = sums.variance / sums.exposure**2 * widening(sums.trials, alpha)
    if variance > 0.0 and sums.events:
        variance = max(variance, 2.0 * share * share / sums.effective_sample_size * (1.0 - share))
    spread = share * (1.0 - share)
    return spread / variance if variance > 0.0 and spread > 0.0 else float(sums.trials)
