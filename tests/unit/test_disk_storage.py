"""The storage on a directory: held against the simulator's disk under any sequence of calls, and against damaged
files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.storage import CorruptLogError, DiskStorage, apply_loss
from experiments.engine import Loss
from experiments.sim.disk import SimStorage
from protocol.errors import ProtocolInvariantError
from protocol.messages.batch import RecordBatch

LOGS = st.sampled_from(["topic-a/0", "topic-a/1", "__cluster_metadata/0"])
FILES = st.sampled_from(["clean-shutdown.json", "replication-offset-checkpoint.json"])
LOSSES = st.one_of(
    st.sampled_from([Loss("none"), Loss("unflushed"), Loss("all")]), st.integers(0, 6).map(lambda n: Loss("records", n))
)


def batch(base_offset: int, records: int = 1, payload: bytes = b"x", epoch: int = 0) -> RecordBatch:
    return RecordBatch(base_offset=base_offset, leader_epoch=epoch, record_count=records, payload=payload)


def filled(directory: Path, flushed: int, unflushed: int) -> Path:
    """A storage with one log, of single records; the path of the log's file."""
    storage = DiskStorage(directory)
    log = storage.open_log("t/0")
    for offset in range(flushed + unflushed):
        log.append(batch(offset, payload=b"%d" % offset))
        if offset == flushed - 1:
            log.flush()
    storage.close()
    return directory / "logs" / "t" / "0.log"


class DiskAgainstModel(RuleBasedStateMachine):
    """Every call is made on both disks; a process crash is a reopened directory, a machine crash loses something
    first."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.disk, self.model = DiskStorage(self.directory), SimStorage()

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.directory)

    @rule(name=LOGS, records=st.integers(1, 4), payload=st.binary(max_size=40), epoch=st.integers(0, 9))
    def append(self, name: str, records: int, payload: bytes, epoch: int) -> None:
        added = batch(self.model.open_log(name).end_offset, records, payload, epoch)
        for storage in (self.disk, self.model):
            storage.open_log(name).append(added)

    @rule(name=LOGS)
    def flush(self, name: str) -> None:
        for storage in (self.disk, self.model):
            storage.open_log(name).flush()

    @rule(name=LOGS, back=st.integers(0, 8))
    def truncate(self, name: str, back: int) -> None:
        for storage in (self.disk, self.model):
            log = storage.open_log(name)
            log.truncate(max(0, log.end_offset - back))

    @rule(name=LOGS)
    def delete(self, name: str) -> None:
        for storage in (self.disk, self.model):
            storage.delete_log(name)

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
        apply_loss(self.directory, loss.kind, loss.count)
        self.model.apply_loss(loss)
        self.disk = DiskStorage(self.directory)

    @rule(name=LOGS, from_offset=st.integers(0, 30), max_bytes=st.integers(0, 60))
    def read(self, name: str, from_offset: int, max_bytes: int) -> None:
        disk, model = self.disk.open_log(name), self.model.open_log(name)
        assert list(disk.read(from_offset, max_bytes)) == list(model.read(from_offset, max_bytes))

    @invariant()
    def they_agree(self) -> None:
        assert list(self.disk.log_names()) == list(self.model.log_names())
        for name in self.model.log_names():
            disk, model = self.disk.open_log(name), self.model.open_log(name)
            assert (disk.end_offset, disk.flushed_offset) == (model.end_offset, model.flushed_offset)
            assert list(disk.read(0, 2**60)) == list(model.read(0, 2**60))
        for name in ("clean-shutdown.json", "replication-offset-checkpoint.json"):
            assert self.disk.read_file(name) == self.model.read_file(name)


TestDiskAgainstModel = DiskAgainstModel.TestCase
TestDiskAgainstModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("cut_bytes", [1, 3, 10])
def test_a_torn_tail_is_dropped_and_the_log_goes_on_before_it(tmp_path: Path, cut_bytes: int) -> None:
    path = filled(tmp_path, flushed=2, unflushed=3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut_bytes])
    log = DiskStorage(tmp_path).open_log("t/0")
    assert (log.end_offset, log.flushed_offset) == (4, 2)
    log.append(batch(4, payload=b"4"))
    assert path.read_bytes() == whole


def test_a_flipped_byte_above_the_flushed_position_ends_the_log_there(tmp_path: Path) -> None:
    path = filled(tmp_path, flushed=2, unflushed=3)
    data = bytearray(path.read_bytes())
    frame = len(data) // 5
    data[frame * 3 + frame // 2] ^= 1
    path.write_bytes(data)
    assert DiskStorage(tmp_path).open_log("t/0").end_offset == 3


@pytest.mark.parametrize(("where", "what"), [("frame", "no batch"), ("tail", "flushed were"), ("mark", "mark")])
def test_damage_to_what_was_durable_is_an_error(tmp_path: Path, where: str, what: str) -> None:
    path = filled(tmp_path, flushed=5, unflushed=0)
    data = bytearray(path.read_bytes())
    if where == "frame":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif where == "tail":
        path.write_bytes(data[:-1])
    else:
        path.with_suffix(".flushed").write_bytes(b"\x00" * 12)
    with pytest.raises(CorruptLogError, match=what):
        DiskStorage(tmp_path).open_log("t/0")


def test_an_append_must_begin_at_the_end(tmp_path: Path) -> None:
    log = DiskStorage(tmp_path).open_log("t/0")
    log.append(batch(0, records=3))
    with pytest.raises(ProtocolInvariantError, match="append at 2"):
        log.append(batch(2))


@pytest.mark.parametrize("name", ["", "t", "t/x", "../x/0", "t/../0", ".t/0"])
def test_a_name_that_is_no_log_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names no log"):
        DiskStorage(tmp_path).open_log(name)


@pytest.mark.parametrize("name", ["", ".x", "a/b", "logs"])
def test_a_name_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        DiskStorage(tmp_path).write_file(name, b"")
