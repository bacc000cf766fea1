"""The sim engine: `Engine` on top of `SimCluster`. `experiments.check.engine` adds the invariants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from experiments.engines.port import ClusterSpec, ClusterView, Engine, Loss, TraceEvent, incarnation_ended
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import NetworkModel
from protocol.broker.context import ReplicaView, replica_view
from protocol.events.base import Trace
from protocol.events.controller import ControllerStarted, MetadataCommitted
from protocol.events.host import IncarnationBegan
from protocol.ids import FIRST_CLIENT, NO_EPOCH, STORE, Epoch, NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import Command, ShutdownCommand
from protocol.messages.records import MetadataRecord
from protocol.messages.store import ExpireSessions
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.controller import ControllerNode
from protocol.quorum.describe import QuorumView
from protocol.v3.store.node import StoreNode
from protocol.v3.store.view import StoreView, store_view, tree_nodes


class SimEngine(Engine):
    """A simulated cluster. `model`, `elide_idle` and `paranoid` are those of `SimCluster`."""

    name = "sim"

    def __init__(
        self,
        spec: ClusterSpec,
        model: NetworkModel | None = None,
        *,
        elide_idle: bool = True,
        paranoid: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.cluster = SimCluster(spec, model, elide_idle=elide_idle, paranoid=paranoid)
        self._view: tuple[ControllerNode, Offset, ClusterView] | None = None
        self._store_view: tuple[tuple[StoreNode, int] | None, StoreView] = (None, StoreView())
        self._metadata = kept_metadata(self.cluster)

    def now_ms(self) -> TimeMs:
        return self.cluster.now_ms

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        deadline_ms = self.cluster.now_ms + within_ms
        if condition():
            return True
        while self.cluster.step(deadline_ms):
            if condition():
                return True
        return False

    def run_for(self, duration_ms: int) -> None:
        self.cluster.run_until(self.cluster.now_ms + duration_ms)

    def start(self, node: NodeId) -> None:
        self._pass_on(TraceEvent(self.now_ms(), node, IncarnationBegan()))
        self.cluster.start(node)

    def crash(self, node: NodeId, loss: Loss) -> None:
        self._pass_on(incarnation_ended(self.now_ms(), node, loss.kind, self._crash(node, loss)))

    def _crash(self, node: NodeId, loss: Loss) -> dict[TopicPartition, int] | None:
        """Crashes a running node; returns the number of lost records by partition, None if not counted."""
        self.cluster.crash(node, loss)
        return None

    def terminate(self, node: NodeId) -> None:
        self.cluster.command(node, ShutdownCommand())

    def pause(self, node: NodeId) -> None:
        self.cluster.pause(node)

    def resume(self, node: NodeId) -> None:
        self.cluster.resume(node)

    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        self.cluster.set_clock(node, skew_ms)

    def is_running(self, node: NodeId) -> bool:
        return node in self.cluster.nodes

    def is_paused(self, node: NodeId) -> bool:
        return self.cluster.is_paused(node)

    def flush(self, broker: NodeId) -> None:
        self._broker(broker).flush_all()

    def expire_sessions(self, node: NodeId, *, owning_only: bool = False) -> None:
        self.cluster.command(STORE, ExpireSessions(node_id=node, owning_only=owning_only))

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        self.cluster.set_link(source, target, up)

    def heal_links(self) -> None:
        for source, target in self.cluster.network.cuts():
            self.cluster.set_link(source, target, True)

    def submit(self, command: Command) -> None:
        self.cluster.command(FIRST_CLIENT, command)

    def outcome(self, command_id: int) -> Message | None:
        return self.cluster.outcomes.get(command_id)

    def controller_nodes(self) -> list[ControllerNode]:
        """The running controllers."""
        found = map(self.cluster.nodes.get, self.spec.controller_ids)
        return [node for node in found if isinstance(node, ControllerNode)]

    def active_node(self) -> ControllerNode | None:
        """The node object of `active_controller`."""
        active = [node for node in self.controller_nodes() if node.is_active]
        return max(active, key=lambda node: node.active_epoch, default=None)

    def quorum(self) -> Mapping[NodeId, QuorumView]:
        return {node.node_id: node.quorum for node in self.controller_nodes()}

    def store_view(self) -> StoreView:
        store = self.cluster.nodes.get(STORE)
        if isinstance(store, StoreNode) and self._store_view[0] != (store, store.state.zxid):
            self._store_view = ((store, store.state.zxid), store_view(tree_nodes(store.state.tree)))
        return self._store_view[1]

    def _quorum_view(self) -> ClusterView | None:
        """Cached until the active controller has replayed more records: conditions read it often."""
        node = self.active_node()
        if node is None:
            return None
        image = node.state.image
        if self._view is None or self._view[:2] != (node, image.next_offset):
            partitions = {image.name_of(key): state for key, state in image.partitions()}
            voters = tuple(key.id for key in node.replica.voters.keys)
            view = ClusterView(partitions, dict(image.brokers), voters, controllers=tuple(image.controllers))
            self._view = (node, image.next_offset, view)
        return self._view[2]

    def metrics(self) -> Mapping[str, int]:
        node = self.active_node()
        return {} if node is None else node.metrics()

    def broker_epoch(self, broker: NodeId) -> Epoch:
        node = self.cluster.nodes.get(broker)
        return node.context.broker_epoch if isinstance(node, BaseBroker) else NO_EPOCH

    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        node = self.cluster.nodes.get(broker)
        if not isinstance(node, BaseBroker):
            return None
        replica = node.context.replica_named(*partition)
        return None if replica is None else replica_view(replica)

    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        replica = self._broker(broker).context.replica_named(*partition)
        assert replica is not None, f"broker {broker} has no replica of {partition}"
        return replica.log.storage.read(0, 2**62)

    def _broker(self, broker: NodeId) -> BaseBroker:
        node = self.cluster.nodes[broker]
        assert isinstance(node, BaseBroker), f"node {broker} is no broker"
        return node

    def metadata_log(self) -> Sequence[MetadataRecord]:
        return self._metadata

    def traces(self) -> Sequence[TraceEvent]:
        return self.cluster.traces

    def record_to(self, sink: Callable[[TraceEvent], None]) -> Callable[[], None]:
        def observe(now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
            sink(TraceEvent(now_ms, node, trace))

        def stop() -> None:
            self._sinks.remove(sink)
            self.cluster.trace_observers.remove(observe)

        self._sinks.append(sink)
        self.cluster.trace_observers.append(observe)
        return stop

    def trace_hash(self) -> str:
        return self.cluster.trace_hash()

    def close(self) -> None:
        self.cluster.nodes.clear()


def kept_metadata(cluster: SimCluster) -> list[MetadataRecord]:
    """A list that grows with the committed records of the metadata log; call it before any node is started."""
    kept: list[MetadataRecord] = []

    def observe(now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, MetadataCommitted):
            end = trace.end_offset
        elif isinstance(trace, ControllerStarted):
            end = trace.next_offset
        else:
            return
        controller = cluster.nodes.get(node)
        if end > len(kept) and isinstance(controller, ControllerNode):
            begin = len(kept) - controller.first_record
            kept.extend(controller.records[begin : end - controller.first_record])

    cluster.trace_observers.append(observe)
    return kept
