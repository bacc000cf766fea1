"""Helpers for tests of the transport: nodes that keep what arrives, with real connections on one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from actors.connections import Listener, Tls
from actors.peers import Address, PeerGoneError
from actors.transport import Transport
from protocol.errors import CodecError
from protocol.messages.admin import MetadataRequest
from protocol.messages.base import Message
from protocol.messages.control import BrokerHeartbeatResponse
from protocol.messages.data import FetchPartitionResult, FetchResponse

DATA, CONTROL = False, True
WITHIN_S = 60.0
LOOPBACK = "127.0.0.1"
Arguments = ParamSpec("Arguments")


def data(number: int, topic: str = "t") -> Message:
    return MetadataRequest(correlation_id=number, topic=topic)


def control(number: int) -> Message:
    return BrokerHeartbeatResponse(correlation_id=number)


def high_watermark(offset: int) -> Message:
    """A message that can wait."""
    result = FetchPartitionResult(topic_id="T", partition_id=0, fetch_offset=9, leader_epoch=0, high_watermark=offset)
    return FetchResponse(partitions=(result,))


def number_of(message: Message) -> int:
    if isinstance(message, FetchResponse):
        return message.partitions[0].high_watermark
    return message.correlation_id  # type: ignore[attr-defined, no-any-return]


class Directory:
    """Where the nodes of a test are. `asked` are the nodes whose addresses were looked up, `forgotten` those whose
    addresses were found to be wrong; a look-up of one in `answers` gives that instead.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, FakeNode] = {}
        self.asked: list[int] = []
        self.forgotten: list[int] = []
        self.answers: dict[int, Callable[[], Awaitable[Address]]] = {}

    async def address(self, peer: int) -> Address:
        self.asked.append(peer)
        if peer in self.answers:
            return await self.answers[peer]()
        if peer not in self.nodes:
            raise PeerGoneError(str(peer))
        return self.nodes[peer].transport.address

    def forget(self, peer: int, older_than: int | None = None) -> None:
        if older_than is None:
            self.forgotten.append(peer)


class FakeNode:
    """A node whose messages the test sends. It takes what arrives: `taken` are (sender, channel, numbers) of each
    frame, handled at once unless the test holds them up in `unhandled`. Create it on a running loop.
    """

    def __init__(self, directory: Directory, number: int, incarnation: int = 1, tls: Tls | None = None) -> None:
        self.taken: list[tuple[int, bool, list[int]]] = []
        self.messages: list[Message] = []
        self.failures: list[BaseException] = []
        self.unhandled: list[Callable[[], None]] | None = None
        self.transport = Transport(number, Listener(LOOPBACK, incarnation, tls), directory, self.failures.append)
        self.transport.serve(self)  # type: ignore[arg-type]
        directory.nodes[number] = self

    def deliver(self, sender: int, messages: Sequence[Message], control: bool, done: Callable[[], None]) -> None:
        self.taken.append((sender, control, [number_of(message) for message in messages]))
        self.messages += messages
        if self.unhandled is None:
            done()
        else:
            self.unhandled.append(done)

    def malformed(self, sender: int, error: CodecError) -> None:
        self.failures.append(error)

    def send(self, peer: int, *numbers: int) -> None:
        """Sends messages with these numbers in one input."""
        for number in numbers:
            self.transport.send(peer, data(number))

    def handle_all(self) -> None:
        """Handles what was held up, and what arrives from now on."""
        held_up, self.unhandled = self.unhandled or [], None
        for done in held_up:
            done()

    @property
    def numbers(self) -> list[int]:
        """Those of all messages that have arrived, in order."""
        return [number for _, _, numbers in self.taken for number in numbers]


class Trio(Directory):
    """Nodes 0, 1 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.zero, self.one, self.two = (FakeNode(self, number) for number in range(3))


def open_sockets() -> int:
    """How many sockets this process has."""
    names = (Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    return sum(name.is_symlink() and os.readlink(name).startswith("socket:") for name in names)


async def closed(nodes: Sequence[FakeNode], sockets: int) -> None:
    """Closes nodes, and runs the loop until no task is left, and not more than so many sockets."""
    for node in nodes:
        node.transport.close()
    await assert_soon(lambda: asyncio.all_tasks() == {asyncio.current_task()} and open_sockets() <= sockets)
    assert not any(node.failures for node in nodes)


async def assert_soon(condition: Callable[[], bool]) -> None:
    """Runs the loop until a condition holds, which has to be soon."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + WITHIN_S
    while not condition():
        assert loop.time() < ends_s, "the condition does not hold in time"
        await asyncio.sleep(0)


def on_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Runs an async test on an event loop of its own."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
