"""The checkpoints of a log, which are read instead of its batches: the mark of the flushed part, and the leader epochs.

The *mark* holds the log start offset, the offset up to which the log is durable, and the segment and byte position of
that offset. Its file has two slots that are written in turn, each with a number and a checksum; the valid slot with the
higher number counts. Raising the mark needs no sync: after a crash of the machine an older mark is found, which covers
less. An operation that removes marked records (truncation below the mark, deletion from the front, a reset) writes both
slots and syncs each before it removes anything.

The *leader-epoch checkpoint* lists the epochs of the durable part as Kafka's file of that name does: a version, a
count, and a line per epoch with its start offset. It is replaced whole, before the mark that covers it is raised.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from google_crc32c import value as crc32c_of

from actors.log.files import OpenFiles, replace_file, sync_directory
from protocol.errors import CorruptLogError
from protocol.ids import Epoch, Offset, TimeMs
from protocol.messages.batch import NO_TIMESTAMP

MARK_FILE = "mark"
EPOCHS_FILE = "leader-epoch-checkpoint"
SLOT_BYTES = 512
"""Distance of the slots: the size that disks write atomically."""
_EPOCHS_VERSION = 0
_MARK = struct.Struct(">Qqqqqq")
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """The records `start_offset .. flushed_offset - 1` are durable. They end in the segment with the base offset
    `segment_base`, at byte `position`; `newest_ms` is the newest timestamp of that segment's durable part.
    """

    start_offset: Offset = 0
    flushed_offset: Offset = 0
    segment_base: Offset = 0
    position: int = 0
    newest_ms: TimeMs = NO_TIMESTAMP


class MarkFile:
    """The file with the mark of one log; `mark` is the present one. `is_new`: the log has no such file yet. The first
    mark that is set creates it. CorruptLogError where neither slot is valid.
    """

    def __init__(self, directory: Path, files: OpenFiles, is_new: bool) -> None:
        self._path = directory / MARK_FILE
        self._files = files
        self._number = 0
        self.mark = Mark()
        if not is_new and self._path.exists():
            data = os.pread(self._files.get(self._path), 2 * SLOT_BYTES, 0)
            self._number, self.mark = _newest(self._path, data)

    def raise_to(self, mark: Mark) -> None:
        """Writes a mark that covers more; only the first one of a file is synced."""
        if self._number:
            self._write(mark)
        else:
            self.lower_to(mark)

    def lower_to(self, mark: Mark) -> None:
        """Writes a mark that covers less to both slots; durable on return."""
        is_first = not self._number
        self._files.get(self._path, create=True)
        for _ in range(2):
            self._write(mark)
            self._files.sync(self._path)
        if is_first:
            sync_directory(self._path.parent)

    def close(self) -> None:
        self._files.forget(self._path)

    def _write(self, mark: Mark) -> None:
        self.mark = mark
        self._number += 1
        data = _MARK.pack(self._number, *astuple(mark))
        slot = data + crc32c_of(data).to_bytes(_CRC_BYTES, "big")
        self._files.write(self._path, (slot,), self._number % 2 * SLOT_BYTES)


def read_mark(directory: Path) -> Mark:
    """Reads the mark of a log without opening the log. CorruptLogError where neither slot is valid."""
    path = directory / MARK_FILE
    return _newest(path, path.read_bytes())[1] if path.exists() else Mark()


def _newest(path: Path, data: bytes) -> tuple[int, Mark]:
    """(number, mark) of the valid slot with the highest number; number 0 where no slot was ever written completely."""
    halves = data[:SLOT_BYTES], data[SLOT_BYTES:]
    slots = [slot for half in halves if (slot := _slot(half)) is not None]
    if slots:
        return max(slots, key=lambda slot: slot[0])
    if all(any(half) for half in halves):
        raise CorruptLogError(f"{path}: the mark of what was flushed is damaged")
    return 0, Mark()  # a crash interrupted the first write, before anything depended on the mark


def _slot(data: bytes) -> tuple[int, Mark] | None:
    """(number, mark) of a slot, None where it is damaged or was never written."""
    body, crc = data[: _MARK.size], data[_MARK.size : _MARK.size + _CRC_BYTES]
    if len(crc) < _CRC_BYTES or crc32c_of(body) != int.from_bytes(crc, "big"):
        return None
    number, *fields = _MARK.unpack(body)
    return (number, Mark(*fields)) if number else None


def write_epochs(directory: Path, entries: Sequence[tuple[Epoch, Offset]]) -> None:
    """Replaces the leader-epoch checkpoint, durably."""
    lines = [str(_EPOCHS_VERSION), str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    replace_file(directory / EPOCHS_FILE, "".join(f"{line}\n" for line in lines).encode())


def read_epochs(directory: Path) -> list[tuple[Epoch, Offset]]:
    """(epoch, start offset) of the checkpoint, empty where there is no file; CorruptLogError where it is damaged."""
    path = directory / EPOCHS_FILE
    if not path.exists():
        return []
    try:
        version, count, *lines = path.read_text("ascii").splitlines()
        entries = [(int(epoch), int(start)) for epoch, start in (line.split() for line in lines)]
        if int(version) != _EPOCHS_VERSION or int(count) != len(entries):
            raise ValueError(f"version {version} with {len(entries)} of {count} lines")
    except ValueError as error:
        raise CorruptLogError(f"{path}: no leader-epoch checkpoint: {error}") from error
    return entries
