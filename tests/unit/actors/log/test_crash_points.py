"""A process that writes a log is killed at any point; then the log is opened again.

The child makes a sequence of calls that its seed determines, and reports the begin and the end of each in a pipe. It
dies by SIGKILL: before one of its system calls that change files, within a write (some of the bytes are written), or at
any moment of its parent's signal. The parent makes the same calls on the simulator's log, which determines what the
directory must hold: the result of all completed calls, and of the interrupted call all, nothing, or, where it removes
several files, a state in between. After the simulated crash of the machine the flushed part must still be there.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

import pytest

from actors.log.files import OpenFiles
from actors.storage import DiskStorage, apply_loss
from experiments.engines.sim.disk import SimLog
from protocol.contract import LogStorage
from protocol.log.epochs import LeaderEpochCache
from protocol.messages.batch import RecordBatch
from tests.unit.actors.disk_helpers import batch, opened

CALLS = 60
CHANGES = frozenset({"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"})
"""Audit events of the system calls, besides writes and syncs, before which the child may die."""
INDEX_INTERVAL_BYTES = 300
CHILDREN = 25
CHANGES_IN_ALL = 150
"""The approximate number of file changes of a child that is not killed."""
BEGUN, DONE, FAILED = b"b", b"d", b"x"
Call = Callable[[LogStorage], None]


def call_of(rng: Random, log: LogStorage) -> tuple[str, Call]:
    """The next call and its name, equal for logs in equal states."""
    kind = rng.choices(
        ["append", "flush", "roll", "truncate", "delete", "reset", "snapshot"], weights=[50, 14, 14, 10, 10, 2, 8], k=1
    )[0]
    draw, start, end = rng.random(), log.start_offset, log.end_offset
    starts = log.epoch_starts()
    epoch = (starts[-1][0] if starts else 0) + (draw < 0.1)
    payload = rng.randbytes(int(draw * draw * 3_000))
    offset = start + round(draw * (end - start))
    added = RecordBatch(base_offset=end, leader_epoch=epoch, record_count=1 + len(payload) % 3, payload=payload)
    calls: dict[str, Call] = {
        "append": lambda log: log.append(added),
        "flush": lambda log: log.flush(),
        "roll": lambda log: log.roll(),
        "truncate": lambda log: log.truncate(max(start, end - int(draw * draw * 12))),
        "delete": lambda log: log.delete_segments_before(offset),
        "reset": lambda log: log.reset(offset),
        "snapshot": leave_snapshot,
    }
    return kind, calls[kind]


def leave_snapshot(log: LogStorage) -> None:
    log.flush()
    log.write_snapshot(sign_of(log.read(log.start_offset, 2**60)))


def sign_of(batches: Sequence[RecordBatch]) -> bytes:
    """A summary that differs between logs with different last batches."""
    return repr([(last.base_offset, last.leader_epoch, last.payload) for last in batches[-1:]]).encode()


class DyingDisk(OpenFiles):
    """Kills its process at the `last`th change of a file; a write is done up to `fraction` of its bytes."""

    def __init__(self, last: int, fraction: float) -> None:
        super().__init__(limit=4)
        self._left, self._fraction = last, fraction

    def _is_last(self) -> bool:
        self._left -= 1
        return self._left == 0

    def die_in_time(self, event: str, _: tuple[object, ...]) -> None:
        if event in CHANGES and self._is_last():
            os.kill(os.getpid(), signal.SIGKILL)

    def write_some(self, file: int, parts: Sequence[bytes], position: int) -> int:
        if self._is_last():
            data = b"".join(parts)
            os.pwrite(file, data[: int(len(data) * self._fraction)], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write_some(file, parts, position)

    def sync(self, path: Path) -> None:
        if self._is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync(path)


def work(directory: Path, seed: int, pipe: int, disk: DyingDisk) -> None:
    """The child's program."""
    log = DiskStorage(directory, index_interval_bytes=INDEX_INTERVAL_BYTES, files=disk).open_log("t/0")
    sys.addaudithook(disk.die_in_time)
    rng = Random(seed)
    for _ in range(CALLS):
        _, call = call_of(rng, log)
        os.write(pipe, BEGUN)
        call(log)
        os.write(pipe, DONE)


def child(directory: Path, seed: int, pipe: int, disk: DyingDisk) -> NoReturn:
    try:
        work(directory, seed, pipe, disk)
    finally:
        if sys.exc_info()[0] is not None:
            os.write(pipe, FAILED + traceback.format_exc().encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def run_child(directory: Path, seed: int, disk: DyingDisk, kill_after: int | None) -> bytes:
    """The child's output before its death; the parent kills it after `kill_after` bytes of output."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        child(directory, seed, writer, disk)
    os.close(writer)
    output = b""
    try:
        while data := os.read(reader, 1 if kill_after else 65_536):
            output += data
            if len(output) == kill_after:
                os.kill(pid, signal.SIGKILL)
    finally:
        os.close(reader)
        _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert FAILED not in output, output.decode(errors="replace")
    return output


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in memory, if available: SIGKILL keeps the page cache, so the test needs no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def content(log: LogStorage) -> list[RecordBatch]:
    return list(log.read(0, 2**60))


def starts_with(longer: list[RecordBatch], shorter: list[RecordBatch]) -> bool:
    return longer[: len(shorter)] == shorter


def check(kind: str, found: LogStorage, before: SimLog, after: SimLog) -> None:
    """Checks the log `found` that an interrupted call from `before` to `after` has left."""
    held, old, new = content(found), content(before), content(after)
    if kind == "truncate":
        assert starts_with(old, held)
        assert starts_with(held, new)
    elif kind == "reset" and found.start_offset == after.start_offset != before.start_offset:
        assert starts_with([kept for kept in old if kept.base_offset >= found.start_offset], held)
    else:
        assert (found.start_offset, held) in [(before.start_offset, old), (after.start_offset, new)]
    assert found.flushed_offset in (before.flushed_offset, after.flushed_offset)
    snapshot = found.snapshot()
    if snapshot is not None and snapshot[0] > found.start_offset:
        assert snapshot[1] == sign_of([kept for kept in held if kept.next_offset <= snapshot[0]])
    cache = LeaderEpochCache()
    for kept in held:
        cache.assign(kept.leader_epoch, kept.base_offset)
    if held:
        assert list(found.epoch_starts()) == cache.entries()


def replay(seed: int, calls: int) -> SimLog:
    """The simulator's log after the first `calls` calls."""
    log, rng = SimLog(), Random(seed)
    for _ in range(calls):
        _, call = call_of(rng, log)
        call(log)
    return log


def check_recovery(directory: Path, seed: int, output: bytes) -> str | None:
    """Opens the log and compares it, also after a simulated machine crash, and makes further calls. Returns the name of
    the interrupted call, None if there was none.
    """
    begun, done = output.count(BEGUN), output.count(DONE)
    before, after = replay(seed, done), replay(seed, begun)
    rng, model = Random(seed), SimLog()
    kind = ""
    for _ in range(begun):
        kind, call = call_of(rng, model)
        call(model)
    storage, log = opened(directory, index_interval_bytes=INDEX_INTERVAL_BYTES)
    check(kind, log, before, after)
    storage.close()
    if seed % 2:
        apply_loss(directory, "unflushed")
        storage, log = opened(directory, index_interval_bytes=INDEX_INTERVAL_BYTES)
        held = content(log)
        start, end = max(before.start_offset, after.start_offset), min(before.flushed_offset, after.flushed_offset)
        durable = [kept for kept in content(before) if start <= kept.base_offset < end]
        assert starts_with([kept for kept in held if kept.base_offset >= start], durable)
        storage.close()
    storage, log = opened(directory, index_interval_bytes=INDEX_INTERVAL_BYTES)
    assert storage.dropped == [], "the first start has cleaned up"
    held = content(log)
    last = batch(log.end_offset, payload=b"last", epoch=99)
    log.append(last)
    log.flush()
    storage.close()
    storage, log = opened(directory, index_interval_bytes=INDEX_INTERVAL_BYTES)
    assert content(log) == [*held, last]
    assert log.flushed_offset == log.end_offset
    storage.close()
    return kind if begun > done else None


@pytest.mark.slow
@pytest.mark.parametrize("group", range(10))
def test_a_log_survives_its_writers_death_at_any_system_call(directory: Path, group: int) -> None:
    died_within = []
    for seed in range(group * CHILDREN, (group + 1) * CHILDREN):
        rng = Random(f"crash/{seed}")
        disk = DyingDisk(last=rng.randrange(1, CHANGES_IN_ALL), fraction=rng.random())
        output = run_child(directory / str(seed), seed, disk, kill_after=None)
        died_within.append(check_recovery(directory / str(seed), seed, output))
    calls = [kind for kind in died_within if kind is not None]
    assert len(calls) >= CHILDREN * 3 / 4, "a child that has done all its calls proves little"
    assert len(set(calls)) >= 4, "they die within calls of many kinds"


@pytest.mark.slow
def test_a_log_survives_its_writers_death_at_any_moment(directory: Path) -> None:
    for seed in range(1_000, 1_040):
        kill_after = Random(seed).randrange(1, 2 * CALLS)
        output = run_child(directory / str(seed), seed, DyingDisk(last=-1, fraction=0), kill_after)
        assert len(output) >= kill_after, "it ran until the signal"
        check_recovery(directory / str(seed), seed, output)
