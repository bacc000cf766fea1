"""What a game day did to the users of a cluster, as spans of time.

Two measures of the unavailability of a partition, which answer different questions:

- *without a leader*: from the time at which the controller has recorded that no broker leads the partition until it
  records a leader. The time before the controller notices that a leader is gone is not in it.
- *without an acknowledgement*: a gap of more than `GAP_MS` between two acknowledgements of the clients' records for the
  partition that follow each other, or between one and the beginning or end of the sending. It contains what the first
  one leaves out, and depends on how often the clients write: a gap is no outage where they write rarely.

The times are those of the nodes that report the events; the clocks of machines may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from experiments.engines.port import TraceEvent
from protocol.events.controller import PartitionChanged, PartitionRemoved
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


class AcknowledgementGaps:
    """Collects the spans without an acknowledgement of these partitions, to which clients write from `began_ms` on."""

    def __init__(self, partitions: Iterable[TopicPartition], began_ms: TimeMs) -> None:
        self.spans: list[Span] = []
        self._last_ms = dict.fromkeys(partitions, began_ms)

    def acknowledged(self, partition: TopicPartition, now_ms: TimeMs) -> None:
        """Records of a partition have been acknowledged; times do not decrease."""
        before_ms, self._last_ms[partition] = self._last_ms[partition], now_ms
        if now_ms - before_ms > GAP_MS:
            self.spans.append(Span(str(partition), WITHOUT_ACKNOWLEDGEMENT, before_ms, now_ms))

    def end(self, now_ms: TimeMs) -> None:
        """The sending ends."""
        for partition in self._last_ms:
            self.acknowledged(partition, now_ms)


def totals(spans: Iterable[Span], partitions: Iterable[TopicPartition]) -> list[Unavailability]:
    """The totals of each partition by both measures, in the order of the partitions."""
    found = list(spans)
    result = []
    for partition in map(str, partitions):
        for kind in (WITHOUT_LEADER, WITHOUT_ACKNOWLEDGEMENT):
            lengths = [span.length_ms for span in found if (span.row, span.kind) == (partition, kind)]
            result.append(Unavailability(partition, kind, len(lengths), sum(lengths), max(lengths, default=0)))
    return result
