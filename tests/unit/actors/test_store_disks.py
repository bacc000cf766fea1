"""The store on a real directory: it comes back as it was, and a damaged one is refused in one line, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from actors.nodes import NodeSetup, actor_class, build_node
from actors.storage import DiskStorage, Owner
from protocol.config import ClusterConfig
from protocol.contract import Send
from protocol.errors import ForeignDirectoryError, StorageError
from protocol.ids import CLUSTER_ID, STORE, STORE_LOG
from protocol.messages.store import Create, OpenSession, SetData, StoreWrite
from protocol.v3.store.node import StoreNode
from protocol.v3.store.settings import StoreSettings
from protocol.v3.store.transaction_log import SNAPSHOT_FILE
from tests.unit.actors.disk_helpers import content, flipped, refused, segment_file

OWNER = Owner(CLUSTER_ID, STORE)
WRITES = 5


def started(storage: DiskStorage, cluster_id: str = CLUSTER_ID, snapshot_every: int = 100) -> StoreNode:
    node = StoreNode(StoreSettings(), storage, Random(1), cluster_id, snapshot_every)
    node.start(0)
    return node


def written(directory: Path, snapshot_every: int = 100) -> StoreNode:
    """A store that ends without closing its files, after a session has written a node several times."""
    node = started(DiskStorage(directory, OWNER), snapshot_every=snapshot_every)
    node.receive(0, 0, OpenSession(connection_id=1, timeout_ms=6_000))
    assert any(isinstance(effect, Send) for effect in node.fire(4, "work/1"))
    for xid in range(1, WRITES + 1):
        operation = Create(path="/a", ephemeral=True) if xid == 1 else SetData(path="/a", data=b"%d" % xid)
        node.receive(0, 0, StoreWrite(connection_id=1, xid=xid, operations=(operation,)))
        assert any(isinstance(effect, Send) for effect in node.fire(4 + 4 * xid, "work/1"))
    return node


def test_transactions_have_the_time_at_which_they_were_made(tmp_path: Path) -> None:
    written(tmp_path / "store")._storage.close()  # type: ignore[attr-defined]
    batches = DiskStorage(tmp_path / "store", OWNER).open_log(STORE_LOG).read(0, sys.maxsize)
    assert [batch.timestamp_ms for batch in batches] == [4, *(4 + 4 * xid for xid in range(1, WRITES + 1))]


@pytest.mark.covers("A3")
@pytest.mark.parametrize("snapshot_every", [100, 1, 4])
def test_a_store_comes_back_as_it_was(tmp_path: Path, snapshot_every: int) -> None:
    before = written(tmp_path / "store", snapshot_every)
    before._storage.close()  # type: ignore[attr-defined]
    after = started(DiskStorage(tmp_path / "store", OWNER), snapshot_every=snapshot_every)
    assert after.state.tree.items() == before.state.tree.items()
    assert (after.state.sessions, after.state.zxid) == (before.state.sessions, WRITES + 1)
    assert after.state.tree.ephemerals(1) == ("/a",)


LOG = f"logs/{STORE_LOG}/{0:020d}.log"
DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a node in the middle of the log": (LOG, flipped(200)),
    "the last node of the log": (LOG, flipped(-1)),
    "a log that is cut": (LOG, lambda data: data[:-1]),
    "a log that is empty": (LOG, lambda data: b""),
    "a damaged snapshot": (SNAPSHOT_FILE, flipped(9)),
    "a snapshot that is cut": (SNAPSHOT_FILE, lambda data: data[:-2]),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_directory_is_refused_and_not_changed(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    directory = tmp_path / "store"
    written(directory)._storage.close()  # type: ignore[attr-defined]
    refused(directory, OWNER, name, damage, started)
    assert segment_file(directory, 0).name == Path(LOG).name


@pytest.mark.parametrize("cluster_id", ["other", ""])
def test_the_directory_of_another_cluster_is_refused(tmp_path: Path, cluster_id: str) -> None:
    """By its owner, and by the snapshot where the owner is not checked."""
    directory = tmp_path / "store"
    written(directory)._storage.close()  # type: ignore[attr-defined]
    before = content(directory, with_lock=False)
    with pytest.raises(ForeignDirectoryError, match="found cluster 'isray'"):
        DiskStorage(directory, Owner(cluster_id, STORE))
    storage = DiskStorage(directory)
    with pytest.raises(StorageError, match="store-snapshot: found cluster 'isray'; allowed: "):
        started(storage, cluster_id)
    storage.close()
    assert content(directory, with_lock=False) == before


def test_the_actor_of_the_store_hosts_a_store_of_its_run(tmp_path: Path) -> None:
    assert type(actor_class(STORE)).__name__ == "ActorClass(StoreActor)"
    settings = StoreSettings(session_timeout_ms=500)
    setup = NodeSetup(STORE, 1, "run", tmp_path, (), (), ClusterConfig(), 1, store=settings)
    storage = DiskStorage(tmp_path, Owner("run", STORE))
    node = build_node(setup, storage, None, now_ms=0)
    assert isinstance(node, StoreNode)
    assert node.start(0) == []
    storage.close()
    with pytest.raises(ForeignDirectoryError, match="found cluster 'run'"):
        started(DiskStorage(tmp_path))
