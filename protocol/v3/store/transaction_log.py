"""The durable state of a store: its tree, its sessions, and the number of the last transaction, in memory and on disk.

    __store/0         the transaction log: one batch per record (`messages/store.py`), whose payload is the encoded
                      record; the record at offset n has the zxid n + 1
    store-snapshot    the state after a transaction: a CRC-32 and a msgpack array of format, cluster id, zxid, sessions
                      and nodes; the first one, of an empty tree, is written at the first start

The state changes only by records of the log, live and after a restart alike: decide, append, apply. A record holds what
was requested and has taken effect; carried out on the same state it has the same effect. The id of a session is the
zxid of the record that began it. When a session ends, its ephemeral nodes end in the same transaction, as in ZooKeeper.

A transaction is appended and flushed before its response and its watch events leave. So a crash loses nothing that was
acknowledged; it may leave a last transaction that was not. What a start finds is flushed before it is served, since it
may be in the page cache only. After `snapshot_every` transactions (100,000 as in ZooKeeper) a snapshot is written, the
log is rolled, and its covered segments are deleted, in this order, so that snapshot and log together hold every
transaction at any time.

A directory of another cluster is refused (ForeignDirectoryError), and so is a log that does not continue its snapshot,
or holds something that is no record, or a record that cannot have followed the ones before it (CorruptLogError). A
refused start changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from zlib import crc32

import msgpack

from protocol.contract import Storage
from protocol.errors import CodecError, CorruptLogError, ForeignDirectoryError
from protocol.ids import STORE_LOG, NodeId, TimeMs
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode, encode
from protocol.messages.store import (
    Delete,
    OperationResult,
    SessionBegan,
    SessionEnded,
    StoreRecord,
    Transaction,
    WriteOperation,
)
from protocol.v3.store.tree import ROOT, Change, Decision, Tree, Znode


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
        if isinstance(record, Transaction | SessionEnded) and record.session_id not in self.sessions:
            raise CorruptLogError(f"found {type(record).__name__} of session {record.session_id}, which is not open")
        effect = Decision(())
        if isinstance(record, SessionEnded):
            effect = self._end(record.session_id)
        elif isinstance(record, Transaction):
            effect = self.tree.decide(self.zxid + 1, record.session_id, record.operations)
            if effect.has_failed or not effect.nodes:
                operation = record.operations[len(effect.results) - 1] if record.operations else None
                error = effect.results[-1].error.name if effect.results else "no operation"
                raise CorruptLogError(f"found {operation!r}, which fails with {error}")
        return self._apply(record, effect)

    def _apply(self, record: StoreRecord, effect: Decision) -> Sequence[Change]:
        self.zxid += 1
        if isinstance(record, SessionBegan):
            self.sessions[self.zxid] = Session(self.zxid, record.owner, record.timeout_ms)
        elif isinstance(record, SessionEnded):
            del self.sessions[record.session_id]
        self.tree.commit(effect)
        return effect.changes


SNAPSHOT_FILE = "store-snapshot"
FORMAT_VERSION = 2
SNAPSHOT_EVERY = 100_000
_CRC_BYTES = 4
_READ_BYTES = 1_048_576


def encode_snapshot(cluster_id: str, state: StoreState) -> bytes:
    sessions = [[found.session_id, found.owner, found.timeout_ms] for found in state.sessions.values()]
    nodes = [
        [path, node.data, node.version, node.owner, node.modified_zxid, node.children_zxid, node.children, node.born]
        for path, node in state.tree.items()
    ]
    packed: bytes = msgpack.packb([FORMAT_VERSION, cluster_id, state.zxid, sessions, nodes])
    return crc32(packed).to_bytes(_CRC_BYTES, "big") + packed


def decode_snapshot(raw: bytes) -> tuple[str, StoreState]:
    """The cluster id and the state of a snapshot. CorruptLogError for bytes that are damaged or no snapshot."""
    body = raw[_CRC_BYTES:]
    if crc32(body) != int.from_bytes(raw[:_CRC_BYTES], "big"):
        raise CorruptLogError(f"{SNAPSHOT_FILE}: found {len(raw)} bytes that fail their checksum")
    try:
        version, *parts = msgpack.unpackb(body)
        if version != FORMAT_VERSION:
            raise CorruptLogError(f"{SNAPSHOT_FILE}: format: found {version!r}; allowed: {FORMAT_VERSION}")
        cluster_id, zxid, sessions, nodes = parts
        tree = Tree((path, Znode(*fields)) for path, *fields in nodes)
        if tree.find(ROOT) is None:
            raise ValueError("no root")
        return cluster_id, StoreState(tree, {fields[0]: Session(*fields) for fields in sessions}, zxid)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, msgpack.UnpackException) as error:
        raise CorruptLogError(f"{SNAPSHOT_FILE}: found {len(raw)} bytes that are no snapshot") from error


class TransactionLog:
    """The state that a directory holds, and the log for its further transactions. StorageError as above."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_storage", "_log"})  # the transactions that have led to the state

    def __init__(self, storage: Storage, cluster_id: str, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._snapshot_every = snapshot_every
        raw = storage.read_file(SNAPSHOT_FILE)
        if raw is None and STORE_LOG in storage.log_names():
            raise CorruptLogError(f"{SNAPSHOT_FILE}: found none, beside the log {STORE_LOG}")
        owner, self.state = (cluster_id, StoreState()) if raw is None else decode_snapshot(raw)
        if owner != cluster_id:
            raise ForeignDirectoryError(f"{SNAPSHOT_FILE}: found cluster {owner!r}; allowed: {cluster_id!r}")
        self._covered = self.state.zxid
        if raw is None:
            storage.write_file(SNAPSHOT_FILE, encode_snapshot(cluster_id, self.state))
        self._log = storage.open_log(STORE_LOG)
        self._replay()

    def _replay(self) -> None:
        log, state = self._log, self.state
        if log.start_offset > state.zxid:
            raise CorruptLogError(f"{STORE_LOG} begins at {log.start_offset}, {SNAPSHOT_FILE} ends at {state.zxid}")
        while state.zxid < log.end_offset:
            for batch in log.read(state.zxid, _READ_BYTES):
                record = _record_of(batch, state.zxid)
                try:
                    state.replay(record)
                except CorruptLogError as error:
                    raise CorruptLogError(f"{STORE_LOG}: transaction {state.zxid + 1}: {error}") from error
        if log.end_offset < state.zxid:
            log.reset(state.zxid)
        elif log.flushed_offset < log.end_offset:
            log.flush()

    def commit(self, now_ms: TimeMs, decided: Decided) -> list[Change]:
        """Makes a request decided at `now_ms` durable and applies it; returns the changes of the tree. StorageError."""
        if decided.record is None:
            return []
        payload = encode(decided.record)
        batch = RecordBatch(base_offset=self.state.zxid, record_count=1, payload=payload, timestamp_ms=now_ms)
        self._log.append(batch)
        self._log.flush()
        changes = self.state.commit(decided)
        if self.state.zxid - self._covered >= self._snapshot_every:
            self.take_snapshot()
        return list(changes)

    def take_snapshot(self) -> None:
        """Writes a snapshot of the state, and deletes the segments of the log that it covers. StorageError."""
        self._storage.write_file(SNAPSHOT_FILE, encode_snapshot(self._cluster_id, self.state))
        self._covered = self.state.zxid
        self._log.roll()
        self._log.delete_segments_before(self.state.zxid)


def _record_of(batch: RecordBatch, zxid: int) -> StoreRecord:
    if batch.base_offset != zxid or batch.record_count != 1:
        raise CorruptLogError(f"{STORE_LOG}: found records {batch.base_offset} to {batch.next_offset - 1} at {zxid}")
    try:
        record = decode(batch.payload)
    except CodecError as error:
        raise CorruptLogError(f"{STORE_LOG}: transaction {zxid + 1}: {error}") from error
    if not isinstance(record, StoreRecord):
        raise CorruptLogError(f"{STORE_LOG}: transaction {zxid + 1}: found {type(record).__name__}")
    return record
