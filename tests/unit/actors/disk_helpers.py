"""Helpers for tests of the log on disk: batches, a log of single records, the paths of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.log.disk_log import DiskLog
from actors.storage import LOCK_FILE, DiskStorage, Owner
from protocol.errors import CorruptLogError, StorageError
from protocol.messages.batch import RecordBatch


def batch(base_offset: int, records: int = 1, payload: bytes = b"x", epoch: int = 0) -> RecordBatch:
    return RecordBatch(base_offset=base_offset, leader_epoch=epoch, record_count=records, payload=payload)


def written(storage: DiskStorage, flushed: int, unflushed: int, name: str = "t/0") -> DiskStorage:
    """Appends single records, whose payloads are their offsets in five digits, and flushes after the `flushed`th."""
    log = storage.open_log(name)
    for offset in range(flushed + unflushed):
        log.append(batch(offset, payload=b"%05d" % offset))
        if offset == flushed - 1:
            log.flush()
    return storage


def opened(directory: Path, **options: Any) -> tuple[DiskStorage, DiskLog]:
    """The storage in a directory, and its log `t/0`."""
    storage = DiskStorage(directory, **options)
    return storage, storage.open_log("t/0")


def content(directory: Path, with_lock: bool = True) -> dict[str, bytes]:
    """The content of all files below a directory by relative path."""
    files = [path for path in directory.rglob("*") if path.is_file() and (with_lock or path.name != LOCK_FILE)]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def refused(
    directory: Path,
    owner: Owner,
    name: str,
    damage: Callable[[bytes], bytes],
    start: Callable[[DiskStorage], object],
    kind: type[StorageError] = CorruptLogError,
) -> str:
    """Damages a file; returns the line with which the node's start refuses the directory, which changes nothing."""
    path = directory / name
    path.write_bytes(damage(path.read_bytes()))
    before = content(directory, with_lock=False)
    storage = DiskStorage(directory, owner)
    with pytest.raises(kind) as caught:
        start(storage)
    storage.close()
    assert "\n" not in str(caught.value)
    assert content(directory, with_lock=False) == before
    return str(caught.value)


def flipped(place: int) -> Callable[[bytes], bytes]:
    """Flips one bit of the byte at a position, which counts from the end where it is negative."""

    def change(data: bytes) -> bytes:
        damaged = bytearray(data)
        damaged[place] ^= 1
        return bytes(damaged)

    return change


def log_directory(directory: Path, name: str = "t/0") -> Path:
    return directory / "logs" / name


def segment_file(directory: Path, base_offset: int = 0) -> Path:
    return log_directory(directory) / f"{base_offset:020d}.log"
