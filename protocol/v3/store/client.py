"""The client's side of a session of the store: a part of a node that reads, writes and watches.

    CLOSED -- start --> CONNECTING -- SessionOpened --> CONNECTED -- silence, ConnectionClosed, a gap --> CONNECTING

A connected client sends its requests as they are submitted, several in flight, and receives the results in that order.
It sends a ping every third of the session's timeout. When it has received nothing for two thirds of it, it opens
another connection and continues the session, before the store expires it if the store can be reached. This is
ZooKeeper's client, and so are these rules:

- A write that was in flight when the connection was lost may have been carried out, and is reported as CONNECTION_LOSS.
  The caller reads, and decides. Once the new connection is open, nothing of the older one is carried out any more, so
  what is read then is final.
- A read that was in flight is sent again. Requests submitted while there is no connection wait for the next one.
- A watch is known once its read has been answered. Over a new connection all watches are set again, before anything
  else is sent; what was missed meanwhile fires at once.
- Only the store decides that a session has expired. A client without a connection keeps its session, and may believe
  that it owns nodes which are gone (A52). When it learns of the end, its watches and ephemeral nodes are gone, all
  requests that wait are reported as not carried out (SESSION_EXPIRED), and it opens a new session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from protocol.contract import Outbox
from protocol.ids import STORE, TimeMs
from protocol.messages.base import Message
from protocol.messages.store import (
    NO_SESSION,
    CloseSession,
    ConnectionClosed,
    Exists,
    GetChildren,
    GetData,
    OpenSession,
    OperationResult,
    ReadOperation,
    SessionOpened,
    SessionPing,
    SessionPong,
    SetWatches,
    StoreError,
    StoreMessage,
    StoreRead,
    StoreResponse,
    StoreWrite,
    WatchEvent,
    WatchKind,
    WriteOperation,
)
from protocol.v3.store.sessions import PING_PREFIX

CONNECT_PREFIX = "store-connect/"
SILENCE_PREFIX = "store-silence/"
MAX_RETRY_MS = 1_000
"""An OpenSession without an answer is repeated after this time, or a sixth of the session's timeout if that is less."""
_ID_BITS = 62

Operations = ReadOperation | tuple[WriteOperation, ...]
"""A request: one read, or the operations of one transaction."""


Results = tuple[OperationResult, ...]
"""What became of a request: a result per operation, up to that of the one that failed (`StoreResponse`). The only
result has the error CONNECTION_LOSS where the outcome is unknown, SESSION_EXPIRED where nothing was carried out."""
_UNKNOWN: Results = (OperationResult(error=StoreError.CONNECTION_LOSS),)
_EXPIRED: Results = (OperationResult(error=StoreError.SESSION_EXPIRED),)

Handler = Callable[[TimeMs, Results], None]
"""Receives the time and the results of a request; may submit further requests."""


class SessionOwner(Protocol):
    """What a node does when its session begins, ends, or has an event for it. It may submit requests."""

    def session_opened(self, now_ms: TimeMs) -> None:
        """A new session is open: it has no ephemeral nodes and no watches."""

    def session_expired(self, now_ms: TimeMs) -> None:
        """The session has expired, with its ephemeral nodes and watches. Another one is being opened."""

    def watch_fired(self, now_ms: TimeMs, kind: WatchKind, path: str) -> None:
        """A watch has fired, and is gone."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that has no outcome yet; SetWatches has no handler."""

    operations: Operations | SetWatches
    handler: Handler | None


class StoreSession:
    """Without an `owner` the session only carries requests. `rng` makes connections unique."""

    def __init__(self, timeout_ms: int, owner: SessionOwner | None, out: Outbox, rng: Random) -> None:
        self.session_id = NO_SESSION
        """The session, NO_SESSION before the first one is open and after one has expired."""
        self.is_connected = False
        self._timeout_ms = timeout_ms
        self._owner = owner
        self._out = out
        self._connection_id = rng.getrandbits(_ID_BITS)
        self._is_open = False
        self._xid = 0
        self._number = 0
        self._zxid = 0
        self._in_flight: deque[_Pending] = deque()
        self._waiting: deque[_Pending] = deque()
        self._data: set[str] = set()
        self._exists: set[str] = set()
        self._children: set[str] = set()

    def start(self, now_ms: TimeMs) -> None:
        """Opens a session; the owner is called when it is open."""
        self._is_open = True
        self._connect(now_ms)

    def close(self) -> None:
        """Ends the session with its ephemeral nodes, as far as the store can be reached; drops what waits."""
        if self.is_connected:
            self._xid += 1
            self._out.send(STORE, CloseSession(connection_id=self._connection_id, xid=self._xid))
        self._cancel_timers()
        self._is_open = self.is_connected = False
        self.session_id = NO_SESSION
        self._in_flight.clear()
        self._waiting.clear()
        self._forget_watches()

    def submit(self, operations: Operations, handler: Handler) -> None:
        """Sends a request, now or when there is a connection; `handler` receives its results, once."""
        self._submit(_Pending(operations, handler))

    def receive(self, now_ms: TimeMs, message: Message) -> bool:
        """Handles a message of the store; returns whether it was for this session's connection."""
        if not isinstance(message, StoreMessage) or message.connection_id != self._connection_id or not self._is_open:
            return False
        if isinstance(message, SessionOpened):
            self._opened(now_ms, message)
        elif isinstance(message, ConnectionClosed):
            self._lose_connection(now_ms)
        elif self.is_connected:
            self._await_silence(now_ms)
            if isinstance(message, SessionPong):
                if message.number > self._number:
                    self._lose_connection(now_ms)
            elif isinstance(message, StoreResponse | WatchEvent):
                self._take(now_ms, message)
        return True

    def fire(self, now_ms: TimeMs, name: str) -> bool:
        """Handles a timer; returns whether it was this session's."""
        if name == f"{PING_PREFIX}{self._connection_id}":
            self._out.send(STORE, SessionPing(connection_id=self._connection_id, xid=self._xid))
            self._set_ping_timer(now_ms)
        elif name == f"{SILENCE_PREFIX}{self._connection_id}":
            self._lose_connection(now_ms)
        elif name == f"{CONNECT_PREFIX}{self._connection_id}":
            self._request_connection(now_ms)
        else:
            return False
        return True

    def _connect(self, now_ms: TimeMs) -> None:
        self._cancel_timers()
        self.is_connected = False
        self._connection_id += 1
        self._xid = self._number = 0
        self._request_connection(now_ms)

    def _request_connection(self, now_ms: TimeMs) -> None:
        number, timeout_ms = self._connection_id, self._timeout_ms
        self._out.send(STORE, OpenSession(connection_id=number, timeout_ms=timeout_ms, session_id=self.session_id))
        due_ms = now_ms + min(MAX_RETRY_MS, timeout_ms // 6)
        self._out.set_timer(f"{CONNECT_PREFIX}{number}", due_ms, idle_with=STORE)

    def _opened(self, now_ms: TimeMs, message: SessionOpened) -> None:
        """The connection is open, or the session has expired. A copy changes nothing."""
        if self.is_connected:
            return
        if message.error is not StoreError.NONE:
            self._expire(now_ms)
            return
        is_new = self.session_id == NO_SESSION
        self.session_id, self._timeout_ms = message.session_id, message.timeout_ms
        self.is_connected = True
        self._out.cancel_timer(f"{CONNECT_PREFIX}{self._connection_id}")
        self._await_silence(now_ms)
        self._set_ping_timer(now_ms)
        waiting, self._waiting = self._waiting, deque()
        data, exists, children = (tuple(sorted(table)) for table in (self._data, self._exists, self._children))
        if data or exists or children:
            watches = SetWatches(zxid=self._zxid, data=data, exists=exists, children=children)
            self._submit(_Pending(watches, None))
        for pending in waiting:
            self._submit(pending)
        if is_new and self._owner is not None:
            self._owner.session_opened(now_ms)

    def _lose_connection(self, now_ms: TimeMs) -> None:
        """Begins another connection, for which reads wait; the outcomes of writes in flight are unknown."""
        if not self.is_connected:
            self._connect(now_ms)
            return
        in_flight, self._in_flight = self._in_flight, deque()
        reads = [found for found in in_flight if found.handler is not None and not isinstance(found.operations, tuple)]
        self._waiting.extendleft(reversed(reads))
        self._connect(now_ms)
        for pending in in_flight:
            if isinstance(pending.operations, tuple) and pending.handler is not None:
                pending.handler(now_ms, _UNKNOWN)

    def _expire(self, now_ms: TimeMs) -> None:
        self.session_id, self._zxid = NO_SESSION, 0
        self._forget_watches()
        expired, self._waiting = self._waiting, deque()
        self._connect(now_ms)
        for pending in expired:
            if pending.handler is not None:
                pending.handler(now_ms, _EXPIRED)
        if self._owner is not None:
            self._owner.session_expired(now_ms)

    def _set_ping_timer(self, now_ms: TimeMs) -> None:
        self._out.set_timer(f"{PING_PREFIX}{self._connection_id}", now_ms + self._timeout_ms // 3, idle_with=STORE)

    def _await_silence(self, now_ms: TimeMs) -> None:
        """The store has been heard: two thirds of a timeout begin again."""
        name, ping = f"{SILENCE_PREFIX}{self._connection_id}", f"{PING_PREFIX}{self._connection_id}"
        self._out.set_timer(name, now_ms + self._timeout_ms * 2 // 3, idle_with=STORE, echoes=ping)

    def _cancel_timers(self) -> None:
        for prefix in (CONNECT_PREFIX, PING_PREFIX, SILENCE_PREFIX):
            self._out.cancel_timer(f"{prefix}{self._connection_id}")

    def _submit(self, pending: _Pending) -> None:
        if not self.is_connected:
            self._waiting.append(pending)
            return
        self._xid += 1
        operations, connection_id = pending.operations, self._connection_id
        if isinstance(operations, tuple):
            self._out.send(STORE, StoreWrite(connection_id=connection_id, xid=self._xid, operations=operations))
        else:
            self._out.send(STORE, StoreRead(connection_id=connection_id, xid=self._xid, operation=operations))
        self._in_flight.append(pending)

    def _take(self, now_ms: TimeMs, message: StoreResponse | WatchEvent) -> None:
        """Handles the next message of the connection. A copy is dropped; after a gap the connection is of no use."""
        if message.number <= self._number:
            return
        if message.number > self._number + 1:
            self._lose_connection(now_ms)
            return
        self._number = message.number
        if isinstance(message, WatchEvent):
            if message.kind is not WatchKind.CHILDREN_CHANGED:
                self._data.discard(message.path)
                self._exists.discard(message.path)
            if message.kind in (WatchKind.CHILDREN_CHANGED, WatchKind.DELETED):
                self._children.discard(message.path)
            if self._owner is not None:
                self._owner.watch_fired(now_ms, message.kind, message.path)
            return
        self._zxid = max(self._zxid, message.zxid)
        pending = self._in_flight.popleft()
        if not isinstance(pending.operations, tuple | SetWatches):
            self._remember_watch(pending.operations, message.results[0])
        if pending.handler is not None:
            pending.handler(now_ms, message.results)

    def _remember_watch(self, operation: ReadOperation, result: OperationResult) -> None:
        if not operation.watch or result.error is not StoreError.NONE:
            return
        match operation:
            case GetChildren():
                self._children.add(operation.path)
            case GetData():
                self._data.add(operation.path)
            case Exists():
                (self._data if result.exists else self._exists).add(operation.path)

    def _forget_watches(self) -> None:
        for table in (self._data, self._exists, self._children):
            table.clear()
