"""Only one process opens a directory at a time; the error of another one names the holder."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from actors.storage import LOCK_FILE, DiskLossKind, DiskStorage, Owner, apply_loss
from protocol.errors import DirectoryInUseError, StorageError
from tests.unit.actors.disk_helpers import batch, content, written

OWNER = Owner("cluster-1", 7)
SOON_S = 30.0


def test_an_open_directory_is_refused_with_the_name_of_its_holder(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path / "node", OWNER)
    before = content(tmp_path)
    with pytest.raises(DirectoryInUseError) as caught:
        DiskStorage(tmp_path / "node", OWNER)
    for what in (str(tmp_path / "node"), f"process {os.getpid()} on ", "node 7 of cluster cluster-1"):
        assert what in str(caught.value)
    assert content(tmp_path) == before
    log = storage.open_log("t/0")
    log.append(batch(0))
    storage.close()
    assert DiskStorage(tmp_path / "node", OWNER).open_log("t/0").end_offset == 1


@pytest.mark.parametrize("kind", ["unflushed", "records", "all"])
def test_no_loss_is_applied_to_an_open_directory(tmp_path: Path, kind: DiskLossKind) -> None:
    storage = written(DiskStorage(tmp_path, OWNER), flushed=1, unflushed=2)
    before = content(tmp_path)
    with pytest.raises(DirectoryInUseError):
        apply_loss(tmp_path, kind, 1, OWNER)
    assert content(tmp_path) == before
    storage.close()


@pytest.mark.parametrize("kind", ["none", "unflushed", "records", "all"])
def test_no_loss_removes_the_lock_file(tmp_path: Path, kind: DiskLossKind) -> None:
    written(DiskStorage(tmp_path, OWNER), flushed=1, unflushed=2).close()
    number = (tmp_path / LOCK_FILE).stat().st_ino
    apply_loss(tmp_path, kind, 1, OWNER)
    assert (tmp_path / LOCK_FILE).stat().st_ino == number
    if kind == "all":
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    assert DiskStorage(tmp_path, OWNER).open_log("t/0").end_offset == {"none": 3, "records": 2}.get(kind, kind != "all")


def test_applying_a_loss_releases_the_lock(tmp_path: Path) -> None:
    written(DiskStorage(tmp_path, OWNER), flushed=1, unflushed=2).close()
    (tmp_path / "logs" / "t" / "0" / "mark").write_bytes(b"\x01" * 1024)
    with pytest.raises(StorageError, match="damaged"):
        apply_loss(tmp_path, "unflushed", 0, OWNER)
    DiskStorage(tmp_path, OWNER).close()


def test_a_refused_directory_is_not_locked(tmp_path: Path) -> None:
    written(DiskStorage(tmp_path, OWNER), flushed=1, unflushed=0).close()
    (tmp_path / "logs" / "t" / "1.deleted").write_bytes(b"no directory")
    caught = []
    for _ in range(2):
        with pytest.raises(StorageError, match="Not a directory") as refused:
            DiskStorage(tmp_path, OWNER)
        caught.append(refused)  # which holds on to the storage that was to be


def test_a_new_process_waits_until_the_previous_one_has_ended(tmp_path: Path) -> None:
    """The child holds the directory until it is killed, while the next process waits."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        storage = DiskStorage(tmp_path, OWNER)
        os.write(writer, b"%d" % storage.open_log("t/0").end_offset)
        signal.pause()
        os._exit(1)
    assert os.read(reader, 1) == b"0"
    with pytest.raises(DirectoryInUseError, match=f"process {pid} "):
        DiskStorage(tmp_path, OWNER)
    killer = threading.Timer(0.05, os.kill, (pid, signal.SIGKILL))
    killer.start()
    DiskStorage(tmp_path, OWNER, wait_s=SOON_S).close()
    killer.join()
    os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
