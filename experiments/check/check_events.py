"""What brokers told in a recording, held against what the controller has committed, and against what they told before.

The order of events of one node is sure, and nothing is concluded from the order of events of two. What connects nodes
is the log of metadata: a leader epoch comes after all lower ones, whenever its events were told, and what a broker did
it did at some position in that log, not before the last one that it told (`metadata_published`). Where a rule depends
on metadata that may have changed since, an event is wrong only if it is under all that the broker may have known.

A life may end without telling its last events. So nothing is concluded from what is *not* told, but for
`AcknowledgedIsCommitted`, which looks at the whole recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from experiments.check.check_metadata import MetadataHistory
from experiments.engines.port import TraceEvent, Violation
from protocol.broker.lifecycle import LifecycleState
from protocol.events.base import PartitionTrace
from protocol.events.broker import (
    BecameFollower,
    BecameLeader,
    BrokerStateChanged,
    HighWatermarkAdvanced,
    IsrCommitted,
    LogReset,
    LogTruncated,
    MetadataPublished,
    RecordsAppended,
    RecordsFetched,
)
from protocol.events.controller import PartitionChanged, PartitionRemoved
from protocol.events.host import IncarnationBegan, TracesDropped
from protocol.ids import BrokerId, Epoch, NodeId, Offset, TimeMs, TopicPartition, is_broker
from protocol.metadata.partition import PartitionState
from protocol.nodes.controller_traces import partition_changed

ACKS_ALL = -1


@dataclass(slots=True)
class _Replica:
    """What a broker's present life has told of a replica. `isr` is None until it has told one as leader."""

    log_end: Offset | None = None
    leader_epoch: Epoch = -1
    high_watermark: Offset = 0
    isr: tuple[BrokerId, ...] | None = None


@dataclass(slots=True)
class _Broker:
    """What a broker's present life has told. `former` is what its former lives had replayed."""

    published: Offset = 0
    former: Offset = 0
    replicas: dict[TopicPartition, _Replica] = field(default_factory=dict)
    doubts: list[tuple[Offset, TopicPartition, int, bool, Violation]] = field(default_factory=list)


@dataclass(slots=True)
class _Recorded:
    """What the controller has recorded of a partition: leaders and the largest ISR by leader epoch, states by partition
    epoch, and the assignments that it has had.
    """

    leaders: dict[Epoch, set[BrokerId]] = field(default_factory=dict)
    most_in_sync: dict[Epoch, int] = field(default_factory=dict)
    states: dict[Epoch, list[PartitionState]] = field(default_factory=dict)
    assignments: set[tuple[BrokerId, ...]] = field(default_factory=set)

    @classmethod
    def of(cls, states: Iterable[PartitionState]) -> _Recorded:
        found = cls()
        for state in states:
            epoch = state.leader_epoch
            found.leaders.setdefault(epoch, set()).add(state.leader)
            found.most_in_sync[epoch] = max(len(state.isr), found.most_in_sync.get(epoch, 0))
            found.states.setdefault(state.partition_epoch, []).append(state)
            found.assignments.add(state.replicas)
        return found


@dataclass(frozen=True, slots=True)
class _Led:
    """A broker took up a leadership with a log that ended at `log_end`."""

    node: NodeId
    time_ms: TimeMs
    log_end: Offset


class EventJudge:
    """Judges the events of a recording, told one by one. `counts` says how often each invariant was looked at."""

    def __init__(self, metadata: MetadataHistory) -> None:
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = dict.fromkeys(SHOWN_BY_EVENTS, 0)
        self.gaps: list[str] = []
        self.shown: dict[TopicPartition, dict[Epoch, Offset]] = {}
        self._metadata = metadata
        self._recorded = {
            name: _Recorded.of(it.state for it in states) for name, states in sorted(metadata.states.items())
        }
        self._told: dict[TopicPartition, PartitionChanged] = {}
        self._brokers: dict[NodeId, _Broker] = {}
        self._leaders: dict[tuple[TopicPartition, Epoch], NodeId] = {}
        self._led: dict[TopicPartition, list[tuple[Epoch, _Led]]] = {}

    def note(self, event: TraceEvent) -> None:
        """Takes in the next event."""
        trace = event.trace
        if isinstance(trace, TracesDropped):
            self.gaps.append(f"node {event.node} has let go of {trace.count} events")
            self._settle(event.node, self._metadata.records)
            self._brokers.pop(event.node, None)
        elif is_broker(event.node):
            self._note_broker(event)
        elif isinstance(trace, PartitionTrace) and trace.partition not in self._metadata.recreated:
            self._by_controller(event, trace)

    def _note_broker(self, event: TraceEvent) -> None:
        trace = event.trace
        if isinstance(trace, IncarnationBegan):
            self._settle(event.node, self._metadata.records)
            before = self._brokers.get(event.node, _Broker())
            self._brokers[event.node] = _Broker(former=max(before.former, before.published))
            return
        broker = self._brokers.setdefault(event.node, _Broker())
        if isinstance(trace, MetadataPublished):
            self._published(event, broker, trace.next_offset)
        elif isinstance(trace, BrokerStateChanged):
            self._state(event, broker, trace.state)
        elif isinstance(trace, PartitionTrace) and trace.partition not in self._metadata.recreated:
            self._note_replica(event, trace, broker, broker.replicas.setdefault(trace.partition, _Replica()))

    def _note_replica(self, event: TraceEvent, trace: PartitionTrace, broker: _Broker, replica: _Replica) -> None:
        match trace:
            case BecameLeader():
                self._became_leader(event, trace, replica)
            case BecameFollower():
                self._became_follower(event, trace, replica)
            case RecordsAppended():
                self._appended(event, trace, broker, replica)
            case RecordsFetched():
                self._grew(event, trace, replica)
            case LogTruncated():
                self._cut(event, trace, replica)
            case LogReset():
                replica.log_end = replica.high_watermark = trace.to_offset
            case HighWatermarkAdvanced():
                self._high_watermark(event, trace, broker, replica)
            case IsrCommitted():
                self._isr_committed(event, trace, replica)

    def finish(self) -> None:
        """All events have been told."""
        for node in self._brokers:
            self._settle(node, self._metadata.records)
        for partition, leaderships in sorted(self._led.items()):
            for epoch, led in leaderships:
                self._complete(partition, epoch, led)

    def _of(self, partition: TopicPartition) -> _Recorded:
        return self._recorded.get(partition) or _Recorded()

    def _check(self, name: str, event: TraceEvent, holds: bool, detail: str) -> None:
        self.counts[name] += 1
        if not holds:
            self.violations.append(self._violation(name, event, detail))

    def _violation(self, name: str, event: TraceEvent, detail: str) -> Violation:
        partition = event.trace.about()
        about = "" if partition is None else f"{partition}: "
        return Violation(name, event.time_ms, f"{about}broker {event.node} {detail}")

    # -- metadata ------------------------------------------------------------------------------------------------------

    def _by_controller(self, event: TraceEvent, trace: PartitionTrace) -> None:
        """What a controller tells of a partition is what its records come to, and its epochs rise."""
        partition = trace.partition
        if isinstance(trace, PartitionRemoved):
            self._told.pop(partition, None)
        if not isinstance(trace, PartitionChanged):
            return
        before, self._told[partition] = self._told.get(partition), trace
        if before is not None and before != trace:
            least = before.leader_epoch + (trace.leader != before.leader)
            if trace.partition_epoch <= before.partition_epoch or trace.leader_epoch < least:
                epochs = [f"{it.leader_epoch}/{it.partition_epoch}" for it in (before, trace)]
                text = f"{partition}: leader {before.leader}, epochs {epochs[0]}; then {trace.leader}, {epochs[1]}"
                self.violations.append(Violation("EpochsRise", event.time_ms, text))
        told = _committed(trace)
        states = self._of(partition).states.get(trace.partition_epoch, [])
        holds = told in (_committed(partition_changed(partition, state, trace.min_isr)) for state in states)
        text = f"node {event.node} has {dict(zip(_COMMITTED, told, strict=True))}, which no records come to"
        self.counts["MetadataLogMatching"] += 1
        if not holds:
            self.violations.append(Violation("MetadataLogMatching", event.time_ms, f"{partition}: {text}"))

    def _published(self, event: TraceEvent, broker: _Broker, offset: Offset) -> None:
        records = self._metadata.records
        wrong = offset < broker.published or offset > records
        detail = f"has replayed {offset} records, before that {broker.published}; there are {records}"
        self._check("MetadataLogMatching", event, not wrong, detail)
        self._settle(event.node, offset)
        broker.published = max(broker.published, offset)

    def _state(self, event: TraceEvent, broker: _Broker, state: str) -> None:
        if state != LifecycleState.RUNNING.value:
            return
        known = self._metadata.registrations.get(event.node, [])
        holds = any(broker.former <= offset < broker.published for offset in known)
        detail = f"runs, and has replayed {broker.published} records; it was registered at {known}"
        self._check("ValidBrokerState", event, holds, detail)

    def _leadership(self, event: TraceEvent, partition: TopicPartition, epoch: Epoch) -> None:
        """The node acts as leader in an epoch: nobody else did, and the controller has recorded it."""
        first = self._leaders.setdefault((partition, epoch), event.node)
        self._check(
            "OneLeaderPerEpoch", event, first == event.node, f"leads in epoch {epoch}, in which broker {first} led"
        )
        self._recorded_leader(event, partition, epoch, event.node)

    def _recorded_leader(self, event: TraceEvent, partition: TopicPartition, epoch: Epoch, leader: NodeId) -> None:
        recorded = sorted(self._of(partition).leaders.get(epoch, ()))
        self._check(
            "MetadataLogMatching",
            event,
            leader in recorded,
            f"takes {leader} for the leader of epoch {epoch}; recorded is {recorded}",
        )

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _became_leader(self, event: TraceEvent, trace: BecameLeader, replica: _Replica) -> None:
        partition, epoch, end, mark = trace.partition, trace.leader_epoch, trace.log_end, trace.high_watermark
        self._leadership(event, partition, epoch)
        self._may_begin_anew(event.node, partition, replica, epoch)
        self._led.setdefault(partition, []).append((epoch, _Led(event.node, event.time_ms, end)))
        self._replica_state(event, replica, epoch, end)
        self._check("ValidReplicaState", event, mark <= end, f"has high watermark {mark}, its log ends at {end}")
        replica.log_end, replica.high_watermark, replica.isr = end, mark, None

    def _became_follower(self, event: TraceEvent, trace: BecameFollower, replica: _Replica) -> None:
        self._recorded_leader(event, trace.partition, trace.leader_epoch, trace.leader)
        self._may_begin_anew(event.node, trace.partition, replica, trace.leader_epoch)
        self._replica_state(event, replica, trace.leader_epoch, None)
        replica.isr = None

    def _may_begin_anew(self, node: NodeId, partition: TopicPartition, replica: _Replica, epoch: Epoch) -> None:
        """With a role a replica may begin that has nothing to do with what the broker had under its name: the broker
        was taken out of the assignment meanwhile, or the partition was removed. No event reports the removal of a
        replica.
        """
        first = self._metadata.first_epoch(partition, epoch)
        stayed = all(node in replicas for replicas in self._of(partition).assignments)
        if first > replica.leader_epoch or not stayed:
            replica.log_end, replica.high_watermark = None, 0

    def _replica_state(self, event: TraceEvent, replica: _Replica, epoch: Epoch, log_end: Offset | None) -> None:
        """Leader epochs rise in a life; a log ends where it was said to end."""
        self._check(
            "ValidReplicaState",
            event,
            epoch >= replica.leader_epoch,
            f"went from leader epoch {replica.leader_epoch} back to {epoch}",
        )
        if log_end is not None and replica.log_end is not None:
            self._check(
                "ValidReplicaState",
                event,
                log_end == replica.log_end,
                f"has a log that ends at {log_end}, after one that ended at {replica.log_end}",
            )
        replica.leader_epoch = max(replica.leader_epoch, epoch)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _appended(self, event: TraceEvent, trace: RecordsAppended, broker: _Broker, replica: _Replica) -> None:
        self._leadership(event, trace.partition, trace.leader_epoch)
        self._grew(event, trace, replica)
        if trace.acks == ACKS_ALL:
            self._min_isr(event, trace.partition, broker, replica, "took records with acks=all", by_rule=False)

    def _grew(self, event: TraceEvent, trace: RecordsAppended | RecordsFetched, replica: _Replica) -> None:
        end = trace.log_end
        self._replica_state(event, replica, trace.leader_epoch, None)
        holds = replica.log_end is None or end > replica.log_end
        self._check("ValidReplicaState", event, holds, f"has appended to {replica.log_end} up to {end}")
        replica.log_end = end

    def _cut(self, event: TraceEvent, trace: LogTruncated, replica: _Replica) -> None:
        to, end = trace.to_offset, trace.log_end
        self._replica_state(event, replica, replica.leader_epoch, end)
        self._check("ValidReplicaState", event, to <= end, f"has truncated a log that ends at {end} to {to}")
        replica.log_end, replica.high_watermark = to, min(replica.high_watermark, to)

    def _high_watermark(
        self, event: TraceEvent, trace: HighWatermarkAdvanced, broker: _Broker, replica: _Replica
    ) -> None:
        partition, epoch, mark = trace.partition, trace.leader_epoch, trace.high_watermark
        self._leadership(event, partition, epoch)
        end = mark if replica.log_end is None else replica.log_end
        self._check("ValidReplicaState", event, mark <= end, f"has high watermark {mark}, its log ends at {end}")
        if epoch == replica.leader_epoch:
            self._check(
                "HighWatermarkMonotone",
                event,
                mark >= replica.high_watermark,
                f"moved its high watermark back from {replica.high_watermark} to {mark}",
            )
        self._replica_state(event, replica, epoch, None)
        replica.high_watermark = mark
        shown = self.shown.setdefault(partition, {})
        shown[epoch] = max(shown.get(epoch, 0), mark)
        self._min_isr(event, partition, broker, replica, f"moved its high watermark to {mark}", by_rule=True)

    def _complete(self, partition: TopicPartition, epoch: Epoch, led: _Led) -> None:
        """Within tolerance a leader has everything that was shown in the epochs before its own."""
        first = self._metadata.first_epoch(partition, epoch)
        before = {at: mark for at, mark in self.shown.get(partition, {}).items() if first <= at < epoch}
        if not before or not self._metadata.is_promised(partition, epoch):
            return
        self.counts["LeaderCompleteness"] += 1
        if led.log_end < max(before.values()):
            text = f"leads epoch {epoch} with a log that ends at {led.log_end}, shown was up to {max(before.values())}"
            found = f"{partition}: broker {led.node} {text}"
            self.violations.append(Violation("LeaderCompleteness", led.time_ms, found))

    # -- in-sync replicas ----------------------------------------------------------------------------------------------

    def _isr_committed(self, event: TraceEvent, trace: IsrCommitted, replica: _Replica) -> None:
        isr, epoch = trace.isr, trace.partition_epoch
        recorded = [state.isr for state in self._of(trace.partition).states.get(epoch, [])]
        self._check(
            "MetadataLogMatching",
            event,
            any(sorted(isr) == sorted(other) for other in recorded),
            f"takes {list(isr)} for the ISR at partition epoch {epoch}; recorded is {recorded}",
        )
        replica.isr = isr

    def _min_isr(
        self,
        event: TraceEvent,
        partition: TopicPartition,
        broker: _Broker,
        replica: _Replica,
        what: str,
        *,
        by_rule: bool,
    ) -> None:
        """An event that needs min ISR members in sync. One that is wrong by the metadata that was told last may be
        right by what the broker has replayed since; that is known when it tells so.
        """
        self.counts["MinIsrRespected"] += 1
        most = self._of(partition).most_in_sync.get(replica.leader_epoch, 0)
        members = most if replica.isr is None else len(replica.isr)
        needed = self._metadata.least_min_isr(partition, broker.published, broker.published)
        if members < needed:
            found = self._violation("MinIsrRespected", event, f"{what} with {members} in sync, min ISR is {needed}")
            broker.doubts.append((broker.published, partition, members, by_rule, found))

    def _settle(self, node: NodeId, end: Offset) -> None:
        """The node has replayed no more than so many records: doubts that remain are violations."""
        broker = self._brokers.get(node)
        doubts = [] if broker is None else broker.doubts
        for begin, partition, members, by_rule, found in doubts:
            if members >= self._metadata.least_min_isr(partition, begin, end):
                continue
            if not (by_rule and self._metadata.may_ignore_min_isr(begin, end)):
                self.violations.append(found)
        doubts.clear()


_COMMITTED = ("leader", "leader_epoch", "isr", "elr", "last_known_elr", "last_known_leader", "recovering")
_committed: Callable[[PartitionChanged], tuple[object, ...]] = attrgetter(*_COMMITTED)
"""The fields of a partition's state that a record determines."""


SHOWN_BY_EVENTS = (
    "OneLeaderPerEpoch",
    "MetadataLogMatching",
    "ValidBrokerState",
    "ValidReplicaState",
    "HighWatermarkMonotone",
    "LeaderCompleteness",
    "MinIsrRespected",
)
