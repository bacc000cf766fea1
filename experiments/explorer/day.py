"""What a game day did to the users of a cluster, from its trace events alone, as spans of time.

Two measures of the unavailability of a partition, which answer different questions:

- *without a leader*: from the time at which the controller has recorded that no broker leads the partition until it
  records a leader. The time before the controller notices that a leader is gone is not in it.
- *without an acknowledgement*: a gap of more than `GAP_MS` between two acknowledged batches of the clients on it that
  follow each other, or between the first or last one of all partitions and the next one of this partition. It contains
  what the first one leaves out, and depends on how often the clients write: a gap is no outage where they write rarely.

The times are those of the nodes that report the events; the clocks of machines may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.engines.port import TraceEvent
from protocol.events.controller import PartitionChanged, PartitionRemoved
from protocol.events.node import ProduceCompleted
from protocol.ids import NO_LEADER, TimeMs, TopicPartition

GAP_MS = 1_000
WITHOUT_LEADER, WITHOUT_ACKNOWLEDGEMENT, FAULT = "no leader", "no acknowledgement", "fault"


@dataclass(frozen=True, slots=True)
class Span:
    """A time during which something was so: the `row` of the time line, what it was, and in words."""

    row: str
    kind: str
    begin_ms: TimeMs
    end_ms: TimeMs
    words: str = ""

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True)
class Unavailability:
    """A partition over the day by one measure: how often, how long in all, and the longest time; in milliseconds."""

    partition: str
    kind: str
    times: int
    total_ms: int
    longest_ms: int


def without_leader(events: Sequence[TraceEvent], partitions: Iterable[TopicPartition], end_ms: TimeMs) -> list[Span]:
    """The spans without a leader of these partitions until `end_ms`, or until the partition is removed."""
    return [span for partition in partitions for span in _leaderless(events, partition, end_ms)]


def _leaderless(events: Sequence[TraceEvent], partition: TopicPartition, end_ms: TimeMs) -> Iterator[Span]:
    began_ms: TimeMs | None = None
    changes = (it for it in events if isinstance(it.trace, PartitionChanged | PartitionRemoved))
    for event in sorted(changes, key=lambda event: event.time_ms):
        if event.trace.about() != partition:
            continue
        has_none = isinstance(event.trace, PartitionChanged) and event.trace.leader == NO_LEADER
        if has_none and began_ms is None:
            began_ms = event.time_ms
        elif not has_none and began_ms is not None:
            yield Span(str(partition), WITHOUT_LEADER, began_ms, event.time_ms)
            began_ms = None
    if began_ms is not None:
        yield Span(str(partition), WITHOUT_LEADER, began_ms, end_ms)


def without_acknowledgement(events: Iterable[TraceEvent], partitions: Iterable[TopicPartition]) -> list[Span]:
    """The spans of more than `GAP_MS` in which the clients received no acknowledgement for a partition; none where they
    never received any.
    """
    times: dict[TopicPartition, list[TimeMs]] = {partition: [] for partition in partitions}
    for event in events:
        trace = event.trace
        if isinstance(trace, ProduceCompleted) and trace.is_acknowledged and trace.partition in times:
            times[trace.partition].append(event.time_ms)
    everywhere = [time_ms for found in times.values() for time_ms in found]
    if not everywhere:
        return []
    first, last = min(everywhere), max(everywhere)
    return [
        Span(str(partition), WITHOUT_ACKNOWLEDGEMENT, before, after)
        for partition, found in times.items()
        for before, after in pairwise([first, *sorted(found), last])
        if after - before > GAP_MS
    ]


def totals(spans: Iterable[Span], partitions: Iterable[TopicPartition]) -> list[Unavailability]:
    """The totals of each partition by both measures, in the order of the partitions."""
    found = list(spans)
    result = []
    for partition in map(str, partitions):
        for kind in (WITHOUT_LEADER, WITHOUT_ACKNOWLEDGEMENT):
            lengths = [span.length_ms for span in found if (span.row, span.kind) == (partition, kind)]
            result.append(Unavailability(partition, kind, len(lengths), sum(lengths), max(lengths, default=0)))
    return result
