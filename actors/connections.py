"""TCP connections between the processes of nodes, on the event loops of the nodes.

Each has one direction: the node that opens it sends frames (`actors/frames.py`), the other one only reads. It begins
with a `Hello`: the secret of the receiver, which its actor gives to those who may call it, and who sends on which
channel. Where Ray encrypts its calls, connections are encrypted with the same certificates. TCP keeps the order of the
frames. The receiver stops reading while `MAX_UNHANDLED_BYTES` wait for its node, so that
what a slow node cannot take waits at its peers, and at last in their queues.

Either side notices that the other one's process has ended by the connection's end; that its machine is lost, when
nothing has been acknowledged for `SILENT_S`. A sender that ends first closes its direction; the receiver closes the
connection once its node has handled everything.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from actors.frames import Frame, FrameReader
from actors.peers import Address, PeerGoneError
from protocol.errors import CodecError
from protocol.ids import NodeId

SECRET_BYTES = 32
BACKLOG = 128
HELLO_WITHIN_S = 10.0
"""How long a new connection may take to say who opens it."""
CONNECT_WITHIN_S = 5.0
SILENT_S = 30
"""After so long without an acknowledgement of the other machine a connection is lost, as after Kafka's
`request.timeout.ms`."""
_PROBE_AFTER_S, _PROBE_EVERY_S = 10, 5
MAX_UNHANDLED_BYTES = 4 * 1_048_576
"""How many bytes of a connection may wait for the node before its socket is not read any more."""
_HELLO = struct.Struct(f">{SECRET_BYTES}sq?QQ")


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
    authority = environment["RAY_TLS_CA_CERT"]
    contexts = [ssl.create_default_context(purpose, cafile=authority) for purpose in ssl.Purpose]
    for context in contexts:
        context.load_cert_chain(environment["RAY_TLS_SERVER_CERT"], environment["RAY_TLS_SERVER_KEY"])
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    by_purpose = dict(zip(ssl.Purpose, contexts, strict=True))
    return Tls(by_purpose[ssl.Purpose.CLIENT_AUTH], by_purpose[ssl.Purpose.SERVER_AUTH])


@dataclass(frozen=True, slots=True)
class Hello:
    """Who opens a connection: its `incarnation`, on the data or the control channel. `number` counts the connections
    of this incarnation on the channel.
    """

    sender: NodeId
    control: bool
    incarnation: int
    number: int


class Taker(Protocol):
    """What takes the frames of all connections."""

    def accept(self, hello: Hello, connection: Incoming) -> bool:
        """Whether a new connection is the newest one of its channel from this incarnation; ends the one before."""

    def take(self, hello: Hello, frame: Frame, handled: Callable[[], None]) -> None:
        """Takes the next frame of a connection; `handled` is called once, when the node has handled it."""

    def malformed(self, sender: NodeId, error: CodecError) -> None: ...


class Listener:
    """Takes the connections to an `incarnation` of a node, at a port of the address `host` that the system chooses."""

    def __init__(self, host: str, incarnation: int, tls: Tls | None = None) -> None:
        self._bound = _bound(host)
        self.tls = tls
        self._open: set[Incoming] = set()
        self._server: asyncio.Server | None = None
        self.address = Address(host, self._bound.getsockname()[1], secrets.token_bytes(SECRET_BYTES), incarnation)

    async def serve(self, taker: Taker) -> None:
        """Takes connections, on the running loop; those that have been opened before wait until then."""

        def incoming() -> Incoming:
            return Incoming(self.address.secret, taker, self._open)

        tls = None if self.tls is None else self.tls.server
        self._server = await asyncio.get_running_loop().create_server(incoming, sock=self._bound, ssl=tls)

    def close(self) -> None:
        """Resets all connections, and takes no others."""
        if self._server is not None:
            self._server.close()
        self._bound.close()
        for connection in list(self._open):
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
    """A connection that a peer has opened; `among` are the open ones."""

    def __init__(self, secret: bytes, taker: Taker, among: set[Incoming]) -> None:
        self._secret, self._taker, self._among = secret, taker, among
        self._transport: asyncio.Transport
        self._hello: Hello | None = None
        self._begin = b""
        self._reader = FrameReader(self._note_malformed)
        self._unhandled_bytes = 0
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._among.add(self)
        prepare(transport.get_extra_info("socket"))
        self._impatience = asyncio.get_running_loop().call_later(HELLO_WITHIN_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._hello is None:
            self._begin += data
            if len(self._begin) < _HELLO.size:
                return
            data = self._begin[_HELLO.size :]
            if not self._is_accepted(self._begin[: _HELLO.size]):
                self.abort()
                return
        assert self._hello is not None
        try:
            for frame in self._reader.feed(data):
                self._unhandled_bytes += frame.size
                self._taker.take(self._hello, frame, partial(self._handled, frame.size))
        except CodecError as error:
            self._note_malformed(error)
            self.abort()
        self._set_reading()

    def _is_accepted(self, begin: bytes) -> bool:
        secret, sender, control, incarnation, number = _HELLO.unpack(begin)
        self._impatience.cancel()
        self._hello = Hello(sender, control, incarnation, number)
        return hmac.compare_digest(secret, self._secret) and self._taker.accept(self._hello, self)

    def _note_malformed(self, error: CodecError) -> None:
        assert self._hello is not None
        self._taker.malformed(self._hello.sender, error)

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
        self._among.discard(self)

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
    begin = _HELLO.pack(address.secret, hello.sender, hello.control, hello.incarnation, hello.number)

    def outgoing() -> Outgoing:
        return Outgoing(begin, address.incarnation, on_room, on_end)

    loop, context = asyncio.get_running_loop(), None if tls is None else tls.client
    name = None if tls is None else address.host
    try:
        opening = loop.create_connection(outgoing, address.host, address.port, ssl=context, server_hostname=name)
        _, connection = await asyncio.wait_for(opening, CONNECT_WITHIN_S)
    except (OSError, TimeoutError) as error:
        raise PeerGoneError(f"{address.host}:{address.port}") from error
    return connection


def prepare(connection: socket.socket) -> None:
    """Has the system send everything at once, and end a connection once the other machine has been silent for
    `SILENT_S`.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (SILENT_S - _PROBE_AFTER_S) // _PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1_000)
