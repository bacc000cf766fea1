"""Disks that fail under a broker on ray: what it says, what becomes of the partition, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.damage import DamageKind
from experiments.engine import ClusterSpec, Loss
from experiments.ray_engine import RayEngine
from experiments.requests import create_topic
from experiments.soak.ray_nodes import ray_nodes
from protocol.config import ClusterConfig, Generation
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, BrokerId, TopicPartition
from protocol.messages.commands import AdminCommand, ProduceCommand, ProduceOutcome
from protocol.metadata.partition import PartitionState
from tests.ray.cluster_state import unfenced

T0 = TopicPartition("t", 0)
WITHIN_MS = 90_000
BROKERS = (0, 1, 2)
CONFIG = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
    "replica.lag.time.max.ms": 2_000,
    "replica.fetch.wait.max.ms": 200,
}
LARGE = b"L" * 10_000


class Cluster:
    """Three brokers, topic `t` on all of them with min ISR 2."""

    def __init__(self, engine: RayEngine) -> None:
        self.engine = engine
        self._commands = 0
        for node in engine.spec.node_ids:
            engine.start(node)
        self.until(lambda: len(unfenced(engine)) == len(BROKERS), "all brokers unfenced")
        self._commands = 1
        request = create_topic("t", (BROKERS,), {"min.insync.replicas": 2})
        engine.submit(AdminCommand(command_id=self._commands, request=request))
        self.until(lambda: self.state() is not None, "the topic is there")

    def until(self, condition: object, what: str) -> None:
        assert callable(condition)
        assert self.engine.run_until(condition, WITHIN_MS), what

    def state(self) -> PartitionState | None:
        view = self.engine.view()
        return None if view is None else view.partitions.get(T0)

    def await_whole(self) -> BrokerId:
        """Waits for the whole ISR; the leader."""

        def is_whole() -> bool:
            state = self.state()
            return state is not None and state.leader != NO_LEADER and set(state.isr) == set(BROKERS)

        self.until(is_whole, "the ISR is whole")
        state = self.state()
        assert state is not None
        return state.leader

    def produce(self, payload: bytes) -> ErrorCode:
        self._commands += 1
        number = self._commands
        self.engine.submit(
            ProduceCommand(command_id=number, topic="t", partition=0, acks=-1, record_count=1, payload=payload)
        )
        self.until(lambda: self.engine.outcome(number) is not None, "an outcome")
        outcome = self.engine.outcome(number)
        assert isinstance(outcome, ProduceOutcome)
        return outcome.error

    def told(self, kind: str, broker: BrokerId) -> list[str]:
        """The reasons of a broker's trace events of a kind."""
        found = [event for event in self.engine.traces() if event.trace.kind == kind and event.node == broker]
        return [str(event.trace.detail["reason"]) for event in found]

    def logs(self) -> list[list[bytes]]:
        return [[batch.payload for batch in self.engine.log(broker, T0)] for broker in BROKERS]

    def await_logs(self, expected: list[bytes]) -> None:
        self.await_whole()
        self.until(lambda: all(len(log) == len(expected) for log in self.logs()), "all replicas have all records")
        assert self.logs() == [expected] * len(BROKERS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ray_nodes(0):
        engine = RayEngine(ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966, CONFIG)))
        try:
            yield Cluster(engine)
        finally:
            engine.close()


def test_a_leader_whose_disk_is_full_says_so_and_another_takes_what_it_could_not(cluster: Cluster) -> None:
    leader = cluster.await_whole()
    before = cluster.logs()[leader]
    assert cluster.produce(b"small") is ErrorCode.NONE
    cluster.engine.set_room(leader, 100)
    assert cluster.produce(LARGE) is ErrorCode.NONE
    cluster.until(lambda: cluster.told("storage_error", leader), "the broker says so")
    assert any("No space left on device" in reason for reason in cluster.told("storage_error", leader))
    cluster.until(lambda: not cluster.engine.is_running(leader), "a broker whose disk fails ends")
    state = cluster.state()
    assert state is not None
    assert state.leader not in (leader, NO_LEADER)
    assert cluster.produce(b"after") is ErrorCode.NONE
    cluster.engine.start(leader)
    cluster.await_logs([*before, b"small", LARGE, b"after"])


@pytest.mark.parametrize("kind", ["torn", "flipped", "zeroed"])
def test_a_damaged_tail_is_dropped_and_said_and_the_rest_comes_from_the_leader(
    cluster: Cluster, kind: DamageKind
) -> None:
    leader = cluster.await_whole()
    before = cluster.logs()[leader]
    records = [b"%s %d" % (kind.encode(), number) for number in range(20)]
    assert [cluster.produce(payload) for payload in records] == [ErrorCode.NONE] * len(records)
    told = len(cluster.told("records_dropped", leader))
    cluster.engine.crash(leader, Loss())
    assert cluster.engine.damage_tails(leader, kind, kind) > 0
    cluster.engine.start(leader)
    cluster.until(lambda: len(cluster.told("records_dropped", leader)) > told, "the broker says what it dropped")
    cluster.await_logs([*before, *records])
