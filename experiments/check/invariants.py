"""The invariants, one class each, named as in the published models of KIP-966 (kip_966_properties) where they stand
there.

An invariant looks at one partition after an event that touched it; it says what is wrong in words, or nothing. Those
that promise durability (`NEEDS_TOLERANCE`) are asked only while the partition is within tolerance (`truth.py`).

Retention deletes the beginnings of logs, on each replica when it comes to it. Records below a log's start are not held
against it; but no log may begin behind what is committed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from experiments.check.truth import GroundTruth
from protocol.broker.context import Replica
from protocol.contract import Trace
from protocol.ids import NO_LEADER, NodeId, Offset, TopicPartition
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch
from protocol.nodes.broker import BrokerNode


class Invariant:
    """Base of invariants; `check` is called after each event with the node that acted, `note` with each trace event."""

    NEEDS_TOLERANCE: ClassVar[bool] = False

    def __init__(self, truth: GroundTruth) -> None:
        self.truth = truth

    def note(self, node: NodeId, partition: TopicPartition, trace: Trace) -> str:
        """Judges a trace event as it is emitted."""
        return ""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        """Partitions were deleted; others of the same name will be others."""

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        """Judges the state of a partition after an event of `node` that touched it."""
        return ""


class OneLeaderPerEpoch(Invariant):
    """At most one broker ever leads a partition in a leader epoch."""

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._leaders: dict[tuple[TopicPartition, int], NodeId] = {}

    def note(self, node: NodeId, partition: TopicPartition, trace: Trace) -> str:
        if trace.kind != "became_leader":
            return ""
        epoch = int(str(trace.detail["leader_epoch"]))
        first = self._leaders.setdefault((partition, epoch), node)
        return "" if first == node else f"brokers {first} and {node} both lead in epoch {epoch}"

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        self._leaders = {key: node for key, node in self._leaders.items() if not is_gone(key[0])}


def _lack(log: ReplicaLog, committed_end: Offset) -> str:
    """In what way a log has not everything that is committed, and has not been deleted; empty where it has."""
    if log.end_offset < committed_end:
        return f"ends at {log.end_offset}, committed is {committed_end}"
    if log.start_offset > committed_end:
        return f"begins at {log.start_offset}, committed is {committed_end}"
    return ""


class LeaderCompleteness(Invariant):
    """A non-stale leader holds everything that was committed."""

    NEEDS_TOLERANCE = True

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        replica = self.truth.replica(node, partition)
        if replica is None or not self.truth.is_non_stale_leader(node, partition):
            return ""
        wrong = _lack(replica.log, self.truth.of(partition).committed_end)
        return f"leader {node} {wrong}" if wrong else ""


class LeaderCandidateCompleteness(Invariant):
    """Every running member of ISR and ELR holds everything that was committed."""

    NEEDS_TOLERANCE = True

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        state = self.truth.controller_state(partition)
        if state is None:
            return ""
        end = self.truth.of(partition).committed_end
        for broker in (*state.isr, *(b for b in state.elr if b in state.replicas)):
            replica = self.truth.replica(broker, partition)
            wrong = _lack(replica.log, end) if replica is not None and self.truth.is_registered(broker) else ""
            if wrong:
                return f"{'ISR' if broker in state.isr else 'ELR'} member {broker} {wrong}"
        return ""


class NoCommittedRecordLostGlobally(Invariant):
    """Everything committed is on the disk of some replica."""

    NEEDS_TOLERANCE = True

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        end = self.truth.of(partition).committed_end
        ends = self.truth.stored_ends(partition)
        if end and ends and max(ends.values()) < end:
            return f"committed is {end}, the longest logs end at {ends}"
        return ""


class _PrefixCheck(Invariant):
    """Compares what a replica holds below its high watermark with what was shown there, each offset once per replica
    life.
    """

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._checked: dict[tuple[NodeId, TopicPartition, int], Offset] = {}

    @abstractmethod
    def _concerns(self, replica: Replica) -> bool:
        """Whether this check is about replicas in that role."""

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        replica = self.truth.replica(node, partition)
        if replica is None or not self._concerns(replica):
            return ""
        key = (node, partition, self.truth.cluster.life_of(node))
        limit = min(replica.log.high_watermark, replica.log.end_offset)
        offset = max(min(self._checked.get(key, 0), limit), replica.log.start_offset)
        while offset < limit:
            batch = replica.log.storage.read(offset, 1)[0]
            wrong = self._compare(node, partition, batch)
            if wrong:
                return wrong
            offset = batch.next_offset
        self._checked[key] = offset
        return ""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        self._checked = {key: offset for key, offset in self._checked.items() if not is_gone(key[1])}

    def _compare(self, node: NodeId, partition: TopicPartition, batch: RecordBatch) -> str:
        shown = self.truth.of(partition).shown.get(batch.base_offset)
        if shown is not None and shown != batch.payload:
            return f"broker {node} holds {batch.payload.hex()} at {batch.base_offset}, shown there was {shown.hex()}"
        return ""


class LogMatching(_PrefixCheck):
    """Followers agree below their high watermarks with what leaders have shown."""

    NEEDS_TOLERANCE = True

    def _concerns(self, replica: Replica) -> bool:
        return replica.leadership is None


class ConsistentRead(_PrefixCheck):
    """What a leader has shown at an offset is what every later leader shows there. This check also keeps the truth."""

    NEEDS_TOLERANCE = True

    def _concerns(self, replica: Replica) -> bool:
        return replica.leadership is not None

    def _compare(self, node: NodeId, partition: TopicPartition, batch: RecordBatch) -> str:
        wrong = super()._compare(node, partition, batch)
        if not wrong and self.truth.is_non_stale_leader(node, partition):
            truth = self.truth.of(partition)
            truth.shown[batch.base_offset] = batch.payload
            truth.committed_end = max(truth.committed_end, batch.next_offset)
        return wrong


class HighWatermarkMonotone(Invariant):
    """From KIP-966 on no leader takes back what consumers could see; before it only acks=all records are promised."""

    NEEDS_TOLERANCE = True

    def __init__(self, truth: GroundTruth) -> None:
        super().__init__(truth)
        self._shown: dict[TopicPartition, Offset] = {}

    def note(self, node: NodeId, partition: TopicPartition, trace: Trace) -> str:
        if not self.truth.features.high_watermark_needs_min_isr:
            self._shown.pop(partition, None)
            return ""
        shown = self._shown.get(partition, 0)
        if trace.kind == "high_watermark":
            self._shown[partition] = max(shown, int(str(trace.detail["high_watermark"])))
        elif trace.kind == "became_leader" and int(str(trace.detail["log_end"])) < shown:
            state = self.truth.controller_state(partition)
            if state is not None and int(str(trace.detail["leader_epoch"])) < state.leader_epoch:
                return ""  # deposed before it read of its election
            return f"leader {node} ends at {trace.detail['log_end']}, consumers were shown up to {shown}"
        return ""

    def forget(self, is_gone: Callable[[TopicPartition], bool]) -> None:
        self._shown = {partition: shown for partition, shown in self._shown.items() if not is_gone(partition)}


class ReplicationQuorumSuperset(Invariant):
    """A non-stale leader's maximal ISR contains the controller's ISR, and its ELR too, while the leader counts min
    ISR members. An ELR that Kafka's first phase keeps though min ISR is reached has nothing to say, nor have members
    that are no replicas.
    """

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        state = self.truth.controller_state(partition)
        if state is None or not self.truth.is_non_stale_leader(state.leader, partition):
            return ""
        replica = self.truth.replica(state.leader, partition)
        leadership = None if replica is None else replica.leadership
        if leadership is None or len(leadership.isr) < self.truth.min_isr(partition, state):
            return ""
        superfluous = self.truth.features.last_known_leader_in_elr and len(state.isr) >= self.truth.min_isr(
            partition, state
        )
        elr = set() if superfluous else set(state.elr) & set(state.replicas)
        missing = sorted({*state.isr, *elr} - set(leadership.maximal_isr))
        if not missing:
            return ""
        return f"leader {state.leader} counts with {leadership.maximal_isr}, the controller with {missing} as well"


class MinIsrRecoveryQuorum(Invariant):
    """Where ISR and ELR are empty, the last known ELR has at least min ISR members (E27)."""

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        features = self.truth.features
        state = self.truth.controller_state(partition)
        if state is None or not features.track_last_known_leader or state.isr or state.elr:
            return ""
        truth = self.truth.of(partition)
        if truth.reached_min_isr and len(state.last_known_elr) < truth.min_isr:
            return f"ISR and ELR are empty, last known ELR is {state.last_known_elr}, min ISR {truth.min_isr}"
        return ""


class ValidControllerIsrAndElr(Invariant):
    """ISR and ELR are disjoint sets of replicas, the leader is in the ISR, and ELR is empty once min ISR is reached.

    `kip-966-elr` follows Kafka's first phase, which keeps an ELR that an election from it has made superfluous, and
    members of it that a reassignment has moved away.
    """

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        state = self.truth.controller_state(partition)
        if state is None:
            return ""
        features = self.truth.features
        isr, elr = set(state.isr), set(state.elr)
        assigned = isr if features.last_known_leader_in_elr else isr | elr
        wrong = []
        if len(isr) != len(state.isr) or isr & elr or not assigned <= {*state.replicas}:
            wrong.append("ISR and ELR are not disjoint sets of replicas")
        if state.leader != NO_LEADER and state.leader not in isr:
            wrong.append(f"leader {state.leader} is not in the ISR")
        if not features.elr and (elr or not isr):
            wrong.append("without ELR the ISR is never empty and the ELR always is")
        if features.track_last_known_leader and elr and len(isr) >= self.truth.min_isr(partition, state):
            wrong.append("the ELR is not empty though min ISR is reached")
        return f"{'; '.join(wrong)}: ISR {state.isr}, ELR {state.elr}" if wrong else ""


class MetadataLogMatching(Invariant):
    """A broker that has replayed as much of the metadata log as the controller has the same state of the partition."""

    def check(self, node: NodeId, partition: TopicPartition) -> str:
        broker, image = self.truth.cluster.nodes.get(node), self.truth.controller_image()
        if not isinstance(broker, BrokerNode) or image is None:
            return ""
        own = broker.context.image
        if own.next_offset > image.next_offset:
            return f"broker {node} has replayed {own.next_offset} records, the controller {image.next_offset}"
        if own.next_offset < image.next_offset:
            return ""
        topic = own.topic_named(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        expected = self.truth.controller_state(partition)
        return "" if state == expected else f"broker {node} has {state}, the controller {expected}"


INVARIANTS: tuple[type[Invariant], ...] = (
    OneLeaderPerEpoch,
    ConsistentRead,
    LeaderCompleteness,
    LeaderCandidateCompleteness,
    NoCommittedRecordLostGlobally,
    LogMatching,
    HighWatermarkMonotone,
    ReplicationQuorumSuperset,
    MinIsrRecoveryQuorum,
    ValidControllerIsrAndElr,
    MetadataLogMatching,
)
