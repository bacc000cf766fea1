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
sent again only once another controller is active. A response that arrives after its generator went on is dropped, and
requests to the broker that have none by then are withdrawn, so that reads and appends do not wait for no one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any

from protocol.contract import Outbox
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import NO_LEADER, NodeId, TimeMs
from protocol.messages.base import ClientRequest, Response

BROKER: NodeId = -10
"""The broker that hosts the listener, as a destination."""
CONTROLLER: NodeId = -11
"""The active controller, as a destination."""
RETRY_MS = 1_000
NOT_ACTIVE_RETRY_MS = 50
MAX_WAIT_MS = 900_000
"""How long a handler waits for responses at most, whatever timeout its request has."""
PRUNE_FROM = 1_024
"""Number of entries in the queue of times from which those of waits that are over are removed now and then."""
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
        self.waiting: Task | None = None


Handler = Generator[Calls | Signal, Any, Any]


@dataclass(eq=False, slots=True)
class Task:
    """A generator with what it waits for; `awaited` counts its waits, so that late deadlines are recognised."""

    handler: Handler
    done: Callable[[TimeMs, Any], None]
    answers: Answers = field(default_factory=list)
    is_enough: Callable[[Answers], bool] | None = None
    missing: int = 0
    awaited: int = 0
    numbers: set[int] = field(default_factory=set)
    """Correlation ids of its requests that have no response yet."""


def _ended(now_ms: TimeMs, value: Any) -> None:
    """What a handler that has returned does when it returns."""
    raise ProtocolInvariantError("a handler has returned twice")


@dataclass(eq=False, slots=True)
class _Sent:
    task: Task
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
        self.withdrawn: deque[tuple[int, ClientRequest]] = deque()
        """Those whose responses are not waited for any more, with their correlation ids."""
        self._out = out
        self._controller = controller
        self._sent: dict[int, _Sent] = {}
        self._given: deque[tuple[Task, int, Any]] = deque()
        self._last_id = 0
        self._due: list[_Due] = []
        self._entries = 0
        self._prune_at = PRUNE_FROM

    @property
    def next_due_ms(self) -> TimeMs | None:
        return self._due[0][0] if self._due else None

    @property
    def waiting(self) -> int:
        """How many deadlines are waited for."""
        return len(self._due)

    def run(self, now_ms: TimeMs, handler: Handler, done: Callable[[TimeMs, Any], None]) -> Task:
        """Starts a handler; `done(now_ms, returned value)` is called when it returns, possibly at once."""
        task = Task(handler, done)
        self._resume(now_ms, task, None)
        return task

    def cancel(self, task: Task) -> None:
        """Ends a handler that waits for responses; `done` is not called."""
        self._stop_waiting(task)
        task.handler.close()

    def send_to_broker(self, request: ClientRequest) -> None:
        """A request to the broker that gets no response."""
        self.to_broker.append(request)

    def at(self, at_ms: TimeMs, act: Callable[[TimeMs], None], task: Task | None = None) -> None:
        """Calls `act(now_ms)` at a time; where it is for the present wait of a task, only while that lasts."""
        self._entries += 1
        heappush(self._due, (at_ms, self._entries, act, task, 0 if task is None else task.awaited))
        if len(self._due) >= self._prune_at:
            self._due = [entry for entry in self._due if _is_due(entry)]
            heapify(self._due)
            self._prune_at = max(PRUNE_FROM, 2 * len(self._due))

    def receive(self, now_ms: TimeMs, response: Response) -> None:
        """A response of the broker or of a controller."""
        sent = self._take(response.correlation_id)
        if sent is None:
            return
        if sent.call.to == CONTROLLER and response.error in _NOT_ACTIVE and now_ms < sent.deadline_ms:
            self.at(now_ms + NOT_ACTIVE_RETRY_MS, lambda later_ms: self._retry(later_ms, sent), sent.task)
            return
        task = sent.task
        task.answers[sent.place] = response
        task.missing -= 1
        if task.missing == 0 or (task.is_enough is not None and task.is_enough(task.answers)):
            self._resume(now_ms, task, task.answers)

    def give(self, signal: Signal, value: Any) -> None:
        """Has `settle` resume the handler that waits for a signal, so that it does not run within that of the giver."""
        task, signal.waiting = signal.waiting, None
        if task is not None:
            self._given.append((task, task.awaited, value))

    def settle(self, now_ms: TimeMs) -> None:
        """Resumes the handlers that were given what they wait for."""
        while self._given:
            task, awaited, value = self._given.popleft()
            if task.awaited == awaited:
                self._resume(now_ms, task, value)

    def fire(self, now_ms: TimeMs) -> None:
        """Carries out what is due."""
        while self._due and self._due[0][0] <= now_ms:
            entry = heappop(self._due)
            if _is_due(entry):
                entry[2](now_ms)
                self.settle(now_ms)

    def _take(self, number: int) -> _Sent | None:
        sent = self._sent.pop(number, None)
        if sent is not None:
            sent.task.numbers.discard(number)
        return sent

    def _stop_waiting(self, task: Task) -> None:
        task.awaited += 1
        for number in sorted(task.numbers):
            call = self._sent.pop(number).call
            if call.to == BROKER:
                self.withdrawn.append((number, call.request))
        task.numbers.clear()

    def _resume(self, now_ms: TimeMs, task: Task, value: Any) -> None:
        self._stop_waiting(task)
        try:
            wanted = task.handler.send(value)
        except StopIteration as end:
            done, task.done, task.answers = task.done, _ended, []  # its deadlines are still in the queue
            done(now_ms, end.value)
            return
        if isinstance(wanted, Signal):
            wanted.waiting = task
            signal = wanted
            self.at(wanted.deadline_ms, lambda later_ms: self._expire_signal(later_ms, signal, task), task)
            return
        task.answers = [None] * len(wanted.calls)
        task.is_enough, task.missing = wanted.is_enough, len(wanted.calls)
        if not wanted.calls:
            self._resume(now_ms, task, task.answers)
            return
        deadline_ms = min(wanted.deadline_ms, now_ms + MAX_WAIT_MS)
        self.at(deadline_ms, lambda later_ms: self._resume(later_ms, task, task.answers), task)
        for place, call in enumerate(wanted.calls):
            self._send(now_ms, _Sent(task, place, call, deadline_ms))

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
            self.at(now_ms + RETRY_MS, lambda later_ms: self._repeat(later_ms, number), sent.task)
        else:
            self._out.send(sent.call.to, request)

    def _repeat(self, now_ms: TimeMs, number: int) -> None:
        """Sends a request to the controller again that has not been answered."""
        sent = self._sent.get(number)
        if sent is None:
            return
        if sent.call.is_change and self._controller() == sent.receiver != NO_LEADER:
            self.at(now_ms + RETRY_MS, lambda later_ms: self._repeat(later_ms, number), sent.task)
            return
        self._take(number)
        self._retry(now_ms, sent)

    def _retry(self, now_ms: TimeMs, sent: _Sent) -> None:
        if now_ms < sent.deadline_ms:
            self._send(now_ms, sent)

    def _expire_signal(self, now_ms: TimeMs, signal: Signal, task: Task) -> None:
        if signal.waiting is task:
            signal.waiting = None
            self._resume(now_ms, task, None)


_Due = tuple[TimeMs, int, Callable[[TimeMs], None], Task | None, int]
"""When, the number of the entry, what to do, and the task and its wait where it is for one."""


def _is_due(entry: _Due) -> bool:
    task = entry[3]
    return task is None or task.awaited == entry[4]
