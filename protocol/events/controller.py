"""Events that the active controller emits, about what it committed and what it is about to commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.events.base import Leader, LeaderEpoch, PartitionTrace, Trace, braces
from protocol.ids import NO_LEADER, BrokerId, Epoch, Offset

OFFLINE_PARTITION, UNCLEAN_ELECTION = "offline_partition", "unclean_election"

Answer = tuple[BrokerId, Epoch, Epoch, Offset]
Mode = Annotated[str, "recovery mode: proactive, balanced or manual"]
RecoveryId = Annotated[int, "id of the recovery, unique in the cluster"]
Required = Annotated[tuple[BrokerId, ...], "replicas that must answer before a leader is elected"]


@dataclass(slots=True)
class ControllerStarted(Trace):
    """A controller became active, with the metadata log replayed up to an offset."""

    kind: ClassVar[str] = "controller_started"
    words: ClassVar[str] = "started with {0.next_offset} metadata records"
    next_offset: Annotated[Offset, "number of metadata records that it replayed"]


@dataclass(slots=True)
class ControllerResigned(Trace):
    """A controller is no longer active."""

    kind: ClassVar[str] = "controller_resigned"
    next_offset: Annotated[Offset, "offset below which it knows the metadata log to be committed"]


@dataclass(slots=True)
class MetadataCommitted(Trace):
    """Records of the metadata log were committed. A new active controller may report some a second time."""

    kind: ClassVar[str] = "committed"
    base_offset: Annotated[Offset, "offset of the first of the records"]
    end_offset: Annotated[Offset, "offset behind the last of them"]


@dataclass(slots=True)
class BrokerRegistered(Trace):
    """The controller committed a new registration of a broker, or another state of one."""

    kind: ClassVar[str] = "broker_registration"
    broker: Annotated[BrokerId, "the broker"]
    broker_epoch: Annotated[Epoch, "its broker epoch"]
    fenced: Annotated[bool, "whether it is fenced"]
    in_controlled_shutdown: Annotated[bool, "whether it is in a controlled shutdown"]

    def sentence(self) -> str:
        state = "fenced" if self.fenced else "shutting down" if self.in_controlled_shutdown else "unfenced"
        return f"broker {self.broker} (epoch {self.broker_epoch}): {state}"


@dataclass(slots=True)
class BrokerUnregistered(Trace):
    """The controller removed a broker's registration."""

    kind: ClassVar[str] = "broker_unregistered"
    words: ClassVar[str] = "broker {0.broker} unregistered"
    broker: Annotated[BrokerId, "the broker"]


@dataclass(slots=True)
class SessionExpired(Trace):
    """The controller fences a broker that has sent no heartbeat for its session timeout."""

    kind: ClassVar[str] = "session_expired"
    words: ClassVar[str] = "the session of broker {0.broker} has ended"
    broker: Annotated[BrokerId, "the broker"]


@dataclass(slots=True)
class TopicDeleted(Trace):
    """The controller deleted a topic."""

    kind: ClassVar[str] = "topic_deleted"
    words: ClassVar[str] = "topic {0.topic} deleted"
    topic: Annotated[str, "name of the topic"]


@dataclass(slots=True)
class PartitionRemoved(PartitionTrace):
    """The controller removed a partition, with its records, from a topic that remains."""

    kind: ClassVar[str] = "partition_removed"
    words: ClassVar[str] = "{0.partition} removed"


@dataclass(slots=True)
class FeatureLevelChanged(Trace):
    """The controller committed the level of a feature; its rules apply from then on."""

    kind: ClassVar[str] = "feature_level"
    words: ClassVar[str] = "{0.feature} is at level {0.level}"
    feature: Annotated[str, "name of the feature"]
    level: Annotated[int, "its level"]


@dataclass(slots=True)
class PartitionChanged(PartitionTrace):
    """The controller committed another state of a partition."""

    kind: ClassVar[str] = "partition"
    leader: Leader
    leader_epoch: LeaderEpoch
    partition_epoch: Annotated[Epoch, "partition epoch, one more with every change"]
    replicas: Annotated[tuple[BrokerId, ...], "the assigned replicas"]
    isr: Annotated[tuple[BrokerId, ...], "in-sync replicas"]
    elr: Annotated[tuple[BrokerId, ...], "eligible leader replicas"]
    last_known_elr: Annotated[tuple[BrokerId, ...], "members of the ELR that were removed by an unclean shutdown"]
    last_known_leader: Annotated[BrokerId, "the last leader while there is none, otherwise -1"]
    recovering: Annotated[bool, "whether the leader has yet to report that it recovered from an unclean election"]
    min_isr: Annotated[int, "effective min.insync.replicas"]

    def sentence(self) -> str:
        leader = "no leader" if self.leader == NO_LEADER else f"leader {self.leader}"
        parts = [f"{leader}, epochs {self.leader_epoch}/{self.partition_epoch}", f"ISR {braces(self.isr)}"]
        if self.elr:
            parts.append(f"ELR {braces(self.elr)}")
        if self.last_known_elr:
            parts.append(f"last known ELR {braces(self.last_known_elr)}")
        if self.last_known_leader != NO_LEADER:
            parts.append(f"last known leader {self.last_known_leader}")
        if self.recovering:
            parts.append("recovering")
        return f"{self.partition}: {', '.join(parts)}"


@dataclass(slots=True)
class RecoveryBegan(PartitionTrace):
    """The controller asked the recovery manager to recover a partition."""

    kind: ClassVar[str] = "recovery_began"
    recovery_id: RecoveryId
    mode: Mode
    leader_epoch: LeaderEpoch
    asked: Annotated[tuple[BrokerId, ...], "replicas that are asked about their logs"]
    required: Required

    def sentence(self) -> str:
        required = f", {braces(self.required)} must answer" if self.required else ""
        return f"asks {braces(self.asked)} for the logs of {self.partition}: {self.mode} recovery{required}"


@dataclass(slots=True)
class RecoveryCancelled(PartitionTrace):
    """The controller cancelled a recovery while the partition still has no leader."""

    kind: ClassVar[str] = "recovery_cancelled"
    words: ClassVar[str] = "the recovery of {0.partition} is cancelled"


@dataclass(slots=True)
class RecoveryDecided(PartitionTrace):
    """The controller is about to commit the leader that a recovery elected."""

    kind: ClassVar[str] = "recovery"
    recovery_id: RecoveryId
    mode: Mode
    leader_epoch: Annotated[Epoch, "leader epoch before the election"]
    leader: Annotated[BrokerId, "the elected leader"]
    reason: Annotated[str, "why it was elected, in words"]
    required: Required
    answers: Annotated[
        tuple[Answer, ...], "per answer: broker, broker epoch, leader epoch of its last record, log end offset"
    ]
    silent: Annotated[tuple[BrokerId, ...], "replicas that were asked and did not answer"]
    absent: Annotated[tuple[BrokerId, ...], "replicas that could not be asked"]

    def outcome(self) -> str:
        """Which replica answered what, which did not answer, and which leader was elected for which reason."""
        parts = [f"broker {broker} has epoch {epoch}, end {end}" for broker, _, epoch, end in self.answers]
        parts += [f"broker {broker} is silent" for broker in self.silent]
        parts += [f"broker {broker} is absent" for broker in self.absent]
        return f"{'; '.join(parts)}. Broker {self.leader} is elected: {self.reason}"

    def sentence(self) -> str:
        return f"{self.partition}: {self.outcome()}"


@dataclass(slots=True)
class AlertRaised(PartitionTrace):
    """The controller alerts the operator to a partition."""

    kind: ClassVar[str] = "alert"
    alert: Annotated[str, "`offline_partition`: it has no leader; `unclean_election`: it may have lost records"]
    leader: Leader
    leader_epoch: LeaderEpoch

    def text(self) -> str:
        if self.alert == OFFLINE_PARTITION:
            return f"{self.partition} is offline: it has no leader"
        elected = f"broker {self.leader} was elected uncleanly in epoch {self.leader_epoch}"
        return f"{self.partition} may have lost acknowledged records: {elected}"

    def sentence(self) -> str:
        return f"ALERT: {self.text()}"
