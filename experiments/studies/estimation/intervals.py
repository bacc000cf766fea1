"""The interval of each metric: which limits it has, and what is reported where nothing was seen or weights
degenerate."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.studies.estimation.fractions import fraction_limits
from experiments.studies.estimation.moments import ALPHA, Estimate, Sums
from experiments.studies.estimation.rates import rate_limits, zero_bound
from experiments.studies.estimation.weights import degeneracy, effective_years
from experiments.studies.trace.metrics import FRACTION, Metric


def limits(metric: Metric, sums: Sums, sizes: Mapping[str, float], alpha: float = ALPHA) -> tuple[float, float]:
    """The two-sided limits of a metric at confidence 1 - `alpha`. `sizes`: the assumed size of an event or episode, by
    the columns of the metrics (`sizes.py`)."""
    low, high = 0.0, 0.0
    if sums.value > 0.0:
        limits_of = fraction_limits if metric.estimator is FRACTION else rate_limits
        low, high = limits_of(sums, sizes.get(metric.column, 1.0), alpha)
        if degeneracy(sums) is None:
            return low, high
    return 0.0, max(high, _unseen(metric, sums, sizes, alpha / 2.0))


def interval(metric: Metric, sums: Sums, sizes: Mapping[str, float]) -> Estimate:
    """The estimate of a metric with its 95 % interval, one-sided where nothing was seen."""
    low, high = limits(metric, sums, sizes)
    unseen = sums.value <= 0.0
    if unseen:
        high = _unseen(metric, sums, sizes, ALPHA)
    estimate = min(1.0, sums.ratio) if metric.estimator is FRACTION else sums.ratio
    return Estimate(estimate, low, high, sums.events, sums.effective_sample_size, unseen, degeneracy(sums) is not None)


def _unseen(metric: Metric, sums: Sums, sizes: Mapping[str, float], alpha: float) -> float:
    """The one-sided upper bound of a metric of which nothing was seen."""
    bound = zero_bound(effective_years(sums), alpha) * sizes.get(metric.column, 1.0)
    return min(1.0, bound) if metric.estimator is FRACTION else bound
