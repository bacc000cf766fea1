"""The tree: paths, each operation with each error, transactions; and random transactions against a plain model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.messages.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    OperationResult,
    SetData,
    StoreError,
    WatchKind,
    WriteOperation,
)
from protocol.v3.store.tree import Change, Fired, Tree, Watches, is_path

ME = 7
"""A session."""


def grown(*operations: WriteOperation, tree: Tree | None = None, session: int = ME) -> Tree:
    """A tree after a transaction that must succeed."""
    tree = tree or Tree()
    decision = tree.decide(1, session, operations)
    assert not decision.has_failed, decision.results
    tree.commit(decision)
    return tree


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/a b", "/a.b/...", "/é/x-0000000001"])
def test_paths(path: str) -> None:
    assert is_path(path)


@pytest.mark.parametrize("path", ["", "a", "a/b", "//", "/a/", "/a//b", "/.", "/a/..", "/a\x00", "/\x7f", "/a\n"])
def test_what_is_no_path_is_refused_by_every_operation(path: str) -> None:
    tree = Tree()
    assert not is_path(path)
    writes = (Create(path=path), SetData(path=path, data=b""), Delete(path=path), Check(path=path, version=0))
    for write in writes:
        assert tree.decide(1, ME, [write]).results[0].error is StoreError.INVALID_PATH
    for read in (GetData(path=path), Exists(path=path), GetChildren(path=path)):
        assert tree.read(read).error is StoreError.INVALID_PATH


TREE = (
    Create(path="/a", data=b"x"),
    Create(path="/a/b"),
    Create(path="/mine", ephemeral=True),
    SetData(path="/a/b", data=b"y"),
)
"""/a has version 0, /a/b version 1, /mine is ephemeral."""


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Create(path="/c", data=b"z"), OperationResult(version=0, path="/c")),
        (Create(path="/"), StoreError.NODE_EXISTS),
        (Create(path="/a"), StoreError.NODE_EXISTS),
        (Create(path="/mine", ephemeral=True), StoreError.NODE_EXISTS),
        (Create(path="/c/d"), StoreError.NO_NODE),
        (Create(path="/mine/x"), StoreError.NO_CHILDREN_FOR_EPHEMERALS),
        (Create(path="/a/n-", sequential=True), OperationResult(version=0, path="/a/n-0000000001")),
        (Create(path="/a/", sequential=True), OperationResult(version=0, path="/a/0000000001")),
        (Create(path="/", sequential=True), OperationResult(version=0, path="/0000000002")),
        (Create(path="/c/d-", sequential=True), StoreError.NO_NODE),
        (SetData(path="/a/b", data=b"z"), OperationResult(version=2)),
        (SetData(path="/a/b", data=b"z", version=1), OperationResult(version=2)),
        (SetData(path="/a/b", data=b"z", version=0), StoreError.BAD_VERSION),
        (SetData(path="/c", data=b"z"), StoreError.NO_NODE),
        (SetData(path="/", data=b"z"), OperationResult(version=1)),
        (Delete(path="/a/b"), OperationResult()),
        (Delete(path="/a/b", version=1), OperationResult()),
        (Delete(path="/a/b", version=2), StoreError.BAD_VERSION),
        (Delete(path="/a"), StoreError.NOT_EMPTY),
        (Delete(path="/c"), StoreError.NO_NODE),
        (Delete(path="/"), StoreError.INVALID_PATH),
        (Check(path="/a/b", version=1), OperationResult(version=1)),
        (Check(path="/a/b", version=ANY_VERSION), OperationResult(version=1)),
        (Check(path="/a/b", version=0), StoreError.BAD_VERSION),
        (Check(path="/c", version=ANY_VERSION), StoreError.NO_NODE),
        (GetData(path="/a/b"), OperationResult(version=1, data=b"y")),
        (GetData(path="/c"), StoreError.NO_NODE),
        (Exists(path="/a"), OperationResult(version=0, exists=True)),
        (Exists(path="/c"), OperationResult()),
        (GetChildren(path="/"), OperationResult(version=0, children=("a", "mine"))),
        (GetChildren(path="/a/b"), OperationResult(version=1)),
        (GetChildren(path="/c"), StoreError.NO_NODE),
    ],
)
@pytest.mark.covers("A3")
def test_each_operation(
    operation: WriteOperation | GetData | Exists | GetChildren, expected: OperationResult | StoreError
) -> None:
    tree = grown(*TREE)
    if isinstance(operation, GetData | Exists | GetChildren):
        result = tree.read(operation)
    else:
        [result] = tree.decide(5, ME, [operation]).results
    assert result == (OperationResult(error=expected) if isinstance(expected, StoreError) else expected)


@pytest.mark.covers("A3")
def test_a_later_operation_of_a_transaction_sees_the_earlier_ones() -> None:
    tree = grown(*TREE)
    operations = [
        SetData(path="/a", data=b"1", version=0),
        Check(path="/a", version=1),
        Delete(path="/a/b"),
        Delete(path="/a", version=1),
        Create(path="/a", data=b"2"),
        Create(path="/a/c"),
    ]
    decision = tree.decide(5, ME, operations)
    assert [result.error for result in decision.results] == [StoreError.NONE] * 6
    tree.commit(decision)
    assert tree.read(GetData(path="/a")) == OperationResult(version=0, data=b"2")
    assert tree.children("/a") == ("c",)
    assert tree.find("/a/b") is None


@pytest.mark.covers("A3")
def test_a_transaction_of_which_one_operation_fails_changes_nothing() -> None:
    tree = grown(*TREE)
    before = tree.items()
    operations = [Create(path="/c"), SetData(path="/a", data=b"1"), Check(path="/a", version=0), Delete(path="/c")]
    decision = tree.decide(5, ME, operations)
    assert [result.error for result in decision.results] == [StoreError.NONE, StoreError.NONE, StoreError.BAD_VERSION]
    assert (decision.nodes, decision.changes) == ({}, ())
    tree.commit(decision)
    assert tree.items() == before


def test_nodes_can_be_deleted_from_below_in_one_transaction_after_a_change_above() -> None:
    tree = grown(*TREE)
    operations = [SetData(path="/a", data=b"1"), Delete(path="/a/b"), Delete(path="/a")]
    assert [path for path, _ in grown(*operations, tree=tree).items()] == ["/", "/mine"]


@pytest.mark.covers("A3")
def test_ephemeral_nodes_are_those_of_the_session_that_created_them() -> None:
    tree = grown(*TREE)
    grown(Create(path="/a/other", ephemeral=True), SetData(path="/mine", data=b"set by another"), tree=tree, session=8)
    assert (tree.ephemerals(ME), tree.ephemerals(8), tree.ephemerals(9)) == (("/mine",), ("/a/other",), ())
    grown(Delete(path="/mine"), Create(path="/mine", ephemeral=True), tree=tree, session=8)
    assert (tree.ephemerals(ME), tree.ephemerals(8)) == ((), ("/a/other", "/mine"))
    grown(Delete(path="/mine"), Create(path="/mine"), tree=tree, session=8)
    assert tree.ephemerals(8) == ("/a/other",)


# -- against a model ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A node of the model."""

    data: bytes
    version: int = 0
    owner: int = 0
    born: int = 0


NAMES = ("a", "b")
PATHS = ("/", *(f"/{one}" for one in NAMES), *(f"/{one}/{two}" for one in NAMES for two in NAMES))
SESSIONS = (1, 2, 3)
VERSIONS = st.sampled_from((ANY_VERSION, ANY_VERSION, 0, 1))
path_of = st.sampled_from(PATHS)
OPERATIONS = st.one_of(
    st.builds(Create, path=path_of, data=st.binary(max_size=2), ephemeral=st.booleans()),
    st.builds(Create, path=path_of, sequential=st.just(True)),
    st.builds(SetData, path=path_of, data=st.binary(max_size=2), version=VERSIONS),
    st.builds(Delete, path=path_of, version=VERSIONS),
    st.builds(Check, path=path_of, version=VERSIONS),
)
Model = dict[str, Plain]


def above(path: str) -> str:
    return "/" + "/".join(path.strip("/").split("/")[:-1])


def below(model: Model, path: str) -> set[str]:
    return {found for found in model if found != "/" and above(found) == path}


def modelled(model: Model, operation: WriteOperation, session: int) -> tuple[Model, Change] | None:
    """The model after an operation, and the change; None where it fails. A copy, so that failures undo themselves."""
    path, model = operation.path, dict(model)
    if isinstance(operation, Create):
        parent = model.get(above(path))
        if parent is None:
            return None
        path = f"{path}{parent.born:010d}" if operation.sequential else path
        if path in model or parent.owner:
            return None
        model[above(path)] = replace(parent, born=parent.born + 1)
        model[path] = Plain(operation.data, owner=session if operation.ephemeral else 0)
        return model, Change(WatchKind.CREATED, path)
    node = model.get(path)
    if node is None or operation.version not in (ANY_VERSION, node.version):
        return None
    if isinstance(operation, SetData):
        model[path] = replace(node, data=operation.data, version=node.version + 1)
        return model, Change(WatchKind.DATA_CHANGED, path)
    if isinstance(operation, Delete):
        if path == "/" or below(model, path):
            return None
        del model[path]
        return model, Change(WatchKind.DELETED, path)
    return model, Change(WatchKind.DATA_CHANGED, "")


class TreeAgainstModel(RuleBasedStateMachine):
    """Random transactions on the tree and on a dictionary; watches on both."""

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.watches, self.zxid = Tree(), Watches(), 0
        self.model: Model = {"/": Plain(b"")}
        self.watched: set[tuple[str, int, str]] = set()

    @rule(session=st.sampled_from(SESSIONS), operations=st.lists(OPERATIONS, min_size=1, max_size=4))
    def transact(self, session: int, operations: list[WriteOperation]) -> None:
        model, changes, has_failed = self.model, list[Change](), False
        for operation in operations:
            step = modelled(model, operation, session)
            if step is None:
                has_failed = True
                break
            model, change = step
            changes += [change] if change.path else []
        decision = self.tree.decide(self.zxid + 1, session, operations)
        assert decision.has_failed == has_failed
        if not has_failed:
            self.zxid += 1
            self.model = model
            assert list(decision.changes) == changes
            self.tree.commit(decision)
            self.check_events(changes, self.watches.fire(decision.changes))

    def check_events(self, changes: list[Change], fired: list[Fired]) -> None:
        """Each watch of a changed thing fires once, with the first change that concerns it."""
        expected: set[tuple[int, WatchKind, str]] = set()
        for kind, path in ((change.kind, change.path) for change in changes):
            concerned = {("data", session, path) for session in SESSIONS}
            if kind is WatchKind.DELETED:
                concerned |= {("children", session, path) for session in SESSIONS}
            expected |= {(session, kind, path) for _, session, _ in concerned & self.watched}
            self.watched -= concerned
            if kind is not WatchKind.DATA_CHANGED:
                around = {("children", session, above(path)) for session in SESSIONS} & self.watched
                expected |= {(session, WatchKind.CHILDREN_CHANGED, above(path)) for _, session, _ in around}
                self.watched -= around
        assert sorted(fired) == sorted(expected)

    @rule(session=st.sampled_from(SESSIONS), path=path_of, is_data=st.booleans())
    def watch(self, session: int, path: str, is_data: bool) -> None:
        (self.watches.watch_data if is_data else self.watches.watch_children)(session, path)
        self.watched.add(("data" if is_data else "children", session, path))

    @rule(session=st.sampled_from(SESSIONS))
    def forget(self, session: int) -> None:
        self.watches.forget(session)
        self.watched = {found for found in self.watched if found[1] != session}

    @invariant()
    def they_agree(self) -> None:
        nodes = {path: Plain(found.data, found.version, found.owner, found.born) for path, found in self.tree.items()}
        assert nodes == self.model
        for path, found in self.tree.items():
            children = tuple(sorted(child.rpartition("/")[2] for child in below(self.model, path)))
            assert self.tree.children(path) == children
            assert found.children == len(children)
        for session in SESSIONS:
            owned = tuple(sorted(path for path, node in self.model.items() if node.owner == session))
            assert self.tree.ephemerals(session) == owned
        assert Tree(self.tree.items()).items() == self.tree.items()
        assert len(self.watches) == len(self.watched)


TestTreeAgainstModel = TreeAgainstModel.TestCase
TestTreeAgainstModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
