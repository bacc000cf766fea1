"""Snapshots of the protocol's state of a log's records (producers), so that a start does not read the whole log.

The snapshot of the records below an offset is the file `OFFSET.snapshot`: a version, a checksum, and bytes that only
`protocol.log` interprets. It is not synced: one that a crash has torn fails its checksum, and the log is read from an
earlier snapshot on, or from its start. There is one snapshot per segment, at its base offset, and the latest one. A
truncation removes a snapshot, durably, before its records: others may be appended below its offset.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection
from pathlib import Path

from google_crc32c import value as crc32c_of

from actors.log.files import replace_file, sync_directory
from protocol.ids import Offset

SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">BI")
_LOG = logging.getLogger(__name__)


class Snapshots:
    """The snapshots of one log, in its directory; `is_new`: there are none yet. All methods may raise OSError."""

    def __init__(self, directory: Path, is_new: bool) -> None:
        self._directory = directory
        found = () if is_new else directory.glob(f"*{SNAPSHOT_SUFFIX}")
        self.offsets = sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def write(self, offset: Offset, data: bytes, bases: Collection[Offset]) -> None:
        """Writes the snapshot at the log end; removes the earlier ones at other offsets than the segments' `bases`."""
        head = _HEAD.pack(SNAPSHOT_VERSION, crc32c_of(offset.to_bytes(8, "big") + data))
        replace_file(self._path(offset), head + data, durable=False)
        self._remove([old for old in self.offsets if old != offset and old not in bases])
        self.offsets = [old for old in self.offsets if old != offset] + [offset]

    def newest(self) -> tuple[Offset, bytes] | None:
        """(offset, data) of the newest sound snapshot, None if there is none; removes unsound ones, with a warning."""
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
        """Removes the snapshots outside `start .. end`; durably, if records may be appended below their offsets."""
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
    """The data of a snapshot without its head; ValueError where version or checksum is wrong."""
    version, crc = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    body = data[_HEAD.size :]
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"found snapshot version {version}; allowed: {SNAPSHOT_VERSION}")
    if crc != crc32c_of(offset.to_bytes(8, "big") + body):
        raise ValueError("the snapshot fails its checksum")
    return body
