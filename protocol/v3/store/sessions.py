"""The sessions of a store's clients: their connections, and the timers that end them.

Sessions are durable, connections are not. A store that starts again gives each session a full timeout, and knows none
of the connections that it had; a client that uses one is answered that it is closed, and continues its session over
another.

The requests of a connection wait in a queue, in the order of their numbers (`messages/store.py`); the first one is
being carried out. The queue is dropped with its connection. A connection is never opened a second time: a copy of the
message that opened it, which arrives late, must not let copies of its requests be carried out again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.contract import Outbox
from protocol.ids import NodeId, TimeMs
from protocol.messages.store import (
    NO_SESSION,
    ConnectionClosed,
    OpenSession,
    SessionOpened,
    StoreError,
    StoreRequest,
)
from protocol.v3.store.transaction_log import Session

SESSION_PREFIX = "session/"
"""Timers of sessions, by session id."""
WORK_PREFIX = "work/"
"""Timers of the requests that are being carried out, by connection id."""
PING_PREFIX = "store-ping/"
"""The client's timer whose pings renew the session, by connection id."""


@dataclass(slots=True, eq=False)
class Connection:
    """`session`: None until it is open; `xid`: of the last request received; `number`: of the last message sent."""

    connection_id: int
    client: NodeId
    session: Session | None = None
    xid: int = 0
    number: int = 0
    queue: deque[OpenSession | StoreRequest] = field(default_factory=deque)

    def next_number(self) -> int:
        self.number += 1
        return self.number


class Connections:
    """The open connections by number and by session, and the numbers of all since the store started."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self.open: dict[int, Connection] = {}
        self.by_session: dict[int, Connection] = {}
        self.used: set[int] = set()

    def find(self, client: NodeId, connection_id: int) -> Connection | None:
        """The client's open connection with this number; without one, the client is answered that it is closed."""
        connection = self.open.get(connection_id)
        if connection is None or connection.client != client:
            self._out.send(client, ConnectionClosed(connection_id=connection_id))
            return None
        return connection

    @property
    def work_timers(self) -> tuple[str, ...]:
        return tuple(f"{WORK_PREFIX}{number}" for number, connection in self.open.items() if connection.queue)

    def add(self, client: NodeId, connection_id: int) -> Connection:
        self.used.add(connection_id)
        connection = self.open[connection_id] = Connection(connection_id, client)
        return connection

    def attach(self, connection: Connection, session: Session, now_ms: TimeMs) -> None:
        """Opens the connection for a session, whose older connection ends."""
        if session.session_id in self.by_session:
            self.remove(self.by_session[session.session_id])
        connection.session = session
        self.by_session[session.session_id] = connection
        self.touch(connection, now_ms)
        self.confirm(connection)

    def confirm(self, connection: Connection) -> None:
        """Answers that the connection is open. A repeated request renews no session: its client hears nothing."""
        number, session = connection.connection_id, connection.session
        assert session is not None
        timeout_ms = session.timeout_ms
        opened = SessionOpened(connection_id=number, session_id=session.session_id, timeout_ms=timeout_ms)
        self._out.send(connection.client, opened)

    def refuse(self, client: NodeId, connection_id: int) -> None:
        """Answers a client that the session which it wants to continue has expired."""
        error = StoreError.SESSION_EXPIRED
        self._out.send(client, SessionOpened(connection_id=connection_id, session_id=NO_SESSION, error=error))

    def touch(self, connection: Connection, now_ms: TimeMs) -> None:
        if connection.session is not None:
            self._out.set_timer(
                f"{SESSION_PREFIX}{connection.session.session_id}",
                now_ms + connection.session.timeout_ms,
                idle_with=connection.client,
                renewed_by=f"{PING_PREFIX}{connection.connection_id}",
            )

    def await_client(self, session: Session, now_ms: TimeMs) -> None:
        """Gives a session without a connection its full timeout."""
        self._out.set_timer(f"{SESSION_PREFIX}{session.session_id}", now_ms + session.timeout_ms)

    def remove(self, connection: Connection) -> None:
        del self.open[connection.connection_id]
        if connection.queue:
            self._out.cancel_timer(f"{WORK_PREFIX}{connection.connection_id}")
            connection.queue.clear()
        if connection.session is not None:
            self.by_session.pop(connection.session.session_id, None)

    def close(self, connection: Connection) -> None:
        self.remove(connection)
        self._out.send(connection.client, ConnectionClosed(connection_id=connection.connection_id))

    def end_session(self, session_id: int) -> None:
        self._out.cancel_timer(f"{SESSION_PREFIX}{session_id}")
        if session_id in self.by_session:
            self.close(self.by_session[session_id])
