"""What an engine is to the experiments above it: a cluster that can be built, broken, asked and watched.

Two engines implement `Engine`: `experiments.engines.sim` (one process, virtual clock) and `experiments.engines.ray`
(an actor per node). Scenario steps, expectations, checks of history and results are written once, against this
interface. Time is the engine's own: virtual milliseconds in sim, milliseconds since the cluster started in ray.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, cast

from protocol.config import CONTROLLER_QUORUM_VOTERS, UNCLEAN_RECOVERY_ENABLED, ClusterConfig
from protocol.contract import Trace
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, RECOVERY_MANAGER, NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import Command
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import BrokerRegistration
from protocol.metadata.partition import PartitionState
from protocol.nodes.quorum_view import QuorumView
from protocol.quorum.format import disk_uuid
from protocol.quorum.voters import ReplicaKey, VoterSet

INCARNATION_BEGAN, INCARNATION_ENDED = "life_began", "life_ended"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster to run: sizes, static config, and the seed of everything that is drawn at random. `voters` of the
    controllers are the first voters of the quorum, None: all of them; those that the config names count instead.
    """

    brokers: int
    controllers: int
    config: ClusterConfig
    seed: int = 0
    voters: tuple[NodeId, ...] | None = None

    @property
    def broker_ids(self) -> tuple[NodeId, ...]:
        return tuple(range(self.brokers))

    @property
    def controller_ids(self) -> tuple[NodeId, ...]:
        return tuple(range(FIRST_CONTROLLER, FIRST_CONTROLLER + self.controllers))

    @property
    def first_voters(self) -> VoterSet:
        """Whose disks are formatted as voters of the quorum before they start."""
        if self.config.values[CONTROLLER_QUORUM_VOTERS]:
            return VoterSet()
        voters = self.controller_ids if self.voters is None else self.voters
        return VoterSet.of(ReplicaKey(node, disk_uuid(Random(f"{self.seed}/disk/{node}"))) for node in voters)

    @property
    def client_ids(self) -> tuple[NodeId, ...]:
        return (FIRST_CLIENT,)

    @property
    def manager_ids(self) -> tuple[NodeId, ...]:
        """The unclean recovery manager, in generations that are born with unclean recovery."""
        return (RECOVERY_MANAGER,) if self.config.generation.features.unclean_recovery else ()

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """All nodes of a new cluster, in the order in which they are started."""
        return (*self.controller_ids, *self.manager_ids, *self.broker_ids, *self.client_ids)

    @property
    def member_ids(self) -> tuple[NodeId, ...]:
        """All nodes that the cluster may have: the recovery manager starts when unclean recovery is enabled."""
        return tuple(dict.fromkeys((*self.node_ids, RECOVERY_MANAGER)))


@dataclass(frozen=True, slots=True)
class Loss:
    """What a crash does to the logs of a node: `none` (the page cache survives), `unflushed` (every log loses its
    unflushed suffix), `records` (the last `count` records of every log, as far as unflushed), `suffix` (every log loses
    some suffix of its unflushed batches, which one is drawn with `count` as the seed), `torn` (the last of them was
    written in part), `corrupt` (one of them, drawn likewise, is damaged), `all` (the disk is replaced by an empty one).
    What is torn or damaged is dropped with all behind it when the log is opened again. Only sim has `suffix`, `torn`
    and `corrupt`.
    """

    kind: Literal["none", "unflushed", "records", "suffix", "torn", "corrupt", "all"] = "none"
    count: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The active controller's view; `voters` are those of the controllers that have a vote."""

    partitions: Mapping[TopicPartition, PartitionState]
    brokers: Mapping[NodeId, BrokerRegistration]
    voters: tuple[NodeId, ...] = ()

    @property
    def unfenced(self) -> frozenset[NodeId]:
        """The brokers that may lead, and on which replicas may be placed."""
        return frozenset(broker for broker, found in self.brokers.items() if not found.fenced)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A running broker's replica of a partition. `maximal_isr` is the leader's own, empty on others."""

    leads: bool
    leader_epoch: int
    log_end_offset: Offset
    high_watermark: Offset
    maximal_isr: tuple[NodeId, ...] = ()


@dataclass(slots=True)
class TraceEvent:
    """A node's trace event with its time and origin."""

    time_ms: TimeMs
    node: NodeId
    trace: Trace


def enables_recovery(trace: Trace) -> bool:
    """Whether unclean recovery has just been enabled, so that its manager is needed."""
    return trace.kind == "feature_level" and trace.detail == {"feature": UNCLEAN_RECOVERY_ENABLED, "level": 1}


def incarnation_began(time_ms: TimeMs, node: NodeId) -> TraceEvent:
    """A node was started. This and `life_ended` are events of the engine's own, for recordings; no trace hash has
    them.
    """
    return TraceEvent(time_ms, node, Trace(INCARNATION_BEGAN, None, {}))


def incarnation_ended(
    time_ms: TimeMs, node: NodeId, loss: str, lost: Mapping[TopicPartition, int] | None
) -> TraceEvent:
    """A node was killed, or its disk was struck: what kind of `Loss`, and how many records of which partitions were
    lost, None where nobody knows.
    """
    listed = None if lost is None else [(name, count) for name, count in sorted(lost.items()) if count]
    return TraceEvent(time_ms, node, Trace(INCARNATION_ENDED, None, {"loss": loss, "lost": listed}))


@dataclass(frozen=True, slots=True)
class Recovery:
    """An unclean recovery that elected a leader, in the epoch behind `leader_epoch`. Each answer is (broker, broker
    epoch, leader epoch of its last record, log end offset); `silent` were asked in vain, `absent` could not be asked.
    `lost` acknowledged records that it cost, None where the engine cannot know.
    """

    time_ms: TimeMs
    topic: str
    partition: int
    mode: str
    leader: NodeId
    leader_epoch: int
    reason: str
    answers: tuple[tuple[NodeId, int, int, Offset], ...]
    silent: tuple[NodeId, ...]
    absent: tuple[NodeId, ...]
    lost: int | None = None


def recovery_of(event: TraceEvent, lost: int | None = None) -> Recovery:
    """The recovery that a trace event of the kind `recovery` tells of."""
    name, detail = event.trace.partition, cast("Mapping[str, Any]", event.trace.detail)
    assert name is not None
    told = {field: detail[field] for field in ("mode", "leader", "leader_epoch", "reason")}
    lists = {field: tuple(detail[field]) for field in ("silent", "absent")}
    answers = tuple(tuple(answer) for answer in detail["answers"])
    return Recovery(event.time_ms, name.topic, name.partition, **told, **lists, answers=answers, lost=lost)


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    time_ms: TimeMs
    detail: str


class Engine(ABC):
    """See the module docstring. Nodes are started by `start`; `close` ends everything that the engine has begun."""

    name: str
    spec: ClusterSpec

    # -- time ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def now_ms(self) -> TimeMs: ...

    @abstractmethod
    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        """Lets time pass until the condition holds, at most `within_ms`; whether it held."""

    def run_for(self, duration_ms: int) -> None:
        """Lets time pass."""
        self.run_until(lambda: False, duration_ms)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, node: NodeId) -> None:
        """Starts a node that is not running on what its storage holds; does not wait for it to do anything."""

    @abstractmethod
    def crash(self, node: NodeId, loss: Loss) -> None:
        """Ends a node's process at once."""

    @abstractmethod
    def terminate(self, node: NodeId) -> None:
        """Asks a node to shut down in good order; does not wait."""

    @abstractmethod
    def pause(self, node: NodeId) -> None:
        """The node takes no input until `resume`; what is sent to it waits."""

    @abstractmethod
    def resume(self, node: NodeId) -> None: ...

    @abstractmethod
    def is_running(self, node: NodeId) -> bool:
        """Whether the node's process exists (paused counts)."""

    @abstractmethod
    def flush(self, broker: NodeId) -> None:
        """Has a running broker write all its logs through to the disk."""

    # -- links ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        """Cuts or heals one direction between two nodes."""

    @abstractmethod
    def heal_links(self) -> None:
        """Heals every link."""

    # -- clients -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def submit(self, command: Command) -> None:
        """Gives the client a command."""

    @abstractmethod
    def outcome(self, command_id: int) -> Message | None:
        """The outcome of a command, None while there is none."""

    def recoveries(self) -> Sequence[Recovery]:
        """The unclean recoveries so far that have elected a leader, in their order."""
        return [recovery_of(event) for event in self.traces() if event.trace.kind == "recovery"]

    # -- observation ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def quorum(self) -> Mapping[NodeId, QuorumView]:
        """The part of each running controller in the quorum, as it sees it."""

    def active_controller(self) -> NodeId | None:
        """The active controller; of two that take themselves for it the one of the later epoch."""
        active = {node: view.epoch for node, view in self.quorum().items() if view.is_active}
        return max(active, key=active.__getitem__, default=None)

    @abstractmethod
    def view(self) -> ClusterView | None:
        """What the active controller knows, None while none is."""

    def unfenced(self) -> frozenset[NodeId]:
        """The brokers that the active controller knows as unfenced, none while no controller is active."""
        view = self.view()
        return frozenset() if view is None else view.unfenced

    @abstractmethod
    def metrics(self) -> Mapping[str, int]:
        """The active controller's metrics (`protocol.controller.metrics`), empty while none is."""

    @abstractmethod
    def replica(self, broker: NodeId, partition: TopicPartition) -> ReplicaView | None:
        """A running broker's replica, None where there is none."""

    @abstractmethod
    def log(self, broker: NodeId, partition: TopicPartition) -> Sequence[RecordBatch]:
        """All batches of a running broker's replica."""

    @abstractmethod
    def metadata_log(self) -> Sequence[MetadataRecord]:
        """The metadata log as far as it is committed, empty while no controller is running."""

    @abstractmethod
    def traces(self) -> Sequence[TraceEvent]:
        """All trace events so far; the list only grows."""

    @abstractmethod
    def record_to(self, sink: Callable[[TraceEvent], None]) -> None:
        """Hands on every trace event from now on, in the order in which the engine learns of them, and between them
        the lives of nodes (`experiments.check.recording`). Call before any node is started.
        """

    @abstractmethod
    def trace_hash(self) -> str:
        """A digest of all trace events; equal for equal seeds in sim."""

    def violations(self) -> Sequence[Violation]:
        """Invariants violated so far, as far as this engine checks them."""
        return ()

    @abstractmethod
    def close(self) -> None: ...
