"""Records a simulated run: every message with its fate, every trace event, every change of a node or link.

While the cluster runs only references are collected, so that recording costs little and does not affect the cluster.
The order in which the cluster calls the recorder respects causality.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from experiments.engines.port import TraceEvent, Violation
from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.recorder import Change, Recorder
from experiments.story.render import Heading
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.events.controller import TopicDeleted
from protocol.events.host import IncarnationBegan, IncarnationEnded
from protocol.events.node import ProduceCompleted
from protocol.ids import NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import Message

ACKS_ALL = -1
INVARIANT = "AcknowledgedRecordsLost"
"""The name under which the page shows a loss."""


class AcknowledgedLosses:
    """Follows the trace events of a run whose producers send one record per batch."""

    def __init__(self) -> None:
        self._acknowledged: dict[TopicPartition, set[Offset]] = {}

    def lost_by(self, trace: Trace) -> str | None:
        """What the event loses, in words; None for one that loses nothing. A record is lost once."""
        match trace:
            case ProduceCompleted(acks=acks, base_offset=offset) if trace.is_acknowledged and acks == ACKS_ALL:
                self._acknowledged.setdefault(trace.partition, set()).add(offset)
            case TopicDeleted(topic=topic):
                kept = {place: known for place, known in self._acknowledged.items() if place.topic != topic}
                self._acknowledged = kept
            case BecameLeader(partition=place, log_end=end):
                known = self._acknowledged.get(place, set())
                lost = sorted(offset for offset in known if offset >= end)
                known.difference_update(lost)
                if lost:
                    count = f"{len(lost)} acknowledged record{'s are' if len(lost) > 1 else ' is'}"
                    where = f"offsets {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"offset {lost[0]}"
                    return f"{place}: {count} missing, {where}: the log of the new leader ends at {end}"
        return None


class Call(NamedTuple):
    """A message of another protocol: its `kind`, a name that no message of the cluster has, and its fields."""

    kind: str
    fields: Mapping[str, object]


class Sent(NamedTuple):
    """A message that a node sent, and when it is to arrive; it was lost at once where that is empty."""

    target: NodeId
    message: Message | Call
    arrivals: Sequence[TimeMs]


class Changed(NamedTuple):
    """What the experiment did to a node, or to the link to `peer`."""

    change: Change
    peer: NodeId | None
    detail: str


class Received(NamedTuple):
    """A receipt: the number of the entry of its sending, -1 if that is not recorded any more."""

    source: NodeId
    message: Message | Call
    cause: int


class Due(NamedTuple):
    """A timer that a node handles at this time."""

    time_ms: TimeMs
    timer: str


What = Sent | Received | Changed | Due | Trace | Violation | Heading


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded event."""

    time_ms: TimeMs
    node: NodeId
    what: What


@dataclass(frozen=True, slots=True)
class Journal:
    """What was recorded: entries in their order, the first of which has the number `first`. `has_messages`: messages
    are among them.
    """

    entries: Sequence[Entry]
    first: int = 0
    has_messages: bool = True


class TraceCollector:
    """Collects the trace events of any engine (`Engine.record_to`). `headings` is a list that grows during the run: a
    new heading belongs before the next event. `losses` marks the elections that lose records. `limit`: how many entries
    to keep, the newest, None for all.
    """

    def __init__(
        self, headings: Sequence[Heading] = (), losses: AcknowledgedLosses | None = None, limit: int | None = None
    ) -> None:
        self._headings, self._seen = headings, len(headings)
        self._losses = losses
        self._entries: deque[Entry] = deque(maxlen=limit)

    def add(self, event: TraceEvent) -> None:
        self._add_headings(event.time_ms, event.node)
        self._entries.append(Entry(event.time_ms, event.node, _change_in(event.trace) or event.trace))
        if (loss := _loss_in(self._losses, event.time_ms, event.trace)) is not None:
            self._entries.append(Entry(event.time_ms, event.node, loss))

    def _add_headings(self, time_ms: TimeMs, node: NodeId) -> None:
        new = self._headings[self._seen :]
        self._seen += len(new)
        self._entries += (Entry(time_ms, node, heading) for heading in new)

    def add_violation(self, violation: Violation) -> None:
        """Adds a violation that was found afterwards: on the node of the last event at its time, or at the end."""
        last = self._entries[-1]
        before = (entry for entry in reversed(self._entries) if entry.time_ms <= violation.time_ms)
        place = next(before, last) if violation.time_ms else last
        self._entries.append(Entry(place.time_ms, place.node, violation))

    def journal(self) -> Journal:
        if self._entries:
            self._add_headings(self._entries[-1].time_ms, self._entries[-1].node)
        return Journal(tuple(self._entries), has_messages=False)


def _change_in(trace: Trace) -> Changed | None:
    """A start or an end of a process as a change of its node."""
    if isinstance(trace, IncarnationBegan):
        return Changed("started", None, "")
    return Changed("crashed", None, trace.loss) if isinstance(trace, IncarnationEnded) else None


def _loss_in(losses: AcknowledgedLosses | None, time_ms: TimeMs, trace: Trace) -> Violation | None:
    lost = None if losses is None else losses.lost_by(trace)
    return None if lost is None else Violation(INVARIANT, time_ms, lost)


class SimRecorder(Recorder):
    """Records a simulated cluster from now on. `headings` and `violations` are lists that grow during the run: what is
    appended to them is recorded between the events. `limit`: how many entries to keep, the newest, None for all.
    `losses` marks the elections that lose records. `leaves_out`: which messages are not recorded.

    `count` is the number of entries so far, `violation_numbers` are those of the violations among them.
    """

    def __init__(
        self,
        cluster: SimCluster,
        headings: Sequence[Heading] = (),
        violations: Sequence[Violation] = (),
        limit: int | None = None,
        losses: AcknowledgedLosses | None = None,
        leaves_out: Callable[[Message], bool] = lambda message: False,
    ) -> None:
        self._leaves_out = leaves_out
        self._cluster, self._losses = cluster, losses
        self._headings, self._violations = headings, violations
        self._seen_headings, self._seen_violations = len(headings), len(violations)
        self._entries: deque[Entry] = deque(maxlen=limit)
        self.count = 0
        self._last_node: NodeId = cluster.spec.node_ids[0]
        self._due: Due | None = None
        self._on_way: dict[tuple[NodeId, NodeId, int], list[tuple[int, Sent]]] = {}
        self.violation_numbers: list[int] = []
        cluster.recorder = self
        cluster.trace_observers.insert(0, self._observe)

    def journal(self) -> Journal:
        self._note()
        return Journal(tuple(self._entries), self.count - len(self._entries))

    def sent(
        self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message | Call, arrivals: Sequence[TimeMs]
    ) -> None:
        if isinstance(message, Message) and self._leaves_out(message):
            return
        found = Sent(target, message, arrivals)
        number = self._add(time_ms, source, found)
        if arrivals:
            self._on_way.setdefault((source, target, id(message)), []).append((number, found))

    def delivered(self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message | Call) -> None:
        self._due = None
        if isinstance(message, Message) and self._leaves_out(message):
            return
        self._add(time_ms, target, Received(source, message, self._sending(time_ms, source, target, message)))

    def fired(self, time_ms: TimeMs, node: NodeId, timer: str) -> None:
        """A timer is an event only if something follows from it on its node."""
        self._note()
        self._due, self._last_node = Due(time_ms, timer), node

    def changed(self, time_ms: TimeMs, change: Change, node: NodeId, peer: NodeId | None, detail: str) -> None:
        self._due = None
        self._add(time_ms, node, Changed(change, peer, detail))

    def _observe(self, time_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        self._add(time_ms, node, trace)
        if (loss := _loss_in(self._losses, time_ms, trace)) is not None:
            self.violation_numbers.append(self._append(time_ms, node, loss))

    def _add(self, time_ms: TimeMs, node: NodeId, what: Sent | Received | Changed | Trace) -> int:
        """Adds an entry, and before it what has come since the last one; returns its number."""
        self._note()
        due, self._due = self._due, None
        if due is not None and (due.time_ms, self._last_node) == (time_ms, node):
            self._append(time_ms, node, due)
        self._last_node = node
        return self._append(time_ms, node, what)

    def _note(self) -> None:
        """Adds the violations and headings that are new."""
        while self._seen_violations < len(self._violations):
            found = self._violations[self._seen_violations]
            self._seen_violations += 1
            self.violation_numbers.append(self._append(found.time_ms, self._last_node, found))
        while self._seen_headings < len(self._headings):
            heading = self._headings[self._seen_headings]
            self._seen_headings += 1
            self._append(self._cluster.now_ms, self._last_node, heading)

    def _append(self, time_ms: TimeMs, node: NodeId, what: What) -> int:
        self._entries.append(Entry(time_ms, node, what))
        self.count += 1
        return self.count - 1

    def _sending(self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message | Call) -> int:
        """The number of the entry of a message's sending, -1 if it was before the recording. The same object may be on
        its way more than once: the one that is due now, otherwise the oldest, which a paused node has kept.
        """
        waiting = self._on_way.get((source, target, id(message)), [])
        found = next((item for item in waiting if time_ms in item[1].arrivals), waiting[0] if waiting else None)
        if found is None:
            return -1
        if len(found[1].arrivals) == 1:
            waiting.remove(found)
        if not waiting:
            del self._on_way[source, target, id(message)]
        return found[0]
