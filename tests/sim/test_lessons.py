"""The lessons of `isray play`: each answer fulfils its lesson, with no step too many, and passes as a scenario."""

from __future__ import annotations

from typing import cast

import pytest

from experiments.check.engine import CheckedEngine
from experiments.play.lessons.model import answer_file, answer_of, lessons
from experiments.play.session import SimWorld
from experiments.scenarios.load import Load
from experiments.scenarios.loader import load_scenario, scenario_from
from experiments.scenarios.runner import Runner
from protocol.ids import TopicPartition
from tests.sim.scenario_helpers import run_scenario

LOOKING = ("await", "expect", "wait")


def reached(world: SimWorld) -> list[bool]:
    lesson = cast("dict[str, list[dict[str, bool]]]", world.state()["lesson"])
    return [goal["reached"] for goal in lesson["goals"]]


@pytest.mark.parametrize("name", lessons())
def test_the_answer_fulfils_the_lesson_and_nothing_is_fulfilled_before(name: str) -> None:
    world = SimWorld.of_lesson(name)
    assert not any(reached(world))
    world.answer()
    last = max(place for place, raw in enumerate(world.ahead) if not {*raw} & {*LOOKING})
    for _ in range(last):
        world.step()
    assert not all(reached(world)), "the last action of the answer is needed"
    while world.has_steps_ahead():
        world.step()
    assert all(reached(world))


@pytest.mark.parametrize("name", lessons())
def test_the_answer_is_a_scenario_that_passes(name: str) -> None:
    result = run_scenario(load_scenario(answer_file(name)))
    assert result.passed, (result.steps[-1], result.violations)


def test_there_are_twelve_lessons_in_order_and_each_answer_has_its_lesson() -> None:
    assert [it.order for it in lessons().values()] == [*range(1, 13)]
    assert {path.stem for path in answer_file("x").parent.glob("*.yaml")} == {*lessons()}
    for name, lesson in lessons().items():
        base, steps = answer_of(name)
        assert base["name"] == name
        assert lesson.given < len(steps)


def test_a_client_in_the_background_sends_at_its_rate_through_a_failover_and_counts_what_is_refused() -> None:
    """At 10 a second for 20 s, 200 records: the producer retries what is sent while there is no leader. With an ISR
    of one, below min ISR 2, every record is refused until its delivery timeout: none is acknowledged.
    """
    raw = {
        "name": "load",
        "cluster": {"brokers": 3},
        "topics": [{"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}],
        "steps": [
            {"load": {"topic": "t", "rate": 10, "duration": "20s"}},
            {"wait": "5s"},
            {"crash": {"broker": 0, "lose": "unflushed"}},
            {"await": {"topic": "t", "leader": 1, "within": "60s"}},
            {"wait": "30s"},
            {"expect": {"topic": "t", "high_watermark": 200, "visible": 200, "lost_acked": 0}},
            {"crash": {"broker": 2}},
            {"await": {"topic": "t", "isr": [1], "within": "60s"}},
            {"load": {"topic": "t", "rate": 2, "duration": "1500ms"}},
            {"wait": "60s"},
        ],
    }
    scenario = scenario_from(raw, "load")
    runner = Runner(scenario, CheckedEngine(scenario.cluster.spec(0)))
    assert runner.run().passed
    first, second = (load.words() for load in runner.loads)
    assert first == "t-0: 200 of 200 records sent, 200 acknowledged, 0 open"
    assert second == "t-0: 3 of 3 records sent, 0 acknowledged, 3 NOT_ENOUGH_REPLICAS, 0 open"


@pytest.mark.parametrize(("rate", "duration", "count"), [(3, 1_000, 3), (1, 1, 1), (1_000, 999, 999), (3, 1_001, 4)])
def test_records_are_due_at_multiples_of_the_interval(rate: int, duration: int, count: int) -> None:
    """Record k is due at k/rate seconds, while that is before the end: at rate 3 in 1001 ms at 0, 333, 666, 1000 ms."""
    scenario = scenario_from({"name": "x", "cluster": {"brokers": 1}, "steps": [{"wait": "1s"}]}, "x")
    clients = Runner(scenario, CheckedEngine(scenario.cluster.spec(0))).clients
    load = Load(clients, TopicPartition("t", 0), "all", rate, 50, duration)
    assert load.total == count
    assert [load.due_ms(k) - 50 for k in range(count)] == [k * 1_000 // rate for k in range(count)]
    assert load.due_ms(count - 1) < 50 + duration <= -(-count * 1_000 // rate) + 50
