"""Recovery of the log's tail after a crash: where the log ends.

The part of a log after the flushed offset may be incomplete, so a storage reads it back batch by batch when it opens
the log. The first batch that is cut off, fails its checksum, or has an unexpected offset ends the log; the storage
drops it and everything after it, since offsets must be contiguous, and reports that (`records_dropped`). The same
finding below the flushed offset is damage to durable records: the log cannot be opened, or the read fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.events.host import RecordsDropped
from protocol.ids import Offset

TORN = "the file ends within a batch"
DAMAGED = "the batch fails its checksum"


class ReadBack(NamedTuple):
    """A batch as it was read back: offsets (-1: invalid header), and what is wrong with it, empty if nothing is."""

    base_offset: Offset
    next_offset: Offset
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Dropped from a log that ends at `end_offset` now: `size` bytes at `position` of `path`, for the reason `why`."""

    path: str
    end_offset: Offset
    position: int
    size: int
    why: str


def end_reason(end_offset: Offset, found: ReadBack) -> str | None:
    """Why a log that was read back up to `end_offset` ends before the batch `found`; None if it goes on with it."""
    is_next = found.base_offset == end_offset
    return found.fault or (None if is_next else f"found offset {found.base_offset}, expected {end_offset}")


def trace_of(dropped: Dropped) -> RecordsDropped:
    return RecordsDropped(dropped.path, dropped.end_offset, dropped.size, dropped.why)
