"""Scenarios as timelines: what they do to nodes and links, with the times at which they do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.errors import InputError
from experiments.faults.compile import timeline_of
from experiments.faults.schema import Crash, Cut, Pause, Restart
from experiments.fuzz.plan import Plan
from experiments.fuzz.run import run_plan
from experiments.scenarios.loader import load_scenario, scenario_from
from experiments.scenarios.model import Scenario

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


def test_a_crash_that_loses_a_number_of_records_is_no_fault_of_a_timeline() -> None:
    with pytest.raises(InputError, match=r"crash\.lose: found 3"):
        timeline_of(scenario({"crash": {"broker": 0, "lose": 3}}))


def test_a_scenario_that_fails_has_no_timeline() -> None:
    with pytest.raises(InputError, match=r"steps\[0\]"):
        timeline_of(scenario({"expect": {"topic": "t", "leader": 2}}))


@pytest.mark.parametrize("name", ["elr-unclean-restart", "silent-follower"])
def test_the_faults_of_a_shipped_scenario_can_be_run_as_a_plan(name: str) -> None:
    found = load_scenario(next(path for path in SHIPPED if path.stem == name))
    faults = timeline_of(found)
    assert faults
    plan = Plan(
        seed=1,
        brokers=found.cluster.brokers,
        generation=found.cluster.generation,
        config=found.cluster.config,
        topics=tuple(found.topics),
        faults=faults,
    )
    result = run_plan(plan)
    assert result.violation is None
    assert sum(count for (group, _), count in result.coverage.counts.items() if group == "fault") == len(faults)
