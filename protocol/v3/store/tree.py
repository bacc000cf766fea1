"""The tree of a store: nodes with data and versions, and transactions that take effect as a whole or not at all (A3).

A node (ZooKeeper's znode) has data, a version that grows with each SetData, children, and for an *ephemeral* node the
session that owns it. It remembers the transactions (zxid) that changed it last: its data, and its set of children. They
decide whether a watch that is set again has missed something (`Watches`).

`Tree.decide` is a pure function: it carries out the operations of a transaction one after another on a draft, so that a
later operation sees the earlier ones. When the caller has made the transaction durable, `Tree.commit` puts the changed
nodes in place.

Rules, as ZooKeeper's: a path is absolute and has no empty part, no `.` or `..`, and no control character; the root
exists and can be neither created nor deleted; the parent of a new node exists and is not ephemeral; only a node without
children is deleted; a version other than ANY_VERSION must be the node's.

A watch belongs to a session and a path, and sends one event to the session when what was read changes (A3). As in
ZooKeeper, GetData and Exists leave a *data* watch, also an Exists that found no node, and GetChildren a *child* watch:

| change              | data watch of the node | child watch of the node | child watch of its parent |
|---------------------|------------------------|-------------------------|---------------------------|
| created             | CREATED                | -                       | CHILDREN_CHANGED          |
| data set            | DATA_CHANGED           | -                       | -                         |
| deleted             | DELETED                | DELETED                 | CHILDREN_CHANGED          |

A session with both watches of a node that is deleted gets one event. A client that sets its watches again over another
connection says up to which transaction it knows the tree; what has changed since then fires at once. A node that was
created and deleted again in the meantime leaves no trace, as in ZooKeeper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

from protocol.messages.store import (
    ANY_VERSION,
    NO_SESSION,
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    OperationResult,
    ReadOperation,
    SetData,
    SetWatches,
    StoreError,
    WatchKind,
    WriteOperation,
)

ROOT = "/"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Znode:
    """A node. `owner`: the session of an ephemeral node, else NO_SESSION. `modified_zxid` and `children_zxid`: the last
    transactions that changed its data, and its set of children, of which it has `children` and has ever had `born`.
    """

    data: bytes = b""
    version: int = 0
    owner: int = NO_SESSION
    modified_zxid: int = 0
    children_zxid: int = 0
    children: int = 0
    born: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction did to one node: CREATED, DELETED or DATA_CHANGED."""

    kind: WatchKind
    path: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The results up to that of the operation that failed, the changed nodes (None: deleted), and the changes."""

    results: tuple[OperationResult, ...]
    nodes: Mapping[str, Znode | None] = field(default_factory=dict)
    changes: Sequence[Change] = ()

    @property
    def has_failed(self) -> bool:
        return bool(self.results) and self.results[-1].error is not StoreError.NONE


def is_path(path: str) -> bool:
    if path == ROOT:
        return True
    is_plain = path.startswith(ROOT) and not _CONTROLS.search(path)
    return is_plain and {"", ".", ".."}.isdisjoint(path[1:].split("/"))


def parent_of(path: str) -> str:
    """The path of the parent of a node other than the root."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


class Tree:
    """All nodes by path, with the names of each node's children, and the ephemeral nodes of each session."""

    def __init__(self, nodes: Iterable[tuple[str, Znode]] = ((ROOT, Znode()),)) -> None:
        """`nodes` in any order: those of `items` of another tree. KeyError where a parent is missing."""
        self._nodes: dict[str, Znode] = dict(nodes)
        self._names: dict[str, set[str]] = {path: set() for path in self._nodes}
        self._ephemerals: dict[int, set[str]] = {}
        for path, node in self._nodes.items():
            if path != ROOT:
                self._names[parent_of(path)].add(name_of(path))
            if node.owner != NO_SESSION:
                self._ephemerals.setdefault(node.owner, set()).add(path)

    def find(self, path: str) -> Znode | None:
        return self._nodes.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        """The names of the children of an existing node, sorted."""
        return tuple(sorted(self._names[path]))

    def ephemerals(self, session_id: int) -> tuple[str, ...]:
        """The paths of a session's ephemeral nodes, sorted."""
        return tuple(sorted(self._ephemerals.get(session_id, ())))

    def items(self) -> list[tuple[str, Znode]]:
        return sorted(self._nodes.items(), key=itemgetter(0))

    def read(self, operation: ReadOperation) -> OperationResult:
        """The result of a read: INVALID_PATH, or NO_NODE for all but Exists."""
        node = self._nodes.get(operation.path)
        if node is None:
            error = StoreError.NONE if isinstance(operation, Exists) else StoreError.NO_NODE
            return OperationResult(error=error if is_path(operation.path) else StoreError.INVALID_PATH)
        match operation:
            case GetData():
                return OperationResult(version=node.version, data=node.data)
            case Exists():
                return OperationResult(version=node.version, exists=True)
            case GetChildren():
                return OperationResult(version=node.version, children=self.children(operation.path))

    def decide(self, zxid: int, session_id: int, operations: Sequence[WriteOperation]) -> Decision:
        """What a transaction of a session would do with the number `zxid`; changes nothing."""
        draft = _Draft(self, zxid, session_id)
        results: list[OperationResult] = []
        for operation in operations:
            result = draft.carry_out(operation)
            results.append(result)
            if result.error is not StoreError.NONE:
                return Decision(tuple(results))
        return Decision(tuple(results), draft.nodes, draft.changes)

    def commit(self, decision: Decision) -> None:
        """Puts the changed nodes of a transaction in place, which was decided on the present tree."""
        changed = sorted(decision.nodes.items(), key=itemgetter(0))
        for path in [path for path, node in reversed(changed) if node is None]:
            before = self._nodes.pop(path, None)
            if before is not None:
                del self._names[path]
                self._names[parent_of(path)].discard(name_of(path))
                self._disown(path, before.owner)
        for path, node in changed:
            if node is None:
                continue
            before = self._nodes.get(path)
            self._nodes[path] = node
            if before is None:
                self._names[path] = set()
                self._names[parent_of(path)].add(name_of(path))
            elif before.owner != node.owner:
                self._disown(path, before.owner)
            if node.owner != NO_SESSION:
                self._ephemerals.setdefault(node.owner, set()).add(path)

    def _disown(self, path: str, owner: int) -> None:
        owned = self._ephemerals.get(owner)
        if owned is not None:
            owned.discard(path)
            if not owned:
                del self._ephemerals[owner]


class _Draft:
    """A tree in the middle of a transaction: the changed `nodes` over those of the tree, and the `changes` so far."""

    def __init__(self, tree: Tree, zxid: int, session_id: int) -> None:
        self._tree = tree
        self._zxid = zxid
        self._session_id = session_id
        self.nodes: dict[str, Znode | None] = {}
        self.changes: list[Change] = []

    def _find(self, path: str) -> Znode | None:
        return self.nodes[path] if path in self.nodes else self._tree.find(path)

    def carry_out(self, operation: WriteOperation) -> OperationResult:
        if isinstance(operation, Create):
            return self._create(operation)
        path = operation.path
        node = self._find(path)
        if node is None:
            return OperationResult(error=StoreError.NO_NODE if is_path(path) else StoreError.INVALID_PATH)
        if operation.version not in (ANY_VERSION, node.version):
            return OperationResult(error=StoreError.BAD_VERSION)
        match operation:
            case SetData():
                version = node.version + 1
                self.nodes[path] = replace(node, data=operation.data, version=version, modified_zxid=self._zxid)
                self.changes.append(Change(WatchKind.DATA_CHANGED, path))
                return OperationResult(version=version)
            case Delete():
                return self._delete(path, node)
            case Check():
                return OperationResult(version=node.version)

    def _create(self, operation: Create) -> OperationResult:
        path = operation.path
        parent = self._find(parent_of(path)) if path.startswith(ROOT) else None
        if operation.sequential and parent is not None:
            path = f"{path}{parent.born:010d}"
        if not is_path(path):
            return OperationResult(error=StoreError.INVALID_PATH)
        if self._find(path) is not None:
            return OperationResult(error=StoreError.NODE_EXISTS)
        if parent is None:
            return OperationResult(error=StoreError.NO_NODE)
        if parent.owner != NO_SESSION:
            return OperationResult(error=StoreError.NO_CHILDREN_FOR_EPHEMERALS)
        owner = self._session_id if operation.ephemeral else NO_SESSION
        self.nodes[path] = Znode(operation.data, 0, owner, self._zxid, self._zxid)
        children, born = parent.children + 1, parent.born + 1
        self.nodes[parent_of(path)] = replace(parent, children_zxid=self._zxid, children=children, born=born)
        self.changes.append(Change(WatchKind.CREATED, path))
        return OperationResult(version=0, path=path)

    def _delete(self, path: str, node: Znode) -> OperationResult:
        if path == ROOT:
            return OperationResult(error=StoreError.INVALID_PATH)
        if node.children:
            return OperationResult(error=StoreError.NOT_EMPTY)
        above = parent_of(path)
        parent = self._find(above)
        assert parent is not None
        self.nodes[path] = None
        self.nodes[above] = replace(parent, children_zxid=self._zxid, children=parent.children - 1)
        self.changes.append(Change(WatchKind.DELETED, path))
        return OperationResult()


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
        fired: list[Fired] = []
        for change in changes:
            kind, path, above = change.kind, change.path, parent_of(change.path)
            watchers = self._data.pop(path, {})
            if kind is WatchKind.DELETED:
                watchers |= self._children.pop(path, {})
            fired += [Fired(session, kind, path) for session in watchers]
            if kind is not WatchKind.DATA_CHANGED and path != ROOT:
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
