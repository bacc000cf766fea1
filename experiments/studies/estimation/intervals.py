"""The limits of each metric, at confidence 1 - alpha.

*Rates*: events, or lost records, per partition-year. The total y = sum of w_j over events is a weighted sum of Poisson
counts with variance v = sum of w_j^2. The gamma limits of Fay and Feuer (Statistics in Medicine 16, 1997) are, with the
largest weight m,

    low  =  v / (2 y)              chi2(alpha / 2;      2 y^2 / v)
    high = (v + m^2) / (2 (y + m)) chi2(1 - alpha / 2;  2 (y + m)^2 / (v + m^2)).

With all weights 1 they are Garwood's exact Poisson limits (Biometrika 28, 1936). The weights are the records lost in an
event, the likelihood ratio of a biased sample, or both.

Events of one trial may come together. So v is at least the variance of the total over trials (`moments.py`), widened by
(t / z)^2 because it is estimated, and m is at least v / y, the size of a cluster. Neither is ever less than for single
independent events: the guard only widens.

With nothing seen (docs/statistics.md), low is 0 and high = -ln(alpha / 2) / T after T partition-years. Lost records
have that bound times the assumed size of an event (`assumed_sizes`), and the sizes of few events are averaged with it:
m is at least (size + y) / (events + 1). Partitions count as independent until events are seen together.

*Shares of time*: offline, rejecting, stalled. A share p has the effective sample size n* = p (1 - p) / Var(p) (Korn and
Graubard, Survey Methodology 24, 1998): so many independent observations have a mean of the same variance. Var(p) is
taken over trials and widened by (t / z)^2, which is their adjustment for design degrees of freedom, here trials - 1.
The limits are Clopper and Pearson's (Biometrika 26, 1934) with p n* of n* successes:

    low = Beta(alpha / 2; p n*, n* - p n* + 1),    high = Beta(1 - alpha / 2; p n* + 1, n* - p n*).

Few episodes say little about how long the next one lasts. Var(p) is therefore at least that of independent episodes of
exponential length, 2 p^2 / k after k episodes, and the upper limit is at least the gamma limit with one more episode of
the assumed mean length D (of the largest weight). With controls (`controlled.py`) the share rests on the trials' years
times the gain, in which one more episode is that many times as small a part.

Where the weights of the trials degenerate (`moments.py`) the interval is from 0 to a bound that does not rest on them.

*Assumed sizes* (:func:`assumed_sizes`, docs/statistics.md). Even if all replicas are down and all of them are waited
for, they are back after the longest of `replication_factor` times to repair: (1 + 1/2 + ... + 1/RF) mean down times if
they are exponential (Renyi, 1953). Overlapping repairs that keep extending an episode, repair times with a heavy tail
and manual recovery may last longer.

*Quantiles of times*: distribution-free, from order statistics. Of n independent times, B ~ Binomial(n, p) lie below the
p-quantile, so that the order statistics of ranks l and u with P(B < l) <= alpha / 2 and P(B >= u) <= alpha / 2 enclose
it with probability 1 - alpha, whatever the distribution (David and Nagaraja, Order Statistics, 2003, 7.1). If no such u
exists, the times have no upper limit for that quantile.

Outages of one trial depend on each other. So n is not their number m but n* = m / deff (Woodruff, JASA 47, 1952): the
share of times up to the estimated quantile is a ratio estimator over trials, with the residuals of `moments.py`; n* is
p (1 - p) / Var(share), Var widened by (t / z)^2, at most the effective sample size of the outages' weights. The ranks
of n* are then shares l / n*, u / n* of the (weighted) empirical distribution. The smaller n* of the two quantiles is
used for both: the outages above the 99 % quantile are too few to show their dependence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scipy.special import bdtrik, betaincinv, gammaincinv

from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.moments import ALPHA, Estimate, Sums, degeneracy, effective_years, widening
from experiments.studies.trace.metrics import FRACTION, FRACTIONS, METRICS, Metric
from experiments.studies.trace.schema import YEAR_MS


def rate_limits(sums: Sums, size: float = 1.0, alpha: float = ALPHA) -> tuple[float, float]:
    """The two-sided limits of a rate at confidence 1 - `alpha`, per year. `size`: assumed size of an event."""
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
    _, bound = gamma_limits(sums.value, variance, size * sums.largest_weight / sums.gain, alpha)
    return low, min(1.0, max(high, bound / sums.exposure))


def effective_trials(sums: Sums, alpha: float = ALPHA) -> float:
    """Korn and Graubard's n*, adjusted for the degrees of freedom; the number of trials if they all agree."""
    share = min(1.0, sums.ratio)
    variance = sums.variance / sums.exposure**2 * widening(sums.trials, alpha)
    if variance > 0.0 and sums.events:
        variance = max(variance, 2.0 * share * share / (sums.effective_sample_size * sums.gain) * (1.0 - share))
    spread = share * (1.0 - share)
    return spread / variance if variance > 0.0 and spread > 0.0 else float(sums.trials)


def limits(metric: Metric, sums: Sums, sizes: Mapping[str, float], alpha: float = ALPHA) -> tuple[float, float]:
    """The two-sided limits at confidence 1 - `alpha`. `sizes`: assumed size of an event or episode, by column."""
    low, high = 0.0, 0.0
    if sums.value > 0.0:
        limits_of = fraction_limits if metric.estimator is FRACTION else rate_limits
        low, high = limits_of(sums, sizes.get(metric.column, 1.0), alpha)
        if degeneracy(sums) is None:
            return low, high
    return 0.0, max(high, _unseen(metric, sums, sizes, alpha / 2.0))


def interval(metric: Metric, sums: Sums, sizes: Mapping[str, float]) -> Estimate:
    """The estimate of a metric with its 95 % interval, one-sided where nothing was seen."""
    unseen = sums.value <= 0.0
    low, high = (0.0, _unseen(metric, sums, sizes, ALPHA)) if unseen else limits(metric, sums, sizes)
    estimate = min(1.0, sums.ratio) if metric.estimator is FRACTION else sums.ratio
    return Estimate(estimate, low, high, sums.events, sums.effective_sample_size, unseen, degeneracy(sums) is not None)


def _unseen(metric: Metric, sums: Sums, sizes: Mapping[str, float], alpha: float) -> float:
    """The one-sided upper bound of a metric of which nothing was seen."""
    bound = zero_bound(effective_years(sums), alpha) * sizes.get(metric.column, 1.0)
    return min(1.0, bound) if metric.estimator is FRACTION else bound


def assumed_sizes(parameters: CellParameters, records: float = 1.0) -> dict[str, float]:
    """The assumed mean size of an event, or length of an episode in years, by column. `records`: per trial.
    Those of a cluster are of all its partitions at once: they share brokers, and nothing seen does not show that they
    fail one by one."""
    detection_ms = (parameters.detection_ms or 0) + 1_000
    longest = sum(1.0 / down for down in range(1, parameters.replication_factor + 1))
    repair_ms = longest * parameters.longest_absence_ms + detection_ms
    years = dict.fromkeys((share.column for share in FRACTIONS.values()), repair_ms / YEAR_MS)
    years["stalled"] = detection_ms / YEAR_MS
    partitions = float(parameters.partitions)
    of_cluster = {"incidents": 1.0, "some_unwritable": years["unwritable"]}
    sizes = dict.fromkeys((metric.column for metric in METRICS), 1.0) | years | {"lost_records": records}
    if parameters.cluster is None:
        return sizes
    return {column: partitions * size for column, size in (sizes | of_cluster).items()}


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
