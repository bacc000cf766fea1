"""The connections of the simulated network between hosts of applications and the listeners of brokers.

A connection is as TCP makes it. Bytes arrive once and in order, or the connection ends. A segment that a cut link or a
disturbance drops is sent again after `FIRST_RETRY_MS`, then after twice that time, and so on up to `LAST_RETRY_MS`
(RFC 6298), so that after a heal bytes arrive at the next retransmission; after `reset_after_ms` the sender gives up
with ETIMEDOUT. Delays of a link apply to every segment, and a late one holds back those behind it.

The kernel of a broker's host outlives the broker's process. While the process is paused, connections are accepted and
bytes are acknowledged, and nothing answers (half-open). When it ends, its connections are reset at once where the link
is up, otherwise when bytes reach the host. A connection to a host without a process is refused.

Left out: windows and congestion control (a peer that does not read slows no sender), half-closed connections, and the
machine that vanishes together with its kernel.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.recorder import Change, Recorder
from experiments.virtual.broker import SimulatedBroker
from protocol.ids import LISTENER, NodeId, TimeMs, node_name
from protocol.messages.base import Message
from protocol.messages.connections import ClientBytes, ClientConnected, ClientDisconnected

if TYPE_CHECKING:
    from experiments.virtual.loop import SimulatedLoop
    from experiments.virtual.observer import Observer

PORT = 9092
FIRST_RETRY_MS = 200
SYN_RETRY_MS = 1_000
LAST_RETRY_MS = 120_000
RESET_AFTER_MS = 924_600
"""15 retransmissions: Linux's `net.ipv4.tcp_retries2`."""
CONNECT_WITHIN_MS = 127_000
"""6 retransmissions of a SYN: Linux's `net.ipv4.tcp_syn_retries`."""

LOOKUPS, LOOKUP_WITHIN_MS = 2, 5_000
"""Attempts of a lookup and the time of each: `attempts` and `timeout` of resolv.conf."""


class Stream:
    """One direction of a connection: what was sent and has not arrived, in order. `lost` is called when the sender
    gives up.
    """

    def __init__(self, connections: Connections, source: NodeId, target: NodeId, lost: Callable[[], None]) -> None:
        self._connections = connections
        self._source = source
        self._target = target
        self._lost = lost
        self._segments: deque[tuple[TimeMs, TimeMs, Callable[[], None]]] = deque()
        self._is_scheduled = False
        self.give_up_ms = connections.reset_after_ms
        self.first_retry_ms = FIRST_RETRY_MS

    def send(self, arrive: Callable[[], None]) -> TimeMs:
        """Sends something, and returns when it is due; `arrive` is called when it is there."""
        cluster = self._connections.cluster
        network, now_ms = cluster.network, cluster.now_ms
        route = network.route(self._source, self._target, ClientBytes)
        arrivals: Sequence[TimeMs] = ()
        attempt_ms, wait_ms = now_ms, self.first_retry_ms
        while not arrivals:
            arrivals = network.arrivals(attempt_ms, route)
            attempt_ms, wait_ms = attempt_ms + wait_ms, min(2 * wait_ms, LAST_RETRY_MS)
            if attempt_ms - now_ms > self.give_up_ms:
                arrivals, arrive = (attempt_ms,), self._give_up
        due_ms = max(min(arrivals), self._segments[-1][1] if self._segments else 0)
        self._segments.append((now_ms, due_ms, arrive))
        self._schedule(due_ms)
        return due_ms

    def clear(self) -> None:
        self._segments.clear()

    def _schedule(self, at_ms: TimeMs) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._connections.cluster.call_at(at_ms, self._pump)

    def _give_up(self) -> None:
        self.clear()
        self._lost()

    def _pump(self, wait_ms: TimeMs = 0) -> None:
        """Delivers what is due, or tries again after `wait_ms` (0: the first time to wait)."""
        self._is_scheduled = False
        cluster = self._connections.cluster
        while self._segments:
            sent_ms, due_ms, arrive = self._segments[0]
            if due_ms > cluster.now_ms:
                self._schedule(due_ms)
                return
            if cluster.network.is_cut(self._source, self._target):
                if cluster.now_ms - sent_ms >= self.give_up_ms:
                    self._give_up()
                    return
                self._is_scheduled = True
                wait_ms = wait_ms or self.first_retry_ms
                cluster.call_at(cluster.now_ms + wait_ms, partial(self._pump, min(2 * wait_ms, LAST_RETRY_MS)))
                return
            self._segments.popleft()
            arrive()
            wait_ms = 0


class Connection(asyncio.Transport):
    """A connection, as the transport of the application's end."""

    def __init__(
        self, connections: Connections, loop: SimulatedLoop, number: int, ends: tuple[NodeId, NodeId], protocol: Any
    ) -> None:
        self.host, self.broker = ends
        address = (connections.address(self.broker), PORT)
        super().__init__({"peername": address, "sockname": ("10.0.1.1", 40_000 + number), "socket": None})
        self.number = number
        self.incarnation = -1
        self.is_open = True
        """Whether the application's end is open."""
        self.is_accepted = False
        """Whether a process of the broker has the other end."""
        self.held: list[Message] = []
        """What the broker's kernel has for a process that is paused."""
        self.to_broker = Stream(connections, self.host, self.broker, self._time_out)
        self.to_host = Stream(connections, self.broker, self.host, lambda: connections.forget(self))
        self._connections = connections
        self._loop = loop
        self._protocol = protocol
        self._is_reading = True
        self._unread: list[bytes] = []
        self.refuse: Callable[[OSError], None] = self.lose
        """Called where the connection does not come about."""

    # -- the application's end -----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_open or not data:
            return
        message = ClientBytes.unchecked(connection=self.number, data=bytes(data))
        self._connections.observe(self, "sends", message.data)
        self.post(message)

    def post(self, message: Message) -> None:
        """Sends a message to the broker's host."""
        due_ms = self.to_broker.send(lambda: self._connections.arrive(self, message))
        self._connections.record_sent(self.host, self.broker, message, due_ms)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self.is_open:
            self.post(ClientDisconnected(connection=self.number))
            self.lose(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return not self.is_open

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: writes are never held back."""

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        unread, self._unread = self._unread, []
        for data in unread:
            self.take(data)

    def take(self, data: bytes) -> None:
        """Bytes have arrived at the application's host."""
        if not self._is_reading:
            self._unread.append(data)
        elif self.is_open:
            self._connections.observe(self, "receives", data)
            self._loop.call_soon(self._receive, data)

    def _receive(self, data: bytes) -> None:
        if self.is_open:
            self._protocol.data_received(data)

    def end(self) -> None:
        """The broker has closed its end."""
        if self.is_open:
            self._connections.observe(self, "is closed", b"")
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        if self.is_open and not self._protocol.eof_received():
            self.close()

    def lose(self, error: OSError | None) -> None:
        """The application's end is closed, or the connection is broken."""
        if self.is_open:
            self._connections.observe(self, "ends", str(error or "").encode())
            if error is not None:
                self._connections.record_broken(self, error)
            self.is_open = False
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _time_out(self) -> None:
        error = os_error(errno.ETIMEDOUT)
        if self.is_accepted:
            self.lose(error)
        else:
            self.refuse(error)
        self._connections.forget(self)


class Connections(Recorder):
    """All connections of a cluster's network; installs itself as the cluster's recorder and passes on to the one of
    `record_to`. `observer` receives what goes through the application's ends.
    """

    def __init__(self, cluster: SimCluster, observer: Observer, reset_after_ms: int = RESET_AFTER_MS) -> None:
        self.cluster = cluster
        self.reset_after_ms = reset_after_ms
        self._observer = observer
        self._inner = Recorder()
        self._open: dict[int, Connection] = {}
        self._last_number = 0
        self._hash = hashlib.blake2b(digest_size=16)
        cluster.recorder = self

    def trace_hash(self) -> str:
        """A digest of all that went through the application's ends, with its times."""
        return self._hash.hexdigest()

    def observe(self, connection: Connection, what: str, data: bytes) -> None:
        text = f"{self.cluster.now_ms} {connection.number} {what} {len(data)} "
        self._hash.update(text.encode() + data)
        self._observer.observe(self.cluster.now_ms, connection, what, data)

    def record_to(self, recorder: Recorder) -> None:
        """From now on this recorder receives what the cluster does, and what goes through connections."""
        self._inner = recorder
        self.cluster.recorder = self

    def record_sent(self, source: NodeId, target: NodeId, message: Message, due_ms: TimeMs) -> None:
        self._inner.sent(self.cluster.now_ms, source, target, message, (due_ms,))

    def record_broken(self, connection: Connection, error: OSError) -> None:
        """The application's host takes the connection for broken."""
        message = ClientDisconnected(connection=connection.number, reason=str(error.strerror))
        self._inner.delivered(self.cluster.now_ms, connection.broker, connection.host, message)

    # -- names ---------------------------------------------------------------------------------------------------------

    async def resolve(self, loop: SimulatedLoop, source: NodeId, host: object) -> NodeId:
        """The broker with a host name (`broker-0`), which takes a round trip to the name server, or an address.
        socket.gaierror for a name that is not there, and where the server does not answer.

        The server has a link of its own, and is behind the same switch as the brokers: a host that no broker can send
        to or receive from is cut off from it as well.
        """
        brokers = self.cluster.spec.broker_ids
        if (numeric := [broker for broker in brokers if host == self.address(broker)]) != []:
            return numeric[0]
        for _ in range(LOOKUPS):
            answered, cluster = loop.create_future(), self.cluster
            is_heard = any(not self._is_cut(source, broker) for broker in brokers)
            route = cluster.network.route(source, LISTENER, ClientBytes)
            due_ms = 2 * cluster.network.arrival_ms(cluster.now_ms, route) - cluster.now_ms
            cluster.call_at(due_ms if is_heard else cluster.now_ms + LOOKUP_WITHIN_MS, partial(_set_result, answered))
            await answered
            if is_heard:
                found = [broker for broker in brokers if host == node_name(broker)]
                if not found:
                    raise socket.gaierror(socket.EAI_NONAME, f"Name or service not known: {host}")
                return found[0]
        raise socket.gaierror(socket.EAI_AGAIN, f"Temporary failure in name resolution: {host}")

    def _is_cut(self, a: NodeId, b: NodeId) -> bool:
        return self.cluster.network.is_cut(a, b) or self.cluster.network.is_cut(b, a)

    @staticmethod
    def address(broker: NodeId) -> str:
        """The address of a broker's host."""
        return f"10.0.{2 + broker // 250}.{1 + broker % 250}"

    # -- from the application ------------------------------------------------------------------------------------------

    def connect(
        self,
        loop: SimulatedLoop,
        host: NodeId,
        broker: NodeId,
        port: int,
        protocol: Any,
        connected: asyncio.Future[Any],
    ) -> Connection:
        """Begins a connection; `connected` has a result when it stands, or the OSError."""
        self._last_number += 1
        connection = Connection(self, loop, self._last_number, (host, broker), protocol)
        self._open[connection.number] = connection
        self.observe(connection, f"connects to {broker}", b"")
        hello = ClientConnected(connection=connection.number, peer=f"app-{host}")

        def accept() -> None:
            if port != PORT or not self._is_accepting(broker):
                connection.to_host.send(lambda: fail(os_error(errno.ECONNREFUSED)))
                return
            connection.incarnation = self.cluster.incarnation_of(broker)
            connection.is_accepted = True
            self.arrive(connection, hello)
            connection.to_host.send(establish)

        def establish() -> None:
            connection.to_broker.give_up_ms, connection.to_broker.first_retry_ms = self.reset_after_ms, FIRST_RETRY_MS
            if connection.is_open and not connected.done():
                loop.call_soon(protocol.connection_made, connection)
                loop.call_soon(_set_result, connected)

        def fail(error: OSError) -> None:
            connection.is_open = False
            self.forget(connection)
            self.record_broken(connection, error)
            if not connected.done():
                connected.set_exception(error)

        connection.refuse = fail

        connection.to_broker.give_up_ms, connection.to_broker.first_retry_ms = CONNECT_WITHIN_MS, SYN_RETRY_MS
        self.record_sent(host, broker, hello, connection.to_broker.send(accept))
        return connection

    def _is_accepting(self, broker: NodeId) -> bool:
        node = self.cluster.nodes.get(broker)
        return isinstance(node, SimulatedBroker) and node.is_accepting

    def arrive(self, connection: Connection, message: Message) -> None:
        """A segment has arrived at the broker's host."""
        broker = connection.broker
        if not connection.is_accepted or self.cluster.incarnation_of(broker) != connection.incarnation:
            if not isinstance(message, ClientDisconnected):
                connection.to_host.send(lambda: self._reset(connection))
        elif self.cluster.is_paused(broker):
            connection.held.append(message)
        else:
            self._hand_over(connection, message)

    def _hand_over(self, connection: Connection, message: Message) -> None:
        cluster, broker = self.cluster, connection.broker
        self._inner.delivered(cluster.now_ms, connection.host, broker, message)
        if isinstance(message, ClientDisconnected):
            self.forget(connection)
        cluster.carry_out(broker, cluster.nodes[broker].receive(cluster.time_at(broker), connection.host, message))

    def _reset(self, connection: Connection) -> None:
        connection.lose(os_error(errno.ECONNRESET))
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        connection.is_accepted = False
        self._open.pop(connection.number, None)

    # -- from brokers --------------------------------------------------------------------------------------------------

    def from_broker(self, message: ClientBytes | ClientDisconnected) -> None:
        """A listener has sent something to an application."""
        connection = self._open.get(message.connection)
        if connection is None:
            return
        due_ms = connection.to_host.send(lambda: self._arrive_at_host(connection, message))
        self.record_sent(connection.broker, connection.host, message, due_ms)
        if isinstance(message, ClientDisconnected):
            self.forget(connection)

    def _arrive_at_host(self, connection: Connection, message: ClientBytes | ClientDisconnected) -> None:
        self._inner.delivered(self.cluster.now_ms, connection.broker, connection.host, message)
        if isinstance(message, ClientBytes):
            connection.take(message.data)
        else:
            connection.end()

    # -- as the cluster's recorder -------------------------------------------------------------------------------------

    def sent(
        self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message, arrivals: Sequence[TimeMs]
    ) -> None:
        self._inner.sent(time_ms, source, target, message, arrivals)

    def delivered(self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message) -> None:
        self._inner.delivered(time_ms, source, target, message)

    def fired(self, time_ms: TimeMs, node: NodeId, timer: str) -> None:
        self._inner.fired(time_ms, node, timer)

    def changed(self, time_ms: TimeMs, change: Change, node: NodeId, peer: NodeId | None, detail: str) -> None:
        self._inner.changed(time_ms, change, node, peer, detail)
        if change in ("crashed", "exited"):
            for connection in self._at(node):
                connection.held.clear()
                connection.is_accepted = False
                if not self.cluster.network.is_cut(node, connection.host):
                    connection.to_host.send(partial(self._reset, connection))
        elif change == "resumed":
            for connection in self._at(node):
                self.cluster.call_at(time_ms, partial(self._take_held, connection))

    def _at(self, broker: NodeId) -> list[Connection]:
        return [connection for connection in self._open.values() if connection.broker == broker]

    def _take_held(self, connection: Connection) -> None:
        held, connection.held = connection.held, []
        for message in held:
            self.arrive(connection, message)


def os_error(number: int) -> OSError:
    """The OSError subclass of an errno, with the system's text."""
    return OSError(number, os.strerror(number))


def _set_result(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)
