"""The host of one node on Ray: feeds it one input at a time and carries out its effects in order (`protocol.contract`).

Inputs are queued. Control messages have a queue of their own and are handled first; data messages and due timers follow
in the order of their arrival. A timer that comes due is queued behind the waiting inputs, and dropped if one of these
sets or cancels it. The marks of idle timers are ignored, as the contract allows. Inputs that wait are handled in a row
within one millisecond: a turn of the event loop costs as much as a small input, and their messages leave together.

A paused host queues inputs and handles none, as a process in a long garbage collection does. A halted host (a crash)
handles none again. When the node exits or breaks an invariant, the host halts too.

Trace events and messages to the experiment (`DRIVER`) are kept until `drain`, within bounds. Of the trace events the
newest `MAX_TRACES` are kept; a `traces_dropped` event counts the others. Observers read the last `MAX_RECENT` trace
events as often as they like, each from where it has read to (`observe`). `await_news` ends when there is something to
drain, so that a node of which there is no news need not be asked. Outcomes are never dropped: while
`MAX_REPORTS` of them wait to be drained, commands of the experiment are withheld from the node, together with the calls
that brought them (`actors/cluster.py` bounds how many commands queue up behind them).

All calls happen on one thread.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

from actors.clock import LoopClock
from actors.metrics import RayMeter
from protocol.contract import CancelTimer, Effect, Exit, Node, Send, SetTimer
from protocol.errors import CodecError, StorageError
from protocol.events.base import Trace
from protocol.events.host import MessageMalformed, TracesDropped
from protocol.ids import DRIVER, NodeId, TimeMs, node_name
from protocol.messages.base import Message
from protocol.values import immutable

_LOG = logging.getLogger(__name__)
MAX_TRACES = 100_000
MAX_REPORTS = 10_000
MAX_RECENT = 10_000
FROM_NOW_ON = -1
"""Where an observer begins that is not interested in what has happened before."""
MAX_REASON = 200
"""Characters of the error text that a `malformed` trace event carries."""


@immutable
class _Input:
    """One input. `run` passes it to the node and returns the effects, None where it no longer applies; `done` is called
    once it has been handled. `is_command`: it comes from the experiment and may produce an outcome.
    """

    run: Callable[[TimeMs], list[Effect] | None]
    done: Callable[[], None] | None = None
    is_command: bool = False


class NodeHost:
    """The host of `node`, which sends its messages to other nodes by `send`. `inputs_taken` counts handled inputs;
    `exited`: the node has completed a controlled shutdown; `failure` is the traceback or the storage error that ended
    it, None while there is none.
    """

    def __init__(self, node: Node, clock: LoopClock, send: Callable[[NodeId, Message], None], meter: RayMeter) -> None:
        self.node = node
        self.inputs_taken = 0
        self.exited = False
        self.failure: str | None = None
        self._clock = clock
        self._send = send
        self._meter = meter
        self._control: deque[_Input] = deque()
        self._data: deque[_Input] = deque()
        self._timers: dict[str, TimerHandle] = {}
        self._traces: deque[tuple[TimeMs, Trace]] = deque()
        self._traces_dropped = 0
        self._recent: deque[tuple[TimeMs, Trace]] = deque(maxlen=MAX_RECENT)
        self._kept = 0
        self._reports: list[Message] = []
        self._news = asyncio.Event()
        self._withheld: deque[_Input] = deque()
        self._scheduled = False
        self._paused = False
        self._halted = False

    @property
    def is_idle(self) -> bool:
        """Whether no input waits."""
        return not (self._control or self._data)

    @property
    def is_halted(self) -> bool:
        return self._halted

    def start(self) -> None:
        """Queues the node's start, its first input."""
        self._enqueue(self._control, _Input(self.node.start))

    def deliver(
        self, sender: NodeId, messages: Sequence[Message], control: bool, done: Callable[[], None] | None = None
    ) -> None:
        """Queues the messages of a frame (at least one); `done` is called once the last one has been handled, or is
        dropped since the host has halted.
        """
        queue = self._control if control else self._data
        is_command = sender == DRIVER
        for message in messages[:-1]:
            self._enqueue(queue, _Input(self._receiver(sender, message), is_command=is_command))
        self._enqueue(queue, _Input(self._receiver(sender, messages[-1]), done, is_command))

    def malformed(self, sender: NodeId, error: CodecError) -> None:
        """Logs and traces bytes from a peer that could not be decoded; the node receives nothing."""
        text = str(error)[:MAX_REASON]
        _LOG.warning("%s: from %s: %s", node_name(self.node.node_id), node_name(sender), text)
        self._keep(self._clock.now_ms(), MessageMalformed(sender, text))

    def _receiver(self, sender: NodeId, message: Message) -> Callable[[TimeMs], list[Effect]]:
        arrived_s = self._meter.arrival()

        def receive(now_ms: TimeMs) -> list[Effect]:
            self._meter.record_received(sender, message, arrived_s)
            return self.node.receive(now_ms, sender, message)

        return receive

    def _enqueue(self, queue: deque[_Input], item: _Input) -> None:
        if not self._halted:
            queue.append(item)
            self._schedule()
        elif item.done is not None:
            item.done()

    def _schedule(self) -> None:
        if not (self._scheduled or self._paused or self._halted) and (self._control or self._data):
            self._scheduled = True
            self._clock.call_soon(self._take_some)

    def _take_some(self) -> None:
        """Handles inputs until the clock shows the next millisecond."""
        began_ms = now_ms = self._clock.now_ms()
        try:
            while now_ms == began_ms and (self._control or self._data) and not (self._paused or self._halted):
                self._take(now_ms, (self._control or self._data).popleft())
                now_ms = self._clock.now_ms()
        finally:
            self._scheduled = False
        self._schedule()

    def _take(self, now_ms: TimeMs, item: _Input) -> None:
        if item.is_command and len(self._reports) >= MAX_REPORTS:
            self._withheld.append(item)
            return
        try:
            effects = item.run(now_ms)
            for effect in effects or ():
                self._carry_out(now_ms, effect)
        except StorageError as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise
        except Exception:
            self.fail(traceback.format_exc())
            raise
        self.inputs_taken += 1
        self._meter.end_input()
        if item.done is not None:
            item.done()

    def _carry_out(self, now_ms: TimeMs, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._meter.record_sent(effect.to, effect.message)
            if effect.to == DRIVER:
                self._reports.append(effect.message)
                self._news.set()
            else:
                self._send(effect.to, effect.message)
        elif isinstance(effect, SetTimer):
            self._set_timer(effect.name, effect.at_ms)
        elif isinstance(effect, CancelTimer):
            self._cancel_timer(effect.name)
        elif isinstance(effect, Trace):
            self._keep(now_ms, effect)
        elif isinstance(effect, Exit):
            self.exited = True
            self.halt()

    def note(self, trace: Trace) -> None:
        """Keeps a trace event that is none of the node's inputs."""
        self._keep(self._clock.now_ms(), trace)

    def _keep(self, now_ms: TimeMs, trace: Trace) -> None:
        self._traces.append((now_ms, trace))
        self._recent.append((now_ms, trace))
        self._news.set()
        self._kept += 1
        self._meter.record_trace(trace)
        if len(self._traces) > MAX_TRACES:
            self._traces.popleft()
            self._traces_dropped += 1

    def _set_timer(self, name: str, at_ms: TimeMs) -> None:
        def fire(now_ms: TimeMs) -> list[Effect] | None:
            if self._timers.get(name) is not handle:
                return None
            del self._timers[name]
            return self.node.fire(now_ms, name)

        self._cancel_timer(name)
        handle = self._clock.call_at(at_ms, lambda: self._enqueue(self._data, _Input(fire)))
        self._timers[name] = handle

    def _cancel_timer(self, name: str) -> None:
        handle = self._timers.pop(name, None)
        if handle is not None:
            handle.cancel()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._schedule()

    def halt(self) -> None:
        """Drops all queued inputs and timers, and handles no input again."""
        self._halted = True
        self._news.set()
        for queue in (self._control, self._data, self._withheld):
            while queue:
                if (done := queue.popleft().done) is not None:
                    done()
        for name in list(self._timers):
            self._cancel_timer(name)

    def fail(self, reason: str) -> None:
        """Halts a node whose state, storage or transport is broken."""
        self.failure = reason
        self.halt()

    def drain(self) -> tuple[list[tuple[TimeMs, Trace]], list[Message]]:
        """The trace events with their times, and the messages to the experiment, since the last call."""
        traces, self._traces = list(self._traces), deque()
        if self._traces_dropped:
            traces.insert(0, (traces[0][0], TracesDropped(self._traces_dropped)))
            self._traces_dropped = 0
        reports, self._reports = self._reports, []
        if not self._halted:
            self._news.clear()
        self._data.extendleft(reversed(self._withheld))
        self._withheld.clear()
        self._schedule()
        return traces, reports

    def announce(self) -> None:
        """Ends `await_news`: what is drained with the host has news."""
        self._news.set()

    async def await_news(self, within_s: float) -> None:
        """Waits until there is something to drain or the host has halted, at most `within_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within_s)

    def observe(self, since: int) -> tuple[int, list[tuple[TimeMs, Trace]]]:
        """(number of trace events so far, those after the first `since` with their times), without taking them from
        `drain`; none for `FROM_NOW_ON`. A `traces_dropped` event counts those that are no longer kept.
        """
        wanted = 0 if since == FROM_NOW_ON else self._kept - since
        found = list(islice(self._recent, max(0, len(self._recent) - wanted), None))
        if wanted > len(found):
            found.insert(0, (found[0][0], TracesDropped(wanted - len(found))))
        return self._kept, found
