"""When a log segment is closed, and when it is deleted.

Records are appended to the last segment of a log, the active one. It is closed when the next batch would make it larger
than `segment.bytes`. Closed segments are deleted as a whole, from the oldest on, when the newest timestamp in one is
older than `retention.ms`, or the log without it still has `retention.bytes`. The active segment and records at or above
the high watermark are never deleted: they may still be truncated, and no consumer has read them. Every replica decides
for itself, by its own high watermark.

Timestamps are those of producers; leaders refuse those far in the future (`message.timestamp.after.max.ms`). A segment
without timestamps is as old as the next one that has some; without such a segment, it does not expire.

Departures from Kafka: the active segment is not closed by age; Kafka uses the modification time of the file for a
segment without timestamps, which is not a property of the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.contract import SegmentInfo
from protocol.ids import Offset, TimeMs
from protocol.messages.batch import NO_TIMESTAMP

UNLIMITED = -1
"""The value of `retention.ms` and `retention.bytes` that disables them."""


def should_roll(active_bytes: int, batch_bytes: int, segment_bytes: int) -> bool:
    """Whether to close the active segment, unless empty, before a batch of `batch_bytes` (with its overhead)."""
    return active_bytes > 0 and active_bytes + batch_bytes > segment_bytes


def retained_from(
    segments: Sequence[SegmentInfo], high_watermark: Offset, now_ms: TimeMs, retention_ms: int, retention_bytes: int
) -> Offset:
    """The base offset of the oldest segment that is kept, of `segments`, oldest first, the last one active.
    `retention_ms` and `retention_bytes` may be UNLIMITED.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    kept = 0
    for segment, newest_ms in zip(segments[:-1], _ages(segments)[:-1], strict=True):
        is_old = NO_TIMESTAMP < newest_ms < now_ms - retention_ms
        is_excess = excess_bytes >= segment.size_bytes
        may_go = (retention_ms != UNLIMITED and is_old) or (retention_bytes != UNLIMITED and is_excess)
        if not may_go or segment.end_offset > high_watermark:
            break
        excess_bytes -= segment.size_bytes
        kept += 1
    return segments[kept].base_offset


def _ages(segments: Sequence[SegmentInfo]) -> list[TimeMs]:
    """The timestamp by which each segment expires, -1 for one that does not."""
    ages: list[TimeMs] = []
    for segment in reversed(segments):
        has_own = segment.newest_ms > NO_TIMESTAMP or not ages
        ages.append(segment.newest_ms if has_own else ages[-1])
    return ages[::-1]
