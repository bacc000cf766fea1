"""Helpers for tests of the transport: fake peers whose answers the test gives, and frames from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, ParamSpec

import pytest

from actors.transport import NOTHING, Transport, pack_frame, unpack_frame
from protocol.errors import CodecError
from protocol.messages.admin import MetadataRequest
from protocol.messages.base import Message
from protocol.messages.codec import encode
from protocol.messages.control import BrokerHeartbeatResponse
from protocol.messages.data import FetchPartitionResult, FetchRenewal, FetchResponse

DATA, CONTROL = False, True
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
    if isinstance(message, FetchRenewal):
        return message.requests
    return message.correlation_id  # type: ignore[attr-defined, no-any-return]


ME = 7
"""The incarnation of the node under test."""


def frame_of(*numbers: int, number: int = 1, incarnation: int = 1, to_incarnation: int = ME) -> bytes:
    return pack_frame([encode(data(each)) for each in numbers], incarnation, to_incarnation, number)


class FakePeers:
    """Calls that stay open until the test answers them; `calls` are (peer, channel, numbers of the messages), with
    what is `attached` to each. It takes
    what arrives too: `taken` are (peer, numbers), handled at once unless the test holds them up in `unhandled`.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool, list[int]]] = []
        self.attached: list[Sequence[bytes]] = []
        self.open: list[asyncio.Future[bytes]] = []
        self.failures: list[BaseException] = []
        self.incarnations: list[tuple[int, int]] = []
        self.taken: list[tuple[int, list[int]]] = []
        self._tasks: list[asyncio.Task[bytes]] = []
        self.unhandled: list[Callable[[], None]] | None = None
        self.transport = Transport(ME, self, self.failures.append)
        self.transport.serve(self)

    async def __call__(self, peer: int, frame: bytes, is_control: bool, attached: Sequence[bytes]) -> bytes:
        unpacked = unpack_frame(frame, self.failures.append, attached)
        assert unpacked is not None
        assert unpacked.incarnation == ME
        self.attached.append(attached)
        self.calls.append((peer, is_control, [number_of(message) for message in unpacked.messages]))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.open.append(answer)
        return await answer

    def observe_incarnation(self, peer: int, incarnation: int) -> None:
        self.incarnations.append((peer, incarnation))

    def deliver(self, sender: int, messages: Sequence[Message], control: bool, done: Callable[[], None]) -> None:
        self.taken.append((sender, [number_of(message) for message in messages]))
        if self.unhandled is None:
            done()
        else:
            self.unhandled.append(done)

    def malformed(self, sender: int, error: CodecError) -> None:
        self.failures.append(error)

    async def send(self, *numbers: int) -> None:
        """Has the transport send messages with these numbers to peer 1, and runs the loop until it is idle."""
        for number in numbers:
            self.transport.send(1, data(number))
        await settled()

    async def answer(self, error: Exception | None = None, frame: bytes = NOTHING) -> None:
        """Answers the oldest open call, and runs the loop until it is idle."""
        answer = self.open.pop(0)
        if error is None:
            answer.set_result(frame)
        else:
            answer.set_exception(error)
        await settled()

    def call(self, frame: bytes, sender: int = 1) -> asyncio.Task[bytes]:
        """Makes a call of a peer to this node; one that is still open when the test ends is cancelled with its loop."""
        self._tasks.append(asyncio.create_task(self.transport.receive(sender, frame, DATA)))
        return self._tasks[-1]


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def on_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Runs an async test on an event loop of its own."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def numbers_of(frame: bytes) -> list[int]:
    unpacked = unpack_frame(frame, lambda error: pytest.fail(str(error)))
    assert unpacked is not None
    return [number_of(message) for message in unpacked.messages]
