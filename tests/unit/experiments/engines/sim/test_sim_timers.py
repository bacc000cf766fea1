"""Postponed timers of the simulator have one event each and fire when they are due."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import pytest

from experiments.engines.sim.timers import Timer, Timers
from protocol.contract import SetTimer
from protocol.ids import NodeId, TimeMs

pytestmark = pytest.mark.unit


class Clock:
    """Timers with their own heap and a renewal latency of 1 ms. `fired` are the fired timers with their times."""

    def __init__(self) -> None:
        self.heap: list[tuple[TimeMs, int, Timer]] = []
        self.fired: list[tuple[TimeMs, tuple[NodeId, str]]] = []
        self.broken: list[set[NodeId]] = []
        self.down: set[NodeId] = set()
        self.timers = Timers(self._push, self._is_sound, lambda a, b: b in self.down, 1, True)

    def _is_sound(self, a: NodeId, b: NodeId) -> bool:
        return {a, b} not in self.broken and not self.down & {a, b}

    def _push(self, due_ms: TimeMs, timer: Timer) -> None:
        heappush(self.heap, (due_ms, id(timer), timer))

    def set(self, now_ms: TimeMs, at_ms: TimeMs, name: str = "t", node: int = 0, **marks: Any) -> None:
        self.timers.set(node, SetTimer(name, at_ms, **marks), now_ms)

    def cut(self, now_ms: TimeMs, *pair: NodeId) -> list[tuple[TimeMs, NodeId, str]]:
        """Makes a pair unsound; returns the ticks whose message is on its way."""
        self.broken.append(set(pair))
        return self.timers.disturb(lambda a, b: {a, b} == set(pair), now_ms)

    def pass_until(self, until_ms: TimeMs) -> list[tuple[TimeMs, tuple[NodeId, str]]]:
        """Fires what is due by then; returns all that has fired."""
        while self.heap and self.heap[0][0] <= until_ms:
            due_ms, _, timer = heappop(self.heap)
            if self.timers.is_due(timer, due_ms, due_ms):
                self.timers.mark_fired(timer)
                self.fired.append((due_ms, (timer.owner, timer.name)))
        return self.fired


T = (0, "t")


def test_a_postponed_timer_has_one_event_and_fires_once() -> None:
    clock = Clock()
    for now_ms in range(10):
        clock.set(now_ms, now_ms + 100)
    assert len(clock.heap) == 1
    assert clock.pass_until(1_000) == [(109, T)]
    assert not clock.heap


@pytest.mark.parametrize("due_ms", [(100, 50), (100, 50, 120)], ids=["earlier", "earlier and then later"])
def test_a_timer_that_is_set_again_fires_once_at_the_last_time(due_ms: tuple[TimeMs, ...]) -> None:
    clock = Clock()
    for now_ms, at_ms in enumerate(due_ms):
        clock.set(now_ms, at_ms)
    assert clock.pass_until(1_000) == [(due_ms[-1], T)]


def test_a_timer_that_has_fired_can_be_set_for_when_its_old_event_comes_up() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.set(1, 50)
    clock.pass_until(60)
    clock.set(60, 100)
    assert clock.pass_until(1_000) == [(50, T), (100, T)]


def test_a_cancelled_timer_does_not_fire_and_can_be_set_again() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.timers.cancel(*T, 10)
    clock.pass_until(99)
    clock.set(99, 150)
    assert not clock.pass_until(120)
    clock.timers.cancel(*T, 120)
    assert not clock.pass_until(200)
    clock.set(200, 210)
    assert clock.pass_until(1_000) == [(210, T)]


def test_timers_of_an_ended_node_do_not_fire_and_those_of_its_next_incarnation_do() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.set(0, 100, node=1)
    clock.set(0, 70, "cancelled")
    clock.timers.cancel(0, "cancelled", 1)
    clock.timers.forget_node(0)
    clock.set(20, 90, "cancelled")
    clock.set(20, 130)
    assert clock.pass_until(1_000) == [(90, (0, "cancelled")), (100, (1, "t")), (130, T)]


def test_a_timer_held_back_by_a_pause_is_due_afterwards() -> None:
    """As after a pause of its node: the event comes up later than scheduled."""
    clock = Clock()
    clock.set(0, 100)
    due_ms, _, timer = heappop(clock.heap)
    assert clock.timers.is_due(timer, due_ms, 100)
    clock.timers.expire_now(*T, 110)
    assert not clock.heap
    assert clock.timers.is_due(timer, due_ms, 140)


# -- watchdogs ---------------------------------------------------------------------------------------------------------

TICK, ECHO, WATCH = (0, "tick"), (0, "echo"), (1, "watch")


def idle(tick_ms: int = 100, echo_ms: int = 1_000, peer: NodeId = 1) -> Clock:
    """Node 0 sends to the peer every `tick_ms` from time 0 on, and expects an answer within `echo_ms` of the
    last one.
    """
    clock = Clock()
    clock.set(0, echo_ms, "echo", idle_with=peer, echoes="tick")
    clock.set(0, tick_ms, "tick", idle_with=peer)
    return clock


def test_a_nodes_own_watchdog_sleeps_while_the_peer_answers() -> None:
    clock = idle()
    assert clock.pass_until(5_000) == []
    assert clock.cut(5_050, 0, 1) == []
    assert clock.pass_until(10_000) == [(5_100, TICK), (6_002, ECHO)], "the answer to the tick at 5000 came at 5002"


def test_both_ends_may_watch_the_same_exchange() -> None:
    clock = idle()
    clock.set(0, 900, "watch", 1, idle_with=0, renewed_by="tick")
    assert clock.pass_until(5_000) == []
    clock.cut(5_050, 0, 1)
    assert clock.pass_until(10_000) == [(5_100, TICK), (5_901, WATCH), (6_002, ECHO)]


CUTS = {
    "the question is on its way": (5_001, [(5_000, *TICK)], 5_902),
    "the answer is on its way": (5_002, [], 6_002),
    "before the first tick": (100 - 1, [], 1_000),
    "the first question is on its way": (101, [(100, *TICK)], 1_000),
}


@pytest.mark.parametrize(("now_ms", "on_their_way", "echo_ms"), CUTS.values(), ids=CUTS)
def test_a_request_on_its_way_when_the_pair_is_cut_has_no_answer(
    now_ms: TimeMs, on_their_way: list[tuple[TimeMs, NodeId, str]], echo_ms: TimeMs
) -> None:
    clock = idle()
    clock.pass_until(now_ms)
    assert clock.cut(now_ms, 0, 1) == on_their_way
    assert (echo_ms, ECHO) in clock.pass_until(10_000)


def test_an_exchange_sleeps_only_if_its_answers_arrive_in_time() -> None:
    late = idle(tick_ms=100, echo_ms=101)
    assert late.pass_until(1_000) == [(100, TICK), (101, ECHO)]
    in_time = idle(tick_ms=100, echo_ms=102)
    assert in_time.pass_until(1_000) == []


def test_a_watchdog_of_an_unsound_pair_fires() -> None:
    clock = Clock()
    clock.cut(0, 0, 1)
    clock.set(0, 1_000, "echo", idle_with=1, echoes="tick")
    clock.set(0, 100, "tick", idle_with=1)
    assert clock.pass_until(2_000) == [(100, TICK), (1_000, ECHO)]


def test_a_timer_that_has_woken_fires_before_it_sleeps_again() -> None:
    """Its node sets the timer again, for another reason, when the pair is sound again."""
    clock = idle()
    clock.cut(5_050, 0, 1)
    clock.broken.clear()
    clock.set(5_080, 5_180, "tick", idle_with=1)
    assert clock.pass_until(5_180) == [(5_180, TICK)]
    clock.set(5_180, 5_280, "tick", idle_with=1)
    assert clock.pass_until(5_900) == [(5_180, TICK)]


def test_setting_the_active_timer_again_counts_the_answers_until_then() -> None:
    clock = idle()
    clock.set(250, 2_000, "tick")
    assert clock.pass_until(3_000) == [(1_202, ECHO), (2_000, TICK)]


def test_a_watchdog_without_an_active_timer_is_an_ordinary_timer() -> None:
    clock = idle()
    clock.set(250, 700, "echo")
    assert clock.pass_until(3_000) == [(700, ECHO)], "the exchange itself goes on"


OTHERS: dict[str, tuple[NodeId, str, dict[str, object]]] = {
    "that of a former peer": (2, "watch", {"idle_with": 0, "renewed_by": "tick"}),
    "one's own, of a former peer": (0, "other", {"idle_with": 2, "echoes": "tick"}),
}


@pytest.mark.parametrize("set_ms", [0, 250])
@pytest.mark.parametrize(("node", "name", "marks"), OTHERS.values(), ids=OTHERS)
def test_a_watchdog_does_not_sleep_because_of_another_pair(
    node: NodeId, name: str, marks: dict[str, object], set_ms: TimeMs
) -> None:
    """Node 0 has begun to send to node 1, and no longer sends to node 2."""
    clock = Clock() if set_ms == 0 else idle()
    clock.set(set_ms, set_ms + 700, name, node, **marks)
    if set_ms == 0:
        clock.set(0, 1_000, "echo", idle_with=1, echoes="tick")
        clock.set(0, 100, "tick", idle_with=1)
    assert clock.pass_until(5_000) == [(set_ms + 700, (node, name))]


def test_the_end_of_a_sleep_postpones_only_sleeping_watchdogs() -> None:
    clock = idle()
    clock.set(0, 5_500, "watch", 2, idle_with=0, renewed_by="tick")
    clock.cut(5_050, 0, 1)
    assert clock.pass_until(10_000) == [(5_100, TICK), (5_500, (2, "watch")), (6_002, ECHO)]


def test_a_timer_with_a_new_peer_sleeps_with_that_one() -> None:
    clock = idle()
    clock.set(0, 700, "watch", 1, idle_with=0, renewed_by="tick")
    clock.set(250, 1_250, "echo", idle_with=2, echoes="tick")
    clock.set(250, 350, "tick", idle_with=2)
    clock.set(251, 1_000, "watch", 2, idle_with=0, renewed_by="tick")
    assert clock.pass_until(5_000) == [(901, WATCH)], "700 ms after the renewal of 200 arrived"


# -- peers that do not run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_again_ms", [None, 250])
def test_an_active_timer_sleeps_until_its_peer_starts_and_its_watchdog_does_not(set_again_ms: TimeMs | None) -> None:
    clock = Clock()
    clock.down.add(1)
    clock.set(0, 100, "tick", idle_with=1)
    clock.set(0, 1_000, "echo", idle_with=1, echoes="tick")
    if set_again_ms is not None:
        clock.set(set_again_ms, set_again_ms + 100, "tick", idle_with=1)
    assert clock.pass_until(5_025) == [(1_000, ECHO)]
    assert clock.timers.disturb(lambda a, b: b == 1, 5_025) == [], "what was sent before the start is lost"
    clock.down.clear()
    assert clock.pass_until(6_000) == [(1_000, ECHO), (5_100 if set_again_ms is None else 5_050, TICK)]


def test_a_timer_that_sleeps_without_its_peer_can_be_cancelled() -> None:
    clock = Clock()
    clock.down.add(1)
    clock.set(0, 100, "tick", idle_with=1)
    clock.timers.cancel(*TICK, 250)
    assert clock.timers.disturb(lambda a, b: b == 1, 300) == []
    assert clock.pass_until(5_000) == []
