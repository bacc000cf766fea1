"""A producer that is faster than the cluster is slowed: what nobody takes is bounded, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.engine import ClusterSpec
from experiments.ray_engine import RayEngine
from experiments.ray_session import ray_session
from experiments.requests import create_topic
from protocol.config import ClusterConfig, Generation
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NodeId, TopicPartition
from protocol.messages.commands import AdminCommand, AdminOutcome, SendOutcome, SendRecords
from tests.ray.cluster_state import unfenced

T0 = TopicPartition("t", 0)
WITHIN_MS = 90_000
MIB = 1_048_576
RECORD_BYTES = 65_536
RECORDS = 10
BUFFER_BYTES = 4 * MIB
MAX_BLOCK_MS = 2_000
COMMANDS = 2_000
"""Of 640 KiB each: 1.2 GiB in all, of which 4 MiB fit the producer's buffer."""
GENEROUS_MIB = 250
CONFIG = {
    "buffer.memory": BUFFER_BYTES,
    "max.block.ms": MAX_BLOCK_MS,
    "batch.size": RECORD_BYTES + 100,
    "delivery.timeout.ms": 60_000,
    "broker.session.timeout.ms": 600_000,
    "replica.lag.time.max.ms": 600_000,
}
"""Nobody is given up for the pause: the cluster as a whole waits for who is paused."""


class Cluster:
    """Two brokers, topic `t` on both, min ISR 2."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine
        self._commands = 0
        for node in engine.spec.node_ids:
            engine.start(node)
        self.until(lambda: len(unfenced(engine)) == 2, "all brokers unfenced")
        request = create_topic("t", ((0, 1),), {"min.insync.replicas": 2})
        number = self.number()
        engine.submit(AdminCommand(command_id=number, request=request))
        self.until(lambda: engine.outcome(number) is not None, "the topic's outcome")
        created = engine.outcome(number)
        assert isinstance(created, AdminOutcome)
        assert created.error is ErrorCode.NONE
        self.until(lambda: self.leader() != NO_LEADER, "a leader")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        assert self.engine.run_until(condition, WITHIN_MS), what

    def number(self) -> int:
        self._commands += 1
        return self._commands

    def leader(self) -> NodeId:
        view = self.engine.view()
        state = None if view is None else view.partitions.get(T0)
        return NO_LEADER if state is None else state.leader

    def send(self, commands: int) -> list[int]:
        """Commands as fast as they are taken; their numbers."""
        numbers = [self.number() for _ in range(commands)]
        for at, number in enumerate(numbers):
            self.engine.submit(
                SendRecords(
                    command_id=number, topic="t", partition=0, acks=-1, record_count=RECORDS, record_bytes=RECORD_BYTES
                )
            )
            if at % 100 == 99:
                self.engine.run_for(1)
        return numbers

    def records(self, numbers: list[int]) -> dict[tuple[ErrorCode, bool], int]:
        """How the records of these commands ended: by error, and whether that is unknown; how many."""
        self.until(lambda: all(self.engine.outcome(number) is not None for number in numbers), "an end for all")
        found: dict[tuple[ErrorCode, bool], int] = {}
        for number in numbers:
            outcome = self.engine.outcome(number)
            assert isinstance(outcome, SendOutcome)
            for part in outcome.ranges:
                key = (part.error, part.unknown)
                found[key] = found.get(key, 0) + part.count
        return found

    def memory_mib(self) -> dict[NodeId, int]:
        """Resident memory of the nodes' processes."""
        return {node: resident_mib(pid) for node, pid in self.engine.pids().items()}


def resident_mib(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) // 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_session():
        engine = RayEngine(ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966, CONFIG)))
        try:
            yield Cluster(engine)
        finally:
            engine.close()


@pytest.mark.parametrize("who", ["the follower", "the leader"])
def test_a_producer_is_slowed_by_a_paused_broker_and_memory_is_bounded(cluster: Cluster, who: str) -> None:
    leader = cluster.leader()
    paused = leader if who == "the leader" else 1 - leader
    assert set(cluster.records(cluster.send(10))) == {(ErrorCode.NONE, False)}
    before = cluster.memory_mib()
    end = cluster.engine.log(leader, T0)[-1].next_offset
    cluster.engine.pause(paused)
    numbers = cluster.send(COMMANDS)
    cluster.engine.run_for(MAX_BLOCK_MS)
    grown = {node: now - before[node] for node, now in cluster.memory_mib().items()}
    assert max(grown.values()) < GENEROUS_MIB, grown
    taken = BUFFER_BYTES // RECORD_BYTES
    if paused != leader:
        stored = cluster.engine.log(leader, T0)[-1].next_offset
        assert stored <= end + taken, "no more than the producer's buffer holds has reached a log"
    cluster.engine.resume(paused)
    ended = cluster.records(numbers)
    assert set(ended) == {(ErrorCode.NONE, False), (ErrorCode.REQUEST_TIMED_OUT, False)}, "clear ends, none unknown"
    assert ended[ErrorCode.NONE, False] >= taken - RECORDS
    assert sum(ended.values()) == COMMANDS * RECORDS
    assert cluster.leader() == leader
    stored = cluster.engine.log(leader, T0)[-1].next_offset
    assert stored == end + ended[ErrorCode.NONE, False], "what was acknowledged, once, and nothing that was refused"
