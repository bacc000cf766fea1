"""Watches: one event to a session when what it has read changes (A3).

A watch belongs to a session and a path, and is of one of two kinds, as in ZooKeeper. A *data* watch is left by GetData
and Exists, also by an Exists that found no node. A *child* watch is left by GetChildren. A watch fires once:

| change              | data watch of the node | child watch of the node | child watch of its parent |
|---------------------|------------------------|-------------------------|---------------------------|
| created             | CREATED                | -                       | CHILDREN_CHANGED          |
| data set            | DATA_CHANGED           | -                       | -                         |
| deleted             | DELETED                | DELETED                 | CHILDREN_CHANGED          |

A session with both watches of a node that is deleted gets one event. A client that opens another connection sets its
watches again and says up to which transaction it knows the tree; `missed` is what has changed since then. A node that
was created and deleted again in the meantime leaves no trace, as in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from protocol.messages.store import SetWatches, WatchKind
from protocol.v3.store.tree import ROOT, Change, Tree, parent_of


class Fired(NamedTuple):
    session_id: int
    kind: WatchKind
    path: str


class Watches:
    """The watches of all sessions by path, in the order in which they were set."""

    def __init__(self) -> None:
        self._data: dict[str, dict[int, None]] = {}
        self._children: dict[str, dict[int, None]] = {}

    def watch_data(self, session_id: int, path: str) -> None:
        self._data.setdefault(path, {})[session_id] = None

    def watch_children(self, session_id: int, path: str) -> None:
        self._children.setdefault(path, {})[session_id] = None

    def __len__(self) -> int:
        """How many watches there are (L21)."""
        return sum(len(watchers) for table in (self._data, self._children) for watchers in table.values())

    def forget(self, session_id: int) -> None:
        for table in (self._data, self._children):
            for path in [path for path, watchers in table.items() if session_id in watchers]:
                del table[path][session_id]
                if not table[path]:
                    del table[path]

    def fire(self, changes: Iterable[Change]) -> list[Fired]:
        """The events of a transaction's changes, in their order; their watches are gone."""
        return [fired for change in changes for fired in self._fire(change)]

    def _fire(self, change: Change) -> list[Fired]:
        kind, path = change.kind, change.path
        watchers = self._data.pop(path, {})
        if kind is WatchKind.DELETED:
            watchers |= self._children.pop(path, {})
        fired = [Fired(session, kind, path) for session in watchers]
        if kind is not WatchKind.DATA_CHANGED and path != ROOT:
            above = parent_of(path)
            around = self._children.pop(above, {})
            fired += [Fired(session, WatchKind.CHILDREN_CHANGED, above) for session in around]
        return fired

    def set_again(self, session_id: int, wanted: SetWatches, tree: Tree) -> list[Fired]:
        """Leaves the watches of `wanted` of which nothing was missed; returns the events of the others."""
        fired: dict[Fired, None] = {}
        for path in wanted.data:
            node = tree.find(path)
            if node is None or node.modified_zxid > wanted.zxid:
                fired[Fired(session_id, WatchKind.DELETED if node is None else WatchKind.DATA_CHANGED, path)] = None
            else:
                self.watch_data(session_id, path)
        for path in wanted.exists:
            if tree.find(path) is None:
                self.watch_data(session_id, path)
            else:
                fired[Fired(session_id, WatchKind.CREATED, path)] = None
        for path in wanted.children:
            node = tree.find(path)
            if node is None or node.children_zxid > wanted.zxid:
                fired[Fired(session_id, WatchKind.DELETED if node is None else WatchKind.CHILDREN_CHANGED, path)] = None
            else:
                self.watch_children(session_id, path)
        return list(fired)
