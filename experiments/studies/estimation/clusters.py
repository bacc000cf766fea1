"""The numbers of a whole cluster with their intervals (`pipeline/incidents.py` measures them).

*Incidents a year* are a rate of a cluster (`rate_limits`), of which every event counts 1. *A probability of a year* is
the share of years with a loss, with Clopper and Pearson's limits (Biometrika 26, 1934) for the effective number of
trials (Korn and Graubard), which is that of the trials where each is one year. Of trials that are shorter than a year,
a share p of spans of length T with a loss, it is

    P = 1 - (1 - p)^(1 / T),

which takes the spans of a year as independent: right where what is left of an incident ends soon, in comparison
with T. The limits go through the same monotone function. *Partitions per incident* are the mean of the incidents'
sizes, by their weights, with Student's limits for their effective number, from 1 to all partitions; of one incident
nothing more is known.

*Rate x partitions* is the number that calculators give: losses a year if partitions lost records independently. It
counts an incident as often as it hits partitions, and is no probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace

from scipy.special import betaincinv, stdtrit

from experiments.studies.design.model import CellParameters
from experiments.studies.estimation.intervals import effective_trials, interval
from experiments.studies.estimation.moments import ALPHA, Estimate, Sums
from experiments.studies.trace.metrics import BY_NAME, MEAN, PROBABILITY, Metric


def cluster_interval(metric: Metric, sums: Sums, sizes: Mapping[str, float], partitions: int) -> Estimate:
    """The estimate of any metric of a cell with its 95 % interval; `partitions`: of the cluster."""
    if metric.estimator is PROBABILITY:
        return probability(sums, sums.years / (partitions * sums.trials))
    return mean_size(sums, partitions) if metric.estimator is MEAN else interval(metric, sums, sizes)


def probability(sums: Sums, years: float) -> Estimate:
    """The probability of a loss in a year, by trials that are `years` long."""
    share = min(1.0, sums.ratio)
    if share <= 0.0:
        return Estimate(0.0, 0.0, _in_a_year(1.0 - ALPHA ** (1.0 / sums.trials), years), one_sided=True)
    n = effective_trials(replace(sums, events=0))
    low = float(betaincinv(share * n, n - share * n + 1.0, ALPHA / 2.0))
    high = 1.0 if share >= 1.0 else float(betaincinv(share * n + 1.0, n - share * n, 1.0 - ALPHA / 2.0))
    share, low, high = (_in_a_year(value, years) for value in (share, low, high))
    return Estimate(share, low, high, sums.events, sums.effective_sample_size)


def _in_a_year(share: float, years: float) -> float:
    """The probability of a year from that of a trial; trials of a year and longer are counted by years already."""
    return share if years >= 1.0 or share >= 1.0 else -math.expm1(math.log1p(-share) / years)


def mean_size(sums: Sums, partitions: int) -> Estimate:
    """The mean number of partitions that an incident hits."""
    if sums.events == 0:
        return Estimate(0.0, 0.0, float(partitions), one_sided=True)
    count, mean, low, high = sums.effective_sample_size, sums.value / sums.weight, 1.0, float(partitions)
    if count > 1.0:
        variance = max(0.0, sums.size_squares / sums.weight - mean * mean) * count / (count - 1.0)
        half = float(stdtrit(count - 1, 1.0 - ALPHA / 2.0)) * math.sqrt(variance / count)
        low, high = max(low, mean - half), min(high, mean + half)
    return Estimate(mean, min(low, mean), max(high, mean), sums.events, count)


def cluster_document(params: CellParameters, estimates: Mapping[str, Estimate]) -> dict[str, object]:
    """What the object of a cell in `gold/cells.json` says of its cluster; nothing without one."""
    cluster = params.cluster
    if cluster is None:
        return {}
    rate = estimates[BY_NAME["loss_rate"].name]
    scaled = replace(
        rate,
        estimate=rate.estimate * cluster.partitions,
        ci_low=rate.ci_low * cluster.partitions,
        ci_high=rate.ci_high * cluster.partitions,
    )
    sizes = {"partitions": cluster.partitions, "partition_classes": len(cluster.classes)}
    return {"replica_sets": cluster.replica_sets, **sizes, "rate_times_partitions": asdict(scaled)}
