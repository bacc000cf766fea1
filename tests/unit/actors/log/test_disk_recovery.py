"""The recovery of a log from the files that a crash or a bad disk has left."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from actors.log.checkpoints import SLOT_BYTES, MarkFile
from actors.log.files import OpenFiles
from actors.storage import DiskStorage
from protocol.contract import BATCH_OVERHEAD_BYTES, SegmentInfo
from protocol.errors import CorruptLogError
from protocol.log.tail import TORN
from protocol.messages.batch import RecordBatch
from tests.unit.actors.disk_helpers import batch, log_directory, opened, segment_file, written

FRAME = BATCH_OVERHEAD_BYTES + 5
HEADERLESS = "the file ends within a header"
FIELDS = {
    "base offset": 0,
    "length": 8,
    "leader epoch": 12,
    "magic": 16,
    "flags": 17,
    "checksum": 18,
    "header checksum": 22,
    "record count": 26,
    "producer id": 30,
    "producer epoch": 38,
    "base sequence": 40,
    "timestamp": 44,
    "payload": 52,
    "end of payload": FRAME - 1,
}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def offsets(storage: DiskStorage, name: str = "t/0") -> list[int]:
    return [found.base_offset for found in storage.open_log(name).read(0, 2**40)]


@pytest.mark.parametrize(("cut_bytes", "why"), [(1, TORN), (5, TORN), (6, HEADERLESS), (FRAME - 1, HEADERLESS)])
def test_a_torn_tail_is_dropped_and_the_log_continues_before_it(tmp_path: Path, cut_bytes: int, why: str) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=3).close()
    path = segment_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut_bytes])
    storage, log = opened(tmp_path)
    assert (log.end_offset, log.flushed_offset) == (4, 2)
    [dropped] = storage.dropped
    assert (dropped.path, dropped.end_offset) == (str(path), 4)
    assert (dropped.position, dropped.size, dropped.why) == (4 * FRAME, FRAME - cut_bytes, why)
    log.append(batch(4, payload=b"00004"))
    assert path.read_bytes() == whole


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("victim", [2, 3, 4])
def test_recovery_drops_exactly_the_tail_from_the_damaged_batch_on(
    tmp_path: Path, field: str, victim: int, caplog: pytest.LogCaptureFixture
) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=3).close()
    flip(segment_file(tmp_path), victim * FRAME + FIELDS[field])
    with caplog.at_level(logging.WARNING):
        storage, log = opened(tmp_path)
    assert log.end_offset == victim
    assert offsets(storage) == list(range(victim))
    assert segment_file(tmp_path).stat().st_size == victim * FRAME
    assert f"the log ends at offset {victim}" in caplog.text
    log.append(batch(victim, payload=b"again"))
    assert log.read(victim, 1)[0].payload == b"again"


@pytest.mark.parametrize("field", FIELDS)
def test_a_damaged_batch_below_the_mark_is_never_served(tmp_path: Path, field: str) -> None:
    written(DiskStorage(tmp_path), flushed=5, unflushed=0).close()
    flip(segment_file(tmp_path), 2 * FRAME + FIELDS[field])
    log = DiskStorage(tmp_path).open_log("t/0")
    assert [found.base_offset for found in log.read(0, 6)] == [0, 1]
    for from_offset, max_bytes in ((0, 2**40), (2, 1), (1, 6)):
        with pytest.raises(CorruptLogError, match=f"{0:020d}.log: damaged at byte {2 * FRAME}"):
            log.read(from_offset, max_bytes)


def test_zeros_behind_the_end_are_no_batches(tmp_path: Path) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=1).close()
    path = segment_file(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert DiskStorage(tmp_path).open_log("t/0").end_offset == 3
    assert path.stat().st_size == 3 * FRAME


def test_a_batch_with_an_unexpected_offset_ends_the_log(tmp_path: Path) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=3).close()
    path = segment_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: 3 * FRAME] + data[4 * FRAME :])
    storage = DiskStorage(tmp_path)
    assert storage.open_log("t/0").end_offset == 3
    assert "found offset 4, expected 3" in storage.dropped[0].why


def rolled(directory: Path, flushed: int, batches: int = 6, per_segment: int = 2) -> None:
    """A log of single records in epochs 0, 0, 1, 1, ..., two per segment, flushed after the `flushed`th."""
    storage, log = opened(directory)
    for offset in range(batches):
        if offset and offset % per_segment == 0:
            log.roll()
        log.append(batch(offset, payload=b"%05d" % offset, epoch=offset // per_segment))
        if offset == flushed - 1:
            log.flush()
    storage.close()


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_the_segments_after_a_damaged_batch_are_dropped_too(tmp_path: Path, victim: int) -> None:
    rolled(tmp_path, flushed=1)
    flip(segment_file(tmp_path, victim // 2 * 2), victim % 2 * FRAME + 30)
    storage, log = opened(tmp_path)
    assert (log.end_offset, log.flushed_offset, offsets(storage)) == (victim, 1, list(range(victim)))
    assert not segment_file(tmp_path, 4).exists()
    assert {Path(dropped.path).name for dropped in storage.dropped} >= {f"{4:020d}.log", f"{victim // 2 * 2:020d}.log"}
    assert log.epoch_starts() == [(0, 0), (1, 2)][: 1 + (victim > 2)]


def test_flushed_batches_are_not_read_at_the_start(tmp_path: Path) -> None:
    """Damage in the flushed part is found only when the batch is read."""
    rolled(tmp_path, flushed=6)
    for base in (0, 2, 4):
        flip(segment_file(tmp_path, base), 30)
    storage, log = opened(tmp_path)
    assert (log.end_offset, log.flushed_offset, storage.dropped) == (6, 6, [])
    assert log.epoch_starts() == [(0, 0), (1, 2), (2, 4)]


@pytest.mark.parametrize("flushed", [3, 4, 6])
def test_missing_flushed_records_are_an_error(tmp_path: Path, flushed: int) -> None:
    rolled(tmp_path, flushed)
    base = (flushed - 1) // 2 * 2
    path = segment_file(tmp_path, base)
    size = (flushed - base) * FRAME
    path.write_bytes(path.read_bytes()[: size - 1])
    with pytest.raises(CorruptLogError, match=f"{base:020d}.log: ends at byte {size - 1}, flushed were {size}"):
        DiskStorage(tmp_path).open_log("t/0")


@pytest.mark.parametrize("gone", [0, 4])
def test_a_missing_flushed_segment_is_an_error(tmp_path: Path, gone: int) -> None:
    rolled(tmp_path, flushed=6)
    segment_file(tmp_path, gone).unlink()
    with pytest.raises(CorruptLogError, match="lacks a segment of 0 to 4"):
        DiskStorage(tmp_path).open_log("t/0")


def test_a_gap_among_flushed_segments_is_found_by_a_read(tmp_path: Path) -> None:
    rolled(tmp_path, flushed=6)
    segment_file(tmp_path, 2).unlink()
    log = DiskStorage(tmp_path).open_log("t/0")
    with pytest.raises(CorruptLogError, match="ends at offset 2, expected 4"):
        log.read(0, 2**40)


def test_a_damaged_mark_is_an_error(tmp_path: Path) -> None:
    written(DiskStorage(tmp_path), flushed=5, unflushed=0).close()
    (log_directory(tmp_path) / "mark").write_bytes(b"\x01" * 2 * SLOT_BYTES)
    with pytest.raises(CorruptLogError, match="mark of what was flushed is damaged"):
        DiskStorage(tmp_path).open_log("t/0")


def test_a_torn_mark_leaves_the_previous_one(tmp_path: Path) -> None:
    storage, log = opened(tmp_path)
    for offset in range(4):
        log.append(batch(offset))
        log.flush()
    storage.close()
    path = log_directory(tmp_path) / "mark"
    newest = max((0, SLOT_BYTES), key=lambda start: path.read_bytes()[start : start + 8])
    flip(path, newest + 20)
    log = DiskStorage(tmp_path).open_log("t/0")
    assert (log.flushed_offset, log.end_offset) == (3, 4)


@pytest.mark.parametrize("torn_bytes", [0, 1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, SLOT_BYTES + 30])
def test_an_incomplete_first_mark_covers_nothing(tmp_path: Path, torn_bytes: int) -> None:
    written(DiskStorage(tmp_path), flushed=0, unflushed=3).close()
    path = log_directory(tmp_path) / "mark"
    path.write_bytes(b"\x00" * min(torn_bytes, SLOT_BYTES) + b"\x01" * (torn_bytes - SLOT_BYTES))
    log = DiskStorage(tmp_path).open_log("t/0")
    assert (log.end_offset, log.flushed_offset) == (3, 0)
    log.flush()
    flip(path, 0)
    assert MarkFile(log_directory(tmp_path), OpenFiles(), is_new=False).mark.flushed_offset == 3, "in both slots"


def test_a_log_without_batches_has_no_files_and_exists_after_a_restart(tmp_path: Path) -> None:
    storage, log = opened(tmp_path)
    log.flush()
    log.roll()
    assert list(log_directory(tmp_path).iterdir()) == []
    assert [(info.base_offset, info.end_offset) for info in log.segments()] == [(0, 0)]
    storage.close()
    storage = DiskStorage(tmp_path)
    assert storage.log_names() == ["t/0"]
    log = storage.open_log("t/0")
    assert list(log_directory(tmp_path).iterdir()) == [], "nor when it is opened again"
    log.append(batch(0, payload=b"00000"))
    log.flush()
    storage.close()
    _, log = opened(tmp_path)
    assert (log.read(0, 1)[0].payload, log.flushed_offset) == (b"00000", 1)


@pytest.mark.parametrize("begin", ["append", "reset", "snapshot"])
def test_a_log_may_begin_with_any_operation(tmp_path: Path, begin: str) -> None:
    storage, log = opened(tmp_path)
    if begin == "append":
        log.append(batch(0, payload=b"00000"))
    elif begin == "reset":
        log.reset(7)
    else:
        log.write_snapshot(b"state")
    start, end = log.start_offset, log.end_offset
    storage.close()
    log = DiskStorage(tmp_path).open_log("t/0")
    assert (log.start_offset, log.end_offset) == (start, end)
    assert log.snapshot() == ((0, b"state") if begin == "snapshot" else None)


@pytest.mark.parametrize("text", ["", "1\n0\n", "0\n2\n0 0\n", "0\n1\n0\n", "0\n1\nx 0\n"])
def test_a_damaged_epoch_checkpoint_is_an_error(tmp_path: Path, text: str) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=0).close()
    (log_directory(tmp_path) / "leader-epoch-checkpoint").write_text(text)
    with pytest.raises(CorruptLogError, match="no leader-epoch checkpoint"):
        DiskStorage(tmp_path).open_log("t/0")


def stamped(offset: int, timestamp_ms: int) -> RecordBatch:
    return RecordBatch(base_offset=offset, record_count=1, payload=b"%05d" % offset, timestamp_ms=timestamp_ms)


INDEX_DAMAGE = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "cut": lambda data: data[:30],
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: bytes(range(256))[: len(data)] * (len(data) // 256 + 1),
    "shifted": lambda data: data[24:],
    "wrong": lambda data: data[:24] + (1).to_bytes(8, "big") + data[32:],
    "early": lambda data: data[:16] + data[40:48] + data[24:],
    "stale": lambda data: data + data,
}


@pytest.mark.parametrize("damage", INDEX_DAMAGE)
@pytest.mark.parametrize("is_closed", [True, False])
def test_an_index_is_a_hint(tmp_path: Path, damage: str, is_closed: bool) -> None:
    storage, log = opened(tmp_path, index_interval_bytes=2 * FRAME)
    for offset in range(20):
        log.append(stamped(offset, timestamp_ms=100 - offset))
    log.flush()
    if is_closed:
        log.roll()
    storage.close()
    path = log_directory(tmp_path) / f"{0:020d}.index"
    data = path.read_bytes()
    assert len(data) == 10 * 24, "an entry for every other batch"
    damaged = INDEX_DAMAGE[damage](data)
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    storage, log = opened(tmp_path, index_interval_bytes=2 * FRAME)
    for offset in range(20):
        assert log.read(offset, 1) == [stamped(offset, 100 - offset)]
    if damage not in ("zeros", "noise", "early"):
        assert log.segments()[0] == SegmentInfo(0, 20, 20 * FRAME, 100)
    log.truncate(13)
    assert offsets(storage) == list(range(13))
    log.append(stamped(13, 7))
    log.flush()
    storage.close()
    assert offsets(DiskStorage(tmp_path)) == list(range(14))


def test_an_interrupted_deletion_is_finished(tmp_path: Path) -> None:
    rolled(tmp_path, flushed=6)
    saved = {base: segment_file(tmp_path, base).read_bytes() for base in (0, 2)}
    storage = DiskStorage(tmp_path)
    storage.open_log("t/0").delete_segments_before(4)
    storage.close()
    for base, data in saved.items():
        segment_file(tmp_path, base).write_bytes(data)
    storage = DiskStorage(tmp_path)
    assert (storage.open_log("t/0").start_offset, offsets(storage)) == (4, [4, 5])
    assert sorted(path.name for path in log_directory(tmp_path).glob("*.log")) == [f"{4:020d}.log"]


@pytest.mark.parametrize("to", [3, 8])
@pytest.mark.parametrize("left", [(), (2,), (2, 4)])
def test_an_interrupted_reset_is_finished(tmp_path: Path, to: int, left: tuple[int, ...]) -> None:
    rolled(tmp_path, flushed=6)
    saved = {base: segment_file(tmp_path, base).read_bytes() for base in left}
    storage = DiskStorage(tmp_path)
    storage.open_log("t/0").reset(to)
    storage.close()
    segment_file(tmp_path, to).unlink()
    for base, data in saved.items():
        segment_file(tmp_path, base).write_bytes(data)
    storage, log = opened(tmp_path)
    assert log.segments() == [SegmentInfo(to, to, 0, -1)]
    assert log.epoch_starts() == []


def test_the_epoch_of_deleted_records_is_remembered_even_if_it_was_never_flushed(tmp_path: Path) -> None:
    storage, log = opened(tmp_path)
    log.append(batch(0, epoch=3))
    log.roll()
    log.delete_segments_before(1)
    assert log.epoch_starts() == [(3, 1)]
    storage.close()
    assert DiskStorage(tmp_path).open_log("t/0").epoch_starts() == [(3, 1)]


def test_truncating_an_empty_log_below_its_start_changes_nothing(tmp_path: Path) -> None:
    log = DiskStorage(tmp_path).open_log("t/0")
    log.append(batch(0, epoch=3))
    log.roll()
    log.delete_segments_before(1)
    log.truncate(0)
    assert (log.start_offset, log.end_offset, log.epoch_starts()) == (1, 1, [(3, 1)])


def test_a_log_that_was_truncated_to_nothing_knows_no_epoch(tmp_path: Path) -> None:
    storage = written(DiskStorage(tmp_path), flushed=2, unflushed=1)
    storage.open_log("t/0").truncate(0)
    storage.close()
    assert DiskStorage(tmp_path).open_log("t/0").epoch_starts() == []


@pytest.mark.parametrize("is_reset", [True, False])
def test_a_stale_batch_in_memory_is_not_served(tmp_path: Path, is_reset: bool) -> None:
    log = DiskStorage(tmp_path).open_log("t/0")
    for offset in range(3):
        log.append(batch(offset))
    if is_reset:
        log.reset(0)
    else:
        log.truncate(0)
    added = batch(0, records=3, payload=b"whole")
    log.append(added)
    assert log.read(1, 1) == [added]


def test_closed_segments_know_their_newest_timestamp_after_a_restart(tmp_path: Path) -> None:
    storage, log = opened(tmp_path)
    for offset, timestamp_ms in enumerate((5, 9, 7, -1, 3, 4)):
        if offset in (3, 4):
            log.roll()
        log.append(stamped(offset, timestamp_ms))
    expected = log.segments()
    assert [segment.newest_ms for segment in expected] == [9, -1, 4]
    log.flush()
    storage.close()
    assert DiskStorage(tmp_path).open_log("t/0").segments() == expected
