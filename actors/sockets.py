"""The sockets of a broker for Kafka's clients: TCP connections in the broker's process, on the event loop of the node.

They are the node `SOCKETS` at the other end of the listener's connections (`protocol/kafka`): bytes that arrive become
inputs of the broker's host, what the listener sends is written to the socket. A client that does not read is not read
from either; the bytes that wait for it are bounded by asyncio's write buffer and one response.

A broker listens where its config `listeners` says. With port 0 the system chooses a port; the broker keeps it in a file
on its disk, and takes it again at its next start if it is free, so that the bootstrap addresses of clients stay valid.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from actors.host import NodeHost
from actors.listener_security import principal_of
from protocol.config import LISTENERS, ConfigError
from protocol.contract import Storage
from protocol.ids import SOCKETS, BrokerId, NodeId
from protocol.kafka.addresses import ListenerAddress
from protocol.messages.base import Message
from protocol.messages.connections import ClientBytes, ClientCongested, ClientConnected, ClientDisconnected

PORT_FILE = "listener-port"
BACKLOG = 128
CLOSE_WITHIN_S = 10.0
"""How long a closed connection may take to deliver its last bytes to a client."""
MAX_UNHANDLED_BYTES = 1_048_576
"""How many bytes of a connection may wait for the node before its socket is not read any more."""


def bind(address: ListenerAddress, broker: BrokerId, storage: Storage, machine: str) -> socket.socket:
    """The bound socket of a broker; `machine` is the address of its machine. ConfigError for a port that is in use."""
    host = address.host or machine
    if address.port:
        return _bound(host, address.port_of(broker))
    kept = storage.read_file(PORT_FILE)
    if kept is not None and kept.isdigit():
        with suppress(ConfigError):
            return _bound(host, int(kept))
    found = _bound(host, 0)
    storage.write_file(PORT_FILE, str(found.getsockname()[1]).encode())
    return found


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(LISTENERS, f"{host}:{port}", "an address of this machine, free", f" ({reason})") from error


def endpoint_of(bound: socket.socket) -> str:
    """`HOST:PORT` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{host}:{port}"


class BrokerSockets:
    """The connections at a bound socket, encrypted with `tls` where it is given. `onward` takes what the host's node
    sends to other nodes.
    """

    def __init__(
        self, bound: socket.socket, onward: Callable[[NodeId, Message], None], tls: ssl.SSLContext | None = None
    ) -> None:
        self._bound = bound
        self._tls = tls
        self._onward = onward
        self._connections: dict[int, _Socket] = {}
        self._last = 0
        self._server: asyncio.Server | None = None

    async def serve(self, host: NodeHost) -> None:
        """Accepts connections for the node of `host`, on the running loop."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Socket(self, host), sock=self._bound, ssl=self._tls)

    def send(self, to: NodeId, message: Message) -> None:
        """As the host's `send`: messages to `SOCKETS` are written to their sockets."""
        if to != SOCKETS:
            self._onward(to, message)
        elif isinstance(message, ClientBytes | ClientDisconnected):
            connection = self._connections.get(message.connection)
            if connection is not None:
                connection.carry_out(message)

    def add(self, connection: _Socket) -> int:
        self._last += 1
        self._connections[self._last] = connection
        return self._last

    def remove(self, number: int) -> None:
        self._connections.pop(number, None)

    def close(self) -> None:
        """Closes the listening socket and resets all connections."""
        if self._server is not None:
            self._server.close()
        self._bound.close()
        for connection in list(self._connections.values()):
            connection.abort()


class _Socket(asyncio.Protocol):
    """One connection."""

    def __init__(self, sockets: BrokerSockets, host: NodeHost) -> None:
        self._sockets = sockets
        self._host = host
        self._number = 0
        self._transport: asyncio.Transport | None = None
        self._unhandled_bytes = 0
        self._is_congested = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio leaves out sockets of create_server
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._number = self._sockets.add(self)
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        principal = principal_of(transport.get_extra_info("peercert"))
        self._deliver(ClientConnected.unchecked(connection=self._number, peer=name, principal=principal))

    def data_received(self, data: bytes) -> None:
        self._unhandled_bytes += len(data)
        self._set_reading()
        message = ClientBytes.unchecked(connection=self._number, data=data)
        self._host.deliver(SOCKETS, [message], control=False, done=lambda: self._handled(len(data)))

    def _handled(self, count: int) -> None:
        self._unhandled_bytes -= count
        self._set_reading()

    def _set_reading(self) -> None:
        """Reads from the socket unless the client does not read, or the node has not handled what came."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if self._is_congested or self._unhandled_bytes > MAX_UNHANDLED_BYTES:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._set_congested(True)

    def resume_writing(self) -> None:
        self._set_congested(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sockets.remove(self._number)
        self._deliver(ClientDisconnected.unchecked(connection=self._number))

    def carry_out(self, message: ClientBytes | ClientDisconnected) -> None:
        """Writes bytes of the listener, or closes the connection once they are written."""
        assert self._transport is not None
        if isinstance(message, ClientBytes):
            self._transport.write(message.data)
        else:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self._transport.abort)

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _set_congested(self, is_congested: bool) -> None:
        self._is_congested = is_congested
        self._set_reading()
        self._deliver(ClientCongested.unchecked(connection=self._number, is_congested=is_congested))

    def _deliver(self, message: Message) -> None:
        self._host.deliver(SOCKETS, [message], control=False)
