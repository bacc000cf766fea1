"""Watches: which change fires which, and what is missed between two connections."""

from __future__ import annotations

import pytest

from protocol.messages.store import Create, Delete, SetData, SetWatches, WatchKind, WriteOperation
from protocol.v3.store.tree import Change, Fired, Tree, Watches

CREATED, DELETED = WatchKind.CREATED, WatchKind.DELETED
DATA, CHILDREN = WatchKind.DATA_CHANGED, WatchKind.CHILDREN_CHANGED


@pytest.mark.parametrize(
    ("change", "events"),
    [
        (Change(CREATED, "/a/b"), [Fired(1, CREATED, "/a/b"), Fired(4, CHILDREN, "/a")]),
        (Change(DATA, "/a/b"), [Fired(1, DATA, "/a/b")]),
        (Change(DELETED, "/a/b"), [Fired(1, DELETED, "/a/b"), Fired(2, DELETED, "/a/b"), Fired(4, CHILDREN, "/a")]),
        (Change(DATA, "/a"), [Fired(3, DATA, "/a")]),
    ],
)
@pytest.mark.covers("A3")
def test_which_watches_a_change_fires(change: Change, events: list[Fired]) -> None:
    watches = Watches()
    watches.watch_data(1, "/a/b")
    watches.watch_children(1, "/a/b")
    watches.watch_children(2, "/a/b")
    watches.watch_data(3, "/a")
    watches.watch_children(4, "/a")
    assert watches.fire([change]) == events
    assert watches.fire([change]) == [], "a watch fires once"


def after(zxid: int, tree: Tree, *operations: WriteOperation) -> None:
    tree.commit(tree.decide(zxid, 1, operations))


@pytest.mark.covers("A3")
def test_what_was_missed_fires_when_watches_are_set_again() -> None:
    tree = Tree()
    after(1, tree, *(Create(path=f"/{name}") for name in ("kept", "set", "gone", "parent", "quiet")))
    after(2, tree, SetData(path="/kept", data=b""))
    after(3, tree, SetData(path="/set", data=b""), Delete(path="/gone"), Create(path="/parent/child"))
    after(4, tree, Create(path="/new"))
    wanted = SetWatches(
        zxid=2,
        data=("/gone", "/kept", "/parent", "/set"),
        exists=("/new", "/never"),
        children=("/gone", "/parent", "/quiet"),
    )
    watches = Watches()
    assert watches.set_again(1, wanted, tree) == [
        Fired(1, DELETED, "/gone"),
        Fired(1, DATA, "/set"),
        Fired(1, CREATED, "/new"),
        Fired(1, CHILDREN, "/parent"),
    ]
    changed = [Change(DATA, path) for path in ("/kept", "/set", "/parent")]
    assert watches.fire(changed) == [Fired(1, DATA, "/kept"), Fired(1, DATA, "/parent")]
    changed = [Change(CREATED, "/never"), Change(CREATED, "/quiet/x"), Change(CREATED, "/parent/x")]
    assert watches.fire(changed) == [Fired(1, CREATED, "/never"), Fired(1, CHILDREN, "/quiet")]
    assert len(watches) == 0
