"""What brokers told in a recording, held against what the controller has committed, and against what they told before.

The order of events of one node is sure, and nothing is concluded from the order of events of two. What connects nodes
is the log of metadata: a leader epoch comes after all lower ones, whenever its events were told, and what a broker did
it did at some position in that log, not before the last one that it told (`metadata_published`). Where a rule depends
on metadata that may have changed since, an event is wrong only if it is under all that the broker may have known.

A life may end without telling its last events. So nothing is concluded from what is *not* told, but for
`AcknowledgedIsCommitted`, which looks at the whole recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.check.recorded_metadata import MetadataHistory
from experiments.engines.port import INCARNATION_BEGAN, TraceEvent, Violation
from protocol.broker.lifecycle import LifecycleState
from protocol.ids import BrokerId, Epoch, NodeId, Offset, TimeMs, TopicPartition, is_broker
from protocol.metadata.partition import PartitionState
from protocol.nodes.controller_traces import partition_detail

Detail = Mapping[str, Any]
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
        self._told: dict[TopicPartition, Detail] = {}
        self._brokers: dict[NodeId, _Broker] = {}
        self._leaders: dict[tuple[TopicPartition, Epoch], NodeId] = {}
        self._led: dict[TopicPartition, list[tuple[Epoch, _Led]]] = {}
        self._handlers: Mapping[str, Callable[[TraceEvent, _Broker, _Replica], None]] = {
            "became_leader": self._became_leader,
            "became_follower": self._became_follower,
            "appended": self._appended,
            "fetched": self._fetched,
            "truncated": self._cut,
            "reset": self._reset,
            "high_watermark": self._high_watermark,
            "isr_committed": self._isr_committed,
        }

    def note(self, event: TraceEvent) -> None:
        """Takes in the next event."""
        kind, partition = event.trace.kind, event.trace.partition
        if kind == "traces_dropped":
            self.gaps.append(f"node {event.node} has let go of {event.trace.detail['count']} events")
            self._settle(event.node, self._metadata.records)
            self._brokers.pop(event.node, None)
            return
        if not is_broker(event.node):
            if partition is not None and partition not in self._metadata.recreated:
                self._by_controller(event, partition)
            return
        if kind == INCARNATION_BEGAN:
            self._settle(event.node, self._metadata.records)
            before = self._brokers.get(event.node, _Broker())
            self._brokers[event.node] = _Broker(former=max(before.former, before.published))
            return
        broker = self._brokers.setdefault(event.node, _Broker())
        if kind == "metadata_published":
            self._published(event, broker)
        elif kind == "broker_state":
            self._state(event, broker)
        elif partition is not None and kind in self._handlers and partition not in self._metadata.recreated:
            self._handlers[kind](event, broker, broker.replicas.setdefault(partition, _Replica()))

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
        about = f"{event.trace.partition}: " if event.trace.partition is not None else ""
        return Violation(name, event.time_ms, f"{about}broker {event.node} {detail}")

    # -- metadata ------------------------------------------------------------------------------------------------------

    def _by_controller(self, event: TraceEvent, partition: TopicPartition) -> None:
        """What a controller tells of a partition is what its records come to, and its epochs rise."""
        detail: Detail = event.trace.detail
        if event.trace.kind == "partition_removed":
            self._told.pop(partition, None)
        if event.trace.kind != "partition":
            return
        before, self._told[partition] = self._told.get(partition), detail
        if before is not None and before != detail:
            least = before["leader_epoch"] + (detail["leader"] != before["leader"])
            if detail["partition_epoch"] <= before["partition_epoch"] or detail["leader_epoch"] < least:
                epochs = [f"{it['leader_epoch']}/{it['partition_epoch']}" for it in (before, detail)]
                text = (
                    f"{partition}: leader {before['leader']}, epochs {epochs[0]}; then {detail['leader']}, {epochs[1]}"
                )
                self.violations.append(Violation("EpochsRise", event.time_ms, text))
        told = tuple(tuple(it) if isinstance(it, list) else it for it in (detail[name] for name in _TOLD))
        states = self._of(partition).states.get(int(str(detail["partition_epoch"])), [])
        holds = told in map(_told_of, states)
        text = f"node {event.node} has {dict(zip(_TOLD, told, strict=True))}, which no records come to"
        self.counts["MetadataLogMatching"] += 1
        if not holds:
            self.violations.append(Violation("MetadataLogMatching", event.time_ms, f"{partition}: {text}"))

    def _published(self, event: TraceEvent, broker: _Broker) -> None:
        offset = int(event.trace.detail["next_offset"])  # type: ignore[call-overload]
        records = self._metadata.records
        wrong = offset < broker.published or offset > records
        detail = f"has replayed {offset} records, before that {broker.published}; there are {records}"
        self._check("MetadataLogMatching", event, not wrong, detail)
        self._settle(event.node, offset)
        broker.published = max(broker.published, offset)

    def _state(self, event: TraceEvent, broker: _Broker) -> None:
        if event.trace.detail["state"] != LifecycleState.RUNNING.value:
            return
        known = self._metadata.registrations.get(event.node, [])
        holds = any(broker.former <= offset < broker.published for offset in known)
        detail = f"runs, and has replayed {broker.published} records; it was registered at {known}"
        self._check("ValidBrokerState", event, holds, detail)

    def _leadership(self, event: TraceEvent, epoch: Epoch) -> None:
        """The node acts as leader in an epoch: nobody else did, and the controller has recorded it."""
        partition = event.trace.partition
        assert partition is not None
        first = self._leaders.setdefault((partition, epoch), event.node)
        self._check(
            "OneLeaderPerEpoch", event, first == event.node, f"leads in epoch {epoch}, in which broker {first} led"
        )
        self._recorded_leader(event, epoch, event.node)

    def _recorded_leader(self, event: TraceEvent, epoch: Epoch, leader: NodeId) -> None:
        partition = event.trace.partition
        assert partition is not None
        recorded = sorted(self._of(partition).leaders.get(epoch, ()))
        self._check(
            "MetadataLogMatching",
            event,
            leader in recorded,
            f"takes {leader} for the leader of epoch {epoch}; recorded is {recorded}",
        )

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _became_leader(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        epoch, end, mark = detail["leader_epoch"], detail["log_end"], detail["high_watermark"]
        assert event.trace.partition is not None
        self._leadership(event, epoch)
        self._may_begin_anew(event, replica, epoch)
        self._led.setdefault(event.trace.partition, []).append((epoch, _Led(event.node, event.time_ms, end)))
        self._replica_state(event, replica, epoch, end)
        self._check("ValidReplicaState", event, mark <= end, f"has high watermark {mark}, its log ends at {end}")
        replica.log_end, replica.high_watermark, replica.isr = end, mark, None

    def _became_follower(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        self._recorded_leader(event, detail["leader_epoch"], detail["leader"])
        self._may_begin_anew(event, replica, detail["leader_epoch"])
        self._replica_state(event, replica, detail["leader_epoch"], None)
        replica.isr = None

    def _may_begin_anew(self, event: TraceEvent, replica: _Replica, epoch: Epoch) -> None:
        """With a role a replica may begin that has nothing to do with what the broker had under its name: the broker
        was taken out of the assignment meanwhile, or the partition was removed. Nobody tells when a replica goes.
        """
        partition = event.trace.partition
        assert partition is not None
        first = self._metadata.first_epoch(partition, epoch)
        stayed = all(event.node in replicas for replicas in self._of(partition).assignments)
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

    def _appended(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        self._leadership(event, detail["leader_epoch"])
        self._grew(event, replica)
        if detail["acks"] == ACKS_ALL:
            self._min_isr(event, broker, replica, "took records with acks=all", by_rule=False)

    def _fetched(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        self._grew(event, replica)

    def _grew(self, event: TraceEvent, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        epoch, end = detail["leader_epoch"], detail["log_end"]
        self._replica_state(event, replica, epoch, None)
        holds = replica.log_end is None or end > replica.log_end
        self._check("ValidReplicaState", event, holds, f"has appended to {replica.log_end} up to {end}")
        replica.log_end = end

    def _cut(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        to, end = detail["to_offset"], detail["log_end"]
        self._replica_state(event, replica, replica.leader_epoch, end)
        self._check("ValidReplicaState", event, to <= end, f"has truncated a log that ends at {end} to {to}")
        replica.log_end, replica.high_watermark = to, min(replica.high_watermark, to)

    def _reset(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        replica.log_end = replica.high_watermark = detail["to_offset"]

    def _high_watermark(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        epoch, mark = detail["leader_epoch"], detail["high_watermark"]
        assert event.trace.partition is not None
        self._leadership(event, epoch)
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
        shown = self.shown.setdefault(event.trace.partition, {})
        shown[epoch] = max(shown.get(epoch, 0), mark)
        self._min_isr(event, broker, replica, f"moved its high watermark to {mark}", by_rule=True)

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

    def _isr_committed(self, event: TraceEvent, broker: _Broker, replica: _Replica) -> None:
        detail: Detail = event.trace.detail
        partition, isr, epoch = event.trace.partition, tuple(detail["isr"]), detail["partition_epoch"]
        assert partition is not None
        recorded = [state.isr for state in self._of(partition).states.get(epoch, [])]
        self._check(
            "MetadataLogMatching",
            event,
            any(sorted(isr) == sorted(other) for other in recorded),
            f"takes {list(isr)} for the ISR at partition epoch {epoch}; recorded is {recorded}",
        )
        replica.isr = isr

    def _min_isr(self, event: TraceEvent, broker: _Broker, replica: _Replica, what: str, *, by_rule: bool) -> None:
        """An event that needs min ISR members in sync. One that is wrong by the metadata that was told last may be
        right by what the broker has replayed since; that is known when it tells so.
        """
        partition = event.trace.partition
        assert partition is not None
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


_TOLD = ("leader", "leader_epoch", "isr", "elr", "last_known_elr", "last_known_leader", "recovering")


def _told_of(state: PartitionState) -> tuple[object, ...]:
    """A state as trace events tell it."""
    detail = partition_detail(state)
    return tuple(detail[name] for name in _TOLD)


SHOWN_BY_EVENTS = (
    "OneLeaderPerEpoch",
    "MetadataLogMatching",
    "ValidBrokerState",
    "ValidReplicaState",
    "HighWatermarkMonotone",
    "LeaderCompleteness",
    "MinIsrRespected",
)
