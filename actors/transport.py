"""Sends messages to peers in frames, over connections between the processes of the nodes (`actors/connections.py`).

There are two channels to each peer, control (`Message.CONTROL`) and data, so that a blocked data path does not fence a
broker (`actors/channel.py`). Messages of a channel arrive in the order in which they were sent, and none arrives twice.
They get lost in four ways, all of which nodes survive: the connection ends, with the peer's process or since its
machine cannot be reached; the link is cut, which both sides check, and which ends its connections; the channel is full
(the new message is dropped, those that wait stay); the own process ends. Bytes that cannot be decoded are dropped on
arrival.

A peer that has started again opens connections of a newer incarnation. From then on messages go to that one, also those
that have waited. What a former incarnation sends, if it still runs, arrives too: epochs fence it, not the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from actors.channel import Channel, watch
from actors.connections import Hello, Listener, Outgoing, connect
from actors.frames import Encoded, Frame, unpack_frame
from actors.host import NodeHost
from actors.peers import Address, PeerGoneError
from protocol.errors import CodecError
from protocol.ids import DRIVER, NodeId
from protocol.messages.base import Message
from protocol.messages.codec import encode


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The links of a node that are not whole: it sends nothing to the peers `cut_to` and takes nothing from the peers
    `cut_from`; what it sends to a peer of `slow_to` leaves later by so many milliseconds.
    """

    cut_to: frozenset[NodeId] = frozenset()
    cut_from: frozenset[NodeId] = frozenset()
    slow_to: tuple[tuple[NodeId, int], ...] = ()


class Peers(Protocol):
    """Where the peers are."""

    async def address(self, peer: NodeId) -> Address:
        """The address of the peer's process. PeerGoneError where it has none."""

    def forget(self, peer: NodeId, older_than: int | None = None) -> None:
        """Has `address` look for the peer's present process, unless the last one is of this incarnation or newer."""


class Transport:
    """The channels of the node `own_id` to all its peers, and what arrives from them at `listener`. `on_failure` is
    called with every error in opening a connection but PeerGoneError. All calls but the constructor, `set_links` and
    `ignore_incarnations` on one event loop.
    """

    def __init__(
        self, own_id: NodeId, listener: Listener, peers: Peers, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._own_id = own_id
        self._listener = listener
        self._peers = peers
        self._on_failure = on_failure
        self._receiver: NodeHost
        self._channels: dict[tuple[NodeId, bool], Channel] = {}
        self._newest: dict[NodeId, int] = {}
        self._opened = 0
        self._is_running = True
        self._links = NodeLinks()
        self._delays_s: Mapping[NodeId, float] = {}
        self._ignored: Mapping[NodeId, int] = {}
        self._closed = False
        self._encoded: tuple[Message, Encoded] | None = None

    def serve(self, receiver: NodeHost) -> None:
        """Takes connections of peers from now on, on the running loop; `receiver` gets what arrives."""
        self._receiver = receiver
        self._serving = watch(asyncio.get_running_loop().create_task(self._listener.serve(self)), self._on_failure)

    @property
    def address(self) -> Address:
        """Where peers open connections."""
        return self._listener.address

    # -- outgoing ------------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: Message) -> None:
        """Queues a message for a peer unless the link is cut; one sent to several peers in a row is encoded once."""
        if to not in self._links.cut_to and not self._closed:
            if self._encoded is None or self._encoded[0] is not message:
                attached: list[bytes] = []
                self._encoded = message, Encoded(encode(message, attached=attached), attached)
            self._channel(to, message.CONTROL).put(self._encoded[1], message.can_wait)

    def _channel(self, peer: NodeId, control: bool) -> Channel:
        channel = self._channels.get((peer, control))
        if channel is None:
            channel = self._channels[peer, control] = Channel(
                lambda channel: self._connect(peer, control, channel),
                lambda: self._is_running,
                lambda: self._delays_s.get(peer, 0),
                self._on_failure,
            )
        return channel

    async def _connect(self, peer: NodeId, control: bool, channel: Channel) -> Outgoing:
        self._opened += 1
        hello = Hello(self._own_id, self.address.incarnation, control, self._opened)

        def end(link: Outgoing) -> None:
            self._peers.forget(peer)
            channel.lose(link)

        try:
            return await connect(await self._peers.address(peer), hello, channel.send_ready, end, self._listener.tls)
        except PeerGoneError:
            self._peers.forget(peer)
            raise

    # -- incoming ------------------------------------------------------------------------------------------------------

    def take(self, hello: Hello, frame: Frame, handled: Callable[[], None]) -> None:
        if not self.accepts_from(hello.sender) or hello.incarnation <= self._ignored.get(hello.sender, -1):
            handled()
            return
        self._observe_incarnation(hello.sender, hello.incarnation)
        self._deliver(hello.sender, hello.control, frame, handled)

    def _observe_incarnation(self, peer: NodeId, incarnation: int) -> None:
        if incarnation > self._newest.get(peer, -1):
            self._newest[peer] = incarnation
            self._peers.forget(peer, older_than=incarnation)
            for control in (False, True):
                if (channel := self._channels.get((peer, control))) is not None:
                    channel.reopen(incarnation)

    async def handle(self, sender: NodeId, control: bool, data: bytes) -> None:
        """Returns once the node has handled the messages of a frame that has not come over a connection."""
        frame, handled = unpack_frame(data, lambda error: self.malformed(sender, error)), asyncio.Event()
        if frame is not None:
            self._deliver(sender, control, frame, handled.set)
            await handled.wait()

    def _deliver(self, sender: NodeId, control: bool, frame: Frame, handled: Callable[[], None]) -> None:
        """Has the node handle the messages of a frame; `handled` is called within the last input, or at once where they
        are dropped.
        """
        if frame.messages and self.accepts_from(sender):
            self._receiver.deliver(sender, frame.messages, control, handled)
        else:
            handled()

    def malformed(self, sender: NodeId, error: CodecError) -> None:
        self._receiver.malformed(sender, error)

    # -- faults and the end --------------------------------------------------------------------------------------------

    def set_links(self, links: NodeLinks) -> None:
        """Cuts and slows these links, and heals all others."""
        self._links = links
        self._delays_s = {peer: delay_ms / 1000 for peer, delay_ms in links.slow_to}
        for (peer, _), channel in self._channels.items():
            if peer in links.cut_to:
                channel.close()
        self._listener.end(links.cut_from)

    def ignore_incarnations(self, incarnations: Mapping[NodeId, int]) -> None:
        """Drops frames of these incarnations of peers and of older ones, from now on; replaces the last call."""
        self._ignored = dict(incarnations)

    def accepts_from(self, sender: NodeId) -> bool:
        """Whether the link from a peer is whole; that from the experiment always is."""
        return sender == DRIVER or sender not in self._links.cut_from

    def pause(self) -> None:
        """Queues messages and sends nothing until `resume`."""
        self._is_running = False

    def resume(self) -> None:
        self._is_running = True
        for channel in self._channels.values():
            channel.send_ready()

    def close(self) -> None:
        """Resets all connections, and drops everything that is sent from now on."""
        self._closed = True
        self._listener.close()
        for channel in self._channels.values():
            channel.close()

    async def await_delivery(self, within_s: float) -> None:
        """Sends what waits, and then nothing more. Waits, at most `within_s`, until the peers have handled it."""
        self._closed = True
        ends = [channel.finish() for channel in self._channels.values()]
        if ends:
            await asyncio.wait(ends, timeout=within_s)
