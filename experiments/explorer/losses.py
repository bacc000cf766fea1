"""Marks the election that loses acknowledged records, while a run is recorded.

A record that is acknowledged with acks=all is lost when a new leader's log ends at or before its offset: the leader
gives the offset to another record. So the trace events of clients and leaders show the moment of a loss, on either
engine. What a log holds before its end is not compared: a record that was replaced there is not seen
here; `lost_acked` of a scenario, which compares the records themselves, counts it.
"""

from __future__ import annotations

from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.events.client import ProduceCompleted
from protocol.events.controller import TopicDeleted
from protocol.ids import Offset, TopicPartition

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
            case TopicDeleted():
                deleted = [place for place in self._acknowledged if place.topic == trace.topic]
                for place in deleted:
                    del self._acknowledged[place]
            case BecameLeader(partition=place, log_end=end):
                known = self._acknowledged.get(place, set())
                lost = sorted(offset for offset in known if offset >= end)
                known.difference_update(lost)
                if lost:
                    count = f"{len(lost)} acknowledged record{'s are' if len(lost) > 1 else ' is'}"
                    where = f"offsets {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"offset {lost[0]}"
                    return f"{place}: {count} missing, {where}: the log of the new leader ends at {end}"
        return None
