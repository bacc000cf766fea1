"""What a node sends to a peer on one channel: a queue and, once there is something to send, a connection.

The messages of one input of the node leave in one frame; so do those that wait while the connection takes no more. One
that can wait (`Message.can_wait`) leaves with the next one that cannot. When the connection ends, or none can be
opened, the peer's process has ended, as a rule: what waits was meant for that process, and is dropped. On a slow link
each frame is written later, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress

from actors.connections import Outgoing
from actors.frames import Encoded, pack_frame
from actors.peers import PeerGoneError

MAX_FRAME_BYTES = 1_048_576
MAX_WAITING_BYTES = 64 * 1_048_576
"""Size limit of what waits in a channel, like a socket's buffer."""
MAX_DELAY_S = 0.05
"""How long a message that can wait may be delayed."""


def watch(task: asyncio.Task[None], on_failure: Callable[[BaseException], None]) -> asyncio.Task[None]:
    """The task itself; `on_failure` is called with the error that ends it."""

    def note(ended: asyncio.Task[None]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            on_failure(error)

    task.add_done_callback(note)
    return task


class Channel:
    """What a node sends to a peer on one channel. `open_` opens a connection for it, `is_running`: not paused,
    `delay_s`: of the link at this moment. `on_failure` is called with every error of `open_` but PeerGoneError.
    """

    def __init__(
        self,
        open_: Callable[[Channel], Coroutine[None, None, Outgoing]],
        is_running: Callable[[], bool],
        delay_s: Callable[[], float],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._open, self._is_running, self._delay_s, self._on_failure = open_, is_running, delay_s, on_failure
        self._queue: deque[Encoded] = deque()
        self._late: deque[tuple[float, Sequence[bytes], int]] = deque()
        """Frames on a slow link: when each is written, and its size."""
        self._waiting_bytes = 0
        self._link: Outgoing | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_urgent = False
        self._is_scheduled = False
        self._delay_timer: asyncio.TimerHandle | None = None
        self._late_timer: asyncio.TimerHandle | None = None
        self._finished: asyncio.Future[None] | None = None

    def put(self, item: Encoded, can_wait: bool) -> None:
        """Queues an encoded message. It leaves after the present input of the node, together with all other messages of
        that input; one that can wait at the latest after `MAX_DELAY_S`.
        """
        if self._waiting_bytes + item.size > MAX_WAITING_BYTES:
            return
        self._queue.append(item)
        self._waiting_bytes += item.size
        if not can_wait:
            self._send_soon()
        elif self._delay_timer is None:
            self._delay_timer = asyncio.get_running_loop().call_later(MAX_DELAY_S, self._send_soon)

    def _send_soon(self) -> None:
        self._is_urgent = True
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.send_ready)

    def clear(self) -> None:
        """Drops what waits."""
        self._queue.clear()
        self._late.clear()
        self._waiting_bytes = 0
        self._end_urgency()

    def _end_urgency(self) -> None:
        self._is_urgent = False
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None

    def send_ready(self) -> None:
        """Sends what may leave now, as far as the connection takes it; opens one first where there is none."""
        self._is_scheduled = False
        if not self._is_running():
            return
        if self._link is not None:
            self._write_late(self._link)
            while self._queue and self._is_urgent and not self._link.is_congested:
                self._dispatch(self._link, *self._next_frame())
        elif self._opening is None and (self._late or (self._queue and self._is_urgent)):
            self._opening = watch(asyncio.get_running_loop().create_task(self._connect()), self._on_failure)
        if self._finished is not None:
            self._finish(self._finished)

    def _next_frame(self) -> tuple[Sequence[bytes], int]:
        """The next frame, of at least one message, and its share of `_waiting_bytes`."""
        taken = [self._queue.popleft()]
        size = taken[0].size
        while self._queue and size + self._queue[0].size <= MAX_FRAME_BYTES:
            taken.append(self._queue.popleft())
            size += taken[-1].size
        if not self._queue:
            self._end_urgency()
        return pack_frame(taken), size

    def _dispatch(self, link: Outgoing, frame: Sequence[bytes], size: int) -> None:
        delay_s = self._delay_s()
        if not delay_s and not self._late:
            self._waiting_bytes -= size
            link.write(frame)
            return
        leaves_s = asyncio.get_running_loop().time() + delay_s
        self._late.append((max(leaves_s, self._late[-1][0]) if self._late else leaves_s, frame, size))
        self._write_late(link)

    def _write_late(self, link: Outgoing) -> None:
        """Writes the frames whose delay is over."""
        loop = asyncio.get_running_loop()
        while self._late and self._late[0][0] <= loop.time() and not link.is_congested:
            _, frame, size = self._late.popleft()
            self._waiting_bytes -= size
            link.write(frame)
        if self._late_timer is not None:
            self._late_timer.cancel()
        is_waiting = bool(self._late) and not link.is_congested
        self._late_timer = loop.call_at(self._late[0][0], self.send_ready) if is_waiting else None

    async def _connect(self) -> None:
        link: Outgoing | None = None
        with suppress(PeerGoneError):
            link = await self._open(self)
        if self._opening is not asyncio.current_task():  # cancelled too late
            if link is not None:
                link.abort()
            return
        self._opening, self._link = None, link
        if link is None or link.has_ended:
            self._link = None
            self.clear()
        self.send_ready()

    def lose(self, link: Outgoing) -> None:
        """Drops what waits when the connection of the channel has ended."""
        if self._link is link:
            self._link = None
            self.clear()
            self.send_ready()

    def reopen(self, incarnation: int) -> None:
        """Has what waits, and what follows, leave over a connection to this incarnation of the peer, unless the present
        one reaches it.
        """
        if self._link is not None and self._link.incarnation < incarnation:
            link, self._link = self._link, None
            link.abort()
        self._cancel_opening()
        self.send_ready()

    def _cancel_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def finish(self) -> asyncio.Future[None]:
        """Sends what waits and then nothing more; done when the peer has handled it, or is gone."""
        if self._finished is None:
            self._finished = asyncio.get_running_loop().create_future()
        self._is_urgent = True
        self.send_ready()
        return self._finished

    def _finish(self, finished: asyncio.Future[None]) -> None:
        if self._queue or self._late or self._opening is not None:
            return
        if self._link is not None:
            self._link.finish()
        elif not finished.done():
            finished.set_result(None)

    def close(self) -> None:
        """Drops what waits, and resets the connection."""
        self.clear()
        self._cancel_opening()
        if self._link is not None:
            self._link.abort()
            self._link = None
