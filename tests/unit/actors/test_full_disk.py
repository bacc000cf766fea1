"""Injected faults of disks: a full disk, and damaged log ends."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.log.files import OpenFiles
from actors.storage import MAX_DAMAGE_BYTES, DamageKind, DiskStorage, damage_tails
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import StorageFullError
from protocol.messages.batch import RecordBatch

LOG = "topic/0"


def batch(offset: int, size: int = 100) -> RecordBatch:
    return RecordBatch(base_offset=offset, record_count=1, payload=bytes([offset % 256]) * size)


def test_a_write_that_does_not_fit_is_done_as_far_as_there_is_room(tmp_path: Path) -> None:
    files, path = OpenFiles(), tmp_path / "file"
    file = files.get(path, create=True)
    files.room_bytes = 10
    assert files.write_some(file, (b"abcd", b"efgh"), 0) == 8
    assert files.write_some(file, (b"ABCD",), 4) == 4
    assert files.room_bytes == 2
    assert files.write_some(file, (b"EF", b"ijkl"), 6) == 4
    with pytest.raises(OSError, match="No space left") as refused:
        files.write_some(file, (b"kl",), 10)
    assert refused.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"abcdABEFij"
    files.room_bytes = None
    assert files.write_some(file, (b"kl",), 10) == 2
    files.close()


@given(st.integers(0, 500), st.lists(st.integers(1, 200), max_size=6))
def test_a_log_on_a_full_disk_keeps_its_batches_and_accepts_writes_when_there_is_room(
    tmp_path_factory: pytest.TempPathFactory, room: int, sizes: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("node")
    files = OpenFiles()
    storage = DiskStorage(directory, files=files)
    log = storage.open_log(LOG)
    files.room_bytes = room
    written: list[RecordBatch] = []
    left = room
    for size in sizes:
        wanted = batch(len(written), size)
        if size + BATCH_OVERHEAD_BYTES <= left:
            log.append(wanted)
            written.append(wanted)
            left -= size + BATCH_OVERHEAD_BYTES
        else:
            with pytest.raises(StorageFullError):
                log.append(wanted)
            left = 0
        assert list(log.read(0, 10_000)) == written
    files.room_bytes = None
    written.append(batch(len(written)))
    log.append(written[-1])
    storage.close()
    storage = DiskStorage(directory)
    assert list(storage.open_log(LOG).read(0, 10_000)) == written
    assert storage.dropped == []
    storage.close()


@pytest.mark.parametrize("kind", ["torn", "flipped", "zeroed"])
@given(seed=st.integers(0, 1_000))
def test_damage_is_dropped_and_reported_and_flushed_batches_are_kept(
    tmp_path_factory: pytest.TempPathFactory, kind: DamageKind, seed: int
) -> None:
    directory = tmp_path_factory.mktemp("node")
    storage = DiskStorage(directory)
    log = storage.open_log(LOG)
    batches = [batch(offset) for offset in range(60)]
    for item in batches[:20]:
        log.append(item)
    log.flush()
    for item in batches[20:]:
        log.append(item)
    storage.close()
    assert damage_tails(directory, kind, Random(seed)) == 1
    storage = DiskStorage(directory)
    kept = list(storage.open_log(LOG).read(0, 100_000))
    size = 100 + BATCH_OVERHEAD_BYTES
    assert kept == batches[: len(kept)]
    assert 20 <= len(kept) < 60
    assert len(kept) >= 60 - MAX_DAMAGE_BYTES // size - 1
    assert [dropped.end_offset for dropped in storage.dropped] == [len(kept)]
    storage.close()


def test_flushed_batches_are_not_damaged(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    log = storage.open_log(LOG)
    log.append(batch(0))
    log.flush()
    storage.close()
    assert damage_tails(tmp_path, "zeroed", Random(0)) == 0
    storage = DiskStorage(tmp_path)
    assert list(storage.open_log(LOG).read(0, 1_000)) == [batch(0)]
    storage.close()
