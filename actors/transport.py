"""Messages to peers: one call in flight per channel, everything else coalesces (measured: a call costs about a
millisecond, a thousand messages in one hardly more).

There are two channels to each peer, control (`Message.CONTROL`) and data. A channel hands over one frame at a time, a
msgpack list of encoded messages, and waits until the peer has handled it; what is sent meanwhile waits and leaves in
the next frame. So the order within a channel is kept, and nothing is ever sent twice. Messages get lost in four ways,
all of which nodes survive: the peer is gone and the call fails (its frame is dropped, not repeated, as it may have
been handled); the link is cut; the channel is full (what comes newly is dropped, never what waits); the process ends.
Bytes that are no message are lost on arrival, and they alone: the rest of their frame is handled.

`cut` names the peers to which nothing leaves; the receiving side filters as well (`Transport.hears`), so that a frame
under way cannot slip through after both sides have been told. Paused, a transport keeps what is sent to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgpack

from protocol.errors import CodecError, MalformedMessageError
from protocol.ids import DRIVER, NodeId
from protocol.messages.base import Message
from protocol.messages.codec import decode, encode

MAX_FRAME_BYTES = 1_048_576
MAX_QUEUED_BYTES = 64 * 1_048_576
"""Per channel: what a peer that does not answer may hold up, like a socket's buffer."""

Call = Callable[[NodeId, bytes, bool], Awaitable[None]]
"""Hands a frame to a peer, on the control channel or not, and returns once it has been handled; PeerGoneError if there
is no such peer (any more)."""


class PeerGoneError(Exception):
    """The peer does not exist, or died before it answered."""


def pack_frame(encoded: Sequence[bytes]) -> bytes:
    """The frame of encoded messages."""
    packed: bytes = msgpack.packb(list(encoded))
    return packed


def unpack_frame(frame: bytes, malformed: Callable[[CodecError], None]) -> list[Message]:
    """The messages of a frame. What is none is left out, and `malformed` told of it; that may be the whole frame."""
    try:
        encoded = msgpack.unpackb(frame)
    except (ValueError, msgpack.UnpackException) as error:
        malformed(MalformedMessageError(f"not a frame: {error}"))
        return []
    if not isinstance(encoded, list):
        malformed(MalformedMessageError(f"not a frame: found {type(encoded).__name__}; allowed: a list of messages"))
        return []
    messages = []
    for item in encoded:
        try:
            messages.append(_decode_item(item))
        except CodecError as error:
            malformed(error)
    return messages


def _decode_item(item: object) -> Message:
    if not isinstance(item, bytes):
        raise MalformedMessageError(f"not a message: found {type(item).__name__}; allowed: bytes")
    return decode(item)


class _Channel:
    """One direction to one peer, control or data."""

    def __init__(self, deliver: Callable[[bytes], Awaitable[None]], running: asyncio.Event) -> None:
        self._deliver = deliver
        self._running = running
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def put(self, data: bytes) -> asyncio.Task[None] | None:
        """Queues a message; the task that was started for it, None if one is under way already."""
        if self._queued_bytes + len(data) > MAX_QUEUED_BYTES:
            return None
        self._queue.append(data)
        self._queued_bytes += len(data)
        if self._task is not None and not self._task.done():
            return None
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    def clear(self) -> None:
        """Drops what waits; what is under way is."""
        self._queue.clear()
        self._queued_bytes = 0

    async def _run(self) -> None:
        while self._queue:
            await self._running.wait()
            frame = self._next_frame()
            if frame is not None:
                await self._deliver(frame)

    def _next_frame(self) -> bytes | None:
        taken: list[bytes] = []
        size = 0
        while self._queue and (not taken or size + len(self._queue[0]) <= MAX_FRAME_BYTES):
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._queued_bytes -= size
        return pack_frame(taken) if taken else None


class Transport:
    """See the module docstring. `call` hands over a frame; `on_failure` is told of errors other than a peer that is
    gone. All calls on one event loop."""

    def __init__(self, call: Call, on_failure: Callable[[BaseException], None]) -> None:
        self._call = call
        self._on_failure = on_failure
        self._channels: dict[tuple[NodeId, bool], _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Event()
        self._running.set()
        self._cut_to: frozenset[NodeId] = frozenset()
        self._cut_from: frozenset[NodeId] = frozenset()
        self._closed = False

    def send(self, to: NodeId, message: Message) -> None:
        """Queues a message for a peer; it is lost where the link is cut."""
        if to in self._cut_to or self._closed:
            return
        key = (to, message.CONTROL)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = _Channel(self._deliverer(to, message.CONTROL), self._running)
        task = channel.put(encode(message))
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    def _deliverer(self, to: NodeId, control: bool) -> Callable[[bytes], Awaitable[None]]:
        async def deliver(frame: bytes) -> None:
            try:
                await self._call(to, frame, control)
            except PeerGoneError:
                return

        return deliver

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)

    def cut(self, to: Collection[NodeId], sources: Collection[NodeId]) -> None:
        """Nothing leaves to the peers `to`, nothing is taken from `sources`; links to and from all others are whole."""
        self._cut_to, self._cut_from = frozenset(to), frozenset(sources)
        for (peer, _), channel in self._channels.items():
            if peer in self._cut_to:
                channel.clear()

    def hears(self, sender: NodeId) -> bool:
        """Whether the link from a peer is whole; the experiment is always heard."""
        return sender == DRIVER or sender not in self._cut_from

    def pause(self) -> None:
        """Nothing leaves until `resume`; what is sent waits."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def close(self) -> None:
        """Drops everything that has not left, and takes nothing more."""
        self._closed = True
        for channel in self._channels.values():
            channel.clear()

    async def settle(self, within_s: float) -> None:
        """Waits, at most `within_s`, until everything queued has been handed over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
