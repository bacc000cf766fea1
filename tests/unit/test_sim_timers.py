"""Timers of the simulator that are put off: one event each, whatever its node does, and fired when they are due."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest

from experiments.sim.timers import Key, Timers
from protocol.contract import SetTimer
from protocol.ids import TimeMs

pytestmark = pytest.mark.unit


class Clock:
    """Timers with a heap of their own. `fired` says what was fired when."""

    def __init__(self) -> None:
        self.heap: list[tuple[TimeMs, Key]] = []
        self.fired: list[tuple[TimeMs, Key]] = []
        self.timers = Timers(lambda due, key: heappush(self.heap, (due, key)), lambda a, b: True, 1, True)

    def set(self, now_ms: TimeMs, at_ms: TimeMs, name: str = "t", node: int = 0) -> None:
        self.timers.set(node, SetTimer(name, at_ms), now_ms)

    def pass_until(self, until_ms: TimeMs) -> None:
        while self.heap and self.heap[0][0] <= until_ms:
            due_ms, key = heappop(self.heap)
            if self.timers.is_due(key, due_ms, due_ms):
                self.timers.fired(key)
                self.fired.append((due_ms, key))


T = (0, "t")


def test_a_timer_that_is_put_off_has_one_event_and_fires_once() -> None:
    clock = Clock()
    for now_ms in range(10):
        clock.set(now_ms, now_ms + 100)
    assert len(clock.heap) == 1
    clock.pass_until(1_000)
    assert clock.fired == [(109, T)]
    assert not clock.heap


def test_a_timer_that_is_set_earlier_fires_earlier_and_once() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.set(1, 50)
    clock.pass_until(1_000)
    assert clock.fired == [(50, T)]


def test_after_an_earlier_time_the_later_one_counts_again() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.set(1, 50)
    clock.set(2, 120)
    clock.pass_until(1_000)
    assert clock.fired == [(120, T)]


def test_a_timer_that_has_fired_can_be_set_for_when_its_old_event_comes_up() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.set(1, 50)
    clock.pass_until(60)
    clock.set(60, 100)
    clock.pass_until(1_000)
    assert clock.fired == [(50, T), (100, T)]


def test_a_cancelled_timer_does_not_fire_and_can_be_set_again() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.timers.cancel(T, 10)
    clock.pass_until(99)
    clock.set(99, 150)
    clock.pass_until(120)
    assert not clock.fired
    clock.timers.cancel(T, 120)
    clock.pass_until(200)
    assert not clock.fired
    clock.set(200, 210)
    clock.pass_until(1_000)
    assert clock.fired == [(210, T)]


def test_timers_of_a_node_that_is_gone_do_not_fire_and_those_of_its_next_life_do() -> None:
    clock = Clock()
    clock.set(0, 100)
    clock.set(0, 100, node=1)
    clock.set(0, 70, "cancelled")
    clock.timers.cancel((0, "cancelled"), 1)
    clock.timers.forget_node(0)
    clock.set(20, 90, "cancelled")
    clock.set(20, 130)
    clock.pass_until(1_000)
    assert clock.fired == [(90, (0, "cancelled")), (100, (1, "t")), (130, T)]


def test_a_timer_that_was_held_back_is_due_afterwards() -> None:
    """As when its node was paused: the event comes up at a later time than the one for which it was asked for."""
    clock = Clock()
    clock.set(0, 100)
    due_ms, key = heappop(clock.heap)
    assert clock.timers.is_due(key, due_ms, 100)
    clock.timers.expire_now(key, 110)
    assert not clock.heap
    assert clock.timers.is_due(key, due_ms, 140)
