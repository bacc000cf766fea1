"""Comparisons on the simulator alone, with differences that are planted: rules of Kafka's, releases, a wrong state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from experiments.compare.comparison import compared, compared_twice, kafkas_own
from experiments.compare.course import Course
from experiments.compare.draw import REQUESTS, drawn
from experiments.compare.report import conclusions, document, rows
from experiments.compare.smallest import document_of, save, shrunk, smallest_of
from experiments.compare.worlds import KAFKA, RAY, SIM, World, course_in, require_world
from experiments.scenarios.loader import load_scenario, scenario_from
from experiments.scenarios.model import Scenario
from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS

OLD, NEW = World(SIM, "4.1.2"), World(SIM, "4.4.0")
OTHER = World(RAY, "4.4.0")
"""In these tests the simulator with something planted."""


def shipped(name: str) -> Scenario:
    return load_scenario(SCENARIOS / f"{name}.yaml")


def with_rule(*rules: str):  # type: ignore[no-untyped-def]
    """Runs worlds on the simulator, `OTHER` under these of Kafka's rules."""

    def run(scenario: Scenario, world: World, pace: Course | None, more: Sequence[str]) -> Course:
        planted = rules if world == OTHER else ()
        return course_in(scenario, replace(world, engine=SIM), pace, (*planted, *more))

    return run


def wrong_leader(scenario: Scenario, world: World, pace: Course | None, rules: Sequence[str]) -> Course:
    """Runs worlds on the simulator; at the end of `OTHER` broker 9 is said to lead."""
    course = course_in(scenario, replace(world, engine=SIM), pace, rules)
    last = course.stages[-1]
    if world != OTHER or last.state is None:
        return course
    state = {**last.state, "t-0": {**last.state["t-0"], "leader": 9}}
    return replace(course, stages=(*course.stages[:-1], replace(last, state=state)))


def test_a_scenario_that_no_change_meets_is_the_same_in_all_releases() -> None:
    found = compared(shipped("unclean-election"), [OLD, NEW])
    assert found.first is None
    assert [*conclusions(found)] == ["no difference in 2 worlds"]
    assert {row[-1] for row in rows(found)} == {"="}


def test_two_releases_differ_by_the_change_between_them_in_its_smallest_scenario(tmp_path: Path) -> None:
    """Seed 21 moves t-0 from 0, 3, 2 to 1, 3, 2 while 3 is down. One replica is added and one removed. Up to 4.2 all of
    1, 3, 2 must be in sync, so that the move waits for 3; since 4.3 broker 1 is enough, and leads as the first replica
    in sync of the new assignment. Without either step nothing differs.
    """
    found = compared(drawn(21), [OLD, NEW])
    assert [change.name for it in found.changed for change in it.changes] == ["added-replicas-complete"]
    assert not found.departed
    small = smallest_of(found)
    steps = [{"crash": {"broker": 3}}, {"reassign": {"topic": "t", "partition": 0, "replicas": [1, 3, 2]}}]
    assert document_of(small)["steps"] == steps
    again = compared(small, [OLD, NEW])
    assert again.first is not None
    assert (again.first.field, again.first.expected, again.first.found) == ("steps[1].t-0.leader", 0, 1)
    save(small, tmp_path / "small.yaml")
    assert document_of(load_scenario(tmp_path / "small.yaml")) == document_of(small)


def test_a_departure_is_named_where_the_simulator_under_it_has_the_same_course() -> None:
    """Under `min-isr-change-clears-elr` a change of min ISR empties the ELR of the partition without a leader."""
    rule = "min-isr-change-clears-elr"
    found = compared(shipped("min-isr-change"), [NEW, OTHER], with_rule(rule))
    assert [departure.name for it in found.departed for departure in it.departures] == [rule]
    assert not found.unexplained
    small = smallest_of(found, with_rule(rule))
    kinds = [kind for step in document_of(small)["steps"] for kind in step]  # type: ignore[attr-defined]
    assert "configure" in kinds
    assert len(kinds) < len(shipped("min-isr-change").steps)


def test_a_leader_that_says_with_its_next_change_that_it_has_recovered() -> None:
    """`recovered-with-next-change`, as a real Kafka 4.4.0 runs `unclean-election`: after step 8 broker 0 leads alone,
    and the partition stays RECOVERING, so that step 9 does not hold; broker 1 joins the ISR in the change that ends it.
    """
    rule = "recovered-with-next-change"
    found = compared(shipped("unclean-election"), [NEW, OTHER], with_rule(rule))
    [departed] = found.departed
    assert [departure.name for departure in departed.departures] == [rule]
    assert [(it.field, it.expected, it.found) for it in departed.differences] == [
        ("steps[9].verdict", "holds", "does not hold"),
        ("steps[9].t-0.leader_recovery_state", "recovered", "recovering"),
    ]


def leaders_of(rule: str, generation: str, *steps: dict[str, object]) -> list[tuple[object, ...]]:
    """Leader and ISR of t-0 and the records on its replicas 0 and 1 after each step, under a rule of Kafka's."""
    cluster = {"brokers": 2, "generation": generation, "config": {"replica.lag.time.max.ms": 4_000}}
    topics = [{"name": "t", "assignments": [[0, 1]]}, {"name": "u", "assignments": [[0]]}]
    raw = {"name": "rule", "cluster": cluster, "topics": topics, "steps": [*steps]}
    found = []
    for stage in course_in(scenario_from(raw, "test"), NEW, None, [rule] if rule else []).stages[1:]:
        assert stage.state is not None
        found.append(tuple(stage.state[name][field] for name in ("t-0", "u-0") for field in ("leader", "isr")))
    return found


def test_a_complete_follower_that_no_longer_fetches_is_kept_until_a_record_is_written() -> None:
    cut, write = {"cut": {"between": [0, 1]}}, {"produce": {"topic": "t", "records": 1, "acks": 1}}
    whole, alone = (0, [0, 1], 0, [0]), (0, [0], 0, [0])
    assert leaders_of("", "kip-497", cut, write) == [alone, alone]
    assert leaders_of("complete-follower-kept", "kip-497", cut, write) == [whole, alone]


@pytest.mark.parametrize("generation", ["kip-497", "kip-966-elr"])
def test_a_broker_with_another_disk_leads_at_the_next_election(generation: str) -> None:
    """Broker 0, the only replica of u-0, comes back without its disk: under Kafka's rule u-0 has no leader until
    another broker is unfenced. Without ELR it stays in the ISR, with it the ISR is empty until it is elected as the
    last known leader.
    """
    steps = [{"crash": {"broker": 0, "lose": "all"}}, {"start": {"broker": 0}}]
    steps += [{"crash": {"broker": 1}}, {"start": {"broker": 1}}]  # type: ignore[dict-item]
    absent = (-1, [0] if generation == "kip-497" else [])
    followed, left, back = (1, [0, 1]), (0, [0]), (0, [0, 1])
    assert leaders_of("", generation, *steps) == [
        (1, [1], *absent), (*followed, 0, [0]), (*left, 0, [0]), (*back, 0, [0])
    ]  # fmt: skip
    assert leaders_of("new-directory-elects-no-leader", generation, *steps) == [
        (1, [1], *absent), (*followed, *absent), (*left, *absent), (*back, 0, [0])
    ]  # fmt: skip


def test_real_worlds_run_at_the_same_time_each_paced_by_kafkas_rules_of_its_release() -> None:
    """`withdrawn-replica-awaited` is a rule since 4.3.0. Neither world ends before the other one has begun."""
    both, paces = Barrier(2, timeout=60), {}

    def run(scenario: Scenario, world: World, pace: Course | None, rules: Sequence[str]) -> Course:
        if world.engine == KAFKA:
            both.wait()
            paces[world.release] = pace
        course = course_in(scenario, World(SIM, world.release), pace, rules)
        return replace(course, name=" ".join(rules))

    found = compared(shipped("unclean-election"), [World(KAFKA, "4.1.2"), World(KAFKA, "4.4.0")], run)
    assert not found.departed
    names = {release: set(pace.name.split()) for release, pace in paces.items() if pace is not None}
    assert names["4.4.0"] - names["4.1.2"] == {"withdrawn-replica-awaited"}
    assert names["4.1.2"] == set(kafkas_own("4.1.2"))


@pytest.mark.parametrize("rules", [(), ("complete-follower-kept",)], ids=["order", "order and rule"])
def test_the_order_of_simultaneous_events_explains_a_difference(rules: tuple[str, ...]) -> None:
    """Both brokers are cut off from the controller, the links are healed at once, and whose heartbeat arrives first
    leads: broker 1 with seed 0, broker 0 with seed 1. The ISR shrinks at the first cut but for the rule.
    """
    links = [[0, 1], [0, 1000], [1, 1000]]
    steps = [{"cut": {"between": links[0]}}, {"heal": "all"}, *({"cut": {"between": it}} for it in links[1:])]
    cluster = {"brokers": 2, "generation": "kip-966-elr"}
    topics = [{"name": "t", "assignments": [[0, 1]], "config": {"min.insync.replicas": 2}}]
    raw = {"name": "race", "cluster": cluster, "topics": topics, "steps": [*steps, {"heal": "all"}]}

    def run(scenario: Scenario, world: World, pace: Course | None, more: Sequence[str]) -> Course:
        is_other = world == OTHER
        sim = World(SIM, world.release, 1 if is_other else world.seed)
        return course_in(scenario, sim, None, (*(rules if is_other else ()), *more))

    found = compared(scenario_from(raw, "test"), [NEW, OTHER], run)
    [departed] = found.departed
    assert (departed.differences[-1].expected, departed.differences[-1].found) == (1, 0)
    assert tuple(it.name for it in departed.departures) == rules
    assert not found.unexplained
    (said,) = conclusions(found)
    assert said.endswith(", ".join([*rules, "the order of simultaneous events (the simulator's with seed 1)"]))
    assert document(found)["unexplained"] == []
    assert len(smallest_of(found, run).steps) < len(raw["steps"])  # type: ignore[arg-type]


def test_what_no_rule_explains_is_unexplained_and_marked() -> None:
    found = compared(smallest_of(compared(drawn(21), [OLD, NEW])), [NEW, OTHER], wrong_leader)
    assert [it.world for it in found.unexplained] == [OTHER]
    assert document(found)["unexplained"] == ["ray 4.4.0"]
    *before, last = rows(found)
    assert last[0] == ">>"
    assert last[-1] == "t-0: leader 9"
    assert {row[-1] for row in before} == {"="}


def test_a_difference_that_a_second_run_does_not_have_is_said_and_is_no_failure() -> None:
    runs = iter([wrong_leader, *[with_rule()] * 2])
    found = compared_twice(
        shipped("unclean-election"),
        [NEW, OTHER],
        lambda scenario, world, pace, rules: (next(runs) if world == OTHER else with_rule())(
            scenario, world, pace, rules
        ),
    )
    assert not found.unexplained
    assert [it.world for it in found.once] == [OTHER]
    assert [*conclusions(found)] == [
        "ray 4.4.0: 1 difference, the first in steps[12].t-0.leader, in the first of two runs only, unexplained",
        "no difference in 2 worlds",
    ]
    assert [it["world"] for it in document(found)["once"]] == ["ray 4.4.0"]  # type: ignore[attr-defined]
    assert compared_twice(shipped("unclean-election"), [NEW, OTHER], wrong_leader).unexplained


def test_a_difference_that_no_smaller_scenario_shows_stays_in_the_result() -> None:
    """It is there in two runs, and in none of those that look for a smaller scenario."""
    runs = iter([wrong_leader] * 2)
    found = compared_twice(
        shipped("unclean-election"),
        [NEW, OTHER],
        lambda scenario, world, pace, rules: (next(runs) if world == OTHER else with_rule())(
            scenario, world, pace, rules
        ),
    )
    assert found.unexplained
    assert shrunk(found, [NEW, OTHER], with_rule()) == found
    small = shrunk(found, [NEW, OTHER], wrong_leader)
    assert small.unexplained
    assert len(small.scenario.steps) < len(found.scenario.steps)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_scenarios_have_steps_that_can_be_carried_out(seed: int) -> None:
    scenario = drawn(seed)
    assert document_of(scenario) == document_of(drawn(seed))
    verdicts = {stage.verdict for stage in course_in(scenario, NEW).stages}
    assert not {verdict for verdict in verdicts if "runs already" in verdict or "is not running" in verdict}
    assert any(step.kind not in REQUESTS for step in scenario.steps)


@pytest.mark.parametrize(
    ("name", "world", "allowed"),
    [
        ("power-loss", NEW, "kip-497, kip-966-elr"),
        ("min-isr-change-kafka", OTHER, "--engine sim or kafka"),
        ("dead-last-known-leader-kafka", World(KAFKA, "4.4.0"), "Kafka 4.0.0 to 4.0.0"),
        ("withdrawn-replica-kafka", World(KAFKA, "4.1.2"), "Kafka 4.3.0 to 4.4.0"),
    ],
)
def test_what_a_world_cannot_run_is_refused(name: str, world: World, allowed: str) -> None:
    with pytest.raises(InputError, match=f"allowed: {allowed}"):
        require_world(shipped(name), world)
