"""The world of a running cluster, with a simulated cluster in the place of the processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.clusters.node_commands import NodeState
from experiments.engines.port import Loss
from experiments.play import live
from experiments.play.live import UNAVAILABLE, LiveWorld
from experiments.play.session import DEFAULT
from experiments.play.world import RefusedError
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError
from experiments.support.yaml_input import parse_yaml_mapping
from protocol.messages.commands import ProduceCommand

T0 = {"topic": "t", "partition": 0}


class Simulated:
    """A simulated engine with what else an attached one has."""

    def __init__(self) -> None:
        scenario = scenario_from({**DEFAULT, "steps": [{"wait": "1s"}]}, "running")
        self.sim = CheckedEngine(scenario.cluster.spec(0))
        Runner(scenario, self.sim).set_up()
        self.sim.cluster.outcomes.clear()
        self.is_gone = False
        self.left: list[str] = []
        self.cluster = SimpleNamespace(rows=self.rows, links=self.links)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sim, name)

    def rows(self) -> dict[int, Any]:
        if self.is_gone:
            raise InputError("--name", "", "running, which has been ended", "a cluster that runs")
        running = [node for node in self.sim.spec.node_ids if self.sim.is_running(node)]
        states = {True: NodeState.PAUSED, False: NodeState.RUNNING}
        return {node: SimpleNamespace(state=states[self.sim.is_paused(node)]) for node in running}

    def links(self) -> dict[tuple[int, int], None]:
        return dict.fromkeys(self.sim.cluster.network.cuts())


@pytest.fixture
def engine() -> Simulated:
    return Simulated()


@pytest.fixture
def world(engine: Simulated) -> LiveWorld:
    return LiveWorld(cast("Any", engine), "running", engine.left.append)


def look(world: LiveWorld, engine: Simulated, seconds: int = 0) -> dict[str, Any]:
    for _ in range(5 * seconds):
        engine.sim.run_for(200)
        world.advance(0)
    return cast("dict[str, Any]", world.state())


def partition(state: dict[str, Any], name: str = "t-0") -> dict[str, Any]:
    return next(it for it in state["partitions"] if it["name"] == name)


def test_it_shows_the_cluster_as_it_is_and_explains_only_what_changes(world: LiveWorld, engine: Simulated) -> None:
    state = look(world, engine)
    assert {it["name"]: it["min_isr"] for it in state["partitions"]} == {"t-0": 2, "t-1": 2}
    assert (state["title"], state["is_current"], state["voters"]) == ("running", True, [1000, 1001, 1002])
    engine.sim.crash(2, Loss())
    state = look(world, engine, 11)
    assert partition(state)["isr"] == [0, 1]
    texts = [it["text"] for it in state["sentences"]]
    assert "Broker 2 leaves the ISR of t-0, since its session ended; ISR is {0 1}" in texts
    assert not [text for text in texts if "is created" in text or "min ISR of" in text]


def test_what_the_state_does_not_allow_is_refused_also_when_someone_else_has_changed_it(
    world: LiveWorld, engine: Simulated
) -> None:
    engine.sim.crash(2, Loss())
    engine.sim.pause(1)
    look(world, engine, 1)
    for step, why in (
        ({"crash": {"broker": 2}}, "broker-2 does not run"),
        ({"pause": {"broker": 1}}, "broker-1 is paused: resume it first"),
        ({"crash": {"broker": 7}}, "allowed: brokers 0 to 2"),
        ({"fault": {"kind": "pause", "node": 1, "duration": "1s"}}, "isray scenario run"),
    ):
        with pytest.raises(RefusedError, match=why):
            world.act(step)
    for command in (world.step, world.back, world.answer):
        with pytest.raises(RefusedError, match=r"running cluster|simulated cluster"):
            command()
    assert world.done == []
    assert {"run", "rewind", "load", "lesson"} <= {*UNAVAILABLE}


def test_records_of_this_page_are_followed_through_a_lossy_election(world: LiveWorld, engine: Simulated) -> None:
    """Three records are on all disks of the page cache; broker 0 is alone in the ISR of t-0 with two of acks=1."""
    world.act({"produce": T0 | {"records": 3}})
    world.act({"load": T0 | {"rate": 10, "duration": "1s"}})
    state = look(world, engine, 2)
    assert state["loads"] == ["t-0: 10 of 10 records sent, 10 acknowledged, 0 open"]
    assert (partition(state)["acknowledged"], partition(state)["lost_acked"]) == (13, 0)
    for broker in (0, 1, 2):
        world.act({"crash": {"broker": broker, "lose": "unflushed"}})
    state = look(world, engine, 12)
    assert (partition(state)["leader"], partition(state)["lost_acked"]) == (-1, None)
    for broker in (0, 1, 2):
        world.act({"start": {"broker": broker}})
    state = look(world, engine, 20)
    assert partition(state)["leader"] != -1
    assert partition(state)["lost_acked"] == 13


def test_answers_with_an_error_are_steps_that_expect_it_and_time_between_steps_is_kept(
    world: LiveWorld, engine: Simulated
) -> None:
    for broker in (1, 2):
        world.act({"crash": {"broker": broker}})
    look(world, engine, 12)
    assert world.act({"produce": T0 | {"records": 1}}).startswith("NOT_ENOUGH_REPLICAS: ")
    assert world.act({"elect": T0 | {"type": "preferred"}}).startswith("ELECTION_NOT_NEEDED: ")
    assert "3 records" not in world.act({"produce": T0 | {"records": 1, "acks": 1}})
    saved = parse_yaml_mapping(world.scenario(), "saved", "a scenario")
    kinds = [next(iter(step)) for step in cast("list[dict[str, object]]", saved["steps"])]
    assert kinds == ["crash", "crash", "wait", "produce", "elect", "produce"]
    scenario = scenario_from(saved, "saved")
    assert [topic.assignments for topic in scenario.topics] == [[[0, 1, 2], [1, 2, 0]]]
    assert Runner(scenario, CheckedEngine(scenario.cluster.spec(0))).run().passed


def test_a_write_that_is_taken_though_a_refusal_was_foreseen_is_one_record(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ISR has grown since the page has seen it."""
    monkeypatch.setattr(live, "foreseen_error", lambda step, state: "NOT_ENOUGH_REPLICAS")
    assert world.act({"produce": T0 | {"records": 3}}).startswith("one record is written: ")
    assert world.done[-1].raw == {"produce": T0 | {"records": 1}}
    assert partition(world.state())["acknowledged"] == 1


def test_a_consumer_reads_and_links_are_cut_one_way(world: LiveWorld, engine: Simulated) -> None:
    world.act({"produce": T0 | {"records": 2}})
    foreign = ProduceCommand(command_id=10**6, topic="t", partition=0, acks=-1, record_count=3, payload=b"not ours")
    engine.sim.submit(foreign)
    look(world, engine, 1)
    assert world.act({"consume": T0}).startswith("a consumer reads 5 records of t-0")
    world.act({"cut": {"from": 0, "to": 1}})
    assert look(world, engine)["cuts"] == [["broker-0", "broker-1"]]


def test_a_page_sees_the_cluster_while_an_action_waits(world: LiveWorld, engine: Simulated) -> None:
    """The leader is dead: the producer waits for the next leader, which the page sees before the answer."""
    leaders = list[int]()
    world.follow(lambda: leaders.append(partition(cast("dict[str, Any]", world.state()))["leader"]))
    world.act({"crash": {"broker": 0}})
    assert world.act({"produce": T0 | {"records": 1}}) == ""
    assert leaders[0] == 0
    assert leaders[-1] == 1
    assert len(leaders) > 5


def test_a_cluster_that_has_ended_is_said_and_nothing_more_is_done(world: LiveWorld, engine: Simulated) -> None:
    shown = list[object]()
    world.follow(lambda: shown.append(world.state()["ended"]))
    engine.is_gone = True
    state = look(world, engine, 2)
    assert state["ended"] == "running, which has been ended"
    assert shown == engine.left == [state["ended"]], "pages are told before Ray is left, once"
    with pytest.raises(RefusedError, match="the cluster is gone"):
        world.act({"crash": {"broker": 0}})
