"""Makes a `Run` of a journal: of a recorded simulation, or of trace events alone.

Trace events alone show causality, too: a broker publishes metadata that a controller has committed, a follower fetches
records that its leader has appended. These pairs take the place of sending and receipt (`_with_evidence`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from experiments.engines.port import ClusterSpec, TraceEvent, Violation
from experiments.explorer.recorder import Call, Changed, Due, Entry, Journal, Received, Sent
from experiments.explorer.run import Run, RunEvent, StoryRow
from experiments.explorer.values import message_fields, partitions_in, plain
from experiments.story.render import Heading, story_lines
from experiments.support.record_text import record_text, topic_names
from protocol.events.base import Trace
from protocol.events.broker import MetadataPublished, RecordsAppended, RecordsFetched
from protocol.events.controller import MetadataCommitted
from protocol.events.registry import detail_of
from protocol.ids import NodeId, node_name
from protocol.messages.base import Message
from protocol.messages.records import MetadataRecord

CHANGES = {
    "started": "starts",
    "crashed": "crashes",
    "exited": "ends",
    "paused": "is paused",
    "resumed": "resumes",
    "cut": "is cut off from",
    "healed": "reaches again",
    "disturbed": "has a disturbed link to",
    "restored": "has a sound link again to",
}
"""What happens to a node, in words; a link's is followed by the other node."""
LOSSES = {"none": " and loses nothing", "unflushed": " and loses its unflushed records", "all": " and loses its disk"}
"""What a crash did to the disk, by the kind of loss; others are shown as they are."""
EVIDENCE_NOTE = (
    "Messages between processes are not recorded. Arrows connect events that depend on each other: a commit of "
    "metadata with its publication on a broker, an append on a leader with the fetch of a follower. Cuts, pauses and "
    "controlled shutdowns are shown as steps only, not on the lanes."
)


def run_of_journal(
    journal: Journal, title: str, facts: Sequence[tuple[str, str]], spec: ClusterSpec, records: Sequence[MetadataRecord]
) -> Run:
    """The run that a journal holds; `records` is the metadata log from its start. `title` and `facts` as in `Run`."""
    has_headings = any(isinstance(entry.what, Heading) for entry in journal.entries)
    building = _Building(records, has_headings, topic_names(records))
    for number, entry in enumerate(journal.entries, journal.first):
        building.add(number, entry)
    found = building.run(title, facts, spec)
    if journal.has_messages:
        return found
    return replace(found, events=list(_with_evidence(found.events)), notes=(EVIDENCE_NOTE,))


@dataclass(slots=True)
class _Building:
    """A run under construction. `indices`: the event of each entry; without headings (`has_headings`) the story has the
    changes of nodes in their place.
    """

    records: Sequence[MetadataRecord]
    has_headings: bool
    topics: Mapping[str, str]
    events: list[RunEvent] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    story_events: list[tuple[int, TraceEvent]] = field(default_factory=list)
    story_headings: list[Heading] = field(default_factory=list)
    indices: dict[int, int] = field(default_factory=dict)
    asked: dict[tuple[NodeId, NodeId, int], tuple[str, ...]] = field(default_factory=dict)

    def add(self, number: int, entry: Entry) -> None:
        """Adds an entry with the number by which receipts refer to it."""
        if isinstance(entry.what, Heading):
            self.headings.append((len(self.events), entry.what.text))
            self.story_headings.append(replace(entry.what, begins_at=len(self.story_events)))
            return
        self.indices[number] = len(self.events)
        self.events.append(self._event(entry))

    def _event(self, entry: Entry) -> RunEvent:
        time_ms, node, what = entry.time_ms, entry.node, entry.what
        if isinstance(what, Sent):
            return self._sent(time_ms, node, what)
        if isinstance(what, Received):
            return self._received(time_ms, node, what)
        if isinstance(what, Changed):
            return self._changed(time_ms, node, what)
        if isinstance(what, Due):
            return RunEvent(time_ms, node, "timer", what.timer, text=f"timer {what.timer} is due")
        if isinstance(what, Violation):
            self.story_headings.append(Heading(f"violated: {what.invariant}: {what.detail}", len(self.story_events)))
            fields = {"detail": what.detail}
            return RunEvent(time_ms, node, "violation", what.invariant, fields=fields, text=what.detail)
        assert isinstance(what, Trace)
        return self._traced(time_ms, node, what)

    def _sent(self, time_ms: int, node: NodeId, sent: Sent) -> RunEvent:
        kind, fields = _kind_of(sent.message), _fields_of(sent.message)
        partitions = self._partitions(node, sent.target, fields)
        route: dict[str, object] = {"to": sent.target, "arrives_ms": list(sent.arrivals)}
        text = f"sends {kind} to {node_name(sent.target)}"
        return RunEvent(time_ms, node, "send", kind, partitions, {**route, **fields}, text=text)

    def _received(self, time_ms: int, node: NodeId, received: Received) -> RunEvent:
        kind, cause = _kind_of(received.message), self.indices.get(received.cause, -1)
        text = f"receives {kind} from {node_name(received.source)}"
        found = {} if cause >= 0 else _fields_of(received.message)
        partitions = self.events[cause].partitions if cause >= 0 else partitions_in(found, self.topics)
        return RunEvent(time_ms, node, "receive", kind, partitions, {"from": received.source, **found}, cause, text)

    def _partitions(self, source: NodeId, target: NodeId, fields: Mapping[str, object]) -> tuple[str, ...]:
        """What a message is about; a response that names no partition is about those of its request."""
        found = partitions_in(fields, self.topics)
        correlation_id = fields.get("correlation_id")
        if isinstance(correlation_id, int):
            if found:
                self.asked[source, target, correlation_id] = found
            else:
                found = self.asked.get((target, source, correlation_id), ())
        return found

    def _changed(self, time_ms: int, node: NodeId, changed: Changed) -> RunEvent:
        text = CHANGES[changed.change]
        fields: dict[str, object] = {}
        if changed.peer is not None:
            fields["peer"], text = changed.peer, f"{text} {node_name(changed.peer)}"
        if changed.detail:
            fields["detail"], text = changed.detail, text + LOSSES.get(changed.detail, f" ({changed.detail})")
        if not self.has_headings and changed.peer is None:
            self.story_headings.append(Heading(f"{node_name(node)} {text}", len(self.story_events)))
        return RunEvent(time_ms, node, "change", changed.change, fields=fields, text=text)

    def _traced(self, time_ms: int, node: NodeId, trace: Trace) -> RunEvent:
        self.story_events.append((len(self.events), TraceEvent(time_ms, node, trace)))
        fields, about = {name: plain(value) for name, value in detail_of(trace).items()}, trace.about()
        if isinstance(trace, MetadataCommitted):
            committed = self.records[trace.base_offset : trace.end_offset]
            fields["records"] = [record_text(record, self.topics) for record in committed]
        partitions = () if about is None else (str(about),)
        return RunEvent(time_ms, node, "trace", trace.kind, partitions, fields, text=trace.sentence())

    def run(self, title: str, facts: Sequence[tuple[str, str]], spec: ClusterSpec) -> Run:
        """The whole run, its events in order of time; events of one time stay in their order."""
        events = self.events
        order = sorted(range(len(events)), key=lambda index: events[index].time_ms)
        places = {index: place for place, index in enumerate(order)}
        seen = {event.node for event in events}
        return Run(
            title=title,
            facts=facts,
            nodes=[node for node in _lanes(spec, seen) if node in seen],
            events=[
                event if event.cause < 0 else replace(event, cause=places[event.cause])
                for event in (events[index] for index in order)
            ],
            headings=[(places.get(index, len(events)), text) for index, text in self.headings],
            story=list(self._story(places)),
        )

    def _story(self, places: Mapping[int, int]) -> Iterator[StoryRow]:
        events = [event for _, event in self.story_events]
        for line in story_lines(events, self.story_headings, self.records):
            index = self.story_events[line.event][0] if line.event < len(self.story_events) else len(self.events)
            yield StoryRow(places.get(index, len(places) - 1), line.time_ms, line.node, line.text, line.is_heading)


def _kind_of(message: Message | Call) -> str:
    return message.kind if isinstance(message, Call) else type(message).__name__


def _fields_of(message: Message | Call) -> Mapping[str, object]:
    return message.fields if isinstance(message, Call) else message_fields(message)


def _lanes(spec: ClusterSpec, seen: Iterable[NodeId]) -> list[NodeId]:
    """The nodes from top to bottom: clients, those of the experiment's own too, brokers, controllers, the recovery
    manager.
    """
    clients = (*spec.client_ids, *sorted(set(seen) - set(spec.member_ids)))
    return list(dict.fromkeys([*clients, *spec.broker_ids, *spec.controller_ids, *spec.member_ids]))


def _with_evidence(events: Sequence[RunEvent]) -> Iterator[RunEvent]:
    """The events, with the cause of those that depend on an event of another node."""
    committed: dict[object, int] = {}
    appended: dict[tuple[str, object], int] = {}
    for index, event in enumerate(events):
        cause = -1
        if event.kind == MetadataCommitted.kind:
            committed[event.fields["end_offset"]] = index
        elif event.kind == RecordsAppended.kind:
            appended[event.partitions[0], event.fields["log_end"]] = index
        elif event.kind == RecordsFetched.kind:
            cause = appended.get((event.partitions[0], event.fields["log_end"]), -1)
        elif event.kind == MetadataPublished.kind:
            cause = committed.get(event.fields["next_offset"], -1)
        yield replace(event, cause=cause) if cause >= 0 and events[cause].node != event.node else event
