"""Scenarios as timelines: what they do to nodes and links, with the times at which they do it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.engines.port import Loss
from experiments.faults.kinds.administration import Configure, Reassign
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.processes import Crash, Pause, Restart
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan
from experiments.scenarios.loader import load_scenario, scenario_from
from experiments.scenarios.model import Scenario, TopicModel
from experiments.scenarios.timeline import timeline_of
from experiments.support.errors import InputError

SHIPPED = sorted((Path(__file__).parents[2] / "experiments" / "scenarios").glob("*.yaml"))


def scenario(*steps: dict[str, Any]) -> Scenario:
    topic = {"name": "t", "assignments": [[0, 1, 2]]}
    return scenario_from({"name": "s", "cluster": {"brokers": 3}, "topics": [topic], "steps": list(steps)}, "s.yaml")


def test_each_fault_lasts_until_its_healing_step() -> None:
    faults = timeline_of(
        scenario(
            {"crash": {"broker": 0, "lose": "unflushed"}},
            {"wait": "3s"},
            {"start": {"broker": 0}},
            {"pause": {"broker": 1}},
            {"wait": "2s"},
            {"resume": {"broker": 1}},
            {"cut": {"from": 2, "to": 0}},
            {"cut": {"between": [1, 2]}},
            {"wait": "1s"},
            {"heal": {"from": 2, "to": 0}},
            {"wait": "1s"},
            {"heal": "all"},
            {"shutdown": {"broker": 2}},
            {"wait": "4s"},
        )
    )
    crash, pause, *cuts, restart = faults
    assert isinstance(crash, Crash)
    assert (crash.node, crash.loses, crash.duration_ms) == (0, "unflushed", 3_000)
    assert isinstance(pause, Pause)
    assert (pause.node, pause.duration_ms) == (1, 2_000)
    assert pause.at_ms >= crash.end_ms
    found = {(cut.source, cut.target): cut.duration_ms for cut in cuts if isinstance(cut, Cut)}
    assert found == {((2,), (0,)): 1_000, ((1,), (2,)): 2_000, ((2,), (1,)): 2_000}
    assert isinstance(restart, Restart)
    assert restart.node == 2
    assert restart.duration_ms >= 4_000


def test_a_fault_step_is_a_fault_of_its_kind_while_steps_go_on() -> None:
    flapping = {"kind": "flapping_link", "source": [0], "target": [1], "down_ms": 100, "up_ms": 400}
    found = timeline_of(
        scenario(
            {"fault": flapping | {"duration": "3s"}},
            {"pause": {"broker": 2}},
            {"wait": "2s"},
            {"resume": {"broker": 2}},
            {"await": {"topic": "t", "isr": [0, 1, 2]}},
        )
    )
    assert [(fault.kind, fault.duration_ms) for fault in found] == [("flapping_link", 3_000), ("pause", 2_000)]
    assert found[0].nodes == (0, 1)
    assert found[0].at_ms == found[1].at_ms


def test_a_crash_may_lose_a_number_of_records() -> None:
    (crash,) = timeline_of(scenario({"crash": {"broker": 0, "lose": 3}}))
    assert isinstance(crash, Crash)
    assert crash.loss == Loss("records", 3)


def test_reassignments_and_configs_are_faults_until_they_are_replaced() -> None:
    moved, back, *configs = timeline_of(
        scenario(
            {"reassign": {"topic": "t", "replicas": [1, 0, 2]}},
            {"wait": "2s"},
            {"reassign": {"topic": "t", "replicas": [0, 1, 2]}},
            {"reassign": {"topic": "t", "cancel": True, "expect_error": "NO_REASSIGNMENT_IN_PROGRESS"}},
            {"configure": {"topic": "t", "config": {"min.insync.replicas": 1, "flush.messages": 1}}},
            {"configure": {"config": {"min.insync.replicas": 2}}},
            {"wait": "3s"},
            {"configure": {"topic": "t", "config": {"min.insync.replicas": 2}}},
            {"wait": "4s"},
        )
    )
    assert isinstance(moved, Reassign)
    assert isinstance(back, Reassign)
    assert (moved.replicas, back.replicas) == ((1, 0, 2), (0, 1, 2))
    assert moved.end_ms == back.at_ms
    found = [(fault.config, round(fault.duration_ms, -3)) for fault in configs if isinstance(fault, Configure)]
    assert sorted(found, key=str) == [
        ({"flush.messages": 1}, 7_000),
        ({"min.insync.replicas": 1}, 3_000),
        ({"min.insync.replicas": 2}, 4_000),
    ]


def test_a_scenario_that_fails_has_no_timeline() -> None:
    with pytest.raises(InputError, match=r"steps\[0\]"):
        timeline_of(scenario({"expect": {"topic": "t", "leader": 2}}))


FAULTS_OF_STEPS = {"crash": "crash", "shutdown": "restart", "pause": "pause", "cut": "cut", "reassign": "reassign"}


def without_operator(topic: TopicModel) -> TopicModel:
    """The topic with a recovery strategy that needs no operator."""
    manual = topic.config.get("unclean.recovery.strategy") == "manual"
    heals = {"unclean.recovery.strategy": "balanced"} if manual else {}
    return topic.model_copy(update={"config": {**topic.config, **heals}})


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_scenario_has_a_timeline_that_runs(path: Path) -> None:
    """Each step that breaks something is there. Scenarios may lose more than is promised."""
    found = load_scenario(path)
    faults = timeline_of(found)
    kinds = Counter(fault.kind for fault in faults)
    for step in found.steps:
        refused = getattr(step.fields, "expect_error", None) is not None or getattr(step.fields, "cancel", False)
        if step.kind in FAULTS_OF_STEPS and not refused:
            assert kinds[FAULTS_OF_STEPS[step.kind]] > 0, step.text
    assert bool(faults) == any(step.kind in {*FAULTS_OF_STEPS, "configure"} for step in found.steps)
    plan = Plan(
        seed=1,
        brokers=found.cluster.brokers,
        controllers=found.cluster.controllers,
        voters=tuple(found.cluster.voters or ()),
        generation=found.cluster.generation,
        config=found.cluster.config,
        within_tolerance=False,
        topics=tuple(without_operator(topic) for topic in found.topics),
        faults=faults,
    )
    result = run_plan(plan)
    assert result.violation is None
    assert sum(count for (group, _), count in result.coverage.counts.items() if group == "fault") == len(faults)
