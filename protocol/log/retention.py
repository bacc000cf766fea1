"""When a segment of a log is closed, and when it is deleted.

A log is a row of segments; records go into the last one, the active segment. It is closed when the next batch would
make it larger than `segment.bytes`. Closed segments are deleted from the oldest on, in whole, once they are too old
(`retention.ms`: the newest timestamp in the segment counts) or the log is too large without them (`retention.bytes`).
Two things are never deleted: the active segment, and what lies at or above the high watermark, since it may still be
truncated and is not yet anyone's to read. Every replica decides for itself, by its own high watermark.

Timestamps are the producers', of which leaders take none from far in the future (`message.timestamp.after.max.ms`). A
segment whose batches have none is as old as the next one that has any, since its records were there before; if none
has, it does not age.

Departures from Kafka: the active segment is not closed by age; where there are no timestamps Kafka takes the time at
which the file was last modified, which is no property of the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.contract import SegmentInfo
from protocol.ids import Offset, TimeMs
from protocol.messages.batch import NO_TIMESTAMP

UNLIMITED = -1
"""What `retention.ms` and `retention.bytes` say where nothing is deleted for their sake."""


def should_roll(active_bytes: int, batch_bytes: int, segment_bytes: int) -> bool:
    """Whether a batch of `batch_bytes` (with its overhead) goes into a segment of its own; an empty segment takes a
    batch of any size.
    """
    return active_bytes > 0 and active_bytes + batch_bytes > segment_bytes


def retained_from(
    segments: Sequence[SegmentInfo],
    high_watermark: Offset,
    now_ms: TimeMs,
    retention_ms: int,
    retention_bytes: int,
) -> Offset:
    """The offset from which on the log is kept: the base offset of the oldest segment (of `segments`, oldest first, the
    last one active) that neither rule deletes.
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
    """The timestamp that counts for each segment, -1 for one that does not age."""
    ages: list[TimeMs] = []
    for segment in reversed(segments):
        has_own = segment.newest_ms > NO_TIMESTAMP or not ages
        ages.append(segment.newest_ms if has_own else ages[-1])
    return ages[::-1]
