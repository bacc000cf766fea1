"""A log's files as they lie there, read without its lock, without opening the log, and without changing anything.

For whoever wants to see what a disk holds: of a node that runs, that has ended, or that cannot start. What is wrong is
shown and not repaired: a batch whose header is sound says where the next one begins, even if its bytes fail their
checksum; what is no header, or is cut off, is shown as the rest of its file, and the next segment is read. What a start
would make of it depends on the mark: below it such a finding is damage, above it the end of the log
(`protocol/log/tail.py`). A node that runs may be writing the last batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from actors.log.files import typed_errors
from actors.log.format import HEADER_BYTES, Header
from actors.log.segment import LOG_SUFFIX
from protocol.ids import Offset
from protocol.log.tail import DAMAGED, TORN, ReadBack, why_it_ends
from protocol.messages.batch import RecordBatch


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch of `size` bytes at `position` of its file. `crc` is what the file says its checksum is; `is_intact`
    whether it is right. `fault` says what is wrong with the batch, or with its place; empty where nothing is.
    """

    batch: RecordBatch
    position: int
    size: int
    crc: int
    is_intact: bool
    fault: str


@dataclass(frozen=True, slots=True)
class Rest:
    """The last `size` bytes of a file, from `position` on, are no batch: `fault` says why. The log would go on at
    `end_offset`.
    """

    position: int
    size: int
    end_offset: Offset
    fault: str


def segment_files(directory: Path) -> list[Path]:
    """The segments of the log in a directory, oldest first."""
    with typed_errors(directory):
        found = [path for path in directory.glob(f"*{LOG_SUFFIX}") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def read_segment(path: Path, expected: Offset | None = None) -> Iterator[FoundBatch | Rest]:
    """What a segment's file holds, from its front to the end that it has now. It is to begin at the offset of its name,
    and at `expected`, where the segment before it ended. StorageError where the file cannot be read.
    """
    offset = int(path.stem) if expected is None else expected
    position = 0
    with typed_errors(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while position < size:
            data = file.read(HEADER_BYTES)
            header, fault = _header(data, size - position)
            if header is None:
                yield Rest(position, size - position, offset, fault)
                return
            payload = file.read(header.size - HEADER_BYTES)
            is_intact = header.is_intact(data, payload)
            found = ReadBack(header.base_offset, header.next_offset, "" if is_intact else DAMAGED)
            fault = why_it_ends(offset, found) or ""
            yield FoundBatch(header.unchecked(payload), position, header.size, header.crc, is_intact, fault)
            position += header.size
            offset = header.next_offset


def _header(data: bytes, left: int) -> tuple[Header | None, str]:
    """The header of a batch that the file holds whole, with `left` bytes from its first on; or why there is none."""
    try:
        header = Header(data)
    except ValueError as error:
        return None, str(error)
    if header.size < HEADER_BYTES:
        return None, f"found a batch of {header.size} bytes; allowed: from {HEADER_BYTES}"
    return (None, TORN) if header.size > left else (header, "")
