"""The store on disk: crashes at every storage call, snapshots, and directories that are refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from zlib import crc32

import msgpack
import pytest

from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimLog, SimStorage
from protocol.errors import CorruptLogError, ForeignDirectoryError
from protocol.ids import CLUSTER_ID, STORE_LOG
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import encode
from protocol.messages.store import Create, Delete, SessionBegan, SessionEnded, SetData, Transaction, WriteOperation
from protocol.v3.store.transaction_log import (
    FORMAT_VERSION,
    SNAPSHOT_FILE,
    Decided,
    StoreState,
    TransactionLog,
    decode_snapshot,
    encode_snapshot,
)
from protocol.v3.store.tree import Decision


class Crash(Exception):
    """The process ends."""


class CrashingStorage(SimStorage):
    """A disk whose process ends before or after the call number `at` that changes something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at: float = float("inf")
        self.is_after = False

    def call(self, action: Callable[[], None]) -> None:
        self.calls += 1
        if self.calls == self.at and not self.is_after:
            raise Crash
        action()
        if self.calls == self.at:
            raise Crash

    def open_log(self, name: str) -> SimLog:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = CrashingLog(self)
        return log

    def write_file(self, name: str, data: bytes) -> None:
        self.call(lambda: super(CrashingStorage, self).write_file(name, data))


class CrashingLog(SimLog):
    """A log of such a disk."""

    __slots__ = ("_disk",)

    def __init__(self, disk: CrashingStorage) -> None:
        super().__init__()
        self._disk = disk

    def append(self, batch: RecordBatch) -> None:
        self._disk.call(lambda: SimLog.append(self, batch))

    def flush(self) -> None:
        self._disk.call(lambda: SimLog.flush(self))

    def roll(self) -> None:
        self._disk.call(lambda: SimLog.roll(self))

    def delete_segments_before(self, offset: int) -> None:
        self._disk.call(lambda: SimLog.delete_segments_before(self, offset))

    def reset(self, offset: int) -> None:
        self._disk.call(lambda: SimLog.reset(self, offset))


View = tuple[object, ...]
EVERY = 4
"""Transactions between two snapshots."""


def view(state: StoreState) -> View:
    return state.zxid, tuple(state.sessions.values()), tuple(state.tree.items())


def operation(rng: Random) -> WriteOperation:
    path = f"/{rng.choice('abc')}"
    return rng.choice(
        (
            Create(path=path, ephemeral=rng.random() < 0.5),
            Create(path=f"{path}/x"),
            SetData(path=path, data=b"%d" % rng.randrange(10)),
            Delete(path=path),
        )
    )


def step(log: TransactionLog, rng: Random) -> None:
    """Makes one random request durable: a session begins or ends, or a transaction succeeds or fails."""
    state = log.state
    choice = rng.random()
    if not state.sessions or choice < 0.2:
        log.commit(0, Decided((), SessionBegan(owner=rng.randrange(3), timeout_ms=100), Decision(())))
    elif choice < 0.3:
        log.commit(0, state.decide_end(rng.choice(list(state.sessions))))
    else:
        session = rng.choice(list(state.sessions))
        log.commit(0, state.decide(session, [operation(rng) for _ in range(rng.randint(1, 2))]))


def run(storage: SimStorage, seed: int) -> list[View]:
    """Forty requests; returns the state at first and after each acknowledged request. It ends with a crash."""
    views: list[View] = [view(StoreState())]
    rng = Random(seed)
    try:
        log = TransactionLog(storage, CLUSTER_ID, EVERY)
        for _ in range(40):
            step(log, rng)
            views.append(view(log.state))
    except Crash:
        pass
    return views


@pytest.mark.covers("A3")
@pytest.mark.parametrize("loss", ["none", "unflushed"])
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_crash_at_any_storage_call_loses_nothing_that_was_acknowledged(seed: int, is_after: bool, loss: str) -> None:
    whole = CrashingStorage()
    expected = run(whole, seed)
    assert len(expected) == 41
    assert whole.calls > 40
    assert whole.open_log(STORE_LOG).start_offset > 0, "snapshots have replaced the beginning of the log"
    for at in range(1, whole.calls + 1):
        disk = CrashingStorage()
        disk.at, disk.is_after = at, is_after
        acknowledged = run(disk, seed)
        disk.apply_loss(Loss("unflushed") if loss == "unflushed" else Loss("none"))
        disk.at = float("inf")
        log = TransactionLog(disk, CLUSTER_ID, EVERY)
        number = len(acknowledged)
        assert acknowledged == expected[:number]
        assert view(log.state) in expected[number - 1 : number + 1], f"after call {at}"
        restarted = disk.open_log(STORE_LOG)
        assert restarted.flushed_offset == restarted.end_offset, "what is served is durable"
        step(log, Random(at))
        disk.apply_loss(Loss("unflushed"))
        assert view(TransactionLog(disk, CLUSTER_ID, EVERY).state) == view(log.state)


def test_a_restart_reads_the_snapshot_and_the_log_after_it() -> None:
    disk = SimStorage()
    last = run(disk, 3)[-1]
    raw = disk.read_file(SNAPSHOT_FILE)
    assert raw is not None
    cluster, state = decode_snapshot(raw)
    log = disk.open_log(STORE_LOG)
    assert cluster == CLUSTER_ID
    assert log.start_offset <= state.zxid <= log.end_offset
    assert log.end_offset - log.start_offset < 2 * EVERY
    assert view(TransactionLog(disk, CLUSTER_ID, EVERY).state) == last


# -- what is refused ---------------------------------------------------------------------------------------------------


def disk_with(*records: Message) -> SimStorage:
    """A directory whose log holds these records."""
    disk = SimStorage()
    TransactionLog(disk, CLUSTER_ID)
    log = disk.open_log(STORE_LOG)
    for offset, record in enumerate(records):
        log.append(RecordBatch(base_offset=offset, record_count=1, payload=encode(record)))
    log.flush()
    return disk


BEGAN = SessionBegan(owner=0, timeout_ms=100)


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ((BEGAN, Create(path="/a")), "__store/0: transaction 2: found Create"),
        (
            (Transaction(session_id=1, operations=()),),
            "__store/0: transaction 1: found Transaction of session 1, which",
        ),
        ((BEGAN, SessionEnded(session_id=7)), "__store/0: transaction 2: found SessionEnded of session 7, which"),
        ((BEGAN, Transaction(session_id=1, operations=())), "__store/0: transaction 2: .*no operation"),
        (
            (BEGAN, Transaction(session_id=1, operations=(Create(path="/a"), Delete(path="/b")))),
            "__store/0: transaction 2: found Delete.*'/b'.*fails with NO_NODE",
        ),
        ((BEGAN, Transaction(session_id=1, operations=(Create(path="a"),))), "fails with INVALID_PATH"),
    ],
)
def test_a_log_with_a_damaged_node_is_refused(records: tuple[Message, ...], what: str) -> None:
    with pytest.raises(CorruptLogError, match=what) as caught:
        TransactionLog(disk_with(*records), CLUSTER_ID)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_record_are_refused() -> None:
    disk = disk_with(BEGAN)
    disk.open_log(STORE_LOG).append(RecordBatch(base_offset=1, record_count=1, payload=b"noise"))
    with pytest.raises(CorruptLogError, match="__store/0: transaction 2: a frame of 5 bytes"):
        TransactionLog(disk, CLUSTER_ID)
    disk = disk_with(BEGAN)
    disk.open_log(STORE_LOG).append(RecordBatch(base_offset=1, record_count=2, payload=encode(BEGAN)))
    with pytest.raises(CorruptLogError, match="__store/0: found records 1 to 2 at 1"):
        TransactionLog(disk, CLUSTER_ID)


def test_a_directory_of_another_cluster_is_refused() -> None:
    disk = disk_with(BEGAN)
    with pytest.raises(ForeignDirectoryError, match="store-snapshot: found cluster 'isray'; allowed: 'other'"):
        TransactionLog(disk, "other")


def test_a_log_that_does_not_continue_its_snapshot_is_refused() -> None:
    disk = SimStorage()
    run(disk, 3)
    disk.write_file(SNAPSHOT_FILE, encode_snapshot(CLUSTER_ID, StoreState()))
    with pytest.raises(CorruptLogError, match=r"__store/0 begins at .*, store-snapshot ends at 0"):
        TransactionLog(disk, CLUSTER_ID)
    disk.delete_file(SNAPSHOT_FILE)
    with pytest.raises(CorruptLogError, match="store-snapshot: found none, beside the log __store/0"):
        TransactionLog(disk, CLUSTER_ID)


def packed(*parts: object) -> bytes:
    """A snapshot of these parts with a valid checksum."""
    body: bytes = msgpack.packb(parts)
    return crc32(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "found 0 bytes"),
        (encode_snapshot(CLUSTER_ID, StoreState())[:-1], "fail their checksum"),
        (packed(FORMAT_VERSION + 1, CLUSTER_ID, 0, [], []), "format: found 3; allowed: 2"),
        (packed(FORMAT_VERSION, CLUSTER_ID, 0, []), "no snapshot"),
        (packed(FORMAT_VERSION, CLUSTER_ID, 0, [], []), "no snapshot"),
        (packed(FORMAT_VERSION, CLUSTER_ID, 0, [], [["/", b""], ["/a/b", b""]]), "no snapshot"),
        (packed(FORMAT_VERSION, CLUSTER_ID, 0, [], [[1, b""]]), "no snapshot"),
        (packed(FORMAT_VERSION, CLUSTER_ID, 0, [[1]], [["/", b""]]), "no snapshot"),
        (packed(), "no snapshot"),
    ],
)
def test_a_damaged_snapshot_is_refused(raw: bytes, what: str) -> None:
    disk = disk_with(BEGAN)
    disk.write_file(SNAPSHOT_FILE, raw)
    with pytest.raises(CorruptLogError, match=f"store-snapshot: .*{what}") as caught:
        TransactionLog(disk, CLUSTER_ID)
    assert "\n" not in str(caught.value)
