"""The storage port on a directory: one per node, logs as append-only files, small files replaced whole.

Layout and format
-----------------
    NAME                    a small file (temporary file, fsync, rename, fsync of the directory) logs/TOPIC/N.log
    the log `TOPIC/N`: frames one after another, each a length (4 bytes, big endian) and an encoded batch,
                            which begins with its CRC-32 (`protocol.messages.codec`)
    logs/TOPIC/N.flushed    the end of what has been fsynced, in bytes (8), and the CRC-32 of that (4)

A log that is opened is scanned once, which gives the index in memory (base offset, end offset and end position of each
batch), so that reads and truncations find their place by bisection. The first frame that is no batch, or does not
begin where the one before ended, is a torn tail and is cut off together with what follows; below the flushed position
it is damage to what was durable, and an error.

The flushed position is raised after the fsync of the log and lowered, durably, before a truncation below it. So it
never promises more than the disk holds. It exists for the sake of `apply_loss`: SIGKILL ends a process and keeps the
page cache, and an experiment that wants the machine to have died takes away what was never fsynced before the node
starts again.
"""

from __future__ import annotations

import os
import shutil
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from protocol.errors import CodecError, ProtocolError, ProtocolInvariantError
from protocol.ids import Offset
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode, encode

LossKind = Literal["none", "unflushed", "records", "all"]

_LENGTH_BYTES = 4
_POSITION_BYTES = 8
_MARK_BYTES = _POSITION_BYTES + 4
_LOGS = "logs"
_LOG_SUFFIX = ".log"
_MARK_SUFFIX = ".flushed"


class CorruptLogError(ProtocolError):
    """What was durable in a log cannot be read."""


class DiskLog:
    """One log in a file (`contract.LogStorage`); see the module docstring. Not safe to open twice at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._mark = os.open(path.with_suffix(_MARK_SUFFIX), os.O_RDWR | os.O_CREAT, 0o644)
        self._bases: list[Offset] = []
        self._ends: list[Offset] = []
        self._positions: list[int] = []
        self._flushed_position = self._read_mark()
        self._recover()

    @property
    def end_offset(self) -> Offset:
        return self._ends[-1] if self._ends else 0

    @property
    def flushed_offset(self) -> Offset:
        index = bisect_right(self._positions, self._flushed_position)
        return self._ends[index - 1] if index else 0

    @property
    def _end_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def append(self, batch: RecordBatch) -> None:
        """ProtocolInvariantError unless the batch begins at `end_offset`."""
        if batch.base_offset != self.end_offset:
            raise ProtocolInvariantError(f"append at {batch.base_offset} to a log that ends at {self.end_offset}")
        data = encode(batch)
        _write_at(self._file, len(data).to_bytes(_LENGTH_BYTES, "big") + data, self._end_position)
        self._note(batch, self._end_position + _LENGTH_BYTES + len(data))

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Payload sizes count towards `max_bytes`; empty at and behind `end_offset`."""
        if from_offset >= self.end_offset:
            return []
        first = bisect_right(self._ends, from_offset)
        position = self._positions[first - 1] if first else 0
        batches: list[RecordBatch] = []
        size = 0
        for end_position in self._positions[first:]:
            if batches and size >= max_bytes:
                break
            batches.append(self._read_batch(position, end_position))
            size += batches[-1].size_bytes
            position = end_position
        return batches

    def truncate(self, end_offset: Offset) -> None:
        """Drops every batch that reaches beyond `end_offset`."""
        kept = bisect_right(self._ends, end_offset)
        del self._bases[kept:], self._ends[kept:], self._positions[kept:]
        if self._flushed_position > self._end_position:
            self._write_mark(self._end_position)
            os.fsync(self._mark)
        os.ftruncate(self._file, self._end_position)

    def flush(self) -> None:
        if self._flushed_position != self._end_position:
            os.fsync(self._file)
            self._write_mark(self._end_position)

    def close(self) -> None:
        """Closes the files; the log takes no more calls."""
        os.close(self._file)
        os.close(self._mark)

    def _note(self, batch: RecordBatch, end_position: int) -> None:
        self._bases.append(batch.base_offset)
        self._ends.append(batch.next_offset)
        self._positions.append(end_position)

    def _read_batch(self, position: int, end_position: int) -> RecordBatch:
        start = position + _LENGTH_BYTES
        data = os.pread(self._file, end_position - start, start)
        try:
            message = decode(data)
        except CodecError as error:
            raise CorruptLogError(f"{self._path.name}: no batch at byte {position}: {error}") from error
        if not isinstance(message, RecordBatch):
            raise CorruptLogError(f"{self._path.name}: found {type(message).__name__} at byte {position}")
        return message

    def _recover(self) -> None:
        """Builds the index and cuts off a torn tail."""
        size = os.fstat(self._file).st_size
        position = 0
        while (end_position := self._frame_end(position, size)) is not None:
            try:
                batch = self._read_batch(position, end_position)
            except CorruptLogError:
                if position < self._flushed_position:
                    raise
                break
            if batch.base_offset != self.end_offset:
                break
            self._note(batch, end_position)
            position = end_position
        if position < self._flushed_position:
            raise CorruptLogError(f"{self._path.name}: ends at byte {position}, flushed were {self._flushed_position}")
        if position < size:
            os.ftruncate(self._file, position)

    def _frame_end(self, position: int, size: int) -> int | None:
        """Where the frame at `position` ends; None where the file ends before it does."""
        head = os.pread(self._file, _LENGTH_BYTES, position)
        end_position = position + _LENGTH_BYTES + int.from_bytes(head, "big")
        return end_position if len(head) == _LENGTH_BYTES and end_position <= size else None

    def _read_mark(self) -> int:
        data = os.pread(self._mark, _MARK_BYTES, 0)
        if not data:
            return 0
        position = data[:_POSITION_BYTES]
        if len(data) != _MARK_BYTES or zlib.crc32(position) != int.from_bytes(data[_POSITION_BYTES:], "big"):
            raise CorruptLogError(f"{self._path.name}: the mark of what was flushed is damaged")
        return int.from_bytes(position, "big")

    def _write_mark(self, position: int) -> None:
        data = position.to_bytes(_POSITION_BYTES, "big")
        _write_at(self._mark, data + zlib.crc32(data).to_bytes(4, "big"), 0)
        self._flushed_position = position


class DiskStorage:
    """A node's directory (`contract.Storage`), created where there is none. One process may have it open at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: dict[str, DiskLog] = {}
        (directory / _LOGS).mkdir(parents=True, exist_ok=True)

    def open_log(self, name: str) -> DiskLog:
        """CorruptLogError where durable data is damaged, ValueError for a name that is no `TOPIC/N`."""
        log = self._logs.get(name)
        if log is None:
            path = self._log_path(name)
            is_new = not path.exists()
            path.parent.mkdir(exist_ok=True)
            log = self._logs[name] = DiskLog(path)
            if is_new:
                _sync_directory(path.parent)
                _sync_directory(path.parent.parent)
        return log

    def log_names(self) -> Sequence[str]:
        root = self._directory / _LOGS
        return sorted(f"{path.parent.name}/{path.stem}" for path in root.glob(f"*/*{_LOG_SUFFIX}"))

    def delete_log(self, name: str) -> None:
        log = self._logs.pop(name, None)
        if log is not None:
            log.close()
        path = self._log_path(name)
        if not path.exists():
            return
        path.with_suffix(_MARK_SUFFIX).unlink(missing_ok=True)  # first: it must not outlive the log that it speaks of
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
            _sync_directory(path.parent.parent)
        else:
            _sync_directory(path.parent)

    def read_file(self, name: str) -> bytes | None:
        path = self._file_path(name)
        return path.read_bytes() if path.exists() else None

    def write_file(self, name: str, data: bytes) -> None:
        path = self._file_path(name)
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(self._directory)

    def delete_file(self, name: str) -> None:
        path = self._file_path(name)
        if path.exists():
            path.unlink()
            _sync_directory(self._directory)

    def close(self) -> None:
        """Closes all logs."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _file_path(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or name == _LOGS:
            raise ValueError(f"{name!r} names no file")
        return self._directory / name

    def _log_path(self, name: str) -> Path:
        topic, _, partition = name.partition("/")
        if not topic or topic.startswith(".") or not partition.isdecimal():
            raise ValueError(f"{name!r} names no log")
        return self._directory / _LOGS / topic / f"{partition}{_LOG_SUFFIX}"


def apply_loss(directory: Path, kind: LossKind, count: int = 0) -> None:
    """Takes from a dead node's directory what a crash takes: nothing (`none`), every log's unflushed suffix
    (`unflushed`), the last `count` records of every log as far as unflushed (`records`), or everything (`all`). A
    batch goes as a whole."""
    if kind == "all":
        if directory.exists():
            shutil.rmtree(directory)
    elif kind in ("unflushed", "records"):
        storage = DiskStorage(directory)
        for name in storage.log_names():
            log = storage.open_log(name)
            keep = log.flushed_offset if kind == "unflushed" else log.end_offset - count
            log.truncate(max(keep, log.flushed_offset))
        storage.close()


def _write_at(file: int, data: bytes, position: int) -> None:
    """Writes all of `data`; a write may be taken in parts."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, position)
        view, position = view[written:], position + written


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
