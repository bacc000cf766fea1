"""The store of generation `v3`: one node that keeps a tree as ZooKeeper does, durably, for the sessions of its clients
(A3).

Requests of a session are carried out one after another, each after its latency; those of different sessions in
parallel. A request takes effect at the end of its latency: a write is decided on the tree of that moment, appended to
the transaction log and flushed, and applied; then the watch events leave, then the response. So a client has a watch
event before any response that shows the change. A transaction of many operations takes one latency.

A session ends, with its ephemeral nodes, when its client closes it, or when the store has received nothing from its
client for the session's timeout, whether that client is alive or not (M39).

ZooKeeper is an ensemble of servers; this store is one, whose failure is an outage.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import ClassVar

from protocol.contract import Effect, Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.store import StoreChanged, StoreSessionBegan, StoreSessionEnded
from protocol.ids import CLUSTER_ID, DRIVER, STORE, NodeId, TimeMs
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.store import (
    NO_SESSION,
    CloseSession,
    ExpireSessions,
    GetChildren,
    OpenSession,
    OperationResult,
    ReadOperation,
    SessionBegan,
    SessionPing,
    SessionPong,
    SetWatches,
    StoreError,
    StoreRead,
    StoreRequest,
    StoreResponse,
    StoreWrite,
    WatchEvent,
)
from protocol.nodes.refusals import refuse
from protocol.v3.store.sessions import SESSION_PREFIX, WORK_PREFIX, Connection, Connections
from protocol.v3.store.settings import MAX_SESSION_TIMEOUT_MS, MIN_SESSION_TIMEOUT_MS, StoreSettings
from protocol.v3.store.transaction_log import SNAPSHOT_EVERY, Decided, StoreState, TransactionLog
from protocol.v3.store.tree import Decision, Fired, Watches


class StoreNode:
    """The store. `rng` draws latencies; a snapshot is taken after `snapshot_every` transactions."""

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_storage"})  # the transactions that have led to the tree

    def __init__(
        self,
        settings: StoreSettings,
        storage: Storage,
        rng: Random,
        cluster_id: str = CLUSTER_ID,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        self.node_id = STORE
        self.watches = Watches()
        self._settings = settings
        self._storage = storage
        self._rng = rng
        self._cluster_id = cluster_id
        self._snapshot_every = snapshot_every
        self._out = Outbox()
        self._connections = Connections(self._out)
        self._log: TransactionLog | None = None

    @property
    def state(self) -> StoreState:
        """Tree and sessions, for observers; the node must have been started."""
        return self._transactions.state

    @property
    def work_timers(self) -> tuple[str, ...]:
        return self._connections.work_timers

    @property
    def _transactions(self) -> TransactionLog:
        if self._log is None:
            raise ProtocolInvariantError("the store has not been started")
        return self._log

    def start(self, now_ms: TimeMs) -> list[Effect]:
        self._log = TransactionLog(self._storage, self._cluster_id, self._snapshot_every)
        for session in self.state.sessions.values():
            self._connections.await_client(session, now_ms)
        return self._out.drain()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        if isinstance(message, StoreRequest):
            self._enqueue(now_ms, sender, message)
        elif isinstance(message, SessionPing):
            self._answer_ping(now_ms, sender, message)
        elif isinstance(message, OpenSession):
            self._open(now_ms, sender, message)
        elif isinstance(message, ExpireSessions) and sender == DRIVER:
            for session in list(self.state.sessions.values()):
                is_meant = not message.owning_only or bool(self.state.tree.ephemerals(session.session_id))
                if session.owner == message.node_id and is_meant:
                    self._end_session(now_ms, session.session_id, expired=True)
        elif isinstance(message, ShutdownCommand):
            self._out.exit()
        else:
            refuse(self._out, sender, message, ErrorCode.UNSUPPORTED_VERSION)
        return self._out.drain()

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        if name.startswith(SESSION_PREFIX):
            self._end_session(now_ms, int(name.removeprefix(SESSION_PREFIX)), expired=True)
        elif name.startswith(WORK_PREFIX):
            self._carry_out_next(now_ms, self._connections.open[int(name.removeprefix(WORK_PREFIX))])
        else:
            raise ProtocolInvariantError(f"the store has no timer {name!r}")
        return self._out.drain()

    def _open(self, now_ms: TimeMs, client: NodeId, message: OpenSession) -> None:
        number = message.connection_id
        if number in self._connections.used:
            connection = self._connections.find(client, number)
            if connection is not None and connection.session is not None:
                self._connections.confirm(connection)
        elif message.session_id == NO_SESSION:
            connection = self._connections.add(client, number)
            connection.queue.append(message)
            self._begin(now_ms, connection)
        else:
            session = self.state.sessions.get(message.session_id)
            if session is None or session.owner != client:
                self._connections.refuse(client, number)
                return
            self.watches.forget(session.session_id)
            self._connections.attach(self._connections.add(client, number), session, now_ms)

    def _answer_ping(self, now_ms: TimeMs, client: NodeId, ping: SessionPing) -> None:
        connection = self._connections.find(client, ping.connection_id)
        if connection is not None and ping.xid > connection.xid:
            self._connections.close(connection)
        elif connection is not None:
            self._connections.touch(connection, now_ms)
            self._out.send(client, SessionPong(connection_id=connection.connection_id, number=connection.number))

    def _enqueue(self, now_ms: TimeMs, client: NodeId, request: StoreRequest) -> None:
        """Puts a request into the queue of its connection. A copy is dropped; a gap ends the connection."""
        connection = self._connections.find(client, request.connection_id)
        if connection is None or request.xid <= connection.xid:
            return
        if request.xid > connection.xid + 1 or connection.session is None:
            self._connections.close(connection)
            return
        connection.xid = request.xid
        self._connections.touch(connection, now_ms)
        connection.queue.append(request)
        if len(connection.queue) == 1:
            self._begin(now_ms, connection)

    def _begin(self, now_ms: TimeMs, connection: Connection) -> None:
        is_read = isinstance(connection.queue[0], StoreRead)
        latency = self._settings.read_latency if is_read else self._settings.write_latency
        self._out.set_timer(f"{WORK_PREFIX}{connection.connection_id}", now_ms + latency.draw_ms(self._rng))

    def _carry_out_next(self, now_ms: TimeMs, connection: Connection) -> None:
        request = connection.queue.popleft()
        if isinstance(request, OpenSession):
            self._begin_session(now_ms, connection, request)
            return
        assert connection.session is not None
        session_id = connection.session.session_id
        if isinstance(request, StoreRead):
            self._respond(connection, request, self._read(session_id, request.operation))
        elif isinstance(request, StoreWrite):
            decided = self.state.decide(session_id, request.operations)
            self._commit(now_ms, decided)
            self._respond(connection, request, decided.results)
        elif isinstance(request, CloseSession):
            self._end_session(now_ms, session_id, expired=False)
        if connection.queue:
            self._begin(now_ms, connection)

    def _respond(self, connection: Connection, request: StoreRequest, results: tuple[OperationResult, ...]) -> None:
        response = StoreResponse.unchecked(
            connection_id=connection.connection_id,
            number=connection.next_number(),
            xid=request.xid,
            zxid=self.state.zxid,
            results=results,
        )
        self._out.send(connection.client, response)

    def _read(self, session_id: int, operation: ReadOperation | SetWatches) -> tuple[OperationResult, ...]:
        """The result of a read, which leaves its watch. A node that does not exist is watched by Exists only."""
        if isinstance(operation, SetWatches):
            self._notify(self.watches.set_again(session_id, operation, self.state.tree))
            return ()
        result = self.state.tree.read(operation)
        if operation.watch and result.error is StoreError.NONE:
            is_child_watch = isinstance(operation, GetChildren)
            watch = self.watches.watch_children if is_child_watch else self.watches.watch_data
            watch(session_id, operation.path)
        return (result,)

    def _commit(self, now_ms: TimeMs, decided: Decided) -> None:
        events = self.watches.fire(self._transactions.commit(now_ms, decided))
        for path in dict.fromkeys(change.path for change in decided.effect.changes):
            node = decided.effect.nodes[path]
            version, data = (node.version, node.data) if node is not None else (-1, b"")
            self._out.trace(StoreChanged(path, version, data.decode(errors="replace")))
        self._notify(events)

    def _notify(self, events: Iterable[Fired]) -> None:
        for session_id, kind, path in events:
            connection = self._connections.by_session.get(session_id)
            if connection is not None:
                number = connection.next_number()
                event = WatchEvent(connection_id=connection.connection_id, number=number, kind=kind, path=path)
                self._out.send(connection.client, event)

    def _begin_session(self, now_ms: TimeMs, connection: Connection, request: OpenSession) -> None:
        timeout_ms = min(max(request.timeout_ms, MIN_SESSION_TIMEOUT_MS), MAX_SESSION_TIMEOUT_MS)
        record = SessionBegan(owner=connection.client, timeout_ms=timeout_ms)
        self._commit(now_ms, Decided((), record, Decision(())))
        session = self.state.sessions[self.state.zxid]
        self._out.trace(StoreSessionBegan(session.session_id, session.owner))
        self._connections.attach(connection, session, now_ms)

    def _end_session(self, now_ms: TimeMs, session_id: int, expired: bool) -> None:
        """Ends a session with its ephemeral nodes, watches and connection; others' watches fire."""
        session = self.state.sessions[session_id]
        ephemerals = self.state.tree.ephemerals(session_id)
        self.watches.forget(session_id)
        self._commit(now_ms, self.state.decide_end(session_id))
        self._out.trace(StoreSessionEnded(session_id, session.owner, expired, ephemerals))
        self._connections.end_session(session_id)
