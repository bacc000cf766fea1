"""A full or broken disk: the errors of the log, and its content afterwards."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.log.files import OpenFiles
from actors.storage import DiskStorage
from protocol.contract import BATCH_OVERHEAD_BYTES, LogStorage
from protocol.errors import CorruptLogError, StorageError, StorageFullError
from protocol.messages.batch import RecordBatch
from tests.unit.actors.disk_helpers import batch, log_directory, opened, segment_file, written


class WeakDisk(OpenFiles):
    """Accepts `room` more bytes, then fails with `write_errno`; syncs fail with `sync_errno`, if set."""

    def __init__(self, room: int = 2**60, write_errno: int = errno.ENOSPC, sync_errno: int = 0) -> None:
        super().__init__()
        self.room, self.write_errno, self.sync_errno = room, write_errno, sync_errno

    def write_some(self, file: int, parts: Sequence[bytes], position: int) -> int:
        if not self.room:
            raise OSError(self.write_errno, os.strerror(self.write_errno))
        taken = b"".join(parts)[: self.room]
        self.room -= len(taken)
        return os.pwrite(file, taken, position)

    def sync(self, path: Path) -> None:
        if self.sync_errno:
            raise OSError(self.sync_errno, os.strerror(self.sync_errno))
        super().sync(path)


def payloads(log: LogStorage) -> list[bytes]:
    return [found.payload for found in log.read(0, 2**40)]


FRAME = BATCH_OVERHEAD_BYTES + 5
FULL = {errno.ENOSPC: StorageFullError, errno.EDQUOT: StorageFullError, errno.EIO: StorageError}


@pytest.mark.parametrize("number", FULL)
@pytest.mark.parametrize("room", [0, 1, BATCH_OVERHEAD_BYTES, FRAME - 1])
def test_a_write_that_does_not_fit_is_undone(tmp_path: Path, room: int, number: int) -> None:
    disk = WeakDisk(write_errno=number)
    storage = written(DiskStorage(tmp_path, files=disk), flushed=1, unflushed=2)
    log = storage.open_log("t/0")
    disk.room = room
    with pytest.raises(FULL[number]) as caught:
        log.append(batch(3, payload=b"00003"))
    assert type(caught.value) is FULL[number]
    assert segment_file(tmp_path).stat().st_size == 3 * FRAME
    assert (log.end_offset, payloads(log)) == (3, [b"00000", b"00001", b"00002"])
    disk.room = 2**60
    log.append(batch(3, payload=b"00003"))
    storage.close()
    reopened = DiskStorage(tmp_path)
    assert payloads(reopened.open_log("t/0")) == [b"00000", b"00001", b"00002", b"00003"]
    assert reopened.dropped == []


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of files of this process to `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_partial_write_is_undone(tmp_path: Path) -> None:
    storage = written(DiskStorage(tmp_path), flushed=0, unflushed=3)
    log = storage.open_log("t/0")
    with file_size_limit(4_000), pytest.raises(StorageFullError, match="too large"):
        log.append(batch(3, payload=b"x" * 8_000))
    assert segment_file(tmp_path).stat().st_size == 3 * FRAME
    log.append(batch(3, payload=b"00003"))
    storage.close()
    assert DiskStorage(tmp_path).open_log("t/0").end_offset == 4


def test_after_a_failed_sync_the_log_accepts_no_write(tmp_path: Path) -> None:
    """The disk may have lost unflushed records, so a later sync must not mark them as durable."""
    disk = WeakDisk()
    log = written(DiskStorage(tmp_path, files=disk), flushed=1, unflushed=2).open_log("t/0")
    disk.sync_errno = errno.ENOSPC
    with pytest.raises(StorageError) as caught:
        log.flush()
    assert type(caught.value) is StorageError, "not merely full"
    disk.sync_errno = 0
    changes: list[Callable[[], None]] = [
        log.flush,
        lambda: log.append(batch(3)),
        lambda: log.truncate(1),
        log.roll,
        lambda: log.reset(9),
    ]
    for change in changes:
        with pytest.raises(StorageError):
            change()
    assert (log.flushed_offset, len(payloads(log))) == (1, 3)


def test_a_flush_can_be_repeated_after_a_checkpoint_that_did_not_fit(tmp_path: Path) -> None:
    disk = WeakDisk()
    log = written(DiskStorage(tmp_path, files=disk), flushed=1, unflushed=2).open_log("t/0")
    disk.room = 0
    with pytest.raises(StorageFullError):
        log.flush()
    assert log.flushed_offset == 1
    disk.room = 2**60
    log.flush()
    assert log.flushed_offset == 3


def test_a_batch_with_a_wrong_checksum_is_not_written(tmp_path: Path) -> None:
    log = DiskStorage(tmp_path).open_log("t/0")
    with pytest.raises(CorruptLogError, match="has checksum"):
        log.append(RecordBatch(record_count=1, payload=b"x", crc=1))
    assert (log.end_offset, segment_file(tmp_path).exists()) == (0, False)


def test_a_failed_replacement_of_a_small_file_is_a_typed_error_and_keeps_the_old_content(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    storage.write_file("a.json", b"old")
    with file_size_limit(100), pytest.raises(StorageFullError):
        storage.write_file("a.json", b"x" * 1_000)
    assert storage.read_file("a.json") == b"old"
    assert not (tmp_path / "a.json.tmp").exists()


def test_a_segment_that_vanished_is_a_typed_error(tmp_path: Path) -> None:
    storage = written(DiskStorage(tmp_path), flushed=3, unflushed=0)
    storage.close()
    storage, log = opened(tmp_path)
    storage.close()
    for path in log_directory(tmp_path).iterdir():
        path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        log.read(0, 1)
