"""A simulated cluster with one partition, for tests that arrange one certain course of events."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.engines.admin_requests import alter_config, create_topic, reassign
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import NetworkModel
from protocol.broker.context import Replica
from protocol.config import ClusterConfig, Generation
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand, ProduceCommand, ProduceOutcome
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker import BrokerNode
from protocol.nodes.controller import ControllerNode

KEEP = Loss("none")


class Bench:
    """A simulated cluster with one partition `t-0`, up and running at 3 s; `config` is the cluster's, `topic` that of
    `t` beside its min ISR.
    """

    def __init__(
        self,
        brokers: int = 3,
        replicas: tuple[int, ...] = (0, 1, 2),
        min_isr: int = 2,
        seed: int = 0,
        config: Mapping[str, object] | None = None,
        topic: Mapping[str, int] | None = None,
        **options: bool,
    ) -> None:
        spec = ClusterSpec(brokers, 1, ClusterConfig.of(Generation.KIP_966, config), seed)
        self.cluster = SimCluster(spec, NetworkModel(1, 2), **options)
        self.commands = 0
        for node in self.cluster.spec.node_ids:
            self.cluster.start(node)
        self.run_until(2_000)
        self.administer(create_topic("t", (replicas,), {"min.insync.replicas": min_isr} | dict(topic or {})))
        self.run_until(3_000)

    def run_until(self, at_ms: int) -> None:
        self.cluster.run_until(at_ms)

    def administer(self, request: AdminRequest) -> int:
        self.commands += 1
        self.cluster.command(FIRST_CLIENT, AdminCommand(command_id=self.commands, request=request))
        return self.commands

    def configure(self, name: str, value: int) -> None:
        self.administer(alter_config("t", {name: value}))

    def reassign(self, *replicas: int) -> int:
        return self.administer(reassign("t", 0, replicas))

    def produce(self, acks: int = -1) -> int:
        self.commands += 1
        payload = str(self.commands).encode()
        command = ProduceCommand(
            command_id=self.commands, topic="t", partition=0, acks=acks, record_count=1, payload=payload
        )
        self.cluster.command(FIRST_CLIENT, command)
        return self.commands

    def acked(self, command_id: int) -> bool:
        outcome = self.cluster.outcomes.get(command_id)
        return isinstance(outcome, ProduceOutcome) and outcome.error is ErrorCode.NONE

    @property
    def controller(self) -> ControllerNode:
        controller = self.cluster.nodes[FIRST_CONTROLLER]
        assert isinstance(controller, ControllerNode)
        return controller

    @property
    def state(self) -> PartitionState:
        return next(state for _, state in self.controller.state.image.partitions())

    def fenced(self, broker: int) -> bool:
        return self.controller.state.image.brokers[broker].fenced

    def broker(self, broker: int) -> BrokerNode:
        node = self.cluster.nodes[broker]
        assert isinstance(node, BrokerNode)
        return node

    def replica(self, broker: int) -> Replica:
        replica = self.broker(broker).context.replica_named("t", 0)
        assert replica is not None
        return replica

    def holds(self, broker: int, command_id: int) -> bool:
        batches = self.replica(broker).log.storage.read(0, 2**60)
        return str(command_id).encode() in {batch.payload for batch in batches}

    def cut(self, a: int, b: int, up: bool = False) -> None:
        self.cluster.set_link(a, b, up)
        self.cluster.set_link(b, a, up)

    def changes(self) -> list[int]:
        """Times of all changes of the partition."""
        return [event.time_ms for event in self.cluster.traces if event.trace.kind == "partition"]
