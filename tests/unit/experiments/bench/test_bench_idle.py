"""`isray bench idle`: the assignment, the topics, the figures; no test of a time."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from experiments.bench.idle import PARTITIONS_PER_TOPIC, IdleFigures, assignments, calls_per_second, topics_of
from experiments.bench.process_usage import usage_of

SOME = IdleFigures(
    brokers=9,
    controllers=1,
    partitions=90_000,
    create_s=41.0,
    empty_mb=200.0,
    broker_mb=260.0,
    controller_mb=500.0,
    cores=0.04,
    all_cores=0.06,
    bare_cores=0.02,
    calling_cores=0.03,
    restart_s=9.0,
)


def test_every_broker_leads_and_holds_as_many_partitions_as_any_other() -> None:
    found = assignments(90, 9)
    assert Counter(replicas[0] for replicas in found) == dict.fromkeys(range(9), 10)
    assert Counter(broker for replicas in found for broker in replicas) == dict.fromkeys(range(9), 30)
    assert all(len(set(replicas)) == 3 for replicas in found)


@pytest.mark.parametrize("partitions", [1, PARTITIONS_PER_TOPIC, PARTITIONS_PER_TOPIC + 1, 100_000])
def test_topics_have_all_partitions_and_none_has_too_many(partitions: int) -> None:
    found = topics_of(partitions)
    assert sum(found) == partitions
    assert all(0 < size <= PARTITIONS_PER_TOPIC for size in found)


def test_the_memory_per_replica_is_the_growth_of_a_broker_over_its_share_of_the_replicas() -> None:
    """A broker of nine holds 90,000 * 3 / 9 = 30,000 replicas, for which it has grown by 60 MB: 2 kB each."""
    assert SOME.replica_kb == 2.0
    assert replace(SOME, broker_mb=200.0).replica_kb == 0.0


def test_the_table_compares_all_actors_with_as_many_bare_ones() -> None:
    texts = SOME.texts()
    assert texts[:2] == ["9 + 1", "90,000"]
    assert texts[-5:] == ["0.040", "0.060", "3.0", "0.030", "9.0 s"]


def test_the_calls_of_an_idle_cluster_follow_from_kafkas_intervals() -> None:
    """Three brokers and three controllers: five nodes fetch metadata twice a second (10), three pairs of brokers renew
    their sessions twice (6), three heartbeats in two seconds (1.5). Nine brokers and one controller: nine fetch (18),
    each shares partitions with two brokers on either side, 18 pairs (36), and 4.5 heartbeats.
    """
    assert calls_per_second(3, 3) == 17.5
    assert calls_per_second(9, 1) == 58.5


def test_the_usage_of_this_process_is_known_and_that_of_none_is_not() -> None:
    usage = usage_of(os.getpid())
    assert usage is not None
    assert usage[0] > 0
    assert usage[1] > 1_000_000
    assert usage_of(2**22 + 1) is None, "beyond the largest process id of Linux"
