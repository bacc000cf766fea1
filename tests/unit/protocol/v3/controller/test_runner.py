"""The runner: one procedure at a time, requests spread over sessions and transactions, fencing, abort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.errors import ProtocolInvariantError
from protocol.ids import TimeMs
from protocol.messages.store import (
    Check,
    Create,
    Delete,
    Exists,
    GetData,
    OperationResult,
    SetData,
    StoreError,
)
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
    read,
    write,
)
from protocol.v3.controller.runner import FAILED_RETRY_MS, PAUSE, Runner
from protocol.v3.store.client import Operations
from protocol.v3.store.records import DamagedNodeError

NOW_MS = 1_000
FENCE = Check(path="/controller_epoch", version=4)
DONE = OperationResult(version=1)


class FakeOutlet:
    """Records what a runner does; the test answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, Operations]] = []
        self.log: list[Any] = []

    def request(self, session: int, call: int, operations: Operations) -> None:
        self.requests.append((session, call, operations))

    def command(self, now_ms: TimeMs, command: BrokerCommand) -> None:
        self.log.append(command)

    def set_timer(self, name: str, due_ms: TimeMs) -> None:
        self.log.append((name, due_ms - NOW_MS))

    def alert(self, text: str) -> None:
        self.log.append(text)

    def deposed(self, now_ms: TimeMs) -> None:
        self.log.append("deposed")

    def take(self) -> list[tuple[int, int, Operations]]:
        taken, self.requests = self.requests, []
        return taken


def into(results: list[Any]) -> Callable[[TimeMs, Any], None]:
    """Puts the result of a procedure into a list."""
    return lambda now_ms, result: results.append(result)


Made = tuple[Runner, FakeOutlet]


def make(procedures: dict[Event, Callable[[], Procedure[Any]]] | None = None, **spread: int) -> Made:
    outlet = FakeOutlet()
    runner = Runner(outlet, procedures or {}, **spread)
    runner.fence = FENCE
    return runner, outlet


def answer_all(runner: Runner, outlet: FakeOutlet) -> int:
    """Answers every request with success until none is under way; returns how many there were."""
    count = 0
    while taken := outlet.take():
        for _, call, operations in taken:
            size = len(operations) if isinstance(operations, tuple) else 1
            runner.answered(NOW_MS, call, (DONE,) * size)
            count += 1
    return count


def sets(count: int) -> list[tuple[SetData, ...]]:
    return [(SetData(path=f"/{index}", data=b"", version=0),) for index in range(count)]


@pytest.mark.covers("A40", "A55")
def test_procedures_run_one_at_a_time_and_urgent_ones_first() -> None:
    order: list[str] = []

    def procedure(name: str) -> Procedure[None]:
        order.append(name)
        yield from read((Exists(path=f"/{name}"),))

    events = (Event.TOPIC_CHANGE, Event.ADDED, Event.BROKER_CHANGE)
    runner, outlet = make({event: lambda event=event: procedure(event) for event in events})
    runner.submit(NOW_MS, Event.TOPIC_CHANGE)
    runner.submit(NOW_MS, Event.ADDED)
    runner.submit(NOW_MS, Event.ADDED)
    runner.submit(NOW_MS, Event.TOPIC_CHANGE)
    runner.submit(NOW_MS, Event.BROKER_CHANGE)
    runner.submit(NOW_MS, Event.BROKER_CHANGE, is_urgent=True)
    assert (order, len(outlet.requests)) == (["topic-change"], 1)
    assert answer_all(runner, outlet) == 4
    assert order == ["topic-change", "broker-change", "partitions-add", "topic-change"]
    assert runner.is_idle


@pytest.mark.parametrize(
    ("sessions", "multi", "requests", "rounds"),
    [(1, 1, 10, 10), (3, 1, 10, 4), (1, 4, 3, 3), (2, 4, 3, 2), (1, 100, 1, 1)],
)
@pytest.mark.covers("A3", "M46")
def test_writes_are_spread_over_sessions_and_transactions(
    sessions: int, multi: int, requests: int, rounds: int
) -> None:
    runner, outlet = make(sessions=sessions, multi=multi)
    results: list[Any] = []
    runner.call(NOW_MS, "write", lambda: write(sets(10)), into(results))
    seen = []
    while taken := outlet.take():
        assert [session for session, _, _ in taken] == list(range(len(taken)))
        for _, call, operations in taken:
            assert isinstance(operations, tuple)
            assert operations[0] == FENCE
            runner.answered(NOW_MS, call, (DONE, *(OperationResult(version=7) for _ in operations[1:])))
        seen.append(len(taken))
    assert (sum(seen), len(seen)) == (requests, rounds)
    assert results == [[(OperationResult(version=7),)] * 10]


@pytest.mark.covers("A55")
def test_a_session_has_one_request_at_a_time_and_takes_the_next_when_it_is_free() -> None:
    runner, outlet = make(sessions=2)
    results: list[Any] = []
    runner.call(NOW_MS, "read", lambda: read(GetData(path=f"/{n}") for n in range(4)), into(results))
    (_, first, _), (_, second, _) = outlet.take()
    runner.answered(NOW_MS, second, (OperationResult(version=1),))
    ((session, third, operation),) = outlet.take()
    assert (session, operation) == (1, GetData(path="/2"))
    runner.answered(NOW_MS, first, (OperationResult(version=0),))
    runner.answered(NOW_MS, third, (OperationResult(version=2),))
    ((_, fourth, _),) = outlet.take()
    runner.answered(NOW_MS, fourth, (OperationResult(version=3),))
    assert [[result.version for result in results[0]]] == [[0, 1, 2, 3]]


def test_the_units_of_a_failed_transaction_are_tried_without_the_one_that_failed() -> None:
    runner, outlet = make(multi=3)
    results: list[Any] = []
    units = [(Check(path=f"/c{n}", version=0), Delete(path=f"/d{n}")) for n in range(3)]
    runner.call(NOW_MS, "write", lambda: write(units), into(results))
    ((_, call, _),) = outlet.take()
    failed = OperationResult(error=StoreError.BAD_VERSION)
    runner.answered(NOW_MS, call, (DONE, DONE, DONE, DONE, failed))
    ((_, again, operations),) = outlet.take()
    assert operations == (FENCE, *units[0], *units[2])
    runner.answered(NOW_MS, again, (DONE,) * 5)
    assert results == [[(DONE, DONE), (DONE, failed), (DONE, DONE)]]


@pytest.mark.covers("A35", "M34")
def test_a_failed_fence_aborts_everything() -> None:
    runner, outlet = make({Event.ADDED: lambda: read((Exists(path="/"),))}, multi=2)
    results: list[Any] = []
    runner.call(NOW_MS, "write", lambda: write(sets(3)), into(results))
    runner.submit(NOW_MS, Event.ADDED)
    runner.call(NOW_MS, "later", lambda: write(sets(1)), into(results))
    ((_, call, _),) = outlet.take()
    runner.answered(NOW_MS, call, (OperationResult(error=StoreError.BAD_VERSION),))
    assert results == [None, None]
    assert outlet.log == ["deposed"]
    assert runner.is_idle
    assert not outlet.requests
    with pytest.raises(ProtocolInvariantError, match="before it has been elected"):
        runner.call(NOW_MS, "write", lambda: write(sets(1)), into(results))


def test_a_late_answer_to_an_aborted_procedure_is_ignored() -> None:
    runner, outlet = make()
    closed: list[str] = []

    def procedure() -> Procedure[None]:
        try:
            yield from read((Exists(path="/"),))
        finally:
            closed.append("closed")

    runner.call(NOW_MS, "read", procedure, into(closed))
    ((_, call, _),) = outlet.take()
    runner.abort(NOW_MS)
    assert closed == ["closed", None]
    runner.answered(NOW_MS, call, (DONE,))
    assert runner.is_idle


@pytest.mark.covers("M39")
def test_the_own_session_has_watches_and_ephemeral_nodes_and_its_end_deposes() -> None:
    operations = (GetData(path="/a"), GetData(path="/b", watch=True), GetData(path="/c"))
    runner, outlet = make(sessions=2)
    runner.call(NOW_MS, "read", lambda: read(operations), into([]))
    assert {session: operation for session, _, operation in outlet.take()} == {0: operations[1], 1: operations[0]}
    runner.abort(NOW_MS)
    runner.call(NOW_MS, "write", lambda: write(((Create(path="/e", ephemeral=True),),), is_fenced=False), into([]))
    ((session, call, _),) = outlet.take()
    assert session == 0
    runner.answered(NOW_MS, call, (OperationResult(error=StoreError.SESSION_EXPIRED),))
    assert outlet.log == ["deposed"]


@pytest.mark.parametrize(
    ("session", "error"),
    [(0, StoreError.CONNECTION_LOSS), (1, StoreError.CONNECTION_LOSS), (1, StoreError.SESSION_EXPIRED)],
)
def test_a_request_without_an_outcome_is_repeated(session: int, error: StoreError) -> None:
    runner, outlet = make(sessions=2)
    results: list[Any] = []
    runner.call(NOW_MS, "write", lambda: write(sets(2)), into(results))
    first = outlet.take()
    runner.answered(NOW_MS, first[session][1], (OperationResult(error=error),))
    ((at, again, operations),) = outlet.take()
    assert (at, operations) == (session, first[session][2])
    runner.answered(NOW_MS, again, (DONE, DONE))
    runner.answered(NOW_MS, first[1 - session][1], (DONE, DONE))
    assert results == [[(DONE,), (DONE,)]]
    assert not outlet.log


def test_steps_that_need_no_answer() -> None:
    command = BrokerCommand(1)

    def procedure() -> Procedure[str]:
        yield Commands((command,))
        yield Alert("attention")
        yield Later(Event.WAKE_UP, 30_000)
        yield Pause(20)
        assert (yield Reads(())) == ()
        assert (yield Writes(())) == []
        return "end"

    runner, outlet = make({Event.WAKE_UP: procedure})
    results: list[Any] = []
    runner.call(NOW_MS, "steps", procedure, into(results))
    assert outlet.log == [command, "attention", ("reassignment-agent", 30_000), (PAUSE, 20)]
    assert not results
    runner.fired(NOW_MS, PAUSE)
    assert results == ["end"]
    runner.fired(NOW_MS, "reassignment-agent")
    assert not runner.is_idle
    runner.fired(NOW_MS, PAUSE)
    runner.fired(NOW_MS, PAUSE)
    assert runner.is_idle


def test_an_error_of_a_procedure_is_an_alert_and_its_event_is_handled_again_later() -> None:
    def broken() -> Procedure[None]:
        yield from ()
        raise DamagedNodeError("/x", b"?", "JSON")

    def refused() -> Procedure[None]:
        yield from ()
        raise ProtocolInvariantError("a defect")

    runner, outlet = make({Event.ADDED: broken})
    runner.submit(NOW_MS, Event.ADDED)
    alert = "partitions-add: damaged node /x: found b'?'; allowed: JSON"
    assert outlet.log == [alert, ("partitions-add", FAILED_RETRY_MS)]
    assert runner.is_idle
    runner.fired(NOW_MS, "partitions-add")
    assert outlet.log == 2 * [alert, ("partitions-add", FAILED_RETRY_MS)]
    with pytest.raises(ProtocolInvariantError, match="a defect"):
        runner.call(NOW_MS, "refused", refused, into(outlet.log))
