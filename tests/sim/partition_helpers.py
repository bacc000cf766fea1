"""A simulated cluster with one partition, for tests that arrange one certain course of events."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import alter_config, create_topic, reassign
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import NetworkModel
from protocol.broker.context import Replica
from protocol.config import ClusterConfig
from protocol.features import Generation
from protocol.metadata.image import MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.controller import ControllerNode
from tests.sim.cluster_helpers import KEEP as KEEP
from tests.sim.cluster_helpers import ClusterBench, broker_of, controller_of, replica_of


class Bench(ClusterBench):
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
        super().__init__(SimCluster(spec, NetworkModel(1, 2), **options))
        self.start_all()
        self.run_until(2_000)
        self.administer(create_topic("t", (replicas,), {"min.insync.replicas": min_isr} | dict(topic or {})))
        self.run_until(3_000)

    def configure(self, name: str, value: int) -> None:
        self.administer(alter_config("t", {name: value}))

    def reassign(self, *replicas: int) -> int:
        return self.administer(reassign("t", 0, replicas))

    @property
    def controller(self) -> ControllerNode:
        return controller_of(self.cluster)

    @property
    def state(self) -> PartitionState:
        return next(state for _, state in self.controller.state.image.partitions())

    def fenced(self, broker: int) -> bool:
        return self.controller.state.image.brokers[broker].fenced

    def broker(self, broker: int) -> BaseBroker:
        return broker_of(self.cluster, broker)

    def replica(self, broker: int) -> Replica:
        return replica_of(self.cluster, broker)

    def holds(self, broker: int, command_id: int) -> bool:
        batches = self.replica(broker).log.storage.read(0, 2**60)
        return str(command_id).encode() in {batch.payload for batch in batches}

    def changes(self) -> list[int]:
        """Times of all changes of the partition."""
        return [event.time_ms for event in self.cluster.traces if event.trace.kind == "partition"]


def image_of(engine: CheckedEngine) -> MetadataImage:
    """The controller's."""
    return controller_of(engine.cluster).state.image
