"""Sends messages to peers in frames, over Ray actor calls.

Messages that are queued while calls are under way leave together in the next frame: a call costs about a millisecond,
and a thousand messages in one call hardly more (measured).

There are two channels to each peer, control (`Message.CONTROL`) and data, so that a blocked data path does not fence a
broker. A frame is the length of its head (4 bytes, big endian), the head, and encoded messages. The head is a msgpack
list: the sender's incarnation, the receiver's incarnation, the frame number in its channel, the length of each message
in bytes, and how many fields are attached to each message (`codec.ATTACH_BYTES`), which travel beside the frame. A
frame travels in one of two ways:

- as the answer to an open call of the peer. The receiver holds a call open for `HOLD_S` after it has handled the call's
  frame, or until the peer's next call arrives; so a request and its response share one call, and an idle link has none.
- otherwise as a call of its own. `WINDOW` calls may be under way: the first leaves at once, the second when its frame
  is full or has gathered messages for `GATHER_S`.

A call is under way until its answer has been handled too, and the receiver answers only after it has handled the call's
frame. So a slow node fills the queues of its peers and not its own. Frame numbers restore the order within a channel
(`Resequencer`), and no frame is sent twice. Frames to one incarnation of the peer are numbered from 1, once all calls
that may have gone to the incarnation before have ended; incarnation 0 stands for a peer that has sent nothing.

A slow link delays each frame, those in answers too. As calls are limited in number, a slow link carries less, too.

Messages get lost in four ways, all of which nodes survive: the peer is gone and the call fails (its frame is not
repeated, since the peer may have handled it); the link is cut, which both sides check; the channel is full (the new
message is dropped, the queued ones stay); the process ends. Bytes that cannot be decoded are dropped on arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgpack

from actors.host import NodeHost
from actors.peers import PeerGoneError, RayPeers
from actors.resequencer import Resequencer
from protocol.errors import CodecError, MalformedMessageError
from protocol.ids import DRIVER, NodeId
from protocol.messages.base import Message
from protocol.messages.codec import decode, encode
from protocol.messages.data import FetchRenewal

MAX_FRAME_BYTES = 1_048_576
MAX_ATTACHED_BYTES = 2 * MAX_FRAME_BYTES
"""Size limit of what is attached to the messages of a frame: a small message leaves with a large batch after it."""
MAX_ANSWER_BYTES = 96 * 1024
"""Size limit of an answer: beyond 100 KiB Ray passes it through its object store, which is slower."""
MAX_QUEUED_BYTES = 64 * 1_048_576
"""Size limit of a channel's queue, like a socket's buffer."""
WINDOW = 2
"""Calls under way per channel: one on its way while the previous one awaits its answer."""
GATHER_S = 0.005
"""How long the second call gathers messages unless its frame is full: a call costs more than its bytes."""
MAX_DELAY_S = 0.05
"""How long a message with `Message.can_wait` may be delayed."""
RENEWAL_DELAYS_S = (0.2, 0.3)
"""How long the renewal of a fetch session may be delayed, to a node with a higher id and to one with a lower id: about
half the time between two of them by default. So of two brokers that follow each other, one sends its renewals in the
answers to the calls that bring those of the other, also where both queue them at the same time.
"""
HOLD_S = 0.1
"""How long a handled call is held open for messages to the caller."""
NOTHING = b""
"""The answer to a call that carries no frame."""
UNNUMBERED = -1
UNKNOWN_INCARNATION = 0
_HEAD_BYTES = 4


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The links of a node that are not whole: it sends nothing to the peers `cut_to` and takes nothing from the peers
    `cut_from`; what it sends to a peer of `slow_to` leaves later by so many milliseconds.
    """

    cut_to: frozenset[NodeId] = frozenset()
    cut_from: frozenset[NodeId] = frozenset()
    slow_to: tuple[tuple[NodeId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded message: its bytes in the frame, and the fields that are attached to it."""

    data: bytes
    attached: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        return len(self.data) + self.attached_bytes

    @property
    def attached_bytes(self) -> int:
        return sum(map(len, self.attached))


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame: the sender's `incarnation`, the receiver's incarnation as far as the sender knows it, and the
    `number` of the frame among those between the two on its channel. UNNUMBERED frames are in no order.
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
    attached: Sequence[int] | None = None,
) -> bytes:
    """The frame of encoded messages; `attached` counts the fields attached to each (None: to none)."""
    sizes, counts = [len(data) for data in encoded], attached or [0] * len(encoded)
    head: bytes = msgpack.packb((incarnation, to_incarnation, number, sizes, counts))
    return b"".join((len(head).to_bytes(_HEAD_BYTES, "big"), head, *encoded))


def unpack_frame(
    data: bytes | memoryview, malformed: Callable[[CodecError], None], attached: Sequence[bytes] = ()
) -> Frame | None:
    """Decodes a frame, without the messages that are `malformed`; None where the frame cannot be read. `attached` are
    the fields that came beside it.
    """
    view = memoryview(data)
    end = _HEAD_BYTES + int.from_bytes(view[:_HEAD_BYTES], "big")
    try:
        incarnation, to_incarnation, number, sizes, counts = msgpack.unpackb(view[_HEAD_BYTES:end])
        are_numbers = all(type(part) is int for part in (incarnation, to_incarnation, number, *sizes, *counts))
        if not are_numbers or end + sum(sizes) != len(view):
            raise ValueError("its head does not fit what follows")
        if len(sizes) != len(counts) or sum(counts) != len(attached) or min(counts, default=0) < 0:
            raise ValueError(f"its head does not fit the {len(attached)} fields beside it")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        malformed(MalformedMessageError(f"not a frame: {error}"))
        return None
    messages = []
    for size, count in zip(sizes, counts, strict=True):
        try:
            messages.append(decode(view[end : end + size], attached[:count]))
        except CodecError as error:
            malformed(error)
        end += size
        attached = attached[count:]
    return Frame(incarnation, to_incarnation, number, messages)


def _delay_of(to: NodeId, message: Message) -> float:
    """For how many seconds a message may wait for others to the same peer."""
    if isinstance(message, FetchRenewal):
        return RENEWAL_DELAYS_S[message.replica_id > to]
    return MAX_DELAY_S if message.can_wait else 0


class _Channel:
    """One channel between this node and a peer. `launch` starts a call with a frame and what is attached to it; not
    `is_running`: paused.
    """

    def __init__(
        self, incarnation: int, launch: Callable[[bytes, Sequence[bytes]], None], is_running: Callable[[], bool]
    ) -> None:
        self.orders: dict[tuple[int, int], Resequencer] = {}
        self.newest_incarnation = UNKNOWN_INCARNATION
        self._incarnation = incarnation
        self._to_incarnation = UNKNOWN_INCARNATION
        self._launch = launch
        self._is_running = is_running
        self._queue: deque[Encoded] = deque()
        self._queued_bytes = 0
        self._number = 0
        self._under_way = 0
        self._held: deque[asyncio.Future[bytes]] = deque()
        self._is_urgent = False
        self._is_scheduled = False
        self._delay_timer: asyncio.TimerHandle | None = None
        self._gather_timer: asyncio.TimerHandle | None = None

    def put(self, item: Encoded, wait_s: float) -> None:
        """Queues an encoded message. It leaves after the present input of the node, together with all other messages of
        that input. One that can wait for `wait_s` leaves with the next one that cannot, at the latest after that time.
        """
        if self._queued_bytes + item.size > MAX_QUEUED_BYTES:
            return
        self._queue.append(item)
        self._queued_bytes += item.size
        if not wait_s:
            self._send_soon()
            return
        loop = asyncio.get_running_loop()
        if self._delay_timer is not None and self._delay_timer.when() > loop.time() + wait_s:
            self._delay_timer.cancel()
            self._delay_timer = None
        if self._delay_timer is None:
            self._delay_timer = loop.call_later(wait_s, self._send_soon)

    def _send_soon(self) -> None:
        self._is_urgent = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.send_ready)

    def clear(self) -> None:
        """Drops the queued messages."""
        self._queue.clear()
        self._queued_bytes = 0
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        """Cancels the timers of an empty queue."""
        self._is_urgent = False
        for timer in (self._delay_timer, self._gather_timer):
            if timer is not None:
                timer.cancel()
        self._delay_timer = self._gather_timer = None

    def observe_incarnation(self, incarnation: int) -> bool:
        """Records that a frame of this incarnation of the peer has arrived; returns whether it is the newest so far."""
        if incarnation <= self.newest_incarnation:
            return False
        self.newest_incarnation = incarnation
        while self._held:  # calls of the previous incarnation
            self._answer(self._held.popleft(), with_frame=False)
        return True

    def send_ready(self, has_gathered: bool = False) -> None:
        """Sends what may leave now, in answers and in new calls; with `has_gathered` the second call does not wait."""
        self._is_scheduled = False
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
            self._launch(*self._next_frame(MAX_FRAME_BYTES, MAX_ATTACHED_BYTES))

    def _has_room(self, has_gathered: bool) -> bool:
        """Whether a call may begin; starts the gather timer where a second call has to wait for it."""
        if not self._under_way or self._under_way >= WINDOW:
            return not self._under_way
        if has_gathered or self._queued_bytes >= MAX_FRAME_BYTES:
            return True
        if self._gather_timer is None:
            self._gather_timer = asyncio.get_running_loop().call_later(GATHER_S, self._end_gathering)
        return False

    def _end_gathering(self) -> None:
        self._gather_timer = None
        self.send_ready(has_gathered=True)

    def end_call(self) -> None:
        self._under_way -= 1
        self.send_ready()

    def answer_held_calls(self) -> None:
        if self._is_running():
            while self._held:
                self._answer(self._held.popleft())

    def hold(self, answer: asyncio.Future[bytes], incarnation: int) -> None:
        """Holds a call of this incarnation of the peer, whose frame has been handled, open for at most `HOLD_S`:
        `answer` becomes the frame that answers it, or NOTHING. To be called within the last input of that frame, so
        that what the node sends in this input is in the answer.
        """
        if answer.done():
            return
        if incarnation != self.newest_incarnation:
            answer.set_result(NOTHING)
            return
        self._held.append(answer)
        timer = asyncio.get_running_loop().call_later(HOLD_S, self._release, answer)
        answer.add_done_callback(lambda _: timer.cancel())
        self._schedule()

    def _release(self, answer: asyncio.Future[bytes]) -> None:
        """Answers a call that has been held for `HOLD_S`; while the node is paused it stays held."""
        if self._is_running() and answer in self._held:
            self._held.remove(answer)
            self._answer(answer)

    def _answer(self, answer: asyncio.Future[bytes], with_frame: bool = True) -> None:
        frame = self._next_frame(MAX_ANSWER_BYTES)[0] if with_frame and self._fits_answer() else NOTHING
        if not answer.done():
            answer.set_result(frame)

    def _fits_answer(self) -> bool:
        is_counted = self._to_incarnation == self.newest_incarnation
        return is_counted and bool(self._queue) and self._queue[0].size <= MAX_ANSWER_BYTES

    def _next_frame(self, max_bytes: int, max_attached: int = 0) -> tuple[bytes, Sequence[bytes]]:
        """The next frame, and what is attached to its messages, as far as the limits in bytes allow more than one."""
        taken: list[Encoded] = []
        size = beside = 0
        while self._queue:
            item, in_frame = self._queue[0], len(self._queue[0].data)
            fits = size + in_frame <= max_bytes and beside + item.attached_bytes <= max_attached
            if taken and not fits:
                break
            taken.append(self._queue.popleft())
            size, beside = size + in_frame, beside + item.attached_bytes
        self._queued_bytes -= size + beside
        if not self._queue:
            self._cancel_timers()
        self._number += 1
        counts = [len(item.attached) for item in taken]
        encoded = [item.data for item in taken]
        frame = pack_frame(encoded, self._incarnation, self._to_incarnation, self._number, counts)
        return frame, [part for item in taken for part in item.attached]


class Transport:
    """A node's channels to all its peers. `incarnation` is the node's own; `on_failure` is called with every error of a
    call but PeerGoneError. All calls on one event loop.
    """

    def __init__(self, incarnation: int, peers: RayPeers, on_failure: Callable[[BaseException], None]) -> None:
        self._incarnation = incarnation
        self._peers = peers
        self._on_failure = on_failure
        self._receiver: NodeHost
        self._channels: dict[tuple[NodeId, bool], _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = True
        self._links = NodeLinks()
        self._delays_s: Mapping[NodeId, float] = {}
        self._ignored: dict[NodeId, int] = {}
        self._closed = False
        self._encoded: tuple[Message, Encoded] | None = None

    def serve(self, receiver: NodeHost) -> None:
        """Sets the receiver of incoming messages; call before any frame arrives."""
        self._receiver = receiver

    def send(self, to: NodeId, message: Message) -> None:
        """Queues a message for a peer unless the link is cut; one sent to several peers in a row is encoded once."""
        if to not in self._links.cut_to and not self._closed:
            if self._encoded is None or self._encoded[0] is not message:
                attached: list[bytes] = []
                self._encoded = message, Encoded(encode(message, attached=attached), attached)
            self._channel(to, message.CONTROL).put(self._encoded[1], _delay_of(to, message))

    def _channel(self, peer: NodeId, control: bool) -> _Channel:
        channel = self._channels.get((peer, control))
        if channel is None:

            def launch(frame: bytes, attached: Sequence[bytes]) -> None:
                task = asyncio.get_running_loop().create_task(self._make_call(peer, control, frame, attached))
                self._tasks.add(task)
                task.add_done_callback(self._end_task)

            channel = self._channels[peer, control] = _Channel(self._incarnation, launch, lambda: self._is_running)
        return channel

    async def _make_call(self, peer: NodeId, control: bool, frame: bytes, attached: Sequence[bytes]) -> None:
        try:
            await self._delay(peer)
            answer = await self._peers(peer, frame, control, attached)
            back = self._unpack(peer, answer) if answer != NOTHING and self.accepts_from(peer) else None
            if back is not None:
                self._observe_frame(peer, control, back)
                handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._deliver_in_order(peer, control, back, lambda: handled.set_result(None))
                await handled
        except PeerGoneError:
            pass
        finally:
            self._channels[peer, control].end_call()

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)

    async def receive(
        self, sender: NodeId, data: bytes | memoryview, control: bool, attached: Sequence[bytes] = ()
    ) -> bytes:
        """Handles the frame of a peer's call, with what is attached to it; returns the frame to answer it with, or
        NOTHING.
        """
        frame = self._unpack(sender, data, attached) if self.accepts_from(sender) else None
        if frame is None:
            return NOTHING
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if frame.number == UNNUMBERED:
            self._deliver_in_order(sender, control, frame, lambda: answer.set_result(NOTHING))
            return await answer
        channel, incarnation = self._observe_frame(sender, control, frame), frame.incarnation
        if incarnation == channel.newest_incarnation:
            channel.answer_held_calls()
        self._deliver_in_order(sender, control, frame, lambda: channel.hold(answer, incarnation))
        if await answer != NOTHING:
            await self._delay(sender)
        return answer.result()

    async def _delay(self, peer: NodeId) -> None:
        """Waits as long as a frame to this peer has to."""
        if (delay_s := self._delays_s.get(peer)) is not None:
            await asyncio.sleep(delay_s)

    def _unpack(self, sender: NodeId, data: bytes | memoryview, attached: Sequence[bytes] = ()) -> Frame | None:
        frame = unpack_frame(data, lambda error: self._receiver.malformed(sender, error), attached)
        newest_ignored = self._ignored.get(sender, UNKNOWN_INCARNATION - 1)
        return None if frame is None or frame.incarnation <= newest_ignored else frame

    def _observe_frame(self, sender: NodeId, control: bool, frame: Frame) -> _Channel:
        channel = self._channel(sender, control)
        if channel.observe_incarnation(frame.incarnation):
            self._peers.observe_incarnation(sender, frame.incarnation)
        return channel

    def _deliver_in_order(self, sender: NodeId, control: bool, frame: Frame, handled: Callable[[], None]) -> None:
        """Has the host take the messages of a frame when it is its turn; `handled` is called within the last input, or
        at once where the frame is dropped.
        """

        def deliver() -> None:
            if frame.messages and self.accepts_from(sender):
                self._receiver.deliver(sender, frame.messages, control, handled)
            else:
                handled()

        if frame.number == UNNUMBERED:
            deliver()
        elif not self._resequencer(sender, control, frame).take(frame.number, deliver):
            handled()

    def _resequencer(self, sender: NodeId, control: bool, frame: Frame) -> Resequencer:
        """The resequencer for the frame's two incarnations. Frames that were sent to an earlier incarnation of this
        node continue that incarnation's numbers, so the first one to arrive begins the count.
        """
        orders, incarnations = self._channel(sender, control).orders, (frame.incarnation, frame.to_incarnation)
        order = orders.get(incarnations)
        if order is None:
            is_from_the_start = frame.to_incarnation in (UNKNOWN_INCARNATION, self._incarnation)
            order = orders[incarnations] = Resequencer(1 if is_from_the_start else None)
        return order

    def set_links(self, links: NodeLinks) -> None:
        """Cuts and slows these links, and heals all others."""
        self._links = links
        self._delays_s = {peer: delay_ms / 1000 for peer, delay_ms in links.slow_to}
        for (peer, _), channel in self._channels.items():
            if peer in links.cut_to:
                channel.clear()

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
        """Drops all queued messages, and everything that is sent from now on."""
        self._closed = True
        for channel in self._channels.values():
            channel.clear()

    async def await_delivery(self, within_s: float) -> None:
        """Waits, at most `within_s`, until all queued messages have been delivered."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        for channel in self._channels.values():
            channel.send_ready()
        while self._tasks and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks, timeout=left_s)
