"""Storage: folders and object stores (fsspec's in memory) behave alike, and refusals are one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from experiments.studies.sweeps.storage import Folder, ObjectStore, StorageFailed, Store, store_at
from experiments.support import atomic
from experiments.support.errors import InputError


@pytest.fixture(params=["folder", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield store_at(tmp_path / "out")
        return
    yield store_at(f"memory://{tmp_path.name}/out/")
    fsspec.filesystem("memory").rm("/", recursive=True)


def test_files_are_written_read_listed_and_removed(store: Store) -> None:
    assert store.names() == store.names("trials") == []
    assert store.read("trials/a") is None
    store.write("trials/a", b"one")
    store.write("trials/a", memoryview(b"two"))
    store.write("b", b"")
    assert (store.read("trials/a"), store.read("b")) == (b"two", b"")
    assert (store.names(), store.names("trials")) == (["b", "trials"], ["a"])
    assert store.place("trials/a") == f"{store.place()}/trials/a"
    store.remove("trials")
    store.remove("absent")
    assert store.names() == ["b"]


def test_paths_and_file_urls_are_folders(tmp_path: Path) -> None:
    assert store_at(str(tmp_path)) == store_at(tmp_path) == store_at(f"file://{tmp_path}") == Folder(tmp_path)
    assert store_at("s3://bucket/prefix/") == ObjectStore("s3://bucket/prefix")
    with pytest.raises(InputError, match=r"nowhere://x .*allowed: a folder, or a URL"):
        store_at("nowhere://x")


def test_full_disk_is_one_line_and_leaves_the_file_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Folder(tmp_path)
    store.write("kept", b"before")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)
    for name in ("kept", "new"):
        with pytest.raises(StorageFailed) as caught:
            store.write(name, b"after")
        assert str(caught.value) == f"{tmp_path / name}: No space left on device"
    assert store.read("kept") == b"before"
    assert store.names() == ["kept"]
