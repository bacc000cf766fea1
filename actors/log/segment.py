"""One segment of a log: a file of consecutive batches, and a sparse index of their positions.

The index has an entry for the first batch of a segment and then for one every `index.interval.bytes`: its offset, its
position, and the newest timestamp before it. A batch is found by bisection in the index and a walk over the headers
from there. The index is a hint: an entry is used only if the batch at its position has the same offset, and without an
index the walk begins at the start of the file. So the index file needs no sync: missing entries cost time after a
crash, no records.

Every batch is checked when it is read. A damaged one raises CorruptLogError with file and position.
"""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from actors.log.files import OpenFiles
from actors.log.format import HEADER_BYTES, Header
from protocol.contract import SegmentInfo
from protocol.errors import CorruptLogError
from protocol.ids import NO_OFFSET, Offset, TimeMs
from protocol.log.tail import DAMAGED, TORN, ReadBack, end_reason
from protocol.messages.batch import NO_TIMESTAMP, RecordBatch

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
ENTRY_BYTES = 24
_COLUMNS = 3
_CHUNK_BYTES = 131_072


class Segment:
    """A segment whose file exists, or is created with its first batch (`begin`). `end_offset` and `size` (bytes) are
    its end; a caller that opens a segment sets them with `known_to` or finds them with `scan`.
    """

    __slots__ = ("_columns", "_files", "_interval", "_newest_ms", "_saved", "base_offset", "end_offset", "path", "size")

    def __init__(self, directory: Path, base_offset: Offset, files: OpenFiles, index_interval_bytes: int) -> None:
        self.path = directory / f"{base_offset:020d}{LOG_SUFFIX}"
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self._files = files
        self._interval = index_interval_bytes
        self._columns: tuple[array[int], array[int], array[int]] | None = None
        self._saved = 0
        self._newest_ms: TimeMs | None = None

    @property
    def info(self) -> SegmentInfo:
        return SegmentInfo(self.base_offset, self.end_offset, self.size, self.newest_ms)

    @property
    def newest_ms(self) -> TimeMs:
        """The newest timestamp, -1 where there is none."""
        if self._newest_ms is None:
            self._newest_ms = self.place_of(self.end_offset)[2]
        return self._newest_ms

    def append(self, header: bytes, batch: RecordBatch) -> None:
        """Writes a batch at the end. After an OSError the file may be longer than `size` (`cut`)."""
        self._files.write(self.path, (header, batch.payload), self.size, create=not self.size)
        self._extend(batch.base_offset, batch.next_offset, len(header) + len(batch.payload), batch.timestamp_ms)

    def _extend(self, base_offset: Offset, next_offset: Offset, size: int, timestamp_ms: TimeMs) -> None:
        """Moves the end behind a batch of `size` bytes, and adds an index entry where one is due."""
        newest_ms = self.newest_ms
        offsets, positions, newest = self._index()
        if not positions or self.size - positions[-1] >= self._interval:
            offsets.append(base_offset)
            positions.append(self.size)
            newest.append(newest_ms)
        self.size += size
        self.end_offset = next_offset
        if timestamp_ms > newest_ms:
            self._newest_ms = timestamp_ms

    def cut(self) -> None:
        """Truncates the file to `size`."""
        os.ftruncate(self._files.get(self.path), self.size)

    def save_index(self) -> None:
        """Writes the index entries that its file does not have."""
        columns = self._index()
        if self._saved < len(columns[0]):
            rows = array("q", [0]) * (_COLUMNS * (len(columns[0]) - self._saved))
            for place, column in enumerate(columns):
                rows[place::_COLUMNS] = column[self._saved :]
            if sys.byteorder == "little":
                rows.byteswap()
            path = self._index_path
            self._files.get(path, create=True)
            self._files.write(path, (rows.tobytes(),), self._saved * ENTRY_BYTES)
            self._saved = len(columns[0])

    def truncate(self, end_offset: Offset) -> None:
        """Removes the batches that contain offsets from `end_offset` on."""
        self.size, self.end_offset, self._newest_ms = self.place_of(end_offset)
        self.cut()
        self._trim_index()

    def remove(self) -> None:
        self.close()
        self._index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._files.forget(self._index_path)
        self._files.forget(self.path)

    @property
    def _index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    def _index(self) -> tuple[array[int], array[int], array[int]]:
        """Offsets, positions, and newest timestamps before them; read from the file at the first use."""
        if self._columns is None:
            rows = array("q")
            if self._index_path.exists():
                data = self._index_path.read_bytes()
                rows.frombytes(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
                if sys.byteorder == "little":
                    rows.byteswap()
            self._columns = rows[0::_COLUMNS], rows[1::_COLUMNS], rows[2::_COLUMNS]
            self._saved = len(self._columns[0])
            self._trim_index()
        return self._columns

    def _trim_index(self) -> None:
        """Removes the entries behind the end of the segment, in the file too."""
        columns = self._index()
        while columns[1] and not 0 <= columns[1][-1] < self.size:
            for column in columns:
                column.pop()
        if self._saved > len(columns[0]):
            self._saved = len(columns[0])
            os.ftruncate(self._files.get(self._index_path), self._saved * ENTRY_BYTES)

    def _entry_before(self, offset: Offset) -> tuple[int, Offset, TimeMs]:
        """(position, offset, newest timestamp before it) of the last indexed batch at or before an offset."""
        offsets, positions, newest = self._index()
        place = bisect_right(offsets, offset) - 1
        if place >= 0 and self._is_at(positions[place], offsets[place]):
            return positions[place], offsets[place], newest[place]
        return 0, self.base_offset, NO_TIMESTAMP

    def _is_at(self, position: int, offset: Offset) -> bool:
        if not 0 <= position < self.size:
            return False
        try:
            return Header(os.pread(self._files.get(self.path), HEADER_BYTES, position)).base_offset == offset
        except ValueError:
            return False

    def place_of(self, offset: Offset) -> tuple[int, Offset, TimeMs]:
        """(position, offset, newest timestamp) after the last batch that ends at or before `offset`."""
        if offset >= self.end_offset and self._newest_ms is not None:
            return self.size, self.end_offset, self._newest_ms
        position, end_offset, newest_ms = self._entry_before(min(offset, self.end_offset - 1))
        for header, at in self._headers(position, end_offset):
            if header.next_offset > offset:
                break
            position, end_offset = at + header.size, header.next_offset
            newest_ms = max(newest_ms, header.timestamp_ms)
        return position, end_offset, newest_ms

    def read(self, from_offset: Offset, max_bytes: int) -> list[RecordBatch]:
        """The batches from the one that contains `from_offset` on, at least one, up to about `max_bytes` of payload."""
        position, offset, _ = self._entry_before(from_offset)
        window = _Window(self._files.get(self.path), self.size)
        batches: list[RecordBatch] = []
        size = 0
        while position < self.size and (size < max_bytes or not batches):
            data = window.at(position, HEADER_BYTES)
            header = self._checked(data, position, offset)
            if header.next_offset > from_offset:
                payload = window.at(position + HEADER_BYTES, header.size - HEADER_BYTES)
                if not header.is_intact(data, payload):
                    raise self._corrupt(position, "the batch fails its checksum")
                batches.append(header.batch(payload))
                size += len(payload)
            position += header.size
            offset = header.next_offset
        if position >= self.size and offset != self.end_offset:
            raise self._corrupt(self.size, f"ends at offset {offset}, expected {self.end_offset}")
        return batches

    def scan(self, seen: Callable[[Header], None]) -> str | None:
        """Recovers the batches behind `size` one by one, checks their checksums, and passes each header to `seen`.
        Returns the reason where it stopped before the end of the file, None otherwise (`protocol/log/tail.py`).
        """
        file_size = self.file_size()
        window = _Window(self._files.get(self.path), file_size)
        while self.size < file_size:
            header, found = self._read_back(window, file_size)
            why = end_reason(self.end_offset, found)
            if why is not None or header is None:
                return why
            self._extend(header.base_offset, header.next_offset, header.size, header.timestamp_ms)
            seen(header)
        return None

    def _read_back(self, window: _Window, file_size: int) -> tuple[Header | None, ReadBack]:
        """Reads the batch at `size`; the header is None where there is none."""
        data = window.at(self.size, HEADER_BYTES)
        try:
            header = Header(data)
        except ValueError as error:
            return None, ReadBack(NO_OFFSET, NO_OFFSET, str(error))
        fault = ""
        if self.size + header.size > file_size:
            fault = TORN
        elif not header.is_intact(data, window.at(self.size + HEADER_BYTES, header.size - HEADER_BYTES)):
            fault = DAMAGED
        return header, ReadBack(header.base_offset, header.next_offset, fault)

    def _headers(self, position: int, offset: Offset) -> Iterator[tuple[Header, int]]:
        """The headers from the batch at `position` on, which begins at `offset`, with their positions."""
        window = _Window(self._files.get(self.path), self.size)
        while position < self.size:
            header = self._checked(window.at(position, HEADER_BYTES), position, offset)
            yield header, position
            position += header.size
            offset = header.next_offset

    def _checked(self, data: bytes, position: int, offset: Offset) -> Header:
        try:
            header = Header(data)
        except ValueError as error:
            raise self._corrupt(position, error) from error
        if header.base_offset != offset or position + header.size > self.size:
            raise self._corrupt(position, f"found offset {header.base_offset}, expected {offset}")
        return header

    def _corrupt(self, position: int, why: object) -> CorruptLogError:
        return CorruptLogError(f"{self.path}: damaged at byte {position}: {why}")

    def create(self) -> None:
        self._files.get(self.path, create=True)
        self.begin()

    def begin(self) -> None:
        """Begins an empty segment; its file is created with the first batch."""
        self._columns = array("q"), array("q"), array("q")
        self._newest_ms = NO_TIMESTAMP

    def known_to(self, end_offset: Offset, size: int, newest_ms: TimeMs | None) -> None:
        """Sets the end of a segment that the log's mark covers up to there (`newest_ms` None: read when needed)."""
        self.end_offset, self.size = end_offset, size
        self._newest_ms = NO_TIMESTAMP if not size else newest_ms

    def file_size(self) -> int:
        return os.fstat(self._files.get(self.path)).st_size


class _Window:
    """Reads a file up to `end`, in chunks that hold many small batches."""

    __slots__ = ("_data", "_end", "_file", "_start")

    def __init__(self, file: int, end: int) -> None:
        self._file = file
        self._end = end
        self._start = 0
        self._data = b""

    def at(self, position: int, size: int) -> bytes:
        """The bytes `position .. position + size - 1`, fewer where the file ends before."""
        size = min(size, self._end - position)
        begin = position - self._start
        if begin < 0 or begin + size > len(self._data):
            if size >= _CHUNK_BYTES:
                return os.pread(self._file, size, position)
            self._data = os.pread(self._file, min(_CHUNK_BYTES, self._end - position), position)
            self._start, begin = position, 0
        return self._data[begin : begin + size]
