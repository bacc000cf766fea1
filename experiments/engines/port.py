"""The interface of an engine: a cluster that an experiment builds, injects faults into, queries and observes.

Three engines implement `Engine`: `experiments.engines.sim.engine.SimEngine` (one process, virtual clock),
`experiments.engines.ray.engine.RayEngine` (an actor process per node) and
`experiments.engines.kafka.engine.KafkaEngine` (processes of a real Apache Kafka). Scenarios, expectations, history
checks and results are written once, against this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from protocol.broker.context import ReplicaView
from protocol.config import CONTROLLER_QUORUM_VOTERS, ClusterConfig
from protocol.events.base import Trace
from protocol.events.controller import FeatureLevelChanged, RecoveryDecided
from protocol.events.host import IncarnationEnded
from protocol.features import UNCLEAN_RECOVERY_ENABLED
from protocol.ids import (
    FIRST_CLIENT,
    FIRST_CONTROLLER,
    NO_EPOCH,
    NO_NODE,
    RECOVERY_MANAGER,
    STORE,
    Epoch,
    NodeId,
    TimeMs,
    TopicPartition,
)
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import Command
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.quorum.describe import QuorumView
from protocol.quorum.state_file import disk_uuid
from protocol.quorum.voters import ReplicaKey, VoterSet
from protocol.v3.store.settings import StoreSettings
from protocol.v3.store.view import StoreView

EngineName = Literal["sim", "ray", "kafka"]
LossKind = Literal["none", "unflushed", "records", "suffix", "torn", "corrupt", "all"]


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to run: numbers of brokers and controllers, static config, and the seed of all random sources.

    `voters` are the controllers that form the first quorum, None for all of them; voters that the config names
    (`controller.quorum.voters`) take precedence. `store` are the settings of the store; None for a cluster without one,
    and for the default settings in generations whose metadata are in a store, which have no controllers. `racks`: the
    brokers are in so many racks in turn (0: in none), or the rack of each broker.
    """

    brokers: int
    controllers: int
    config: ClusterConfig
    seed: int = 0
    voters: tuple[NodeId, ...] | None = None
    store: StoreSettings | None = None
    racks: int | tuple[str, ...] = 0

    def rack_of(self, broker: NodeId) -> str | None:
        """The rack that a broker registers; None where it has none."""
        if isinstance(self.racks, tuple):
            return self.racks[broker]
        return f"rack-{broker % self.racks}" if self.racks else None

    @property
    def broker_ids(self) -> tuple[NodeId, ...]:
        return tuple(range(self.brokers))

    @property
    def controller_ids(self) -> tuple[NodeId, ...]:
        return () if self.has_store_metadata else tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + self.controllers))

    @property
    def has_store_metadata(self) -> bool:
        """Whether the metadata are in a store, and a broker is the controller."""
        return self.config.generation.features.metadata_in_store

    @property
    def store_settings(self) -> StoreSettings:
        return self.store or StoreSettings()

    @property
    def first_voters(self) -> VoterSet:
        """The voters whose disks are formatted before their first start; empty where the config names the voters."""
        if self.config.values[CONTROLLER_QUORUM_VOTERS]:
            return VoterSet()
        voters = self.controller_ids if self.voters is None else self.voters
        return VoterSet.of(ReplicaKey(node, disk_uuid(Random(f"{self.seed}/disk/{node}"))) for node in voters)

    @property
    def client_ids(self) -> tuple[NodeId, ...]:
        return (FIRST_CLIENT,)

    @property
    def manager_ids(self) -> tuple[NodeId, ...]:
        """The unclean recovery manager, in generations that begin with unclean recovery enabled."""
        return (RECOVERY_MANAGER,) if self.config.generation.features.unclean_recovery else ()

    @property
    def store_ids(self) -> tuple[NodeId, ...]:
        return () if self.store is None and not self.has_store_metadata else (STORE,)

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """All nodes that a new cluster starts, in that order."""
        return (*self.store_ids, *self.controller_ids, *self.manager_ids, *self.broker_ids, *self.client_ids)

    @property
    def member_ids(self) -> tuple[NodeId, ...]:
        """All nodes that the cluster may ever have: unclean recovery may be enabled later."""
        return tuple(dict.fromkeys((*self.node_ids, RECOVERY_MANAGER)))


@dataclass(frozen=True, slots=True)
class Loss:
    """What a crash does to the logs of a node, by `kind`:

    - `none`: nothing; the page cache survives.
    - `unflushed`: every log loses its unflushed suffix; with `writeback_ms` only what was appended less than that time
      ago, since the kernel has written the rest back to the disk (Linux: `vm.dirty_expire_centisecs`, 30 s).
    - `records`: every log loses its last `count` records, as far as they are unflushed.
    - `suffix`: every log loses some suffix of its unflushed batches, drawn with `count` as the seed (sim only).
    - `torn`: the last unflushed batch of every log was written in part (sim only).
    - `corrupt`: one unflushed batch of every log, drawn with `count` as the seed, is damaged (sim only).
    - `all`: the disk is replaced by an empty one.
    """

    kind: LossKind = "none"
    count: int = 0
    writeback_ms: TimeMs | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The active controller's metadata: partitions, broker registrations, and the ids of the quorum's voters and of the
    registered `controllers`; what the store has published (A2) where the metadata are in a store, with the epoch of the
    last controller.
    """

    partitions: Mapping[TopicPartition, PartitionState]
    brokers: Mapping[NodeId, BrokerRegistration]
    voters: tuple[NodeId, ...] = ()
    controller_epoch: int | None = None
    controllers: tuple[NodeId, ...] = ()

    @property
    def unfenced(self) -> frozenset[NodeId]:
        """The brokers that may lead, and on which replicas may be placed."""
        return frozenset(broker for broker, found in self.brokers.items() if not found.fenced)


def cluster_view(published: StoreView) -> ClusterView:
    """What a store has published as a view of the cluster, whether a broker is the controller or not."""
    return ClusterView(published.partitions, published.brokers, (), published.controller_epoch)


@dataclass(slots=True)
class TraceEvent:
    """A node's trace event with its time and origin."""

    time_ms: TimeMs
    node: NodeId
    trace: Trace


def enables_recovery(trace: Trace) -> bool:
    """Whether this trace event enables unclean recovery, so that the recovery manager has to run."""
    return isinstance(trace, FeatureLevelChanged) and trace.feature == UNCLEAN_RECOVERY_ENABLED and trace.level == 1


def incarnation_ended(
    time_ms: TimeMs, node: NodeId, loss: str, lost: Mapping[TopicPartition, int] | None
) -> TraceEvent:
    """The recording event for a killed process or a damaged disk, which is part of no trace hash: the `Loss` kind, and
    the number of records that each partition lost (None where the engine does not know).
    """
    listed = None if lost is None else tuple((name, count) for name, count in sorted(lost.items()) if count)
    return TraceEvent(time_ms, node, IncarnationEnded(loss, listed))


@dataclass(frozen=True, slots=True)
class Recovery:
    """An unclean recovery that elected a leader, and the number of acknowledged records lost (None: not known)."""

    time_ms: TimeMs
    decided: RecoveryDecided
    lost: int | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, with the engine's time and an explanation."""

    invariant: str
    time_ms: TimeMs
    detail: str


class Engine(ABC):
    """A running cluster; a new engine has no running node."""

    name: EngineName
    spec: ClusterSpec

    def __init__(self) -> None:
        self._sinks: list[Callable[[TraceEvent], None]] = []

    @abstractmethod
    def now_ms(self) -> TimeMs:
        """Virtual time in sim, time since the cluster was created in ray and kafka."""

    @abstractmethod
    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Lets time pass until the condition holds, at most `within_ms`; returns whether it held."""

    @abstractmethod
    def run_for(self, duration_ms: int) -> None:
        """Lets time pass."""

    @abstractmethod
    def start(self, node: NodeId) -> None:
        """Starts a node that is not running, on its present storage; returns before the node has handled any input."""

    @abstractmethod
    def crash(self, node: NodeId, loss: Loss) -> None:
        """Kills a node's process at once, if it runs, and applies `loss` to its disk."""

    @abstractmethod
    def terminate(self, node: NodeId) -> None:
        """Requests a controlled shutdown of a node; returns before it has shut down."""

    @abstractmethod
    def pause(self, node: NodeId) -> None:
        """Stops a running node from taking inputs until `resume`; messages to it are queued. One that is paused stays
        so."""

    @abstractmethod
    def resume(self, node: NodeId) -> None:
        """Ends a pause, if there is one; the node handles the queued inputs in their order."""

    @abstractmethod
    def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Sets the clock of a node that does not run `skew_ms` ahead of true time (negative: behind), from its next
        incarnation on.
        """

    @abstractmethod
    def is_running(self, node: NodeId) -> bool:
        """Whether the node's process exists; a paused one does."""

    @abstractmethod
    def flush(self, broker: NodeId) -> None:
        """Flushes all logs of a running broker to its disk."""

    @abstractmethod
    def expire_sessions(self, node: NodeId) -> None:
        """Has the running store end all sessions of a node, whether it is alive or not."""

    @abstractmethod
    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        """Cuts (`up` false) or heals the link from `source` to `target`; the opposite direction is not affected."""

    @abstractmethod
    def heal_links(self) -> None:
        """Heals every link."""

    @abstractmethod
    def submit(self, command: Command) -> None:
        """Sends a command to the client node."""

    @abstractmethod
    def outcome(self, command_id: int) -> Message | None:
        """The outcome of a command, None while it is under way."""

    def recoveries(self) -> Sequence[Recovery]:
        """The unclean recoveries that have elected a leader so far, oldest first."""
        events = self.traces()
        return [Recovery(event.time_ms, event.trace) for event in events if isinstance(event.trace, RecoveryDecided)]

    @abstractmethod
    def quorum(self) -> Mapping[NodeId, QuorumView]:
        """Each running controller's own view of the quorum: role, epoch, leader, voters."""

    def active_controller(self) -> NodeId | None:
        """The active controller, if any (of two, the one with the higher epoch); in `v3` as the store names it."""
        if self.spec.has_store_metadata:
            controller = self.store_view().controller
            return None if controller == NO_NODE else controller
        active = {node: view.epoch for node, view in self.quorum().items() if view.is_active}
        return max(active, key=active.__getitem__, default=None)

    def view(self) -> ClusterView | None:
        """The active controller's metadata, None while no controller is active."""
        if self.spec.has_store_metadata:
            published = self.store_view()
            return None if published.controller == NO_NODE else cluster_view(published)
        return self._quorum_view()

    @abstractmethod
    def _quorum_view(self) -> ClusterView | None:
        """`view` of a cluster whose metadata are in a quorum's log."""

    @abstractmethod
    def store_view(self) -> StoreView:
        """What the store has published, or had when it was seen last; empty in a cluster without a store."""

    def published(self) -> ClusterView | None:
        """As `view`, but in `v3` what the store has published counts also while no broker is the controller (A2)."""
        return cluster_view(self.store_view()) if self.spec.has_store_metadata else self.view()

    def unfenced(self) -> frozenset[NodeId]:
        """The brokers that are unfenced in `view`; empty while no controller is active."""
        view = self.view()
        return frozenset() if view is None else view.unfenced

    @abstractmethod
    def metrics(self) -> Mapping[str, int]:
        """The active controller's metrics (`protocol.controller.metrics`), empty while no controller is active."""

    def broker_epoch(self, broker: NodeId) -> Epoch:
        """The epoch in which the running process of a broker is registered, NO_EPOCH where it is not. After a restart
        `view` has the registration of the incarnation before, until the session of that one has ended; an engine that
        cannot ask the process says what `view` has.
        """
        view = self.published()
        return view.brokers[broker].broker_epoch if view is not None and broker in view.brokers else NO_EPOCH

    @abstractmethod
    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        """A running broker's replica, None where the broker does not run or has no replica of the partition."""

    def holds(self, broker: NodeId, partition: TopicPartition) -> bool:
        """Whether a running broker has a replica of the partition."""
        return self.replica(broker, partition) is not None

    @abstractmethod
    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        """All batches of a running broker's replica, flushed or not."""

    @abstractmethod
    def metadata_log(self) -> Sequence[MetadataRecord]:
        """The committed records of the metadata log, empty while no controller is running."""

    def unjudged(self) -> Sequence[TraceEvent]:
        """The trace events that have arrived since `run_until` judged its condition last, which has not seen the states
        between them. Empty where an engine judges after every event.
        """
        return ()

    @abstractmethod
    def traces(self) -> Sequence[TraceEvent]:
        """All trace events so far; later calls return a longer list with the same beginning."""

    @abstractmethod
    def record_to(self, sink: Callable[[TraceEvent], None]) -> Callable[[], None]:
        """Passes every trace event to `sink`, in the order in which the engine receives them, together with the starts
        and ends of node processes (`experiments.check.recording`). Call before any node is started. The function that
        is returned ends that; call it before the sink is closed, since nodes go on.
        """

    def last_lines(self, node: NodeId) -> str:
        """What a node that does not start has printed last, on one line; empty where that is not known."""
        return ""

    def _pass_on(self, event: TraceEvent) -> None:
        for sink in self._sinks:
            sink(event)

    @abstractmethod
    def trace_hash(self) -> str:
        """A digest of all trace events; in sim, equal seeds give equal digests."""

    def violations(self) -> Sequence[Violation]:
        """The violations that an engine which checks invariants has found so far."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Ends all nodes and releases all resources (a private Ray, directories); may be called again."""
