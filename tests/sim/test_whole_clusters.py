"""Trials of whole clusters: classes against the partitions one by one, and losses against copysets by hand."""

from __future__ import annotations

from collections import Counter
from math import comb

import pytest

from experiments.studies.design.cluster import PartitionClass
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.trace.kinds import Crash, Loss, TrialResult
from experiments.studies.trials.trial import run_trial

HOUR_MS = 3_600_000
BASE = {
    "broker_mttf": "never",
    "broker_mttr": "10m",
    "tail_loss_probability": 1,
    "writeback": "never",
    "start": "fresh",
    "burst": {"per_year": 200, "size": 3, "window": "50ms", "down": "10m"},
}
"""Three brokers lose the tails of their logs at once, 200 times a year; nothing else happens."""


def cell(placement: str, partitions: int, brokers: int = 9, duration: str = "90d", **more: object) -> CellParameters:
    topics = [{"name": "a", "partitions": partitions}, {"name": "b", "partitions": partitions // 2}]
    cluster = {"brokers": brokers, "placement": placement, "topics": topics}
    raw = {"name": "c", "trials": 1, "duration": duration, "base": BASE | {"cluster": cluster} | more}
    return study_from(raw, "s").cells[0].parameters


def losses_by_partition(params: CellParameters, result: TrialResult) -> Counter[tuple[int, int]]:
    """The losses of each partition of the cluster, by topic and number of its class's first member."""
    assert params.cluster is not None
    found: Counter[tuple[int, int]] = Counter()
    for row in result.rows:
        if isinstance(row.what, Loss):
            for topic, count, first in params.cluster.classes[row.what.partition].members:
                found[topic, first] += count
    return found


def test_classes_lose_what_their_partitions_lose_one_by_one() -> None:
    """The same failures with one partition of the trial for each class, and with one for each partition."""
    params = cell("random", 80, brokers=5, duration="60d")
    cluster = params.cluster
    assert cluster is not None
    assert len(cluster.classes) < cluster.partitions
    single = [
        PartitionClass(each.replicas, each.min_insync_replicas, each.acks, ((topic, 1, first),))
        for each in cluster.classes
        for topic, count, first in each.members
        for _ in range(count)
    ]
    each = params.model_copy(update={"cluster": cluster.model_copy(update={"classes": tuple(single)})})
    assert each.partitions == params.partitions == len(each.counts)
    counted = losses_by_partition(params, run_trial(params, 3))
    assert counted == losses_by_partition(each, run_trial(each, 3))
    assert sum(counted.values()) > 50


@pytest.mark.parametrize(("placement", "sets"), [("copysets", range(5, 7)), ("random", range(30, 61))])
def test_a_burst_loses_records_where_it_hits_a_replica_set(placement: str, sets: range) -> None:
    """All acknowledged records are on the three replicas, which are in sync. A burst of three brokers that lose their
    tails loses records exactly where they are the replicas of a partition: with s replica sets in s / C(9, 3) of all
    bursts (Cidon et al., ATC 2013, section 2). Copysets of scatter width 4 are two cuts of nine brokers into three
    sets."""
    params = cell(placement, 40)
    cluster = params.cluster
    assert cluster is not None
    assert cluster.replica_sets in sets
    held = {frozenset(each.replicas) for each in cluster.classes}
    result = run_trial(params, 11)
    crashes = [(row.time_ms, row.what.broker) for row in result.rows if isinstance(row.what, Crash)]
    bursts: list[tuple[int, set[int]]] = []
    for at_ms, broker in crashes:
        if not bursts or at_ms - bursts[-1][0] > 50:
            bursts.append((at_ms, set()))
        bursts[-1][1].add(broker)
    ends = [*(at_ms for at_ms, _ in bursts[1:]), params.duration_ms]
    alone = [end - at_ms > HOUR_MS for (at_ms, _), end in zip(bursts, ends, strict=True)]
    assert sum(alone) > 0.9 * len(bursts) > 30
    losing = [row.time_ms for row in result.rows if isinstance(row.what, Loss)]
    hit = [frozenset(brokers) in held for _, brokers in bursts]
    lost = [any(begin <= at_ms < end for at_ms in losing) for (begin, _), end in zip(bursts, ends, strict=True)]
    apart = [both for *both, before, after in zip(lost, hit, [True, *alone], alone, strict=False) if before and after]
    assert [one for one, _ in apart] == [other for _, other in apart]
    expected = cluster.replica_sets / comb(9, 3) * len(bursts)
    assert abs(sum(hit) - expected) < 4.0 * (expected**0.5 + 1.0)
