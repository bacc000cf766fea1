"""Reads a log's files without the directory's lock, without opening the log, and without changing anything, for a node
that runs, has ended, or cannot start.

A batch with a sound header gives the position of the next batch, even if its own bytes fail their checksum; bytes that
are no header, or a batch that is cut off, are shown as the rest of their file, and reading continues with the next
segment.
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
from protocol.log.tail import DAMAGED, TORN, ReadBack, end_reason
from protocol.messages.batch import RecordBatch


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch of `size` bytes at byte `position` of its file. `crc` is the checksum that the file gives, `is_intact`
    whether the bytes match it. `fault` describes what is wrong with the batch or its offset, empty for a sound one.
    """

    batch: RecordBatch
    position: int
    size: int
    crc: int
    is_intact: bool
    fault: str


@dataclass(frozen=True, slots=True)
class Rest:
    """The last `size` bytes of a file, which are no batch; the next one would have begun at `end_offset`."""

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
    """Yields the batches of a segment's file up to its present end, and a `Rest` if it ends with other bytes.

    The first batch should begin at `expected`, where the previous segment ended; by default at the offset in the file's
    name. StorageError where the file cannot be read.
    """
    offset = int(path.stem) if expected is None else expected
    position = 0
    with typed_errors(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while position < size:
            data = file.read(HEADER_BYTES)
            try:
                header = _header(data, size - position)
            except ValueError as error:
                yield Rest(position, size - position, offset, str(error))
                return
            payload = file.read(header.size - HEADER_BYTES)
            is_intact = header.is_intact(data, payload)
            found = ReadBack(header.base_offset, header.next_offset, "" if is_intact else DAMAGED)
            fault = end_reason(offset, found) or ""
            yield FoundBatch(header.batch(payload), position, header.size, header.crc, is_intact, fault)
            position += header.size
            offset = header.next_offset


def _header(data: bytes, left: int) -> Header:
    """The header of a batch that fits into the `left` bytes of the file; ValueError for other bytes."""
    header = Header(data)
    if header.size < HEADER_BYTES:
        raise ValueError(f"found a batch of {header.size} bytes; allowed: from {HEADER_BYTES}")
    if header.size > left:
        raise ValueError(TORN)
    return header
