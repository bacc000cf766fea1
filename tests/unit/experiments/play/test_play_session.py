"""A session of `isray play`: actions are steps, refusals leave no trace, steps and seed determine the state."""

from __future__ import annotations

from typing import Any, cast

import pytest

from experiments.check.engine import CheckedEngine
from experiments.play.session import DEFAULT, SimWorld
from experiments.play.world import RefusedError
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, ScenarioResult
from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS
from experiments.support.yaml_input import parse_yaml_mapping, read_yaml_mapping

T0 = {"topic": "t", "partition": 0}


def partition(world: SimWorld, name: str = "t-0") -> dict[str, Any]:
    found = cast("list[dict[str, Any]]", world.state()["partitions"])
    return next(it for it in found if it["name"] == name)


def node(world: SimWorld, name: str) -> dict[str, Any]:
    return next(it for it in cast("list[dict[str, Any]]", world.state()["nodes"]) if it["name"] == name)


def rerun(world: SimWorld) -> ScenarioResult:
    """The run of the scenario that the session saves, with the session's seed."""
    scenario = scenario_from(parse_yaml_mapping(world.scenario(), "saved", "a scenario"), "saved")
    return Runner(scenario, CheckedEngine(scenario.cluster.spec(world.seed))).run()


def played() -> SimWorld:
    """A session in which all three brokers die, one after another, and the last of them loses nothing."""
    world = SimWorld(DEFAULT, seed=3)
    world.act({"produce": T0 | {"records": 3}})
    for broker in (2, 1):
        world.act({"crash": {"broker": broker, "lose": "unflushed"}})
        world.advance(12_300)
    return world


def test_two_of_three_brokers_die_and_the_next_write_is_refused_as_a_step_that_expects_it() -> None:
    world = played()
    state = partition(world)
    assert (state["leader"], state["isr"], state["elr"], state["min_isr"]) == (0, [0], [1], 2)
    assert (state["high_watermark"], state["acknowledged"], state["lost_acked"]) == (3, 3, 0)
    assert world.act({"produce": T0 | {"records": 2}}).startswith("NOT_ENOUGH_REPLICAS: ")
    assert world.done[-1].raw == {"produce": T0 | {"records": 2, "expect_error": "NOT_ENOUGH_REPLICAS"}}
    assert world.act({"elect": T0 | {"type": "preferred"}}).startswith("ELECTION_NOT_NEEDED: ")
    assert world.done[-1].raw == {"elect": T0 | {"type": "preferred", "expect_error": "ELECTION_NOT_NEEDED"}}


def test_a_write_behind_a_client_in_the_background_is_refused_or_taken_as_the_state_allows() -> None:
    """The producer of both keeps the order of records. Those of the background that min ISR refuses do not hold up the
    write for the 30 s of `delivery.timeout.ms`. When broker 1 is unfenced the page still knows an ISR of one member, so
    that it foresees a refusal, and the write is taken."""
    world = SimWorld.of_lesson("rolling-restart")
    for broker in (2, 1):
        world.act({"shutdown": {"broker": broker}})
    world.advance(3_000)
    before_ms = cast("int", world.state()["now_ms"])
    assert world.act({"produce": T0 | {"records": 5}}).startswith("NOT_ENOUGH_REPLICAS: ")
    assert cast("int", world.state()["now_ms"]) - before_ms < 5_000
    [load] = cast("list[str]", world.state()["loads"])
    assert " NOT_ENOUGH_REPLICAS, " in load
    world.act({"start": {"broker": 1}})
    assert world.act({"produce": T0 | {"records": 5}}) == ""
    assert world.done[-1].raw == {"produce": T0 | {"records": 5}}
    assert rerun(world).passed


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"topic": "u"}, "found 'u'; allowed: a topic: t"),
        ({"topic": "t", "partition": 9}, "found 9; allowed: a partition from 0 to 1"),
        ({"topic": "t", "partition": "x"}, "found 'x'; allowed: a whole number"),
    ],
)
def test_a_partition_that_does_not_exist_is_not_called_one_without_a_leader(place: dict[str, object], why: str) -> None:
    with pytest.raises(RefusedError) as caught:
        SimWorld(DEFAULT).act({"consume": place})
    assert str(caught.value).startswith(why)


def test_what_is_saved_is_a_scenario_that_passes_with_the_same_trace() -> None:
    world = played()
    world.act({"produce": T0 | {"records": 1}})
    world.act({"consume": T0})
    world.act({"start": {"broker": 1}})
    world.act({"pause": {"controller": 1000}})
    world.advance(700)
    result = rerun(world)
    assert result.passed
    assert result.trace_hash == world.trace_hash()


def test_waiting_in_parts_is_waiting_once_and_saved_as_one_step() -> None:
    parts, whole = SimWorld(DEFAULT), SimWorld(DEFAULT)
    for _ in range(37):
        parts.advance(300)
    whole.advance(11_100)
    assert parts.trace_hash() == whole.trace_hash()
    assert parts.scenario() == whole.scenario()
    assert "wait: 11100ms" in whole.scenario()
    assert [it.wait_ms for it in parts.done] == [5_000, 5_000, 1_100]


def test_rewinding_replays_and_the_steps_behind_are_ahead() -> None:
    world = played()
    times, hashes = list[int](), list[str]()
    for count in range(len(world.done) + 1):
        again = played()
        again.rewind(count)
        times.append(cast(int, again.state()["now_ms"]))
        hashes.append(again.trace_hash())
        assert len(again.done) == count
        assert len(again.ahead) == len(world.done) - count
    assert hashes[-1] == world.trace_hash()
    assert times == sorted(times)
    world.rewind(1)
    assert world.trace_hash() == hashes[1]
    while world.has_steps_ahead():
        world.step()
    assert world.trace_hash() == hashes[-1]


def test_an_action_in_the_past_discards_the_steps_ahead_and_a_refused_one_does_not() -> None:
    world = played()
    world.rewind(1)
    with pytest.raises(RefusedError, match="broker-2 runs already"):
        world.act({"start": {"broker": 2}})
    assert world.has_steps_ahead()
    world.act({"pause": {"broker": 2}})
    assert not world.has_steps_ahead()


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"crash": {"broker": 2}}, "broker-2 does not run"),
        ({"shutdown": {"broker": 2}}, "broker-2 does not run"),
        ({"resume": {"broker": 0}}, "broker-0 is not paused"),
        ({"start": {"controller": 1001}}, "controller-1001 runs already"),
        ({"crash": {"broker": 7}}, "allowed: brokers 0 to 2"),
        ({"produce": {"topic": "u", "records": 1}}, "allowed: a topic: t"),
        ({"explode": {}}, "allowed: one of produce"),
        ({}, "0 keys"),
    ],
)
def test_what_the_state_does_not_allow_is_refused_with_the_reason_and_changes_nothing(
    step: dict[str, object], why: str
) -> None:
    world = played()
    before = world.trace_hash(), world.scenario(), world.state()["now_ms"]
    with pytest.raises(RefusedError, match=why):
        world.act(step)
    assert (world.trace_hash(), world.scenario(), world.state()["now_ms"]) == before


def test_a_step_that_fails_after_a_while_leaves_the_state_before_it() -> None:
    world = SimWorld(DEFAULT)
    before = world.trace_hash()
    with pytest.raises(RefusedError, match="leader: found 0; expected 2"):
        world.act({"await": T0 | {"leader": 2, "within": "3s"}})
    assert world.trace_hash() == before
    assert world.done == []


def test_nothing_can_be_produced_or_read_without_a_leader() -> None:
    world = played()
    world.act({"crash": {"broker": 0, "lose": "none"}})
    world.advance(12_000)
    assert partition(world)["leader"] == -1
    for step in ({"produce": T0 | {"records": 1}}, {"consume": T0}):
        with pytest.raises(RefusedError, match="t-0 has no leader"):
            world.act(step)


def test_nodes_show_their_processes_and_links() -> None:
    world = SimWorld(DEFAULT)
    active = next(it["name"] for it in cast("list[dict[str, Any]]", world.state()["nodes"]) if "active" in it["role"])
    world.act({"pause": {"broker": 0}})
    world.act({"cut": {"between": [1, 2]}})
    assert (node(world, "broker-0")["state"], node(world, "broker-1")["role"]) == ("paused", "unfenced")
    assert world.state()["cuts"] == [["broker-1", "broker-2"], ["broker-2", "broker-1"]]
    with pytest.raises(RefusedError, match="resume it first"):
        world.act({"pause": {"broker": 0}})
    world.act({"crash": {"controller": int(active.removeprefix("controller-"))}})
    assert node(world, active)["state"] == "down"
    assert world.state()["is_current"] is False
    assert partition(world)["leader"] == 0


@pytest.mark.parametrize("name", ["last-replica-standing", "quorum-disk-replaced", "store-leader-failover"])
def test_a_shipped_scenario_plays_step_by_step_to_the_state_that_its_run_ends_in(name: str) -> None:
    raw = read_yaml_mapping(SCENARIOS / f"{name}.yaml", "a scenario")
    world = SimWorld.of(raw)
    assert len(world.ahead) == len(cast("list[object]", raw["steps"]))
    while world.has_steps_ahead():
        world.step()
    scenario = scenario_from(raw, name)
    assert world.trace_hash() == Runner(scenario, CheckedEngine(scenario.cluster.spec(0))).run().trace_hash
    assert world.state()["title"] == scenario.name


def test_wrong_scenarios_and_places_are_refused() -> None:
    with pytest.raises(InputError):
        SimWorld.of({**DEFAULT, "steps": [{"crash": {"broker": 9}}]})
    world = SimWorld(DEFAULT)
    with pytest.raises(RefusedError, match="allowed: 0 to 0"):
        world.rewind(1)
    with pytest.raises(RefusedError, match="nothing has been done"):
        world.scenario()


def test_min_isr_of_v3_is_the_override_of_the_topic_and_else_the_config_of_the_cluster() -> None:
    cluster = {"brokers": 3, "generation": "v3", "config": {"min.insync.replicas": 3}}
    topics = [
        {"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}},
        {"name": "u", "assignments": [[0, 1, 2]]},
    ]
    world = SimWorld({"name": "v3", "cluster": cluster, "topics": topics})
    assert (partition(world)["min_isr"], partition(world, "u-0")["min_isr"]) == (2, 3)


def test_a_background_client_goes_on_through_replays_and_says_what_became_of_its_records() -> None:
    """At 10 records a second for 4 s, 40 records: those of 0 s to 3.9 s."""
    world = SimWorld(DEFAULT)
    world.act({"load": T0 | {"rate": 10, "duration": "4s"}})
    world.advance(2_000)
    world.advance(3_000)
    assert world.state()["loads"] == ["t-0: 40 of 40 records sent, 40 acknowledged, 0 open"]
    assert partition(world)["acknowledged"] == 40
    world.rewind(1)
    assert world.state()["loads"] == ["t-0: 0 of 40 records sent, 0 acknowledged, 0 open"]
    world.step()
    assert partition(world)["acknowledged"] == 40
    assert rerun(world).passed


def test_a_voter_is_removed_and_added_and_what_the_quorum_refuses_is_said() -> None:
    world = SimWorld(DEFAULT)
    assert world.act({"add_voter": {"controller": 1001}}).startswith("DUPLICATE_VOTER: ")
    assert world.act({"remove_voter": {"controller": 1002}}) == ""
    world.advance(5_000)
    assert world.state()["voters"] == [1000, 1001]
    world.act({"crash": {"controller": 1002}})
    with pytest.raises(RefusedError, match="controller-1002 does not run"):
        world.act({"add_voter": {"controller": 1002}})


def test_a_lesson_begins_where_its_answer_says_and_going_back_takes_goals_back() -> None:
    world = SimWorld.of_lesson("slow-follower")
    given = len(world.done)
    assert given == 2
    with pytest.raises(RefusedError, match="this is the start of the lesson"):
        world.back()
    world.act({"pause": {"broker": 2}})
    assert world.reached == 1
    for _ in range(9):
        world.advance(730)
    assert world.reached == 2
    world.act({"resume": {"broker": 2}})
    world.advance(2_000)
    ended = world.trace_hash()
    assert world.reached == 3
    world.rewind(0)
    assert (len(world.done), world.reached) == (given, 0)
    while world.has_steps_ahead():
        world.step()
    assert (world.reached, world.trace_hash()) == (3, ended)
    assert rerun(world).passed


def test_wrong_lessons_files_and_seeds_are_refused_with_what_is_allowed() -> None:
    world = SimWorld(DEFAULT)
    with pytest.raises(
        RefusedError, match=r"found slow-followers\. Did you mean 'slow-follower'\?; allowed: a lesson: two-of-"
    ):
        world.lesson("slow-followers")
    with pytest.raises(RefusedError, match="no lesson"):
        world.answer()
    with pytest.raises(RefusedError, match="cluster"):
        world.load("name: x", 0)
    loaded = world.load(world_file(), 7)
    assert (loaded.seed, len(loaded.ahead)) == (7, 1)
    assert world.lesson("elr").lesson("").base == DEFAULT


def world_file() -> str:
    return "name: x\ncluster: {brokers: 1}\nsteps:\n  - wait: 1s\n"
