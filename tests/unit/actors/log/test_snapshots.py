"""A start uses the newest snapshot of the producers, and reads the batches after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.log import snapshots as module
from actors.log.checkpoints import Mark, MarkFile
from actors.log.files import OpenFiles
from actors.log.snapshots import SNAPSHOT_SUFFIX
from actors.storage import DiskStorage
from experiments.engines.sim.disk import SimLog
from protocol.contract import LogStorage
from protocol.errors import ErrorCode
from protocol.ids import Offset
from protocol.log.producer_state import ProducerState
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import RecordBatch
from tests.unit.actors.disk_helpers import log_directory

SEGMENT_BYTES = 300
"""Room for five batches."""


def produced(offset: int, producer_id: int = 1, timestamp_ms: int = 5) -> RecordBatch:
    return RecordBatch(
        base_offset=offset,
        record_count=1,
        payload=b"12345678",
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=offset,
        timestamp_ms=timestamp_ms,
    )


def filled_log(storage: LogStorage) -> ReplicaLog:
    """Twelve batches in segments that begin at 0, 5 and 10, written through a replica's log."""
    log = ReplicaLog(storage)
    log.segment_bytes = SEGMENT_BYTES
    log.append_as_follower([produced(offset) for offset in range(12)])
    return log


def filled(directory: Path, clean: bool = False) -> DiskStorage:
    """A storage with a `filled_log`."""
    storage = DiskStorage(directory)
    log = filled_log(storage.open_log("t/0"))
    if clean:
        log.storage.flush()
        log.save_producers()
    return storage


def snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in log_directory(directory).glob(f"*{SNAPSHOT_SUFFIX}"))


def snapshot_file(directory: Path, offset: int) -> Path:
    return log_directory(directory) / f"{offset:020d}{SNAPSHOT_SUFFIX}"


class CountingLog(SimLog):
    """Records the offsets from which it was read."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Offset] = []

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        self.reads.append(from_offset)
        return super().read(from_offset, max_bytes)


def test_only_batches_after_the_snapshot_are_read() -> None:
    storage = CountingLog()
    log = filled_log(storage)
    assert ReplicaLog(storage).producers.entries() == log.producers.entries()
    assert storage.reads == [10]
    storage.flush()
    log.save_producers()
    storage.reads.clear()
    assert ReplicaLog(storage).producers.entries() == log.producers.entries()
    assert storage.reads == []


def test_after_a_truncation_below_a_snapshot_the_previous_one_is_used() -> None:
    storage = CountingLog()
    log = filled_log(storage)
    log = ReplicaLog(storage, high_watermark=12)
    storage.reads.clear()
    log.truncate(8)
    assert storage.reads == [5]
    assert [known.base_offset for known in log.producers.entries()[1].batches] == [3, 4, 5, 6, 7]


def test_there_is_a_snapshot_for_each_segment_and_the_last_one(tmp_path: Path) -> None:
    filled(tmp_path, clean=True).close()
    assert snapshots(tmp_path) == [5, 10, 12]
    storage = DiskStorage(tmp_path)
    log = ReplicaLog(storage.open_log("t/0"))
    log.append_as_follower([produced(12)])
    log.storage.flush()
    log.save_producers()
    log.save_producers()
    assert snapshots(tmp_path) == [5, 10, 13]
    log.truncate(9)
    assert snapshots(tmp_path) == [5]
    log.high_watermark = 9
    log.delete_segments_before(5)
    assert snapshots(tmp_path) == [5], "what is known of deleted records is kept"
    log.reset(30)
    assert snapshots(tmp_path) == []


def test_producers_of_deleted_records_are_known_after_a_restart(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    log = ReplicaLog(storage.open_log("t/0"))
    log.segment_bytes = SEGMENT_BYTES
    log.append_as_follower([produced(0, producer_id=7), *(produced(offset) for offset in range(1, 12))])
    log.high_watermark = 12
    log.delete_segments_before(10)
    storage.close()
    again = ReplicaLog(DiskStorage(tmp_path).open_log("t/0"))
    assert (again.start_offset, sorted(again.producers.entries())) == (10, [1, 7])
    error, duplicate = again.producers.check(produced(0, producer_id=7))
    assert (error, duplicate and duplicate.base_offset) == (ErrorCode.NONE, 0)


DAMAGE = {
    "cut": (lambda data: data[:-1], "fails its checksum"),
    "empty": (lambda data: b"", "found snapshot version 0"),
    "flipped": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "fails its checksum"),
    "newer": (lambda data: b"\x02" + data[1:], "found snapshot version 2; allowed: 1"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_snapshot_is_logged_and_replaced_by_reading_the_log(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, clean=True).close()
    expected = ReplicaLog(DiskStorage(tmp_path).open_log("t/0")).producers.entries()
    change, what = DAMAGE[damage]
    for offset in (10, 12):
        snapshot_file(tmp_path, offset).write_bytes(change(snapshot_file(tmp_path, offset).read_bytes()))
    with caplog.at_level(logging.WARNING):
        log = ReplicaLog(DiskStorage(tmp_path).open_log("t/0"))
    assert log.producers.entries() == expected
    assert caplog.text.count(what) == 2
    assert str(snapshot_file(tmp_path, 12)) in caplog.text
    assert snapshots(tmp_path) == [5]


def test_missing_snapshots_are_logged_and_replaced_by_reading_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).close()
    expected = ReplicaLog(DiskStorage(tmp_path).open_log("t/0")).producers.entries()
    for offset in (5, 10):
        snapshot_file(tmp_path, offset).unlink()
    with caplog.at_level(logging.WARNING):
        log = ReplicaLog(DiskStorage(tmp_path).open_log("t/0"))
    assert log.producers.entries() == expected
    assert f"{log_directory(tmp_path)}: no snapshot of the log; all of it is read" in caplog.text


def test_a_snapshot_of_another_offset_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path).close()
    snapshot_file(tmp_path, 10).rename(snapshot_file(tmp_path, 11))
    found = DiskStorage(tmp_path).open_log("t/0").snapshot()
    assert found is not None
    assert found[0] == 5


def test_a_snapshot_beyond_the_log_end_is_not_used(tmp_path: Path) -> None:
    filled(tmp_path, clean=True).close()
    data = snapshot_file(tmp_path, 12).read_bytes()
    storage = DiskStorage(tmp_path)
    storage.open_log("t/0").truncate(11)
    storage.close()
    snapshot_file(tmp_path, 12).write_bytes(data)
    log = DiskStorage(tmp_path).open_log("t/0")
    assert snapshots(tmp_path) == [5, 10]
    log.append(produced(11, producer_id=2))
    assert sorted(ReplicaLog(log).producers.entries()) == [1, 2]


@pytest.mark.parametrize("change", ["truncate", "reset"])
def test_a_snapshot_is_durably_removed_before_its_records(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path, clean=True).open_log("t/0")
    seen: list[tuple[list[int], Mark]] = []
    files = OpenFiles()

    def note(directory: Path) -> None:
        seen.append((snapshots(tmp_path), MarkFile(directory, files, is_new=False).mark))

    monkeypatch.setattr(module, "sync_directory", note)
    if change == "truncate":
        log.truncate(11)
    else:
        log.reset(11)
    [(left, mark)] = seen
    assert left == ([5, 10] if change == "truncate" else [])
    assert (mark.start_offset, mark.flushed_offset) == (0, 12), "nothing else has been taken back yet"
    log.delete_segments_before(10)
    assert snapshots(tmp_path) == left[1:]
    assert len(seen) == 1, "those before the start do no harm"
    files.close()


def test_the_encoded_state_decodes_to_the_same_state() -> None:
    state = ProducerState(expiration_ms=100)
    for offset in range(20):
        state.appended(produced(offset, producer_id=offset % 3, timestamp_ms=10 * offset), high_watermark=0)
    without = state.to_bytes()
    state.appended(produced(20, producer_id=9, timestamp_ms=0), high_watermark=0)
    assert state.to_bytes() == without, "expired by the clock of the timestamps, which is part of the state"
    again = ProducerState(expiration_ms=100)
    again.appended(produced(0, producer_id=77), high_watermark=0)
    again.from_bytes(state.to_bytes(), 21)
    assert again.entries() == state.entries()
    assert again.to_bytes() == state.to_bytes()
    assert not again.truncate(20), "what lies behind a snapshot is not known"
