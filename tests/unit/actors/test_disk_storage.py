"""The storage on a directory, compared with the simulator's disk under random sequences of calls."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.log.files import OpenFiles
from actors.log.format import crc32c
from actors.storage import META_FILE, DiskLossKind, DiskStorage, Owner, apply_loss
from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimStorage
from protocol.errors import ForeignDirectoryError, ProtocolInvariantError
from protocol.log.checksum import checksum_of
from protocol.log.producer_state import ProducerState
from protocol.log.replica_log import ReplicaLog
from protocol.messages.batch import NO_CRC, RecordBatch
from tests.unit.actors.disk_helpers import batch, content, log_directory, written

LOGS = st.sampled_from(["topic-a/0", "topic-a/1", "__cluster_metadata/0"])
FILES = st.sampled_from(["clean-shutdown.json", "replication-offset-checkpoint.json"])
LOSSES = st.one_of(
    st.sampled_from([Loss("none"), Loss("unflushed"), Loss("all")]), st.integers(0, 6).map(lambda n: Loss("records", n))
)
OWNER = Owner("cluster-1", 7)
EXPIRATION_MS = 20
"""The bound of the batches' timestamps, below 50."""


def checked(found: RecordBatch) -> RecordBatch:
    """The batch with the checksum that its producer would give it."""
    return replace(found, crc=checksum_of(found, crc32c))


def known_of(batches: Iterable[RecordBatch]) -> ProducerState:
    """The producer state after a scan of these batches."""
    state = ProducerState(EXPIRATION_MS)
    for found in batches:
        state.appended(found, high_watermark=0)
    return state


class DiskAgainstModel(RuleBasedStateMachine):
    """Every call is made on both disks; a process crash is a reopened directory, a machine crash loses something
    first. Leader epochs rise along a log, as they do wherever a leader stamps them."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp()) / "node"
        self.disk, self.model = self.opened(), SimStorage()
        self.history: dict[str, list[RecordBatch]] = {}

    def opened(self) -> DiskStorage:
        return DiskStorage(self.directory, OWNER, index_interval_bytes=100)

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.directory.parent)

    @rule(
        name=LOGS,
        records=st.integers(1, 4),
        payload=st.binary(max_size=40),
        rise=st.integers(0, 2),
        timestamp_ms=st.integers(-1, 50),
        has_crc=st.booleans(),
    )
    def append(self, name: str, records: int, payload: bytes, rise: int, timestamp_ms: int, has_crc: bool) -> None:
        model = self.model.open_log(name)
        epochs = model.epoch_starts()
        added = RecordBatch(
            base_offset=model.end_offset,
            leader_epoch=(epochs[-1][0] if epochs else 0) + rise,
            record_count=records,
            payload=payload,
            producer_id=records,
            producer_epoch=rise,
            base_sequence=model.end_offset,
            timestamp_ms=timestamp_ms,
        )
        added = checked(added) if has_crc else added
        for storage in (self.disk, self.model):
            storage.open_log(name).append(added)
        self.history.setdefault(name, []).append(added)

    @rule(name=LOGS)
    def snapshot(self, name: str) -> None:
        """The state of all records that the log has had, except truncated ones."""
        self.flush(name)
        for storage in (self.disk, self.model):
            storage.open_log(name).write_snapshot(known_of(self.history.get(name, ())).to_bytes())

    @rule(name=LOGS)
    def flush(self, name: str) -> None:
        for storage in (self.disk, self.model):
            storage.open_log(name).flush()

    @rule(name=LOGS)
    def roll(self, name: str) -> None:
        for storage in (self.disk, self.model):
            storage.open_log(name).roll()

    @rule(name=LOGS, back=st.integers(0, 8))
    def truncate(self, name: str, back: int) -> None:
        for storage in (self.disk, self.model):
            log = storage.open_log(name)
            log.truncate(max(0, log.end_offset - back))
        self.cut_history()

    @rule(name=LOGS, ahead=st.integers(0, 12))
    def delete_segments_before(self, name: str, ahead: int) -> None:
        for storage in (self.disk, self.model):
            log = storage.open_log(name)
            log.delete_segments_before(log.start_offset + ahead)

    @rule(name=LOGS, shift=st.integers(-10, 10))
    def reset(self, name: str, shift: int) -> None:
        for storage in (self.disk, self.model):
            log = storage.open_log(name)
            log.reset(max(0, log.end_offset + shift))
        self.history[name] = []

    @rule(name=LOGS)
    def delete(self, name: str) -> None:
        for storage in (self.disk, self.model):
            storage.delete_log(name)
        self.history[name] = []

    @rule(name=FILES, data=st.one_of(st.none(), st.binary(max_size=20)))
    def write_file(self, name: str, data: bytes | None) -> None:
        for storage in (self.disk, self.model):
            if data is None:
                storage.delete_file(name)
            else:
                storage.write_file(name, data)
            assert storage.read_file(name) == data

    @rule(loss=LOSSES)
    def crash(self, loss: Loss) -> None:
        self.disk.close()
        apply_loss(self.directory, loss.kind, loss.count, OWNER)
        self.model.apply_loss(loss)
        self.cut_history()
        self.disk = self.opened()
        for name in self.disk.log_names():
            self.disk.open_log(name)
        assert self.disk.dropped == []

    def cut_history(self) -> None:
        """Forgets records that no log has any more, except those deleted from the front."""
        for name, batches in self.history.items():
            end = self.model.open_log(name).end_offset if name in self.model.log_names() else 0
            self.history[name] = [batch for batch in batches if batch.next_offset <= end]

    @invariant()
    def a_snapshot_and_the_tail_are_as_good_as_all_records(self) -> None:
        for name in self.model.log_names():
            log = ReplicaLog(self.disk.open_log(name), producer_expiration_ms=EXPIRATION_MS)
            is_whole = log.storage.snapshot() is not None
            known = known_of(self.history.get(name, ()) if is_whole else log.storage.read(0, 2**60))
            assert log.producers.entries() == known.entries()

    @rule(name=LOGS, from_offset=st.integers(0, 30), max_bytes=st.integers(0, 60))
    def read(self, name: str, from_offset: int, max_bytes: int) -> None:
        disk, model = self.disk.open_log(name), self.model.open_log(name)
        assert list(disk.read(from_offset, max_bytes)) == list(model.read(from_offset, max_bytes))

    @invariant()
    def they_agree(self) -> None:
        assert list(self.disk.log_names()) == list(self.model.log_names())
        for name in self.model.log_names():
            disk, model = self.disk.open_log(name), self.model.open_log(name)
            for what in ("start_offset", "end_offset", "flushed_offset", "active_bytes"):
                assert getattr(disk, what) == getattr(model, what), what
            assert list(disk.segments()) == list(model.segments())
            assert list(disk.epoch_starts()) == list(model.epoch_starts())
            assert disk.snapshot() == model.snapshot()
            assert list(disk.read(0, 2**60)) == list(model.read(0, 2**60))
            for offset in range(model.start_offset, model.end_offset):
                assert list(disk.read(offset, 1)) == list(model.read(offset, 1))
        for name in ("clean-shutdown.json", "replication-offset-checkpoint.json"):
            assert self.disk.read_file(name) == self.model.read_file(name)


TestDiskAgainstModel = DiskAgainstModel.TestCase
TestDiskAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_append_must_begin_at_the_end(tmp_path: Path) -> None:
    log = DiskStorage(tmp_path).open_log("t/0")
    log.append(batch(0, records=3))
    with pytest.raises(ProtocolInvariantError, match="append at 2"):
        log.append(batch(2))


@pytest.mark.parametrize("name", ["", "t", "t/x", "../x/0", "t/../0", ".t/0", "t/0.deleted"])
def test_a_name_that_is_no_log_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names no log"):
        DiskStorage(tmp_path).open_log(name)


@pytest.mark.parametrize("name", ["", ".x", "a/b", "logs", "meta.json", "x.tmp"])
def test_a_name_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        DiskStorage(tmp_path).write_file(name, b"")


@pytest.mark.parametrize(
    ("meta", "what"),
    [
        ({"cluster_id": "cluster-2"}, "found cluster 'cluster-2'"),
        ({"node_id": 8}, "node 8"),
        ({"format_version": 2, "rack": "r"}, "found 2; allowed: 1"),
        ({"format_version": "1"}, "found '1'; allowed: 1"),
        ({"rack": "r"}, "does not name the"),
        (None, "no meta.json"),
        ([], "does not name the"),
        ("{", "does not name the"),
    ],
)
@pytest.mark.parametrize("loss", ["unflushed", "all"])
def test_a_directory_of_another_owner_is_refused_and_not_changed(
    tmp_path: Path, meta: object, what: str, loss: DiskLossKind
) -> None:
    written(DiskStorage(tmp_path, OWNER), flushed=2, unflushed=2).close()
    path = tmp_path / META_FILE
    if meta is None:
        path.unlink()
    elif isinstance(meta, str):
        path.write_text(meta)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | meta if isinstance(meta, dict) else meta))
    before = content(tmp_path)
    with pytest.raises(ForeignDirectoryError, match=what):
        DiskStorage(tmp_path, OWNER)
    with pytest.raises(ForeignDirectoryError, match=what):
        apply_loss(tmp_path, loss, owner=OWNER)
    assert content(tmp_path) == before


def test_an_interrupted_initialization_of_a_directory_is_completed(tmp_path: Path) -> None:
    (tmp_path / "meta.json.tmp").write_bytes(b'{"form')
    DiskStorage(tmp_path, OWNER).close()
    meta = json.loads((tmp_path / META_FILE).read_text())
    assert meta == {"format_version": 1, "cluster_id": "cluster-1", "node_id": 7}


@pytest.mark.covers("M36")
def test_an_interrupted_deletion_is_completed_at_the_next_start(tmp_path: Path) -> None:
    storage = written(DiskStorage(tmp_path), flushed=2, unflushed=0)
    written(storage, flushed=1, unflushed=0, name="t/1").close()
    directory = log_directory(tmp_path)
    directory.rename(directory.with_name("0.deleted"))
    storage = DiskStorage(tmp_path)
    assert list(storage.log_names()) == ["t/1"]
    assert [path.name for path in directory.parent.iterdir()] == ["1"]
    assert storage.open_log("t/0").end_offset == 0


def test_a_log_that_cannot_be_opened_can_be_deleted(tmp_path: Path) -> None:
    written(DiskStorage(tmp_path), flushed=2, unflushed=0).close()
    (log_directory(tmp_path) / "mark").write_bytes(b"damaged")
    storage = DiskStorage(tmp_path)
    storage.delete_log("t/0")
    assert list(storage.log_names()) == []
    assert storage.open_log("t/0").end_offset == 0


def test_many_logs_need_few_open_files(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path, files=OpenFiles(limit=3))
    for round_ in range(3):
        for index in range(10):
            log = storage.open_log(f"t/{index}")
            log.append(batch(round_, payload=b"%d" % index))
            log.flush()
    storage.close()
    storage = DiskStorage(tmp_path, files=OpenFiles(limit=3))
    for index in range(10):
        assert [found.payload for found in storage.open_log(f"t/{index}").read(0, 2**40)] == [b"%d" % index] * 3


@pytest.mark.parametrize("crc", [NO_CRC, 0])
def test_the_checksum_on_disk_is_the_producers(tmp_path: Path, crc: int) -> None:
    added = batch(0, records=3, payload=b"payload")
    added = added if crc == NO_CRC else checked(added)
    storage = DiskStorage(tmp_path)
    storage.open_log("t/0").append(added)
    storage.close()
    stored = (log_directory(tmp_path) / f"{0:020d}.log").read_bytes()
    assert int.from_bytes(stored[18:22], "big") == checked(added).crc
    assert stored.endswith(b"payload")
    assert list(DiskStorage(tmp_path).open_log("t/0").read(0, 1)) == [added]


@pytest.mark.parametrize(("until_ms", "end"), [(0, 1), (1_999, 1), (2_000, 2), (2_500, 2), (9_000, 4)])
def test_a_machine_crash_keeps_what_was_written_back(tmp_path: Path, until_ms: int, end: int) -> None:
    """Batches of 1,000, 2,000, 3,000 and 4,000 ms, the first one flushed."""
    storage = DiskStorage(tmp_path, OWNER)
    log = storage.open_log("t/0")
    for offset in range(4):
        log.append(RecordBatch(base_offset=offset, record_count=1, payload=b"r", timestamp_ms=1_000 * (offset + 1)))
        if offset == 0:
            log.flush()
    storage.close()
    apply_loss(tmp_path, "recent", until_ms, owner=OWNER)
    assert DiskStorage(tmp_path, OWNER).open_log("t/0").end_offset == end
