"""The durable state of a store: its tree, its sessions, and the number of the last transaction.

The state changes only by records of the transaction log, live and after a restart alike: decide, append, apply. A
record holds what was requested and has taken effect; carried out on the same state it has the same effect.
A session is a node of the cluster and a timeout; its id is the zxid of the record that began it. When it ends, by a
request or because it has expired, its ephemeral nodes end in the same transaction, as in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.errors import CorruptLogError
from protocol.ids import NodeId
from protocol.messages.store import (
    Delete,
    OperationResult,
    SessionBegan,
    SessionEnded,
    StoreRecord,
    Transaction,
    WriteOperation,
)
from protocol.v3.store.tree import Change, Decision, Tree


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its id, the node that opened it, and how long it lasts without a message of that node."""

    session_id: int
    owner: NodeId
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A decided request: its results, the record to append (None: nothing changes), and the effect on the tree."""

    results: tuple[OperationResult, ...]
    record: StoreRecord | None
    effect: Decision


@dataclass(slots=True)
class StoreState:
    """The tree and the open sessions by id, after the transaction `zxid` (0: none)."""

    tree: Tree = field(default_factory=Tree)
    sessions: dict[int, Session] = field(default_factory=dict)
    zxid: int = 0

    def decide(self, session_id: int, operations: Sequence[WriteOperation]) -> Decided:
        """A transaction of an open session. One that fails, or has only checks, needs no record."""
        effect = self.tree.decide(self.zxid + 1, session_id, operations)
        record = Transaction(session_id=session_id, operations=tuple(operations)) if effect.nodes else None
        return Decided(effect.results, record, effect)

    def decide_end(self, session_id: int) -> Decided:
        """The end of an open session."""
        return Decided((), SessionEnded(session_id=session_id), self._end(session_id))

    def _end(self, session_id: int) -> Decision:
        ephemerals = [Delete(path=path) for path in self.tree.ephemerals(session_id)]
        return self.tree.decide(self.zxid + 1, session_id, ephemerals)

    def commit(self, decided: Decided) -> Sequence[Change]:
        """Applies what was decided on the present state, once its record is durable; returns the changes."""
        assert decided.record is not None
        return self._apply(decided.record, decided.effect)

    def replay(self, record: StoreRecord) -> Sequence[Change]:
        """Applies a record of the log. CorruptLogError where it cannot have followed the records before it."""
        effect = Decision(())
        if isinstance(record, Transaction | SessionEnded):
            if record.session_id not in self.sessions:
                raise CorruptLogError(
                    f"found {type(record).__name__} of session {record.session_id}, which is not open"
                )
            is_end = isinstance(record, SessionEnded)
            effect = self._end(record.session_id) if is_end else self._transaction(record)
        return self._apply(record, effect)

    def _transaction(self, record: StoreRecord) -> Decision:
        assert isinstance(record, Transaction)
        effect = self.tree.decide(self.zxid + 1, record.session_id, record.operations)
        if effect.has_failed or not effect.nodes:
            operation = record.operations[len(effect.results) - 1] if record.operations else None
            error = effect.results[-1].error.name if effect.results else "no operation"
            raise CorruptLogError(f"found {operation!r}, which fails with {error}")
        return effect

    def _apply(self, record: StoreRecord, effect: Decision) -> Sequence[Change]:
        self.zxid += 1
        if isinstance(record, SessionBegan):
            self.sessions[self.zxid] = Session(self.zxid, record.owner, record.timeout_ms)
        elif isinstance(record, SessionEnded):
            del self.sessions[record.session_id]
        self.tree.commit(effect)
        return effect.changes
