"""The host of one node: feeds it one input at a time and carries out its effects, in order (`protocol.contract`).

Inputs wait in two queues: control messages go before everything else, data messages and due timers follow in the order
of their arrival. A message's frame counts as taken when its last message has been handled, which is what the sender
waits for before it sends the next one; so a slow node fills its peers' queues and not its own.

A timer that comes due while inputs wait queues behind them, and is forgotten if one of these sets it anew or cancels
it. The marks of idle timers are ignored, as the contract allows.

Paused, the host takes no input and keeps queueing, as a process in a long garbage collection does. Halted (a crash),
it takes none ever again. When the node exits, or breaks an invariant, the host ends it in the same way; `failure` then
says what was broken.

Traces and messages to the experiment (`DRIVER`) are kept until they are drained, within bounds. Of the traces the
newest `MAX_TRACES` are kept; what had to go is counted, and told as `traces_dropped` in its place. An outcome is never
dropped: while `MAX_REPORTS` of them wait to be drained, the node is given no further commands of the experiment. They
wait, with the calls that brought them, until there is room (`actors/cluster.py` bounds what waits behind them).

Everything here happens on one thread.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from actors.clock import Cancellable, Clock
from actors.metrics import Meter
from protocol.contract import CancelTimer, Effect, Exit, Node, Send, SetTimer, Trace
from protocol.errors import CodecError, StorageError
from protocol.ids import DRIVER, NodeId, TimeMs, node_name
from protocol.messages.base import Message

_LOG = logging.getLogger(__name__)
MAX_TRACES = 100_000
MAX_REPORTS = 10_000
MAX_REASON = 200
"""Characters of what is said about bytes that are no message; they may be many."""


class Outbound(Protocol):
    """Where a host's messages leave."""

    def send(self, to: NodeId, message: Message) -> None: ...


@dataclass(slots=True)
class _Armed:
    """A timer that is set; compared by identity, so that a timer set anew is another one."""

    handle: Cancellable


@dataclass(frozen=True, slots=True)
class _Input:
    """What to ask the node (None: nothing any more), and whom to tell when it is done. A command is the experiment's,
    and may bring forth a report."""

    ask: Callable[[TimeMs], list[Effect] | None]
    done: Callable[[], None] | None = None
    is_command: bool = False


class NodeHost:
    """See the module docstring. `exited` is set once the node has finished in good order, `failure` when it broke."""

    def __init__(self, node: Node, clock: Clock, outbound: Outbound, meter: Meter) -> None:
        self.node = node
        self.inputs_taken = 0
        self.exited = False
        self.failure: str | None = None
        self._clock = clock
        self._outbound = outbound
        self._meter = meter
        self._control: deque[_Input] = deque()
        self._data: deque[_Input] = deque()
        self._timers: dict[str, _Armed] = {}
        self._traces: deque[tuple[TimeMs, Trace]] = deque()
        self._traces_dropped = 0
        self._reports: list[Message] = []
        self._withheld: deque[_Input] = deque()
        self._scheduled = False
        self._paused = False
        self._halted = False

    # -- inputs --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The node's first input."""
        self._enqueue(self._control, _Input(self.node.start))

    def deliver(
        self, sender: NodeId, messages: Sequence[Message], control: bool, done: Callable[[], None] | None = None
    ) -> None:
        """Queues a frame of messages, at least one; `done` is called once the last of them has been handled."""
        queue = self._control if control else self._data
        is_command = sender == DRIVER
        for message in messages[:-1]:
            self._enqueue(queue, _Input(self._receipt(sender, message), is_command=is_command))
        self._enqueue(queue, _Input(self._receipt(sender, messages[-1]), done, is_command))

    def malformed(self, sender: NodeId, error: CodecError) -> None:
        """Bytes from a peer were no message: nothing reaches the node, and an operator is told."""
        text = str(error)[:MAX_REASON]
        _LOG.warning("%s: from %s: %s", node_name(self.node.node_id), node_name(sender), text)
        self._keep(self._clock.now_ms(), Trace("malformed", None, {"sender": sender, "reason": text}))

    def _receipt(self, sender: NodeId, message: Message) -> Callable[[TimeMs], list[Effect]]:
        def receive(now_ms: TimeMs) -> list[Effect]:
            self._meter.received(message)
            return self.node.receive(now_ms, sender, message)

        return receive

    def _due(self, name: str, armed: _Armed) -> None:
        def fire(now_ms: TimeMs) -> list[Effect] | None:
            if self._timers.get(name) is not armed:
                return None
            del self._timers[name]
            return self.node.fire(now_ms, name)

        self._enqueue(self._data, _Input(fire))

    def _enqueue(self, queue: deque[_Input], item: _Input) -> None:
        if not self._halted:
            queue.append(item)
            self._schedule()

    def _schedule(self) -> None:
        if not (self._scheduled or self._paused or self._halted) and (self._control or self._data):
            self._scheduled = True
            self._clock.call_soon(self._take_one)

    def _take_one(self) -> None:
        self._scheduled = False
        if self._paused or self._halted:
            return
        item = (self._control or self._data).popleft()
        if item.is_command and len(self._reports) >= MAX_REPORTS:
            self._withheld.append(item)
            self._schedule()
            return
        now_ms = self._clock.now_ms()
        try:
            effects = item.ask(now_ms)
            for effect in effects or ():
                self._carry_out(now_ms, effect)
        except StorageError as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise
        except Exception:
            self.fail(traceback.format_exc())
            raise
        self.inputs_taken += 1
        self._meter.handled()
        if item.done is not None:
            item.done()
        self._schedule()

    # -- effects -------------------------------------------------------------------------------------------------------

    def _carry_out(self, now_ms: TimeMs, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._meter.sent(effect.message)
            if effect.to == DRIVER:
                self._reports.append(effect.message)
            else:
                self._outbound.send(effect.to, effect.message)
        elif isinstance(effect, SetTimer):
            self._set_timer(effect.name, effect.at_ms)
        elif isinstance(effect, CancelTimer):
            self._cancel_timer(effect.name)
        elif isinstance(effect, Trace):
            self._keep(now_ms, effect)
        elif isinstance(effect, Exit):
            self.exited = True
            self.halt()

    def _keep(self, now_ms: TimeMs, trace: Trace) -> None:
        self._traces.append((now_ms, trace))
        self._meter.traced(trace)
        if len(self._traces) > MAX_TRACES:
            self._traces.popleft()
            self._traces_dropped += 1

    def _set_timer(self, name: str, at_ms: TimeMs) -> None:
        self._cancel_timer(name)
        armed: _Armed
        armed = _Armed(self._clock.call_at(at_ms, lambda: self._due(name, armed)))
        self._timers[name] = armed

    def _cancel_timer(self, name: str) -> None:
        armed = self._timers.pop(name, None)
        if armed is not None:
            armed.handle.cancel()

    # -- control -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Takes no input from now on; what arrives waits."""
        self._paused = True

    def resume(self) -> None:
        """Takes inputs again, in the order in which they came."""
        self._paused = False
        self._schedule()

    def halt(self) -> None:
        """Takes no input ever again, and forgets what waits."""
        self._halted = True
        self._control.clear()
        self._data.clear()
        self._withheld.clear()
        for name in list(self._timers):
            self._cancel_timer(name)

    def fail(self, what: str) -> None:
        """The node, or what it stands on, is broken: it must not be carried on with."""
        self.failure = what
        self.halt()

    def drain(self) -> tuple[list[tuple[TimeMs, Trace]], list[Message]]:
        """Trace events with their times, and messages to the experiment, since this was last called."""
        traces, self._traces = list(self._traces), deque()
        if self._traces_dropped:
            traces.insert(0, (traces[0][0], Trace("traces_dropped", None, {"count": self._traces_dropped})))
            self._traces_dropped = 0
        reports, self._reports = self._reports, []
        self._data.extendleft(reversed(self._withheld))
        self._withheld.clear()
        self._schedule()
        return traces, reports
