"""The host: order of inputs and effects, timers, pause, halt, exit, failure; on a scripted node and a clock that the
test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from actors import host
from actors.host import FROM_NOW_ON, MAX_REASON, NodeHost
from protocol.contract import CancelTimer, Effect, Exit, Send, SetTimer
from protocol.errors import MalformedMessageError, ProtocolInvariantError
from protocol.events.base import Trace
from protocol.events.broker import BrokerStateChanged
from protocol.events.controller import SessionExpired
from protocol.events.host import TracesDropped
from protocol.events.registry import detail_of
from protocol.ids import DRIVER
from protocol.messages.admin import MetadataRequest
from protocol.messages.base import Message


class FakeClock:
    """A clock that the test moves; `settle` makes the calls of `call_soon`."""

    def __init__(self) -> None:
        self.time_ms = 0
        self._soon: list[Callable[[], None]] = []
        self._alarms: list[Alarm] = []

    def now_ms(self) -> int:
        return self.time_ms

    def call_at(self, at_ms: int, action: Callable[[], None]) -> Alarm:
        self._alarms.append(Alarm(at_ms, action))
        return self._alarms[-1]

    def call_soon(self, action: Callable[[], None]) -> None:
        self._soon.append(action)

    def settle(self) -> None:
        while self._soon:
            self.turn()

    def turn(self) -> None:
        """Makes the first of the calls of `call_soon`."""
        self._soon.pop(0)()

    def move_to(self, time_ms: int) -> None:
        """Makes the calls scheduled up to `time_ms`, each at its time; calls of `call_soon` wait for `settle`."""
        for alarm in sorted(self._alarms, key=lambda alarm: alarm.at_ms):
            if alarm.at_ms <= time_ms and not alarm.is_over:
                self.time_ms = max(self.time_ms, alarm.at_ms)
                alarm.is_over = True
                alarm.action()
        self.time_ms = time_ms


class Alarm:
    def __init__(self, at_ms: int, action: Callable[[], None]) -> None:
        self.at_ms, self.action, self.is_over = at_ms, action, False

    def cancel(self) -> None:
        self.is_over = True


class ScriptedNode:
    """Answers each input with the scripted effects; `inputs` are the inputs with their times."""

    node_id = 0

    def __init__(self, script: dict[object, list[Effect]]) -> None:
        self.script = script
        self.inputs: list[tuple[int, object]] = []

    def start(self, now_ms: int) -> list[Effect]:
        return self._take(now_ms, "start")

    def receive(self, now_ms: int, sender: int, message: Message) -> list[Effect]:
        assert isinstance(message, MetadataRequest)
        return self._take(now_ms, message.correlation_id)

    def fire(self, now_ms: int, name: str) -> list[Effect]:
        return self._take(now_ms, name)

    def _take(self, now_ms: int, what: object) -> list[Effect]:
        self.inputs.append((now_ms, what))
        if what == "broken":
            raise ProtocolInvariantError("the node is wrong")
        return self.script.get(what, [])


class Bench:
    """A host with fakes around it; the bench is the host's outbound and meter too."""

    def __init__(self, script: dict[object, list[Effect]] | None = None) -> None:
        self.clock = FakeClock()
        self.node = ScriptedNode(script or {})
        self.messages: list[tuple[int, Message]] = []
        self.metered: list[str] = []
        self.host = NodeHost(self.node, self.clock, self.send, self)

    def send(self, to: int, message: Message) -> None:
        self.messages.append((to, message))

    def arrival(self) -> float:
        return 0.0

    def record_sent(self, to: int, message: Message) -> None:
        self.metered.append("sent")

    def record_received(self, sender: int, message: Message, arrived_s: float) -> None:
        self.metered.append("received")

    def record_trace(self, trace: Trace) -> None:
        self.metered.append("traced")

    def end_input(self) -> None:
        self.metered.append("handled")

    def deliver(self, *numbers: int, control: bool = False, done: Callable[[], None] | None = None) -> None:
        self.host.deliver(7, [message(number) for number in numbers], control, done)

    @property
    def seen(self) -> list[object]:
        return [what for _, what in self.node.inputs]


def message(number: int) -> Message:
    return MetadataRequest(correlation_id=number, topic="t")


class SlowNode(ScriptedNode):
    """A node that takes a millisecond for its input 2."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__({})
        self.clock = clock

    def _take(self, now_ms: int, what: object) -> list[Effect]:
        self.clock.time_ms += what == 2
        return super()._take(now_ms, what)


def test_inputs_of_one_millisecond_are_handled_in_one_turn_of_the_event_loop() -> None:
    bench = Bench()
    bench.host.node = slow = SlowNode(bench.clock)
    bench.deliver(1, 2, 3, 4)
    bench.clock.turn()
    assert slow.inputs == [(0, 1), (0, 2)], "the next millisecond began"
    bench.clock.turn()
    assert slow.inputs[2:] == [(1, 3), (1, 4)]


def test_start_comes_first_and_control_before_data() -> None:
    bench = Bench()
    bench.host.start()
    bench.deliver(1, 2)
    bench.deliver(3, control=True)
    bench.deliver(4)
    bench.clock.settle()
    assert bench.seen == ["start", 3, 1, 2, 4]
    assert bench.host.inputs_taken == 5


def test_a_frame_is_done_when_its_last_message_has_been_handled() -> None:
    bench = Bench()
    done: list[list[object]] = []
    bench.deliver(1, 2, done=lambda: done.append(list(bench.seen)))
    bench.deliver(3)
    bench.clock.settle()
    assert done == [[1, 2]]


def test_effects_are_carried_out_in_order_before_the_next_input() -> None:
    trace = BrokerStateChanged(0, "running")
    bench = Bench({1: [Send(5, message(10)), trace, Send(DRIVER, message(11)), Send(6, message(12))]})
    bench.clock.time_ms = 42
    bench.deliver(1)
    bench.clock.settle()
    assert bench.messages == [(5, message(10)), (6, message(12))]
    assert bench.host.drain() == ([(42, trace)], [message(11)])
    assert bench.host.drain() == ([], [])
    assert bench.metered == ["received", "sent", "traced", "sent", "sent", "handled"]


def test_a_timer_fires_once_at_its_time_and_setting_it_again_replaces_it() -> None:
    bench = Bench(
        {
            "start": [SetTimer("once", 10), SetTimer("moved", 10), SetTimer("off", 10), SetTimer("late", 30)],
            1: [SetTimer("moved", 20), CancelTimer("off"), CancelTimer("unknown")],
        }
    )
    bench.host.start()
    bench.deliver(1)
    bench.clock.settle()
    for time_ms in (9, 10, 19, 20, 25):
        bench.clock.move_to(time_ms)
        bench.clock.settle()
    assert bench.node.inputs == [(0, "start"), (0, 1), (10, "once"), (20, "moved")]


def test_a_due_timer_that_a_waiting_message_renews_does_not_fire() -> None:
    bench = Bench({"start": [SetTimer("silent", 10)], 1: [SetTimer("silent", 20)]})
    bench.host.start()
    bench.clock.settle()
    bench.deliver(1)
    bench.clock.move_to(10)
    bench.clock.settle()
    assert bench.seen == ["start", 1]
    bench.clock.move_to(20)
    bench.clock.settle()
    assert bench.seen == ["start", 1, "silent"]


def test_a_paused_host_handles_no_input_and_loses_none() -> None:
    bench = Bench({"start": [SetTimer("tick", 10)]})
    bench.host.start()
    bench.clock.settle()
    bench.deliver(1)
    bench.host.pause()
    bench.deliver(2, control=True)
    bench.clock.move_to(50)
    bench.clock.settle()
    assert bench.seen == ["start"]
    bench.host.resume()
    bench.clock.settle()
    assert bench.node.inputs == [(0, "start"), (50, 2), (50, 1), (50, "tick")]


def test_a_halted_host_handles_no_further_input() -> None:
    bench = Bench({"start": [SetTimer("tick", 10)]})
    bench.host.start()
    bench.clock.settle()
    bench.deliver(1)
    bench.host.halt()
    bench.deliver(2)
    bench.clock.move_to(10)
    bench.host.resume()
    bench.clock.settle()
    assert bench.seen == ["start"]


def test_an_exit_ends_the_node_after_the_effects_before_it() -> None:
    bench = Bench({1: [Send(5, message(9)), Exit()]})
    bench.deliver(1, 2)
    bench.clock.settle()
    assert bench.host.exited
    assert bench.host.failure is None
    assert bench.seen == [1]
    assert bench.messages == [(5, message(9))]


def test_a_broken_invariant_ends_the_node_and_is_reported() -> None:
    bench = Bench({"start": [SetTimer("broken", 5)]})
    bench.host.start()
    bench.clock.settle()
    bench.clock.move_to(5)
    bench.deliver(1)
    with pytest.raises(ProtocolInvariantError):
        bench.clock.settle()
    bench.clock.settle()
    assert bench.seen == ["start", "broken"]
    assert bench.host.failure is not None
    assert "the node is wrong" in bench.host.failure
    assert not bench.host.exited


def test_malformed_bytes_are_logged_and_traced_and_not_handled(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.host.malformed(1, MalformedMessageError("x" * 1000))
    bench.clock.settle()
    [(_, trace)], _ = bench.host.drain()
    assert (trace.kind, trace.sender) == ("malformed", 1)
    assert trace.reason == "x" * MAX_REASON
    assert "broker-0: from broker-1" in caplog.text
    assert bench.node.inputs == []
    assert bench.host.failure is None


def test_of_undrained_traces_the_newest_are_kept_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_TRACES", 3)
    bench = Bench({number: [SessionExpired(number)] for number in range(5)})
    for number in range(5):
        bench.clock.time_ms = 10 * number
        bench.host.deliver(1, [message(number)], False)
        bench.clock.settle()
    traces, _ = bench.host.drain()
    assert [(at_ms, trace.kind, *detail_of(trace).values()) for at_ms, trace in traces] == [
        (20, "traces_dropped", 2),
        (20, "session_expired", 2),
        (30, "session_expired", 3),
        (40, "session_expired", 4),
    ]
    assert bench.host.drain() == ([], [])


def test_no_command_is_handled_while_too_many_outcomes_await_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_REPORTS", 2)
    bench = Bench({number: [Send(DRIVER, message(number))] for number in range(6)})
    done: list[int] = []
    for number in range(5):
        bench.host.deliver(DRIVER, [message(number)], False, partial(done.append, number))
    bench.host.deliver(1, [message(99)], False)
    bench.clock.settle()
    assert [what for _, what in bench.node.inputs] == [0, 1, 99], "peers are heard"
    assert done == [0, 1]
    for expected in ([0, 1], [2, 3], [4], []):
        _, reports = bench.host.drain()
        assert reports == [message(number) for number in expected], "none is lost, and their order stays"
        bench.clock.settle()
    assert done == [0, 1, 2, 3, 4]


def test_an_ended_node_keeps_no_withheld_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MAX_REPORTS", 1)
    bench = Bench({number: [Send(DRIVER, message(number))] for number in range(3)})
    bench.host.deliver(DRIVER, [message(0), message(1), message(2)], False)
    bench.clock.settle()
    bench.host.halt()
    bench.host.drain()
    bench.clock.settle()
    assert [what for _, what in bench.node.inputs] == [0]


def test_observers_read_the_events_each_from_its_place_and_take_nothing_from_the_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "MAX_RECENT", 3)
    bench = Bench()
    events = [SessionExpired(broker) for broker in range(4)]
    bench.host.note(events[0])
    assert bench.host.observe(FROM_NOW_ON) == (1, [])
    bench.clock.time_ms = 5
    bench.host.note(events[1])
    assert bench.host.observe(1) == (2, [(5, events[1])])
    assert bench.host.observe(2) == (2, [])
    bench.host.note(events[2])
    bench.host.note(events[3])
    kept = [(5, event) for event in events[1:]]
    assert bench.host.observe(0) == (4, [(5, TracesDropped(1)), *kept])
    assert bench.host.drain()[0] == [(0, events[0]), *kept]


async def ends_at(bench: Bench, what: Callable[[], object]) -> tuple[bool, bool]:
    """Whether waiting for news had ended before and after `what`."""
    waiting = asyncio.ensure_future(bench.host.await_news(3_600))

    async def is_over() -> bool:
        for _ in range(5):  # turns of the loop from the event to the end of the wait
            await asyncio.sleep(0)
        return waiting.done()

    before = await is_over()
    what()
    after = await is_over()
    waiting.cancel()
    return before, after


def test_the_wait_for_news_ends_with_a_trace_event_an_outcome_an_announcement_and_the_end_of_the_node() -> None:
    outcome = Send(DRIVER, message(9))

    async def run() -> None:
        bench = Bench({1: [outcome], 2: []})
        assert await ends_at(bench, lambda: bench.host.note(SessionExpired(1))) == (False, True)
        assert await ends_at(bench, lambda: None) == (True, True), "what has not been drained is still news"
        bench.host.drain()
        for number, has_news in ((2, False), (1, True)):
            bench.deliver(number)
            assert await ends_at(bench, bench.clock.settle) == (False, has_news)
        bench.host.drain()
        assert await ends_at(bench, bench.host.announce) == (False, True)
        bench.host.drain()
        assert await ends_at(bench, bench.host.halt) == (False, True)
        bench.host.drain()
        assert await ends_at(bench, lambda: None) == (True, True), "the end of a node stays news"

    asyncio.run(run())


def test_the_wait_for_news_ends_after_its_time_without_any() -> None:
    async def run() -> object:
        bench = Bench()
        await asyncio.wait_for(bench.host.await_news(0.001), 60)
        return bench.host.drain()

    assert asyncio.run(run()) == ([], [])
