"""Back-pressure: a producer that is faster than the cluster is slowed down, and memory stays bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from experiments.hunt.soak.cluster import rss_of
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NodeId
from protocol.messages.commands import SendOutcome, SendRecords
from tests.ray.cluster_helpers import ALL, T0, ProcessPool, RunningCluster, running_cluster

MIB = 1_048_576
RECORD_BYTES = 65_536
RECORDS = 10
BUFFER_BYTES = 4 * MIB
MAX_BLOCK_MS = 5_000
COMMANDS = 600
"""Of 640 KiB each: 375 MiB in all, of which 4 MiB fit the producer's buffer."""
FITTING = BUFFER_BYTES // (RECORDS * (RECORD_BYTES + 100))
"""Commands that the buffer holds at once: none of them waits for space, however slow the machine is."""
GENEROUS_MIB = 250
CONFIG = {
    "buffer.memory": BUFFER_BYTES,
    "max.block.ms": MAX_BLOCK_MS,
    "batch.size": RECORD_BYTES + 100,
    "delivery.timeout.ms": 60_000,
    "broker.session.timeout.ms": 600_000,
    "replica.lag.time.max.ms": 600_000,
}
"""No session and no replica times out during the pause, so the cluster waits for the paused broker."""


@pytest.fixture(scope="module")
def cluster(pool: ProcessPool) -> Iterator[RunningCluster]:
    """Two brokers, topic `t` on both, min ISR 2."""
    with running_cluster(brokers=2, config=CONFIG, within_ms=90_000, pool=pool) as cluster:
        cluster.create_topic((0, 1), min_isr=2)
        cluster.until(lambda: cluster.leader() != NO_LEADER, "a leader")
        yield cluster


def send(cluster: RunningCluster, commands: int) -> list[int]:
    """Submits commands as fast as the client takes them. Returns their ids."""
    numbers = []
    for at in range(commands):
        numbers.append(
            cluster.submit(
                lambda number: SendRecords(
                    command_id=number, topic="t", partition=0, acks=ALL, record_count=RECORDS, record_bytes=RECORD_BYTES
                )
            )
        )
        if at % 100 == 99:
            cluster.engine.run_for(1)
    return numbers


def records(cluster: RunningCluster, numbers: list[int]) -> dict[tuple[ErrorCode, bool], int]:
    """Counts the records of these commands by (error, whether the outcome is unknown)."""
    cluster.until(lambda: all(cluster.engine.outcome(number) is not None for number in numbers), "an end for all")
    found: Counter[tuple[ErrorCode, bool]] = Counter()
    for number in numbers:
        outcome = cluster.engine.outcome(number)
        assert isinstance(outcome, SendOutcome)
        for part in outcome.ranges:
            found[part.error, part.unknown] += part.count
    return found


def memory_mib(cluster: RunningCluster) -> dict[NodeId, int]:
    """Resident memory of each node's process, in MiB."""
    found = {node: rss_of(pid) // MIB for node, pid in cluster.engine.cluster.pids().items()}
    assert all(found.values()), "every process is there"
    return found


@pytest.mark.parametrize("who", ["the follower", "the leader"])
def test_a_producer_is_slowed_by_a_paused_broker_and_memory_is_bounded(cluster: RunningCluster, who: str) -> None:
    leader = cluster.leader()
    paused = leader if who == "the leader" else 1 - leader
    assert set(records(cluster, send(cluster, FITTING))) == {(ErrorCode.NONE, False)}
    before = memory_mib(cluster)
    end = cluster.engine.log(leader, T0)[-1].next_offset
    cluster.engine.pause(paused)
    numbers = send(cluster, COMMANDS)
    cluster.engine.run_for(MAX_BLOCK_MS)
    grown = {node: now - before[node] for node, now in memory_mib(cluster).items()}
    assert max(grown.values()) < GENEROUS_MIB, grown
    taken = BUFFER_BYTES // RECORD_BYTES
    if paused != leader:
        stored = cluster.engine.log(leader, T0)[-1].next_offset
        assert stored <= end + taken, "no more than the producer's buffer holds has reached a log"
    cluster.engine.resume(paused)
    ended = records(cluster, numbers)
    assert set(ended) == {(ErrorCode.NONE, False), (ErrorCode.REQUEST_TIMED_OUT, False)}, "clear ends, none unknown"
    assert ended[ErrorCode.NONE, False] >= taken - RECORDS
    assert sum(ended.values()) == COMMANDS * RECORDS
    assert cluster.leader() == leader
    stored = cluster.engine.log(leader, T0)[-1].next_offset
    assert stored == end + ended[ErrorCode.NONE, False], "what was acknowledged, once, and nothing that was refused"
