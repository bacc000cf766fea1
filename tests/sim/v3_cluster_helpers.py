"""A simulated cluster of generation `v3` with one topic `t`, for tests that arrange one certain course of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.engine import SimEngine
from experiments.engines.sim.network import NetworkModel
from protocol.broker.context import Replica
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.registry import KINDS
from protocol.features import Generation
from protocol.ids import NodeId, TimeMs, TopicPartition
from protocol.messages.commands import (
    ConsumeCommand,
    ConsumeOutcome,
)
from protocol.metadata.partition import PartitionState
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.store.settings import StoreSettings
from tests.sim.cluster_helpers import KEEP as KEEP
from tests.sim.cluster_helpers import ClusterBench, replica_of

T0 = TopicPartition("t", 0)


class V3Bench(ClusterBench):
    """Brokers and a store, up and running at 4 s with the topic `t`. `replicas` has the replicas of each partition."""

    def __init__(
        self,
        brokers: int = 3,
        replicas: Sequence[tuple[int, ...]] = ((0, 1, 2),),
        seed: int = 0,
        config: Mapping[str, object] | None = None,
        topic: Mapping[str, object] | None = None,
        store: StoreSettings | None = None,
        **options: bool,
    ) -> None:
        spec = ClusterSpec(brokers, 0, ClusterConfig.of(Generation.V3, config), seed, store=store)
        self.engine = SimEngine(spec, NetworkModel(1, 2), **options)
        super().__init__(self.engine.cluster)
        self.start_all()
        self.run_until(3_000)
        created = self.administer(create_topic("t", tuple(replicas), dict(topic or {})))
        self.run_until(4_000)
        assert self.error(created) is ErrorCode.NONE

    def consume(self) -> list[bytes]:
        """The payloads that a consumer reads from partition 0 within a second."""
        number = self.submit(ConsumeCommand(command_id=self.next_number(), topic="t", partition=0, offset=0))
        self.run_for(1_000)
        outcome = self.engine.outcome(number)
        assert isinstance(outcome, ConsumeOutcome)
        assert outcome.error is ErrorCode.NONE
        return [batch.payload for batch in outcome.batches]

    @property
    def controller(self) -> NodeId:
        controller = self.engine.active_controller()
        assert controller is not None
        return controller

    @property
    def state(self) -> PartitionState:
        return self.state_of(0)

    def state_of(self, partition: int) -> PartitionState:
        return self.engine.store_view().partitions[TopicPartition("t", partition)]

    def broker(self, broker: int) -> V3BrokerNode:
        node = self.cluster.nodes[broker]
        assert isinstance(node, V3BrokerNode)
        return node

    def replica(self, broker: int, partition: int = 0) -> Replica:
        return replica_of(self.cluster, broker, partition=partition)

    def holds(self, broker: int, command_id: int) -> bool:
        return self.holds_in(0, broker, command_id)

    def holds_in(self, partition: int, broker: int, command_id: int) -> bool:
        batches = self.replica(broker, partition).log.storage.read(0, 2**60)
        return str(command_id).encode() in {batch.payload for batch in batches}

    def seen(self, kind: str, since_ms: TimeMs = 0) -> list[tuple[TimeMs, NodeId, Trace]]:
        """The trace events of a kind."""
        wanted = KINDS[kind]
        return [
            (event.time_ms, event.node, event.trace)
            for event in self.engine.traces()
            if type(event.trace) is wanted and event.time_ms >= since_ms
        ]
