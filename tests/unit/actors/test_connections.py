"""Connections between nodes: who may open one, which of two counts, bytes that are no frames, TLS, lost machines."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from actors import connections
from actors.connections import SECRET_BYTES, Hello, Listener, Outgoing, connect, tls_of_ray
from actors.frames import joined_frame
from actors.peers import Address, PeerGoneError
from protocol.messages.codec import encode
from tests.pem_files import pem_files
from tests.unit.actors.transport_helpers import (
    CONTROL,
    DATA,
    LOOPBACK,
    FakeNode,
    Trio,
    assert_soon,
    closed,
    data,
    on_loop,
    open_sockets,
)

SENDER = 5


def frame(number: int) -> bytes:
    return joined_frame([encode(data(number))])


class Peer:
    """A node that writes what the test gives it."""

    def __init__(self, address: Address, number: int = 1, control: bool = DATA) -> None:
        self._address = address
        self._hello = Hello(SENDER, 1, control, number)
        self.connection: Outgoing

    async def write(self, *pieces: bytes) -> None:
        self.connection = await connect(self._address, self._hello, lambda: None, lambda _: None)
        self.connection.write(pieces)

    @property
    def is_refused(self) -> bool:
        return self.connection.has_ended


@on_loop
async def test_a_connection_with_another_secret_is_ended_and_brings_nothing() -> None:
    nodes = Trio()
    right = nodes.one.transport.address
    wrong = Address(right.host, right.port, bytes(SECRET_BYTES), right.incarnation)
    peer = Peer(wrong)
    await peer.write(frame(1))
    await assert_soon(lambda: peer.is_refused)
    await Peer(right).write(frame(2))
    await assert_soon(lambda: nodes.one.numbers == [2])


@on_loop
async def test_a_connection_that_does_not_say_who_opens_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELLO_WITHIN_S", 0.01)
    address = Trio().one.transport.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(address.secret)
    try:
        found = await asyncio.wait_for(reader.read(1), 30)
    except ConnectionResetError:
        found = b""
    assert found == b""
    writer.close()


@on_loop
async def test_the_newer_connection_of_a_channel_ends_the_older_one_and_an_older_one_is_refused() -> None:
    nodes = Trio()
    address = nodes.one.transport.address
    first, control = Peer(address, number=3), Peer(address, number=2, control=CONTROL)
    for number, peer in enumerate((first, control)):
        await peer.write(frame(number))
    await assert_soon(lambda: sorted(nodes.one.numbers) == [0, 1])
    late = Peer(address, number=2)
    await late.write(frame(7))
    await assert_soon(lambda: late.is_refused)
    newer = Peer(address, number=4)
    await newer.write(frame(8))
    await assert_soon(lambda: first.is_refused)
    newer.connection.write([frame(9)])
    control.connection.write([frame(10)])
    await assert_soon(lambda: sorted(nodes.one.numbers) == [0, 1, 8, 9, 10])


@on_loop
async def test_bytes_that_are_no_frame_end_the_connection_and_are_reported() -> None:
    nodes = Trio()
    peer = Peer(nodes.one.transport.address)
    await peer.write(frame(1), b"\xff" * 50)
    await assert_soon(lambda: peer.is_refused)
    assert nodes.one.numbers == [1]
    assert [str(error) for error in nodes.one.failures] == ["not a frame: a head of 4294967295 bytes"]


@on_loop
async def test_a_message_that_cannot_be_decoded_is_reported_and_the_connection_goes_on() -> None:
    nodes = Trio()
    peer = Peer(nodes.one.transport.address)
    await peer.write(joined_frame([b"junk", encode(data(1))]), frame(2))
    await assert_soon(lambda: nodes.one.numbers == [1, 2])
    assert len(nodes.one.failures) == 1


@on_loop
async def test_a_closed_listener_resets_its_connections_and_refuses_others() -> None:
    nodes = Trio()
    peer = Peer(nodes.one.transport.address)
    await peer.write(frame(1))
    await assert_soon(lambda: nodes.one.numbers == [1])
    nodes.one.transport.close()
    await assert_soon(lambda: peer.is_refused)
    with pytest.raises(PeerGoneError):
        await peer.write(frame(2))


@on_loop
async def test_a_host_that_does_not_answer_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket whose queue of new connections is full answers as a lost machine does: not at all."""
    monkeypatch.setattr(connections, "CONNECT_WITHIN_S", 0.05)
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        bound.listen(0)
        address = Address(*bound.getsockname(), bytes(SECRET_BYTES), 1)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(bound.getsockname())
        with pytest.raises(PeerGoneError):
            await Peer(address).write()
        for filler in fillers:
            filler.close()


@on_loop
async def test_connections_end_when_the_other_machine_is_silent_and_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[socket.socket] = []
    prepare = connections.prepare
    monkeypatch.setattr(connections, "prepare", lambda connection: kept.append(connection) or prepare(connection))
    nodes = Trio()
    await Peer(nodes.one.transport.address).write(frame(1))
    await assert_soon(lambda: nodes.one.numbers == [1])
    assert len(kept) == 2
    for connection in kept:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0, "the peer may be stopped"


@on_loop
async def test_a_connection_that_comes_while_its_listener_closes_is_ended() -> None:
    nodes = Trio()
    peer = Peer(nodes.one.transport.address)
    await peer.write(frame(1))
    nodes.one.transport.close()
    await assert_soon(lambda: peer.is_refused)
    assert nodes.one.taken == []
    assert nodes.one.failures == []


def test_an_address_does_not_show_its_secret() -> None:
    listener = Listener(LOOPBACK, 3)
    assert "secret" not in repr(listener.address)
    assert listener.address.incarnation == 3
    listener.close()


@on_loop
async def test_a_machine_that_is_reached_by_an_address_of_another_one_listens_at_all_of_its_own() -> None:
    """As behind address translation; 192.0.2.1 is an address of no machine (RFC 5737)."""
    listener = Listener("192.0.2.1", 1)
    assert listener.address.host == "192.0.2.1"
    _, writer = await asyncio.open_connection(LOOPBACK, listener.address.port)
    writer.close()
    listener.close()


# -- TLS ---------------------------------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    keystore, authority = pem_files(folder)
    files = {"RAY_TLS_SERVER_CERT": keystore, "RAY_TLS_SERVER_KEY": keystore, "RAY_TLS_CA_CERT": authority}
    return {"RAY_USE_TLS": "1"} | {name: str(path) for name, path in files.items()}


@pytest.mark.parametrize("value", [{}, {"RAY_USE_TLS": "0"}, {"RAY_USE_TLS": ""}])
def test_connections_are_not_encrypted_where_ray_encrypts_nothing(value: dict[str, str]) -> None:
    assert tls_of_ray(value) is None


@on_loop
async def test_connections_are_encrypted_with_the_certificates_of_ray_and_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    own, other = tls_of_ray(environment(tmp_path)), tls_of_ray(environment(tmp_path / "other"))
    nodes = Trio()
    secure, peer, stranger = (FakeNode(nodes, number, tls=tls) for number, tls in ((6, own), (7, own), (8, other)))
    nodes.zero.send(6, 1)
    stranger.send(6, 2)
    await assert_soon(lambda: nodes.forgotten.count(6) >= 2)
    peer.send(6, *range(10, 20))
    await assert_soon(lambda: secure.numbers == [*range(10, 20)])
    await asyncio.wait_for(peer.transport.await_delivery(60), 30)
    peer.transport.close()
    secure.send(0, 30)
    await assert_soon(lambda: nodes.zero.failures == [] and nodes.forgotten.count(0) >= 1)


@on_loop
async def test_a_node_with_tls_that_ends_delivers_what_it_has_sent(tmp_path: Path) -> None:
    tls = tls_of_ray(environment(tmp_path))
    sockets, nodes = open_sockets(), Trio()
    secure, peer = (FakeNode(nodes, number, tls=tls) for number in (6, 7))
    peer.send(6, 1)
    await assert_soon(lambda: secure.numbers == [1])
    secure.unhandled = []
    peer.send(6, 2)
    await asyncio.wait_for(peer.transport.await_delivery(60), 30)
    assert secure.numbers == [1, 2]
    await closed((nodes.zero, nodes.one, nodes.two, peer, secure), sockets)
