"""How a handler of a Kafka request waits: generators over requests to nodes.

The handler of an API is a generator. It yields what it waits for, and is resumed with the result; what it returns is
the response. So a handler that asks three leaders, or waits for a group's other members, is one function from top to
bottom, without a thread and without a table of half-finished requests:

    def delete_topics(view, request):
        (response,) = yield Calls([Call(CONTROLLER, DeleteTopicsRequest(...))], view.now_ms + timeout_ms)
        return {"responses": ...}

`Tasks` runs generators. Requests to the broker that hosts the listener are handed to it at once. Those to the active
controller are sent to it, and again to its successor after NOT_CONTROLLER or a silence of `RETRY_MS`, until the
deadline (as Kafka's brokers forward requests). A silent controller may be at work: a request that changes something is
sent again only once another controller is active. A response that arrives after its generator went on is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from protocol.contract import Outbox
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NodeId, TimeMs
from protocol.messages.base import ClientRequest, Response

BROKER: NodeId = -10
"""The broker that hosts the listener, as a destination."""
CONTROLLER: NodeId = -11
"""The active controller, as a destination."""
RETRY_MS = 1_000
NOT_ACTIVE_RETRY_MS = 50
_NOT_ACTIVE = (ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a node; its correlation id is assigned when it is sent. `is_change`: whether a controller that gets
    it twice would do twice what it asks for.
    """

    to: NodeId
    request: ClientRequest
    is_change: bool = False


Answers = list[Response | None]
"""The responses to calls in their order; None where there is none yet."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Waits for the responses to all `calls` (none: not at all), for as many as make `is_enough` of them true, or until
    `deadline_ms`. The result is the `Answers`.
    """

    calls: Sequence[Call]
    deadline_ms: TimeMs
    is_enough: Callable[[Answers], bool] | None = None


class Signal:
    """Something that one handler waits for and another part gives: a generator that yields it is resumed with the value
    of `give`, or with None at `deadline_ms`. Values given before or after are dropped.
    """

    __slots__ = ("deadline_ms", "waiting")

    def __init__(self, deadline_ms: TimeMs) -> None:
        self.deadline_ms = deadline_ms
        self.waiting: _Task | None = None


Handler = Generator[Calls | Signal, Any, Any]


@dataclass(eq=False, slots=True)
class _Task:
    """A generator with what it waits for; `awaited` counts its waits, so that late deadlines are recognised."""

    handler: Handler
    done: Callable[[TimeMs, Any], None]
    answers: Answers = field(default_factory=list)
    is_enough: Callable[[Answers], bool] | None = None
    missing: int = 0
    awaited: int = 0
    numbers: set[int] = field(default_factory=set)
    """Correlation ids of its requests that have no response yet."""


@dataclass(eq=False, slots=True)
class _Sent:
    task: _Task
    awaited: int
    place: int
    call: Call
    deadline_ms: TimeMs
    receiver: NodeId = NO_LEADER
    """The controller that it was sent to."""


class Tasks:
    """The running handlers of one listener. `controller` gives the node id of the active controller as far as known."""

    def __init__(self, out: Outbox, controller: Callable[[], NodeId]) -> None:
        self.to_broker: deque[ClientRequest] = deque()
        """Requests for the broker that hosts the listener, in order."""
        self._out = out
        self._controller = controller
        self._sent: dict[int, _Sent] = {}
        self._last_id = 0
        self._due: list[tuple[TimeMs, int, Callable[[TimeMs], None]]] = []
        self._entries = 0

    @property
    def next_due_ms(self) -> TimeMs | None:
        return self._due[0][0] if self._due else None

    def run(self, now_ms: TimeMs, handler: Handler, done: Callable[[TimeMs, Any], None]) -> None:
        """Starts a handler; `done(now_ms, returned value)` is called when it returns, possibly at once."""
        self._resume(now_ms, _Task(handler, done), None)

    def send_to_broker(self, request: ClientRequest) -> None:
        """A request to the broker that gets no response."""
        self.to_broker.append(request)

    def at(self, at_ms: TimeMs, act: Callable[[TimeMs], None]) -> None:
        """Calls `act(now_ms)` at a time."""
        self._entries += 1
        heappush(self._due, (at_ms, self._entries, act))

    def receive(self, now_ms: TimeMs, response: Response) -> None:
        """A response of the broker or of a controller."""
        sent = self._take(response.correlation_id)
        if sent is None:
            return
        if sent.call.to == CONTROLLER and response.error in _NOT_ACTIVE and now_ms < sent.deadline_ms:
            self.at(now_ms + NOT_ACTIVE_RETRY_MS, lambda later_ms: self._retry(later_ms, sent))
            return
        task = sent.task
        task.answers[sent.place] = response
        task.missing -= 1
        if task.missing == 0 or (task.is_enough is not None and task.is_enough(task.answers)):
            self._resume(now_ms, task, task.answers)

    def give(self, now_ms: TimeMs, signal: Signal, value: Any) -> None:
        """Resumes the handler that waits for a signal."""
        task, signal.waiting = signal.waiting, None
        if task is not None:
            self._resume(now_ms, task, value)

    def fire(self, now_ms: TimeMs) -> None:
        """Carries out what is due."""
        while self._due and self._due[0][0] <= now_ms:
            heappop(self._due)[2](now_ms)

    def _take(self, number: int) -> _Sent | None:
        sent = self._sent.pop(number, None)
        if sent is not None:
            sent.task.numbers.discard(number)
        return sent

    def _resume(self, now_ms: TimeMs, task: _Task, value: Any) -> None:
        task.awaited += 1
        for number in task.numbers:
            del self._sent[number]
        task.numbers.clear()
        try:
            wanted = task.handler.send(value)
        except StopIteration as end:
            task.done(now_ms, end.value)
            return
        awaited = task.awaited
        if isinstance(wanted, Signal):
            wanted.waiting = task
            signal = wanted
            self.at(wanted.deadline_ms, lambda later_ms: self._expire_signal(later_ms, signal, task, awaited))
            return
        task.answers = [None] * len(wanted.calls)
        task.is_enough, task.missing = wanted.is_enough, len(wanted.calls)
        if not wanted.calls:
            self._resume(now_ms, task, task.answers)
            return
        self.at(wanted.deadline_ms, lambda later_ms: self._expire(later_ms, task, awaited))
        for place, call in enumerate(wanted.calls):
            self._send(now_ms, _Sent(task, awaited, place, call, wanted.deadline_ms))

    def _send(self, now_ms: TimeMs, sent: _Sent) -> None:
        self._last_id = number = self._last_id % (2**31 - 1) + 1
        self._sent[number] = sent
        sent.task.numbers.add(number)
        request = replace(sent.call.request, correlation_id=number)
        if sent.call.to == BROKER:
            self.to_broker.append(request)
        elif sent.call.to == CONTROLLER:
            sent.receiver = self._controller()
            if sent.receiver != NO_LEADER:
                self._out.send(sent.receiver, request)
            self.at(now_ms + RETRY_MS, lambda later_ms: self._repeat(later_ms, number))
        else:
            self._out.send(sent.call.to, request)

    def _repeat(self, now_ms: TimeMs, number: int) -> None:
        """Sends a request to the controller again that has not been answered."""
        sent = self._sent.get(number)
        if sent is None:
            return
        if sent.call.is_change and self._controller() == sent.receiver != NO_LEADER:
            self.at(now_ms + RETRY_MS, lambda later_ms: self._repeat(later_ms, number))
            return
        self._take(number)
        self._retry(now_ms, sent)

    def _retry(self, now_ms: TimeMs, sent: _Sent) -> None:
        if sent.awaited == sent.task.awaited and now_ms < sent.deadline_ms:
            self._send(now_ms, sent)

    def _expire(self, now_ms: TimeMs, task: _Task, awaited: int) -> None:
        if task.awaited == awaited:
            self._resume(now_ms, task, task.answers)

    def _expire_signal(self, now_ms: TimeMs, signal: Signal, task: _Task, awaited: int) -> None:
        if task.awaited == awaited and signal.waiting is task:
            signal.waiting = None
            self._resume(now_ms, task, None)
