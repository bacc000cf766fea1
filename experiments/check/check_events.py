"""Checks the trace events of brokers and controllers against the committed metadata and against earlier events.

The checks conclude nothing from the order of events of two nodes (docs/check.md). Where a rule depends on metadata that
may have changed since, an event is a violation only if it is one under all metadata that the broker may have replayed.
A node that is killed may not have reported its last events, so only `AcknowledgedIsCommitted`, which looks at the whole
recording, concludes anything from an event that is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from experiments.check import rules
from experiments.check.check_metadata import ReplayedMetadata
from experiments.engines.port import TraceEvent, Violation
from protocol.broker.lifecycle import LifecycleState
from protocol.events import broker as events
from protocol.events.base import PartitionTrace
from protocol.events.controller import MetadataCommitted, PartitionChanged, PartitionRemoved
from protocol.events.host import EventsLost, IncarnationBegan, TracesDropped
from protocol.ids import BrokerId, Epoch, NodeId, Offset, TopicPartition, is_broker
from protocol.metadata.partition import PartitionState
from protocol.nodes.controller_log import partition_changed

ACKS_ALL = -1


@dataclass(slots=True)
class _Replica:
    """What a broker's current incarnation has reported of a replica. `isr` is None until it reports one as leader."""

    log_end: Offset | None = None
    leader_epoch: Epoch = -1
    high_watermark: Offset = 0
    isr: tuple[BrokerId, ...] | None = None


@dataclass(slots=True)
class _Broker:
    """What a broker's current incarnation has reported. `former`: the metadata offset of earlier incarnations. `doubts`
    are possible violations, to be decided when it is known what the broker had replayed.
    """

    published: Offset = 0
    former: Offset = 0
    replicas: dict[TopicPartition, _Replica] = field(default_factory=dict)
    doubts: list[tuple[Offset, TopicPartition, int, bool, Violation]] = field(default_factory=list)


@dataclass(slots=True)
class _CommittedStates:
    """The committed states of a partition: leaders and the size of the largest ISR by leader epoch, states by partition
    epoch, and all its assignments.
    """

    leaders: dict[Epoch, set[BrokerId]] = field(default_factory=dict)
    most_in_sync: dict[Epoch, int] = field(default_factory=dict)
    states: dict[Epoch, list[PartitionState]] = field(default_factory=dict)
    assignments: set[tuple[BrokerId, ...]] = field(default_factory=set)

    def add(self, state: PartitionState) -> None:
        epoch = state.leader_epoch
        self.leaders.setdefault(epoch, set()).add(state.leader)
        self.most_in_sync[epoch] = max(len(state.isr), self.most_in_sync.get(epoch, 0))
        self.states.setdefault(state.partition_epoch, []).append(state)
        self.assignments.add(state.replicas)


class EventChecker:
    """Call `observe` with each event of a recording in order, then `finish`. `violations` are the findings so far,
    `counts` the number of checks by invariant, `gaps` a line per loss of events, `shown` the highest high watermark by
    partition and leader epoch.
    """

    def __init__(self, metadata: ReplayedMetadata) -> None:
        self.violations: list[Violation] = []
        self.counts: dict[str, int] = dict.fromkeys(SHOWN_BY_EVENTS, 0)
        self.gaps: list[str] = []
        self.shown: dict[TopicPartition, dict[Epoch, Offset]] = {}
        self._metadata = metadata
        self._states: dict[TopicPartition, _CommittedStates] = defaultdict(_CommittedStates)
        for name, states in metadata.states.items():
            for it in states:
                self._states[name].add(it.state)
        self._committed_end: Offset = 0
        self._repeating: set[NodeId] = set()
        self._reported: dict[TopicPartition, PartitionChanged] = {}
        self._seen: dict[TopicPartition, set[tuple[object, ...]]] = {}
        self._brokers: dict[NodeId, _Broker] = {}
        self._leaders: dict[tuple[TopicPartition, Epoch], NodeId] = {}
        self._leaderships: list[tuple[TraceEvent, events.BecameLeader]] = []

    def observe(self, event: TraceEvent) -> None:
        trace = event.trace
        if isinstance(trace, TracesDropped | EventsLost):
            which = "its last" if isinstance(trace, EventsLost) else str(trace.count)
            self.gaps.append(f"node {event.node} dropped {which} events")
            self._decide_doubts(event.node, self._metadata.records)
            self._brokers.pop(event.node, None)
        elif is_broker(event.node):
            self._observe_broker(event)
        elif isinstance(trace, MetadataCommitted):
            self._observe_committed(event.node, trace.end_offset)
        elif isinstance(trace, PartitionTrace) and trace.partition not in self._metadata.recreated:
            self._check_controller_event(event, trace)

    def _observe_broker(self, event: TraceEvent) -> None:
        trace = event.trace
        if isinstance(trace, IncarnationBegan):
            self._decide_doubts(event.node, self._metadata.records)
            before = self._brokers.get(event.node, _Broker())
            self._brokers[event.node] = _Broker(former=max(before.former, before.published))
            return
        broker = self._brokers.setdefault(event.node, _Broker())
        if isinstance(trace, events.MetadataPublished):
            self._check_published(event, broker, trace.next_offset)
        elif isinstance(trace, events.BrokerStateChanged):
            self._check_broker_state(event, broker, trace.state)
        elif isinstance(trace, PartitionTrace) and trace.partition not in self._metadata.recreated:
            self._observe_replica(event, trace, broker, broker.replicas.setdefault(trace.partition, _Replica()))

    def _observe_replica(self, event: TraceEvent, trace: PartitionTrace, broker: _Broker, replica: _Replica) -> None:
        match trace:
            case events.BecameLeader():
                self._check_new_leader(event, trace, replica)
            case events.BecameFollower():
                self._check_new_follower(event, trace, replica)
            case events.RecordsAppended():
                self._check_append(event, trace, broker, replica)
            case events.RecordsFetched():
                self._check_growth(event, trace, replica)
            case events.LogTruncated():
                self._check_truncation(event, trace, replica)
            case events.LogReset():
                replica.log_end = replica.high_watermark = trace.to_offset
            case events.HighWatermarkAdvanced():
                self._check_high_watermark(event, trace, broker, replica)
            case events.IsrCommitted():
                self._check_isr(event, trace, replica)

    def finish(self) -> None:
        for node in self._brokers:
            self._decide_doubts(node, self._metadata.records)
        for event, leader in sorted(self._leaderships, key=lambda led: led[1].partition):
            self._check_complete(event, leader)

    def _check(self, name: str, event: TraceEvent, wrong: str) -> None:
        self.counts[name] += 1
        if wrong:
            self.violations.append(self._violation(name, event, wrong))

    def _violation(self, name: str, event: TraceEvent, detail: str) -> Violation:
        partition = event.trace.about()
        about = "" if partition is None else f"{partition}: "
        return Violation(name, event.time_ms, f"{about}broker {event.node} {detail}")

    # -- metadata ------------------------------------------------------------------------------------------------------

    def _observe_committed(self, controller: NodeId, end: Offset) -> None:
        """What a controller reports until its next `committed` event belongs to these records. It repeats records that
        some controller has reported as committed, or records before those: what a controller was killed with, before
        its events were read, is reported for the first time when another one replays the log.
        """
        if end <= self._committed_end:
            self._repeating.add(controller)
        else:
            self._repeating.discard(controller)
            self._committed_end = end

    def _check_controller_event(self, event: TraceEvent, trace: PartitionTrace) -> None:
        """Reported states are committed ones, and epochs rise, except in states of records that are repeated."""
        partition = trace.partition
        if isinstance(trace, PartitionRemoved):
            self._reported.pop(partition, None)
        if not isinstance(trace, PartitionChanged):
            return
        reported, seen = _committed(trace), self._seen.setdefault(partition, set())
        state = trace.partition_epoch, trace.replicas, *reported
        before = None
        if state not in seen and event.node not in self._repeating:
            before = self._reported.get(partition)
            self._reported[partition] = trace
        seen.add(state)
        if before is not None and (wrong := rules.epochs_rise(before, trace)):
            self.violations.append(Violation("EpochsRise", event.time_ms, f"{partition}: {wrong}"))
        states = self._states[partition].states.get(trace.partition_epoch, [])
        holds = reported in (_committed(partition_changed(partition, state, trace.min_isr)) for state in states)
        text = f"node {event.node} has {dict(zip(_COMMITTED, reported, strict=True))}, which is no committed state"
        self.counts["MetadataLogMatching"] += 1
        if not holds:
            self.violations.append(Violation("MetadataLogMatching", event.time_ms, f"{partition}: {text}"))

    def _check_published(self, event: TraceEvent, broker: _Broker, offset: Offset) -> None:
        records = self._metadata.records
        wrong = offset < broker.published or offset > records
        detail = f"has replayed {offset} records, before that {broker.published}; there are {records}"
        self._check("MetadataLogMatching", event, detail if wrong else "")
        self._decide_doubts(event.node, offset)
        broker.published = max(broker.published, offset)

    def _check_broker_state(self, event: TraceEvent, broker: _Broker, state: str) -> None:
        if state != LifecycleState.RUNNING.value:
            return
        known = self._metadata.registrations.get(event.node, [])
        holds = any(broker.former <= offset < broker.published for offset in known)
        detail = f"runs, and has replayed {broker.published} records; it was registered at {known}"
        self._check("ValidBrokerState", event, "" if holds else detail)

    def _check_leadership(self, event: TraceEvent, partition: TopicPartition, epoch: Epoch) -> None:
        """The node acts as leader in an epoch: no other node did, and the controller committed it as leader."""
        self._check("OneLeaderPerEpoch", event, rules.one_leader(self._leaders, partition, epoch, event.node))
        self._check_committed_leader(event, partition, epoch, event.node)

    def _check_committed_leader(
        self, event: TraceEvent, partition: TopicPartition, epoch: Epoch, leader: NodeId
    ) -> None:
        recorded = self._states[partition].leaders.get(epoch, set())
        self._check("MetadataLogMatching", event, rules.leads_by_record(recorded, epoch, leader))

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _check_new_leader(self, event: TraceEvent, trace: events.BecameLeader, replica: _Replica) -> None:
        partition, epoch, end, mark = trace.partition, trace.leader_epoch, trace.log_end, trace.high_watermark
        self._check_leadership(event, partition, epoch)
        self._reset_if_new_replica(event.node, partition, replica, epoch)
        self._leaderships.append((event, trace))
        self._check_replica_state(event, replica, epoch, end)
        self._check("ValidReplicaState", event, rules.mark_is_in_log(mark, end))
        replica.log_end, replica.high_watermark, replica.isr = end, mark, None

    def _check_new_follower(self, event: TraceEvent, trace: events.BecameFollower, replica: _Replica) -> None:
        self._check_committed_leader(event, trace.partition, trace.leader_epoch, trace.leader)
        self._reset_if_new_replica(event.node, trace.partition, replica, trace.leader_epoch)
        self._check_replica_state(event, replica, trace.leader_epoch, None)
        replica.isr = None

    def _reset_if_new_replica(self, node: NodeId, partition: TopicPartition, replica: _Replica, epoch: Epoch) -> None:
        """Forgets the replica's log where the new role may belong to another replica of the same name: the broker left
        the assignment, or the partition was removed meanwhile. No event reports the removal of a replica.
        """
        first = self._metadata.first_epoch(partition, epoch)
        stayed = all(node in replicas for replicas in self._states[partition].assignments)
        if first > replica.leader_epoch or not stayed:
            replica.log_end, replica.high_watermark = None, 0

    def _check_replica_state(self, event: TraceEvent, replica: _Replica, epoch: Epoch, log_end: Offset | None) -> None:
        """Within an incarnation leader epochs rise, and a log ends where the last event about it reports."""
        self._check("ValidReplicaState", event, rules.epoch_stays(replica.leader_epoch, epoch))
        if log_end is not None and replica.log_end is not None:
            detail = f"has a log that ends at {log_end}, after one that ended at {replica.log_end}"
            self._check("ValidReplicaState", event, "" if log_end == replica.log_end else detail)
        replica.leader_epoch = max(replica.leader_epoch, epoch)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _check_append(
        self, event: TraceEvent, trace: events.RecordsAppended, broker: _Broker, replica: _Replica
    ) -> None:
        self._check_leadership(event, trace.partition, trace.leader_epoch)
        self._check_growth(event, trace, replica)
        if trace.acks == ACKS_ALL:
            self._check_min_isr(event, trace.partition, broker, replica, "took records with acks=all", by_rule=False)

    def _check_growth(
        self, event: TraceEvent, trace: events.RecordsAppended | events.RecordsFetched, replica: _Replica
    ) -> None:
        end = trace.log_end
        self._check_replica_state(event, replica, trace.leader_epoch, None)
        holds = replica.log_end is None or end > replica.log_end
        self._check("ValidReplicaState", event, "" if holds else f"has appended to {replica.log_end} up to {end}")
        replica.log_end = end

    def _check_truncation(self, event: TraceEvent, trace: events.LogTruncated, replica: _Replica) -> None:
        to, end = trace.to_offset, trace.log_end
        self._check_replica_state(event, replica, replica.leader_epoch, end)
        wrong = "" if to <= end else f"has truncated a log that ends at {end} to {to}"
        self._check("ValidReplicaState", event, wrong)
        replica.log_end, replica.high_watermark = to, min(replica.high_watermark, to)

    def _check_high_watermark(
        self, event: TraceEvent, trace: events.HighWatermarkAdvanced, broker: _Broker, replica: _Replica
    ) -> None:
        partition, epoch, mark = trace.partition, trace.leader_epoch, trace.high_watermark
        self._check_leadership(event, partition, epoch)
        end = mark if replica.log_end is None else replica.log_end
        self._check("ValidReplicaState", event, rules.mark_is_in_log(mark, end))
        if epoch == replica.leader_epoch:
            self._check("HighWatermarkMonotone", event, rules.mark_stays(replica.high_watermark, mark))
        self._check_replica_state(event, replica, epoch, None)
        replica.high_watermark = mark
        shown = self.shown.setdefault(partition, {})
        shown[epoch] = max(shown.get(epoch, 0), mark)
        self._check_min_isr(event, partition, broker, replica, f"moved its high watermark to {mark}", by_rule=True)

    def _check_complete(self, event: TraceEvent, leader: events.BecameLeader) -> None:
        """Within tolerance a leader has every record below the high watermarks of earlier epochs."""
        partition, epoch = leader.partition, leader.leader_epoch
        first = self._metadata.first_epoch(partition, epoch)
        committed = rules.committed_before(self.shown.get(partition, {}), epoch, first)
        if not committed or not self._metadata.is_promised(partition, epoch):
            return
        self.counts["LeaderCompleteness"] += 1
        if wrong := rules.has_committed(leader.log_end, committed):
            found = f"{partition}: broker {event.node}, leader of epoch {epoch}, {wrong}"
            self.violations.append(Violation("LeaderCompleteness", event.time_ms, found))

    def _check_isr(self, event: TraceEvent, trace: events.IsrCommitted, replica: _Replica) -> None:
        isr, epoch = trace.isr, trace.partition_epoch
        recorded = [state.isr for state in self._states[trace.partition].states.get(epoch, [])]
        self._check("MetadataLogMatching", event, rules.isr_by_record(recorded, epoch, isr))
        replica.isr = isr

    def _check_min_isr(
        self,
        event: TraceEvent,
        partition: TopicPartition,
        broker: _Broker,
        replica: _Replica,
        what: str,
        *,
        by_rule: bool,
    ) -> None:
        """An event that needs min ISR members in sync. With too few by the metadata that the broker reported last it
        becomes a doubt: by metadata replayed since then there may be enough, which the broker's next report shows.
        """
        self.counts["MinIsrRespected"] += 1
        most = self._states[partition].most_in_sync.get(replica.leader_epoch, 0)
        members = most if replica.isr is None else len(replica.isr)
        needed = self._metadata.least_min_isr(partition, broker.published, broker.published)
        if members < needed:
            found = self._violation("MinIsrRespected", event, f"{what} with {members} in sync, min ISR is {needed}")
            broker.doubts.append((broker.published, partition, members, by_rule, found))

    def _decide_doubts(self, node: NodeId, end: Offset) -> None:
        """Decides the doubts about a node that had replayed at most `end` records."""
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
