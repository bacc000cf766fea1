"""What a log makes of the end that a crash has left it with.

Nobody has promised that the part behind the flushed offset is there. So it is read back batch by batch when the log is
opened. Offsets are contiguous, and a batch vouches for its own bytes alone: the first one of which the file holds only
a part, whose bytes are not those that were written, or that is not in its place, ends the log. What lies behind goes
with it, be it whole or not, since the log would have a hole. What is dropped is told (`records_dropped`). Below the
flushed offset the same finding is damage to what was durable, and the log is not opened, or the read fails.

How bytes are read and checksums taken is the storage's business; every storage ends its logs by this rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.contract import Trace
from protocol.ids import Offset

TORN = "the file ends within a batch"
DAMAGED = "the batch fails its checksum"


class ReadBack(NamedTuple):
    """A batch as it was read back: the offsets that it says it has (-1: its header is no header), and what is wrong
    with it, TORN, DAMAGED or what else a storage finds; empty where it is whole.
    """

    base_offset: Offset
    next_offset: Offset
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was taken off the end of a log: the log goes on at `end_offset`; `size` bytes at `position` of the file
    `path` were dropped for the reason `why`.
    """

    path: str
    end_offset: Offset
    position: int
    size: int
    why: str


def why_it_ends(end_offset: Offset, found: ReadBack) -> str | None:
    """Why a log that has been read back up to `end_offset` ends there and does not go on with what was found next; None
    if it goes on.
    """
    if found.fault:
        return found.fault
    if found.base_offset != end_offset:
        return f"found offset {found.base_offset}, expected {end_offset}"
    return None


def trace_of(dropped: Dropped) -> Trace:
    """The event `records_dropped`."""
    detail = {"path": dropped.path, "end_offset": dropped.end_offset, "size": dropped.size, "reason": dropped.why}
    return Trace("records_dropped", None, detail)
