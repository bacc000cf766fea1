"""Runs procedures one at a time: the controller's lock and its queue of events (A40, A55).

An event that is queued already is not queued again, since its procedure reads the present state when it begins. An
urgent one, such as a change of brokers, goes before the others: leaders fail over while a reassignment waits (A41).

The reads and writes of a step are spread over the controller's store sessions, at most one request at a time in each,
and up to `multi` units are carried out as one transaction. If a unit of a transaction fails, it gets its error, and the
others are tried again without it. A write whose outcome is unknown is repeated: since writes are conditional, one that
had taken effect fails then, and its procedure finds its own work. Session 0 is the broker's own, with the ephemeral
nodes and the watches: if it expires, the broker is not controller any more. A request of another one is repeated.

Every fenced transaction begins with a check of the version of `/controller_epoch` at this controller's election. If it
fails, another broker has been elected: the runner aborts everything and reports that its broker is deposed (A35, M34).

A broker has several runners, each with a name: one for its own registration and elections, one for the ISRs that it
writes, one for requests of admins, and one for its term as controller. Their timers are `runner/NAME/TIMER`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from protocol.contract import Outbox
from protocol.errors import ProtocolError, ProtocolInvariantError
from protocol.events.store import StoreAlert
from protocol.ids import TimeMs
from protocol.messages.store import Check, Create, OperationResult, StoreError
from protocol.v3.controller.procedure import (
    Alert,
    BrokerCommand,
    Commands,
    Event,
    Later,
    Pause,
    Procedure,
    Reads,
    Writes,
)
from protocol.v3.store.client import Operations, StoreSession

RUNNER_PREFIX = "runner/"
OWN_SESSION = 0
PAUSE = "pause"
"""The name of the timer that ends a Pause."""
FAILED_RETRY_MS = 5_000
"""The time after which an event is handled again whose procedure has ended with an error."""


@dataclass(slots=True, eq=False)
class SessionOutlet:
    """Where the runner `name` sends requests, commands, timers and alerts. `on_command` takes the commands of a
    controller's procedures; `on_deposed` is called after the runner has aborted everything.
    """

    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_timers"})  # to be cancelled with the procedures

    name: str
    sessions: Sequence[StoreSession]
    out: Outbox
    on_deposed: Callable[[TimeMs], None] | None = None
    on_command: Callable[[TimeMs, BrokerCommand], None] | None = None
    _timers: set[str] = field(default_factory=set)
    runner: Runner | None = None

    def request(self, session: int, call: int, operations: Operations) -> None:
        """Sends a read or a transaction over one of the sessions; `Runner.answered` follows."""
        self.sessions[session].submit(operations, partial(self._answered, call))

    def _answered(self, call: int, now_ms: TimeMs, results: tuple[OperationResult, ...]) -> None:
        if self.runner is not None:
            self.runner.answered(now_ms, call, results)

    def command(self, now_ms: TimeMs, command: BrokerCommand) -> None:
        if self.on_command is None:
            raise ProtocolInvariantError(f"runner {self.name} has commands, and is no controller's")
        self.on_command(now_ms, command)

    def set_timer(self, name: str, due_ms: TimeMs) -> None:
        self._timers.add(name)
        self.out.set_timer(f"{RUNNER_PREFIX}{self.name}/{name}", due_ms)

    def alert(self, text: str) -> None:
        self.out.trace(StoreAlert(text))

    def deposed(self, now_ms: TimeMs) -> None:
        if self.on_deposed is not None:
            self.on_deposed(now_ms)

    def cancel_timers(self) -> None:
        for name in sorted(self._timers):
            self.out.cancel_timer(f"{RUNNER_PREFIX}{self.name}/{name}")
        self._timers.clear()


@dataclass(slots=True)
class _Job:
    """A procedure that runs or waits. `done` gets the time and its result, or None if it has been aborted."""

    name: str
    start: Callable[[], Procedure[Any]]
    done: Callable[[TimeMs, Any], None] | None = None


@dataclass(slots=True)
class _Batch:
    """A step: the groups of indexes that wait for any or the `own` session, and session and group of each request."""

    step: Reads | Writes
    waiting: deque[list[int]]
    own: deque[list[int]]
    results: list[Any]
    calls: dict[int, tuple[int, list[int]]] = field(default_factory=dict)


@dataclass(eq=False)
class Runner:
    """`procedures`: what the events start. `fence`: what each transaction of an elected controller checks."""

    _outlet: SessionOutlet
    _procedures: Mapping[Event, Callable[[], Procedure[Any]]]
    sessions: int = 1
    multi: int = 1
    _queue: deque[_Job] = field(default_factory=deque)
    _job: _Job | None = None
    _procedure: Procedure[Any] | None = None
    _batch: _Batch | None = None
    _next_call: int = 0
    fence: Check | None = None

    def __post_init__(self) -> None:
        self._outlet.runner = self

    @property
    def is_idle(self) -> bool:
        """Whether no procedure runs or waits."""
        return self._job is None and not self._queue

    @property
    def is_pausing(self) -> bool:
        """Whether the procedure that runs waits for the end of a pause."""
        return self._procedure is not None and self._batch is None

    def submit(self, now_ms: TimeMs, event: Event, *, is_urgent: bool = False) -> None:
        """Runs the procedure of an event after those that wait, or before them."""
        if any(job.name == event for job in self._queue):
            if not is_urgent:
                return
            self._queue = deque(job for job in self._queue if job.name != event)
        job = _Job(event, self._procedures[event])
        (self._queue.appendleft if is_urgent else self._queue.append)(job)
        self._next_job(now_ms)

    def call(
        self, now_ms: TimeMs, name: str, start: Callable[[], Procedure[Any]], done: Callable[[TimeMs, Any], None]
    ) -> None:
        """Runs a procedure after those that wait; `done` gets the time and its result, or None if it is aborted."""
        self._queue.append(_Job(name, start, done))
        self._next_job(now_ms)

    def answered(self, now_ms: TimeMs, call: int, results: tuple[OperationResult, ...]) -> None:
        """The store has answered. The answer to a call of an aborted procedure is ignored."""
        batch = self._batch
        if batch is None or call not in batch.calls:
            return
        session, group = batch.calls.pop(call)
        error = results[-1].error
        if error is StoreError.SESSION_EXPIRED and session == OWN_SESSION:
            self._depose(now_ms)
        elif error in (StoreError.SESSION_EXPIRED, StoreError.CONNECTION_LOSS):
            (batch.own if session == OWN_SESSION else batch.waiting).appendleft(group)
            self._continue_batch(now_ms, batch)
        elif isinstance(batch.step, Reads):
            batch.results[group[0]] = results[0]
            self._continue_batch(now_ms, batch)
        else:
            self._written(now_ms, batch, batch.step, group, results)

    def fired(self, now_ms: TimeMs, name: str) -> None:
        if name != PAUSE:
            self.submit(now_ms, Event(name))
        elif self.is_pausing:
            self._advance(now_ms, None)

    def abort(self, now_ms: TimeMs) -> None:
        """Ends what runs and empties the queue: the session has expired, or the broker stops."""
        jobs = [*([self._job] if self._job is not None else []), *self._queue]
        procedure, self._procedure = self._procedure, None
        self._job, self._batch, self.fence = None, None, None
        self._queue.clear()
        if procedure is not None:
            procedure.close()
        for job in jobs:
            if job.done is not None:
                job.done(now_ms, None)

    def _next_job(self, now_ms: TimeMs) -> None:
        if self._job is None and self._queue:
            self._job = self._queue.popleft()
            self._procedure = self._job.start()
            self._advance(now_ms, None)

    def _advance(self, now_ms: TimeMs, result: Any) -> None:
        """Sends the procedure the result of its step, and begins the next steps until one has to be awaited."""
        while self._procedure is not None:
            try:
                step = self._procedure.send(result)
            except StopIteration as end:
                self._finish(now_ms, end.value)
                return
            except ProtocolInvariantError:
                raise
            except ProtocolError as error:
                # The procedure of an event runs again later: the event would not come again.
                if self._job is not None:
                    self._outlet.alert(f"{self._job.name}: {error}")
                    if self._job.name in self._procedures:
                        self._outlet.set_timer(self._job.name, now_ms + FAILED_RETRY_MS)
                self._finish(now_ms, None)
                return
            if self._begin(now_ms, step):
                return
            result = None

    def _begin(self, now_ms: TimeMs, step: Any) -> bool:
        """Carries a step out or begins it; whether it has to be awaited."""
        match step:
            case Reads(operations):
                self._begin_batch(now_ms, step, len(operations), 1)
                return True
            case Writes(units):
                self._begin_batch(now_ms, step, len(units), self.multi)
                return True
            case Pause(duration_ms):
                self._outlet.set_timer(PAUSE, now_ms + duration_ms)
                return True
            case Commands(commands):
                for command in commands:
                    self._outlet.command(now_ms, command)
            case Later(event, after_ms):
                self._outlet.set_timer(event, now_ms + after_ms)
            case Alert(text):
                self._outlet.alert(text)
        return False

    def _finish(self, now_ms: TimeMs, result: Any) -> None:
        job, self._job, self._procedure = self._job, None, None
        if job is not None and job.done is not None:
            job.done(now_ms, result)
        self._next_job(now_ms)

    def _depose(self, now_ms: TimeMs) -> None:
        self.abort(now_ms)
        self._outlet.deposed(now_ms)

    def _begin_batch(self, now_ms: TimeMs, step: Reads | Writes, size: int, group_size: int) -> None:
        self._batch = _Batch(step, deque(), deque(), [None] * size)
        for first in range(0, size, group_size):
            group = list(range(first, min(first + group_size, size)))
            is_own = any(_is_own(step, index) for index in group)
            (self._batch.own if is_own else self._batch.waiting).append(group)
        self._continue_batch(now_ms, self._batch)

    def _continue_batch(self, now_ms: TimeMs, batch: _Batch) -> None:
        if not batch.waiting and not batch.own and not batch.calls:
            self._batch = None
            self._advance(now_ms, tuple(batch.results) if isinstance(batch.step, Reads) else batch.results)
            return
        busy = {session for session, _ in batch.calls.values()}
        for session in range(self.sessions):
            groups = batch.own if session == OWN_SESSION and batch.own else batch.waiting
            if session not in busy and groups:
                self._call(batch, session, groups.popleft())

    def _call(self, batch: _Batch, session: int, group: list[int]) -> None:
        call, self._next_call = self._next_call, self._next_call + 1
        batch.calls[call] = (session, group)
        if isinstance(batch.step, Reads):
            self._outlet.request(session, call, batch.step.operations[group[0]])
            return
        units = batch.step.units
        operations = [operation for index in group for operation in units[index]]
        self._outlet.request(session, call, (*self._fence_of(batch.step), *operations))

    def _fence_of(self, step: Writes) -> tuple[Check, ...]:
        if not step.is_fenced:
            return ()
        if self.fence is None:
            raise ProtocolInvariantError("a controller writes before it has been elected")
        return (self.fence,)

    def _written(
        self, now_ms: TimeMs, batch: _Batch, step: Writes, group: list[int], results: tuple[OperationResult, ...]
    ) -> None:
        has_failed = results[-1].error is not StoreError.NONE
        if has_failed and step.is_fenced and len(results) == 1:
            self._depose(now_ms)
            return
        left, again = iter(results[1:] if step.is_fenced else results), []
        for index in group:
            own = tuple(islice(left, len(step.units[index])))
            if not has_failed or (own and own[-1].error is not StoreError.NONE):
                batch.results[index] = own
            else:
                again.append(index)
        if again:
            batch.waiting.appendleft(again)
        self._continue_batch(now_ms, batch)


def _is_own(step: Reads | Writes, index: int) -> bool:
    """Whether an item needs the broker's own session: it sets a watch, or creates an ephemeral node."""
    if isinstance(step, Reads):
        return step.operations[index].watch
    return any(isinstance(operation, Create) and operation.ephemeral for operation in step.units[index])
