"""Renders the trace events of a run as lines of text: the time in seconds, the node, and the event's sentence.

Events that only carry data on (appends, fetches, applied metadata) have no sentence and are left out. Acknowledged
produce commands are counted; the counts are written before the next line. Below a commit of the controller stand the
committed metadata records. Headings, such as the steps of a scenario, are put between the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.engines.port import TraceEvent
from experiments.support.record_text import record_text, topic_names
from protocol.events.controller import MetadataCommitted
from protocol.events.node import ProduceCompleted
from protocol.ids import NodeId, TimeMs, node_name
from protocol.messages.records import MetadataRecord

ACKS = {-1: "all", 0: "0", 1: "1"}


@dataclass(frozen=True, slots=True)
class Heading:
    """A line above the event with the index `begins_at`, such as a step of the experiment in words."""

    text: str
    begins_at: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the story: the index of the event that it is about, or that follows it. `time_ms` and `node` are None
    in headings and counts.
    """

    event: int
    text: str
    time_ms: TimeMs | None = None
    node: NodeId | None = None
    is_heading: bool = False

    def __str__(self) -> str:
        if self.is_heading:
            return f"-- {self.text}"
        if self.time_ms is None or self.node is None:
            return f"{'':10}  {'':<15}  {self.text}"
        return f"{self.time_ms / 1000:10.3f}  {node_name(self.node):<15}  {self.text}"


def render(
    events: Sequence[TraceEvent], headings: Sequence[Heading] = (), records: Sequence[MetadataRecord] = ()
) -> list[str]:
    """The lines of the story as text; the parameters are those of `story_lines`."""
    return [str(line) for line in story_lines(events, headings, records)]


def story_lines(
    events: Sequence[TraceEvent], headings: Sequence[Heading] = (), records: Sequence[MetadataRecord] = ()
) -> list[Line]:
    """The lines of the story. `events` are in order of time, `headings` in order of `begins_at`; `records` is the
    metadata log from its start.
    """
    lines: list[Line] = []
    acknowledged: Counter[str] = Counter()
    topics = topic_names(records)
    pending = list(reversed(headings))
    for index, event in enumerate(events):
        while pending and pending[-1].begins_at <= index:
            lines += [*_take_counts(acknowledged, index), Line(index, pending.pop().text, is_heading=True)]
        trace = event.trace
        if isinstance(trace, ProduceCompleted) and trace.is_acknowledged:
            acknowledged[f"{trace.partition} with acks={ACKS[trace.acks]}"] += 1
        for text in _texts(event, records, topics):
            lines += _take_counts(acknowledged, index)
            lines.append(Line(index, text, event.time_ms, event.node))
    end = len(events)
    lines += _take_counts(acknowledged, end)
    return [*lines, *(Line(end, heading.text, is_heading=True) for heading in reversed(pending))]


def _texts(event: TraceEvent, records: Sequence[MetadataRecord], topics: Mapping[str, str]) -> Iterator[str]:
    """The event's sentence, if it has one, and the metadata records that it reports as committed."""
    trace = event.trace
    if sentence := trace.sentence():
        yield sentence
    if isinstance(trace, MetadataCommitted):
        for offset, record in enumerate(records[trace.base_offset : trace.end_offset], trace.base_offset):
            yield f"  {offset:>4}  {record_text(record, topics)}"


def _take_counts(acknowledged: Counter[str], index: int) -> Iterator[Line]:
    """The lines about records acknowledged since the last call; resets the counts."""
    for key, count in acknowledged.items():
        yield Line(index, f"{count} {'record' if count == 1 else 'records'} acknowledged in {key}")
    acknowledged.clear()
