"""Snapshots of what `protocol.log` knows of a log's records, so that a start need not read the log again.

A snapshot of the records below an offset is the file `OFFSET.snapshot`: a version, a checksum, and bytes whose meaning
is the protocol's. It is replaced whole and not synced: one that a crash has taken or torn fails its checksum, and the
log is read again from an earlier one, or from its start. There is one for each segment, at its base offset, and the one
that was taken last.

What must not happen is that a snapshot outlives its records: after a truncation others may come to lie below its
offset. So it is removed, durably, before they are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from google_crc32c import value as crc32c_of

from actors.log.files import replace_file, sync_directory
from protocol.ids import Offset

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1
_VERSION_BYTES = 1
_CRC_BYTES = 4
_HEAD_BYTES = _VERSION_BYTES + _CRC_BYTES
_LOG = logging.getLogger(__name__)


class Snapshots:
    """The snapshots of one log, in its directory; none if the log `is_new`. OSError from every call but `offsets`."""

    def __init__(self, directory: Path, is_new: bool) -> None:
        self._directory = directory
        found = () if is_new else directory.glob(f"*{SNAPSHOT_SUFFIX}")
        self.offsets = sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def write(self, offset: Offset, data: bytes, bases: Collection[Offset]) -> None:
        """Writes the snapshot at the log end, and removes those before it that are at none of the segments' `bases`."""
        body = offset.to_bytes(8, "big") + data
        head = SNAPSHOT_VERSION.to_bytes(_VERSION_BYTES, "big") + crc32c_of(body).to_bytes(_CRC_BYTES, "big")
        replace_file(self._path(offset), head + data, durable=False)
        self._remove([old for old in self.offsets if old != offset and old not in bases])
        self.offsets = [old for old in self.offsets if old != offset] + [offset]

    def newest(self) -> tuple[Offset, bytes] | None:
        """(offset, data) of the newest one that is sound; one that is not is removed, and an operator told."""
        while self.offsets:
            offset = self.offsets[-1]
            path = self._path(offset)
            try:
                return offset, _content(offset, path.read_bytes())
            except ValueError as error:
                _LOG.warning("%s: %s; the log is read from before it", path, error)
                self._remove([offset])
        return None

    def keep_only(self, start: Offset, end: Offset) -> None:
        """Removes those that are not of `start .. end`; durably, where records at their offsets may come to differ."""
        gone = [offset for offset in self.offsets if not start <= offset <= end]
        self._remove(gone)
        if any(offset > end for offset in gone):
            sync_directory(self._directory)

    def _remove(self, offsets: Collection[Offset]) -> None:
        for offset in offsets:
            self._path(offset).unlink(missing_ok=True)
        self.offsets = [offset for offset in self.offsets if offset not in offsets]

    def _path(self, offset: Offset) -> Path:
        return self._directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def _content(offset: Offset, data: bytes) -> bytes:
    """What is behind the head of a snapshot; ValueError where the whole is not sound."""
    version, crc, body = data[:_VERSION_BYTES], data[_VERSION_BYTES:_HEAD_BYTES], data[_HEAD_BYTES:]
    if int.from_bytes(version, "big") != SNAPSHOT_VERSION:
        raise ValueError(f"found snapshot version {int.from_bytes(version, 'big')}; allowed: {SNAPSHOT_VERSION}")
    if int.from_bytes(crc, "big") != crc32c_of(offset.to_bytes(8, "big") + body):
        raise ValueError("the snapshot fails its checksum")
    return body
