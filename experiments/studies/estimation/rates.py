"""Confidence limits of rates: events, or lost records, per partition-year.

The total y = sum of w_j over events is a weighted sum of Poisson counts with variance v = sum of w_j^2. The gamma
limits of Fay and Feuer (Statistics in Medicine 16, 1997) are, with the largest weight m,

    low  =  v / (2 y)              chi2(alpha / 2;      2 y^2 / v)
    high = (v + m^2) / (2 (y + m)) chi2(1 - alpha / 2;  2 (y + m)^2 / (v + m^2)).

With all weights 1 they are Garwood's exact Poisson limits (Biometrika 28, 1936). The weights are the records lost in an
event, the likelihood ratio of a biased sample, or both.

Events of one trial may come together. So v is at least the variance of the total over trials (`moments.py`), widened by
(t / z)^2 because it is estimated, and m is at least v / y, the size of a cluster. Neither is ever less than for single
independent events: the guard only widens.

With nothing seen, low is 0 and high = -ln(alpha / 2) / T after T partition-years; as a one-sided bound,
-ln(0.05) / T = 3.00 / T (the "rule of three"). Lost records have that bound times the assumed size of an event
(`sizes.py`), and the sizes of few events are averaged with it: m is at least (size + y) / (events + 1). Partitions
count as independent until events are seen together.
"""

from __future__ import annotations

import math

from scipy.special import gammaincinv

from experiments.studies.estimation.moments import ALPHA, Sums, widening


def rate_limits(sums: Sums, size: float = 1.0, alpha: float = ALPHA) -> tuple[float, float]:
    """The two-sided limits of the rate `sums.ratio` at confidence 1 - `alpha`, per partition-year. `size`: the assumed
    size of an event."""
    if sums.value <= 0.0:
        return 0.0, zero_bound(sums.years, alpha / 2.0) * size
    variance = max(sums.size_squares, sums.variance * widening(sums.trials, alpha))
    average = (size * sums.largest_weight + sums.value) / (sums.events + 1)
    largest = max(sums.largest_size, variance / sums.value, average)
    low, high = gamma_limits(sums.value, variance, largest, alpha)
    return low / sums.exposure, high / sums.exposure


def gamma_limits(total: float, variance: float, largest: float, alpha: float) -> tuple[float, float]:
    """Fay and Feuer's limits of a `total` > 0 with that `variance`, one more event counting as `largest`."""
    tail = alpha / 2.0
    low = variance / total * gammaincinv(total * total / variance, tail)
    more, spread = total + largest, variance + largest * largest
    return float(low), float(spread / more * gammaincinv(more * more / spread, 1.0 - tail))


def zero_bound(years: float, alpha: float = ALPHA) -> float:
    """The one-sided upper bound of a rate at confidence 1 - `alpha`, with no event in `years`: 3.00 / years at 95 %."""
    return -math.log(alpha) / years
