"""Recovery of a log's tail after a crash (protocol/log/tail.py), on real and simulated disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.storage import DiskStorage
from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimStorage
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.events.host import RecordsDropped
from protocol.ids import NO_OFFSET
from protocol.log.tail import DAMAGED, TORN, Dropped, ReadBack, end_reason, trace_of
from tests.unit.actors.disk_helpers import batch, segment_file, written

FRAME = BATCH_OVERHEAD_BYTES + 5


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (ReadBack(7, 9), None),
        (ReadBack(7, 9, TORN), TORN),
        (ReadBack(7, 9, DAMAGED), DAMAGED),
        (ReadBack(8, 9), "found offset 8, expected 7"),
        (ReadBack(6, 9), "found offset 6, expected 7"),
        (ReadBack(NO_OFFSET, NO_OFFSET, "no header"), "no header"),
    ],
)
def test_the_first_torn_damaged_or_misplaced_batch_ends_the_log(found: ReadBack, why: str | None) -> None:
    assert end_reason(7, found) == why


def test_dropped_records_are_traced() -> None:
    event = trace_of(Dropped("logs/T/0/0.log", end_offset=7, position=90, size=40, why=TORN))
    assert event == RecordsDropped("logs/T/0/0.log", end_offset=7, size=40, reason=TORN)


def simulated(flushed: int, unflushed: int) -> SimStorage:
    """The log `t/0`, as `disks_under_test.written` writes it."""
    storage = SimStorage()
    log = storage.open_log("t/0")
    for offset in range(flushed + unflushed):
        if offset == flushed:
            log.flush()
        log.append(batch(offset, payload=b"%05d" % offset))
    return storage


def damaged_on_disk(directory: Path, victim: int, *, is_torn: bool) -> Dropped:
    """What recovery drops from a real disk where the batch at `victim` is cut off or damaged."""
    written(DiskStorage(directory), flushed=2, unflushed=3).close()
    path = segment_file(directory)
    data = bytearray(path.read_bytes())
    if is_torn:
        del data[(victim + 1) * FRAME - 1 :]
    else:
        data[victim * FRAME + BATCH_OVERHEAD_BYTES] ^= 1
    path.write_bytes(data)
    storage = DiskStorage(directory)
    log = storage.open_log("t/0")
    [dropped] = storage.dropped
    assert log.end_offset == dropped.end_offset
    storage.close()
    return dropped


def same(simulated: Dropped, real: Dropped) -> bool:
    """Equal except for the directory."""
    return replace(real, path=simulated.path) == simulated and real.path.endswith(simulated.path)


def test_a_torn_batch_ends_the_log_at_the_same_offset_on_both_disks(tmp_path: Path) -> None:
    storage = simulated(2, 3)
    assert storage.apply_loss(Loss("torn")) == 1
    [dropped] = storage.take_dropped()
    assert same(dropped, damaged_on_disk(tmp_path, 4, is_torn=True))
    assert (storage.open_log("t/0").end_offset, storage.take_dropped()) == (4, [])


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_batch_ends_the_log_at_the_same_offset_on_both_disks(tmp_path: Path, seed: int) -> None:
    storage = simulated(2, 3)
    lost = storage.apply_loss(Loss("corrupt", seed))
    [dropped] = storage.take_dropped()
    assert dropped.end_offset == storage.open_log("t/0").end_offset == 5 - lost
    assert same(dropped, damaged_on_disk(tmp_path, dropped.end_offset, is_torn=False))


def test_a_crash_may_damage_any_unflushed_batch_and_no_other() -> None:
    ends = set()
    for seed in range(60):
        storage = simulated(2, 3)
        storage.apply_loss(Loss("corrupt", seed))
        ends.add(storage.open_log("t/0").end_offset)
    assert ends == {2, 3, 4}


@pytest.mark.parametrize("kind", ["torn", "corrupt"])
def test_flushed_records_are_never_damaged(kind: str) -> None:
    storage = simulated(4, 0)
    storage.open_log("t/0").flush()
    assert storage.apply_loss(Loss(kind)) == 0  # type: ignore[arg-type]
    assert storage.take_dropped() == []


@pytest.mark.parametrize("later", [Loss("unflushed"), Loss("all")])
def test_records_lost_later_are_not_reported_as_dropped(later: Loss) -> None:
    storage = simulated(2, 3)
    storage.apply_loss(Loss("torn"))
    storage.apply_loss(later)
    assert storage.take_dropped() == []
