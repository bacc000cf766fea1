"""TCP connections between the processes of nodes, on the event loops of the nodes.

Each has one direction: the node that opens it sends frames (`actors/frames.py`), the other one only reads. It begins
with a `Hello`: the secret of the receiver, which its actor gives to those who may call it, and who sends on which
channel. Where Ray encrypts its calls, connections are encrypted with the same certificates. TCP keeps the order of the
frames. The receiver stops reading while `MAX_UNHANDLED_BYTES` wait for its node, so that what a slow node cannot take
waits at its peers, and at last in their queues.

A connection ends with the process at either end, and when the other machine does not answer: an idle one after
`SILENT_S`, one with data on its way when the system gives up, after some minutes. A process that is stopped takes
nothing, but its machine answers, so its connections stay. A sender that ends first closes its direction; the receiver
closes the connection once its node has handled everything.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from actors.frames import Frame, FrameReader
from actors.peers import Address, PeerGoneError
from protocol.errors import CodecError
from protocol.ids import NodeId

_LOG = logging.getLogger(__name__)
SECRET_BYTES = 32
BACKLOG = 128
HELLO_WITHIN_S = 10.0
"""How long the process runs, at the most twice, until a new connection has said who opens it."""
CONNECT_WITHIN_S = 5.0
"""How long another machine may take to accept a connection. That of a stopped process does so for it."""
HANDSHAKE_WITHIN_S = 3_600.0
"""How long the other process may take to begin with TLS. It may be stopped."""
SILENT_S = 30
"""After so long without an answer of the other machine an idle connection is lost."""
_PROBE_AFTER_S, _PROBE_EVERY_S = 10, 5
MAX_UNHANDLED_BYTES = 4 * 1_048_576
"""How many bytes of a connection may wait for the node before its socket is not read any more."""
_HELLO = struct.Struct(f">{SECRET_BYTES}sqQ?Q")


@dataclass(frozen=True, slots=True)
class Tls:
    """The contexts of both ends of connections that are encrypted."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def tls_of_ray(environment: Mapping[str, str]) -> Tls | None:
    """TLS with the certificates with which Ray encrypts its calls, None where it does not (`RAY_USE_TLS`). Both ends
    show theirs, and trust those of Ray's authority whatever host they name, as a Ray node may have any address.
    """
    if environment.get("RAY_USE_TLS", "0") in ("", "0"):
        return None
    tls = Tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for context in (tls.server, tls.client):
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.load_cert_chain(environment["RAY_TLS_SERVER_CERT"], environment["RAY_TLS_SERVER_KEY"])
        context.load_verify_locations(environment["RAY_TLS_CA_CERT"])
    return tls


def _encrypted(context: ssl.SSLContext) -> dict[str, Any]:
    return {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_WITHIN_S}


@dataclass(frozen=True, slots=True)
class Hello:
    """Who opens a connection: this `incarnation` of the `sender`, for its data or its control channel. `number` counts
    the connections that it has opened, to all peers.
    """

    sender: NodeId
    incarnation: int
    control: bool
    number: int

    @property
    def channel(self) -> tuple[NodeId, int, bool]:
        """What one connection at a time is open for."""
        return self.sender, self.incarnation, self.control


class Taker(Protocol):
    """What takes the frames of all connections."""

    def take(self, hello: Hello, frame: Frame, handled: Callable[[], None]) -> None:
        """Takes the next frame of a connection; `handled` is called once, when the node has handled it."""

    def malformed(self, sender: NodeId, error: CodecError) -> None: ...


class Listener:
    """Takes the connections to an `incarnation` of a node, at a port of the address `host` that the system chooses."""

    def __init__(self, host: str, incarnation: int, tls: Tls | None = None) -> None:
        self._bound = _bound(host)
        self.tls = tls
        self.connections: set[Incoming] = set()
        self.is_closed = False
        self._server: asyncio.Server | None = None
        self.address = Address(host, self._bound.getsockname()[1], secrets.token_bytes(SECRET_BYTES), incarnation)

    async def serve(self, taker: Taker) -> None:
        """Takes connections, on the running loop; those that have been opened before wait until then."""
        if self.is_closed:
            return
        encrypted = {} if self.tls is None else _encrypted(self.tls.server)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Incoming(self, taker), sock=self._bound, backlog=BACKLOG, **encrypted
        )
        if self.is_closed:
            self._server.close()

    def end(self, senders: Collection[NodeId]) -> None:
        """Resets the connections of these senders, without what they have sent and the node has not got yet."""
        for connection in list(self.connections):
            if connection.hello is not None and connection.hello.sender in senders:
                connection.abort()

    def close(self) -> None:
        """Resets all connections, and takes no others."""
        self.is_closed = True
        if self._server is not None:
            self._server.close()
        self._bound.close()
        for connection in list(self.connections):
            connection.abort()


def _bound(host: str) -> socket.socket:
    """A socket that listens at a host's address; at all addresses of a machine that is reached by another one's, behind
    address translation.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family, backlog=BACKLOG)
    except OSError:
        return socket.create_server(("", 0), family=family, backlog=BACKLOG)


class Incoming(asyncio.Protocol):
    """A connection that a peer has opened; `hello` is None until it has said who it is."""

    def __init__(self, listener: Listener, taker: Taker) -> None:
        self.hello: Hello | None = None
        self._listener, self._taker = listener, taker
        self._transport: asyncio.Transport
        self._begin = b""
        self._reader = FrameReader(self._note_malformed)
        self._unhandled_bytes = 0
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.connections.add(self)
        prepare(transport.get_extra_info("socket"))
        if self._listener.is_closed:
            self.abort()
        loop = asyncio.get_running_loop()

        def wait_again() -> None:
            """After a stop of the process this comes before what has arrived meanwhile is read."""
            self._impatience = loop.call_later(HELLO_WITHIN_S, self.abort)

        self._impatience = loop.call_later(HELLO_WITHIN_S, wait_again)

    def data_received(self, data: bytes) -> None:
        if self.hello is None:
            data = self._begin + data
            if len(data) < _HELLO.size:
                self._begin = data
                return
            self._begin = b""
            if not self._is_accepted(data[: _HELLO.size]):
                self.abort()
                return
            data = data[_HELLO.size :]
        assert self.hello is not None
        try:
            for frame in self._reader.feed(data):
                self._unhandled_bytes += frame.size
                self._taker.take(self.hello, frame, partial(self._handled, frame.size))
        except CodecError as error:
            self._note_malformed(error)
            self.abort()
        self._set_reading()

    def _is_accepted(self, begin: bytes) -> bool:
        """Takes the hello, and ends the connection that it replaces."""
        self._impatience.cancel()
        secret, *fields = _HELLO.unpack(begin)
        if not hmac.compare_digest(secret, self._listener.address.secret):
            return False
        hello = Hello(*fields)
        opened = [(other, other.hello) for other in self._listener.connections if other.hello is not None]
        same = [(other, found.number) for other, found in opened if found.channel == hello.channel]
        if any(number > hello.number for _, number in same):
            return False
        for other, _ in same:
            other.abort()
        self.hello = hello
        return True

    def _note_malformed(self, error: CodecError) -> None:
        assert self.hello is not None
        self._taker.malformed(self.hello.sender, error)

    def _handled(self, count: int) -> None:
        self._unhandled_bytes -= count
        self._set_reading()

    def _set_reading(self) -> None:
        if self._transport.is_closing():
            return
        if self._has_ended and not self._unhandled_bytes:
            self._transport.close()
        elif self._unhandled_bytes > MAX_UNHANDLED_BYTES:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Keeps the connection open until everything has been handled; one with TLS ends at once."""
        self._has_ended = True
        self._set_reading()
        return self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._impatience.cancel()
        self._listener.connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()


class Outgoing(asyncio.Protocol):
    """A connection that this node has opened, to this `incarnation` of the peer. `on_room` is called when it can be
    written to after it was `is_congested`, `on_end` once it `has_ended`.
    """

    def __init__(
        self, hello: bytes, incarnation: int, on_room: Callable[[], None], on_end: Callable[[Outgoing], None]
    ) -> None:
        self.incarnation = incarnation
        self.is_congested = False
        self.has_ended = False
        self._is_finishing = False
        self._hello, self._on_room, self._on_end = hello, on_room, on_end
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        prepare(transport.get_extra_info("socket"))
        transport.write(self._hello)

    def write(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._transport.write(piece)

    def finish(self) -> None:
        """Sends nothing more; the connection ends once the peer has handled everything, with TLS has received it."""
        if self._is_finishing:
            return
        self._is_finishing = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False
        self._on_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True
        self._on_end(self)


async def connect(
    address: Address,
    hello: Hello,
    on_room: Callable[[], None],
    on_end: Callable[[Outgoing], None],
    tls: Tls | None = None,
) -> Outgoing:
    """Opens a connection. PeerGoneError where nothing listens at the address any more."""
    begin = _HELLO.pack(address.secret, hello.sender, hello.incarnation, hello.control, hello.number)

    def outgoing() -> Outgoing:
        return Outgoing(begin, address.incarnation, on_room, on_end)

    encrypted = {} if tls is None else _encrypted(tls.client) | {"server_hostname": address.host}
    try:
        connected = await _connected(address.host, address.port)
        _, connection = await asyncio.get_running_loop().create_connection(outgoing, sock=connected, **encrypted)
    except ssl.SSLError as error:
        _LOG.warning("%s:%s: %s", address.host, address.port, error)
        raise PeerGoneError(str(error)) from error
    except OSError as error:
        raise PeerGoneError(f"{address.host}:{address.port}") from error
    return connection


async def _connected(host: str, port: int) -> socket.socket:
    """A connected socket. OSError where the other machine does not accept."""
    loop = asyncio.get_running_loop()
    (family, kind, protocol, _, where), *_ = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await loop.sock_connect(connection, where)
        connection.getpeername()  # if this process was stopped, it may be connected nevertheless
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: socket.socket) -> None:
    """Has the system send everything at once, and end a connection whose other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (SILENT_S - _PROBE_AFTER_S) // _PROBE_EVERY_S)
