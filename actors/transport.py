"""Sends messages to peers in frames, over Ray actor calls.

Messages that are queued while calls are under way leave together in the next frame: a call costs about a millisecond,
and a thousand messages in one call hardly more (measured).

There are two channels to each peer, control (`Message.CONTROL`) and data. A frame is the length of its head (4 bytes,
big endian), the head, and encoded messages. The head is a msgpack list: the sender's incarnation, the receiver's
incarnation, the frame number in its channel, and the length of each message in bytes. A frame travels in one of two
ways:

- as the answer to an open call of the peer. The receiver holds a call open for `HOLD_S` after it has handled the call's
  frame, or until the peer's next call arrives; so a request and its response share one call, and an idle link has none.
- otherwise as a call of its own. `WINDOW` calls may be under way: the first leaves at once, the second when its frame
  is full or has gathered messages for `GATHER_S`.

A call is under way until its answer has been handled too, and the receiver answers only after it has handled the call's
frame. So a slow node fills the queues of its peers and not its own. Frame numbers restore the order within a channel
(`actors/resequencer.py`), and no frame is sent twice. Frames to one incarnation of the peer are numbered from 1, once
all calls that may have gone to the incarnation before have ended; incarnation 0 stands for a peer that has sent
nothing.

Messages get lost in four ways, all of which nodes survive: the peer is gone and the call fails (its frame is dropped
and not repeated, since the peer may have handled it); the link is cut; the channel is full (the new message is dropped,
the queued ones stay); the process ends. Bytes that cannot be decoded are dropped on arrival; the rest of their frame is
handled.

`cut` names the peers to which no frame leaves; the receiving side filters too (`Transport.accepts_from`), so that a
frame under way is not handled once both sides know of the cut. A paused transport queues what it is given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgpack

from actors.resequencer import Resequencer
from protocol.errors import CodecError, MalformedMessageError
from protocol.ids import DRIVER, NodeId
from protocol.messages.base import Message
from protocol.messages.codec import decode, encode

MAX_FRAME_BYTES = 1_048_576
MAX_ANSWER_BYTES = 96 * 1024
"""What the answer to a call may be: beyond 100 KiB Ray takes it through its object store, which is slower."""
MAX_QUEUED_BYTES = 64 * 1_048_576
"""Per channel: what a peer that does not answer may hold up, like a socket's buffer."""
WINDOW = 2
"""Calls under way per channel: one on its way while the one before waits for its answer."""
GATHER_S = 0.005
"""How long the second of these gathers messages, unless it is full before: a call costs more than its bytes."""
PATIENCE_S = 0.01
"""How long a message that can wait (`Message.can_wait`) does so."""
HOLD_S = 0.1
"""How long a call waits, once it has been handled, for something to carry back."""
NOTHING = b""
"""The answer to a call that carries nothing back."""
UNNUMBERED = -1
UNKNOWN_INCARNATION = 0
_HEAD_BYTES = 4


class PeerGoneError(Exception):
    """The peer does not exist, or died before it answered."""


class Peers(Protocol):
    """The way to the peers."""

    async def __call__(self, peer: NodeId, frame: bytes, control: bool) -> bytes:
        """Hands a frame to a peer, on the control channel or not; the frame that comes back, or NOTHING.

        PeerGoneError if there is no such peer (any more).
        """

    def heard(self, peer: NodeId, incarnation: int) -> None:
        """A frame has come from a life of a peer from which none had come before."""


class Receiver(Protocol):
    """Where messages arrive."""

    def deliver(self, sender: NodeId, messages: Sequence[Message], control: bool, done: Callable[[], None]) -> None:
        """A frame of messages, at least one, in their turn; `done` is to be called once they have been handled."""

    def malformed(self, sender: NodeId, error: CodecError) -> None:
        """Bytes from a peer were no message."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`life` of the sender, `to_life` of the node that it is for as far as the sender knows, and `number` of the frame
    in its channel between the two. UNNUMBERED frames stand outside any order.
    """

    incarnation: int
    to_incarnation: int
    number: int
    messages: list[Message]


def pack_frame(
    encoded: Sequence[bytes],
    incarnation: int = UNKNOWN_INCARNATION,
    to_incarnation: int = UNKNOWN_INCARNATION,
    number: int = UNNUMBERED,
) -> bytes:
    """The frame of encoded messages."""
    head: bytes = msgpack.packb((incarnation, to_incarnation, number, *map(len, encoded)))
    return b"".join((len(head).to_bytes(_HEAD_BYTES, "big"), head, *encoded))


def unpack_frame(data: bytes, malformed: Callable[[CodecError], None]) -> Frame | None:
    """What is no message is left out, and `malformed` told of it; None where that is the whole frame."""
    view = memoryview(data)
    end = _HEAD_BYTES + int.from_bytes(view[:_HEAD_BYTES], "big")
    try:
        incarnation, to_incarnation, number, *sizes = msgpack.unpackb(view[_HEAD_BYTES:end])
        if any(type(part) is not int for part in (incarnation, to_incarnation, number, *sizes)) or end + sum(
            sizes
        ) != len(view):
            raise ValueError("its head does not fit what follows")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        malformed(MalformedMessageError(f"not a frame: {error}"))
        return None
    messages = []
    for size in sizes:
        try:
            messages.append(decode(view[end : end + size]))
        except CodecError as error:
            malformed(error)
        end += size
    return Frame(incarnation, to_incarnation, number, messages)


class _Channel:
    """Both directions between this node and one peer, control or data. `launch` starts a call with a frame."""

    def __init__(self, incarnation: int, launch: Callable[[bytes], None], is_running: Callable[[], bool]) -> None:
        self.orders: dict[tuple[int, int], Resequencer] = {}
        self.newest_incarnation = UNKNOWN_INCARNATION
        self._incarnation = incarnation
        self._to_incarnation = UNKNOWN_INCARNATION
        self._launch = launch
        self._is_running = is_running
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._number = 0
        self._under_way = 0
        self._held: deque[asyncio.Future[bytes]] = deque()
        self._is_urgent = False
        self._is_due = False
        self._patience: asyncio.TimerHandle | None = None
        self._gathering: asyncio.TimerHandle | None = None

    def put(self, data: bytes, can_wait: bool) -> None:
        """Queues a message. It leaves when the present input of the node is over, with all that this one sends, or, if
        it can wait, when one that cannot leaves, or `PATIENCE_S` later."""
        if self._queued_bytes + len(data) > MAX_QUEUED_BYTES:
            return
        self._queue.append(data)
        self._queued_bytes += len(data)
        if not can_wait:
            self._hurry()
        elif self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._hurry)

    def _hurry(self) -> None:
        """What waits, waits for a vehicle only."""
        self._is_urgent = True
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.move)

    def clear(self) -> None:
        """Drops what waits; what is under way is."""
        self._queue.clear()
        self._queued_bytes = 0
        self._settle()

    def _settle(self) -> None:
        """Nothing waits."""
        self._is_urgent = False
        for timer in (self._patience, self._gathering):
            if timer is not None:
                timer.cancel()
        self._patience = self._gathering = None

    def meet(self, incarnation: int) -> bool:
        """A frame has come from this life of the peer; whether it is newer than all before."""
        if incarnation <= self.newest_incarnation:
            return False
        self.newest_incarnation = incarnation
        while self._held:  # by the life before
            self._end(self._held.popleft(), NOTHING)
        return True

    def move(self, has_gathered: bool = False) -> None:
        """Lets everything leave that may. `has_gathered`: a second call need not gather any longer."""
        self._is_due = False
        if not self._is_running():
            return
        if self._to_incarnation != self.newest_incarnation:
            if self._under_way:
                return
            self._to_incarnation, self._number = self.newest_incarnation, 0
        while len(self._held) > 1 or (self._held and self._is_urgent and self._fits_answer()):
            self._answer(self._held.popleft())
        while self._queue and self._is_urgent and self._has_room(has_gathered):
            self._under_way += 1
            self._launch(self._next_frame(MAX_FRAME_BYTES))

    def _has_room(self, has_gathered: bool) -> bool:
        """Whether a call may begin. If not, and it is a second one, that it gathers is seen to."""
        if not self._under_way or (self._under_way < WINDOW and (has_gathered or self._is_full())):
            return True
        if self._under_way < WINDOW and self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._gathered)
        return False

    def _is_full(self) -> bool:
        return self._queued_bytes >= MAX_FRAME_BYTES

    def _gathered(self) -> None:
        self._gathering = None
        self.move(has_gathered=True)

    def landed(self) -> None:
        """A call of this channel is over."""
        self._under_way -= 1
        self.move()

    def called(self) -> None:
        """The peer has called: what waits goes back in the call before, which need not be held any longer."""
        if self._is_running():
            while self._held:
                self._answer(self._held.popleft())

    async def hold(self) -> bytes:
        """The answer to a call of the peer that has been handled."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._held.append(answer)
        timer = loop.call_later(HOLD_S, self._release, answer)
        self.move()
        try:
            return await answer
        finally:
            timer.cancel()

    def _release(self, answer: asyncio.Future[bytes]) -> None:
        """The call has been held for long enough; one that is released while nothing may leave goes later."""
        if self._is_running() and answer in self._held:
            self._held.remove(answer)
            self._answer(answer)

    def _answer(self, answer: asyncio.Future[bytes]) -> None:
        self._end(answer, self._next_frame(MAX_ANSWER_BYTES) if self._fits_answer() else NOTHING)

    def _end(self, answer: asyncio.Future[bytes], frame: bytes) -> None:
        if not answer.done():
            answer.set_result(frame)

    def _fits_answer(self) -> bool:
        is_counted = self._to_incarnation == self.newest_incarnation
        return is_counted and bool(self._queue) and len(self._queue[0]) <= MAX_ANSWER_BYTES

    def _next_frame(self, max_bytes: int) -> bytes:
        taken: list[bytes] = []
        size = 0
        while self._queue and (not taken or size + len(self._queue[0]) <= max_bytes):
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._queued_bytes -= size
        if not self._queue:
            self._settle()
        self._number += 1
        return pack_frame(taken, self._incarnation, self._to_incarnation, self._number)


class Transport:
    """See the module docstring. `life` is that of this node; `on_failure` is told of errors other than a peer that is
    gone. All calls on one event loop."""

    def __init__(self, incarnation: int, peers: Peers, on_failure: Callable[[BaseException], None]) -> None:
        self._incarnation = incarnation
        self._peers = peers
        self._on_failure = on_failure
        self._receiver: Receiver
        self._channels: dict[tuple[NodeId, bool], _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = True
        self._cut_to: frozenset[NodeId] = frozenset()
        self._cut_from: frozenset[NodeId] = frozenset()
        self._silent: dict[NodeId, int] = {}
        self._closed = False
        self._encoded: tuple[Message, bytes] | None = None

    def serve(self, receiver: Receiver) -> None:
        """Who takes what arrives; call before anything does."""
        self._receiver = receiver

    # -- outward -------------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: Message) -> None:
        """Queues a message for a peer; it is lost where the link is cut. One that goes to several peers, one after the
        other, is encoded once.
        """
        if to not in self._cut_to and not self._closed:
            if self._encoded is None or self._encoded[0] is not message:
                self._encoded = message, encode(message)
            self._channel(to, message.CONTROL).put(self._encoded[1], message.can_wait)

    def _channel(self, peer: NodeId, control: bool) -> _Channel:
        channel = self._channels.get((peer, control))
        if channel is None:

            def launch(frame: bytes) -> None:
                task = asyncio.get_running_loop().create_task(self._carry(peer, control, frame))
                self._tasks.add(task)
                task.add_done_callback(self._finished)

            channel = self._channels[peer, control] = _Channel(self._incarnation, launch, lambda: self._is_running)
        return channel

    async def _carry(self, peer: NodeId, control: bool, frame: bytes) -> None:
        """One call; it is over when what came back has been handled."""
        try:
            answer = await self._peers(peer, frame, control)
            back = self._unpack(peer, answer) if answer != NOTHING and self.accepts_from(peer) else None
            if back is not None:
                self._meet(peer, control, back)
                await self._hand_on(peer, control, back)
        except PeerGoneError:
            pass  # the frame is lost, as it may have been handled
        finally:
            self._channels[peer, control].landed()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)

    # -- inward --------------------------------------------------------------------------------------------------------

    async def receive(self, sender: NodeId, data: bytes, control: bool) -> bytes:
        """Takes the frame of a call; returns, when it has been handled, what goes back."""
        frame = self._unpack(sender, data) if self.accepts_from(sender) else None
        if frame is None:
            return NOTHING
        if frame.number == UNNUMBERED:
            await self._hand_on(sender, control, frame)
            return NOTHING
        channel = self._meet(sender, control, frame)
        if frame.incarnation == channel.newest_incarnation:
            channel.called()
        await self._hand_on(sender, control, frame)
        return await channel.hold() if frame.incarnation == channel.newest_incarnation else NOTHING

    def _unpack(self, sender: NodeId, data: bytes) -> Frame | None:
        frame = unpack_frame(data, lambda error: self._receiver.malformed(sender, error))
        return (
            None if frame is None or frame.incarnation <= self._silent.get(sender, UNKNOWN_INCARNATION - 1) else frame
        )

    def _meet(self, sender: NodeId, control: bool, frame: Frame) -> _Channel:
        channel = self._channel(sender, control)
        if channel.meet(frame.incarnation):
            self._peers.heard(sender, frame.incarnation)
        return channel

    async def _hand_on(self, sender: NodeId, control: bool, frame: Frame) -> None:
        """Hands the messages of a frame on in their turn, and returns when they have been handled."""
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def deliver() -> None:
            if frame.messages and self.accepts_from(sender):
                self._receiver.deliver(sender, frame.messages, control, lambda: handled.set_result(None))
            else:
                handled.set_result(None)

        if frame.number == UNNUMBERED:
            deliver()
            await handled
        elif self._order(sender, control, frame).take(frame.number, deliver):
            await handled

    def _order(self, sender: NodeId, control: bool, frame: Frame) -> Resequencer:
        """What was sent to another life of this node is counted from where that life has left off."""
        orders, incarnations = self._channel(sender, control).orders, (frame.incarnation, frame.to_incarnation)
        order = orders.get(incarnations)
        if order is None:
            is_from_the_start = frame.to_incarnation in (UNKNOWN_INCARNATION, self._incarnation)
            order = orders[incarnations] = Resequencer(1 if is_from_the_start else None)
        return order

    # -- orders of the experiment --------------------------------------------------------------------------------------

    def cut(self, to: Collection[NodeId], sources: Collection[NodeId]) -> None:
        """Nothing leaves to the peers `to`, nothing is taken from `sources`; links to and from all others are whole."""
        self._cut_to, self._cut_from = frozenset(to), frozenset(sources)
        for (peer, _), channel in self._channels.items():
            if peer in self._cut_to:
                channel.clear()

    def silence(self, incarnations: Mapping[NodeId, int]) -> None:
        """Nothing is taken from these lives of peers, nor from older ones; from all others it is."""
        self._silent = dict(incarnations)

    def accepts_from(self, sender: NodeId) -> bool:
        """Whether the link from a peer is whole; the experiment is always heard."""
        return sender == DRIVER or sender not in self._cut_from

    def pause(self) -> None:
        """Nothing leaves until `resume`; what is sent waits."""
        self._is_running = False

    def resume(self) -> None:
        self._is_running = True
        for channel in self._channels.values():
            channel.move()

    def close(self) -> None:
        """Drops everything that has not left, and takes nothing more."""
        self._closed = True
        for channel in self._channels.values():
            channel.clear()

    async def settle(self, within_s: float) -> None:
        """Waits, at most `within_s`, until everything queued has been handed over."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        for channel in self._channels.values():
            channel.move()
        while self._tasks and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
