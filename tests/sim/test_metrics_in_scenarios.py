"""Metrics as scenarios expect them: the step's checks, and what a simulated cluster shows."""

from __future__ import annotations

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, ScenarioResult
from experiments.story.render import render
from experiments.support.errors import InputError
from protocol.metrics import (
    CLUSTER_METRICS,
    ELECTABLE_LEADERS,
    FAILOVER_LATENCY,
)
from tests.sim.scenario_helpers import run_scenario, spec_of

UNDER = "kafka.controller.global_under_min_isr_partition_count"
OFFLINE = "kafka.controller.offline_partitions_count"
UNCLEAN = "kafka.controller.unclean_leader_elections_count"


def raw(*steps: dict[str, object], config: dict[str, object] | None = None) -> dict[str, object]:
    return {
        "name": "inline",
        "cluster": {"brokers": 3},
        "topics": [{"name": "t", "assignments": [[0, 1, 2]], "config": config or {"min.insync.replicas": 2}}],
        "steps": list(steps),
    }


def run(*steps: dict[str, object], config: dict[str, object] | None = None) -> ScenarioResult:
    return run_scenario(scenario_from(raw(*steps, config=config), "inline"))


@pytest.mark.covers("I2", "I8")
def test_metrics_are_expected_alone_and_with_others() -> None:
    result = run(
        {"expect": {"metrics": dict.fromkeys(CLUSTER_METRICS[:7], 0)}},
        {"expect": {"topic": "t", "isr": [0, 1, 2], "metrics": {UNDER: 0, ELECTABLE_LEADERS: 3}}},
        {"expect": {"broker": 1, "state": "unfenced", "metrics": {OFFLINE: 0}}},
        {"expect": {"controller": 1000, "role": "leader", "metrics": {"kafka.controller.raft.number_of_voters": 1}}},
        {"shutdown": {"broker": 2}},
        {"shutdown": {"broker": 1}},
        {"await": {"topic": "t", "elr": [1], "metrics": {UNDER: 1, ELECTABLE_LEADERS: 2}}},
        {"crash": {"broker": 0}},
        {"await": {"metrics": {OFFLINE: 1}, "within": "60s"}},
    )
    assert result.passed, result.steps[-1]


def test_a_wrong_value_fails_the_step_even_beside_a_right_one() -> None:
    for beside in ({}, {"topic": "t", "leader": 0}, {"broker": 1, "state": "unfenced"}):
        result = run({"expect": {**beside, "metrics": {OFFLINE: 0, UNDER: 3}}})
        assert result.steps[-1].detail == f"{UNDER}: found 0; expected 3"


def test_without_a_controller_there_are_no_metrics() -> None:
    result = run({"crash": {"controller": 1000}}, {"expect": {"metrics": {OFFLINE: 0}}})
    assert result.steps[-1].detail == f"{OFFLINE}: found none; expected 0"


@pytest.mark.parametrize(
    ("fields", "field", "allowed"),
    [
        ({"metrics": {"kafka.controller.nothing": 1}}, ".metrics.kafka.controller.nothing", f"one of {UNDER}, "),
        ({"metrics": {OFFLINE: "1"}}, f".metrics.{OFFLINE}", "a whole number"),
        ({"metrics": {}}, ".metrics", "1 or more items"),
        (
            {"metrics": {OFFLINE: 1}, "leader": 1},
            "",
            "exactly one of topic, broker, controller; voters, registered_controllers, controller_broker, "
            "controller_epoch, metrics",
        ),
        ({"metrics": {OFFLINE: 1}, "topic": "t", "broker": 1}, "", "exactly one of topic, broker, controller"),
        (
            {"metrics": {OFFLINE: 1}, "broker": 1, "leader": 1},
            "",
            "with broker one or more of registration, state; voters",
        ),
        ({"metrics": {ELECTABLE_LEADERS: 1}}, "", f"{ELECTABLE_LEADERS} with topic and partition"),
    ],
)
def test_a_wrong_expectation_is_refused_with_what_is_allowed(
    fields: dict[str, object], field: str, allowed: str
) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from(raw({"await": fields}), "inline")
    assert caught.value.field == f"steps[0].await{field}"
    assert allowed in caught.value.allowed


@pytest.mark.covers("I10")
def test_a_failover_takes_the_way_to_the_brokers_and_back() -> None:
    scenario = scenario_from(raw({"crash": {"broker": 0}}, {"await": {"topic": "t", "leader": 1}}), "inline")
    engine = CheckedEngine(spec_of(scenario, 0), NetworkModel(base_ms=5, jitter_ms=0))
    assert Runner(scenario, engine).run().passed
    assert engine.metrics()[f"{FAILOVER_LATENCY}_count"] == 0
    engine.run_for(1_000)
    found = [engine.metrics()[f"{FAILOVER_LATENCY}_{part}"] for part in ("count", "last", "max")]
    assert found == [1, 10, 10]


@pytest.mark.covers("I10")
def test_reassignments_and_controlled_shutdowns_are_measured() -> None:
    delays, shutdowns = ("reassignment_completion_delay_ms_count", "controlled_shutdown_time_ms_count")
    result = run(
        {"reassign": {"topic": "t", "replicas": [2, 1]}},
        {"await": {"topic": "t", "replicas": [2, 1], "metrics": {f"kafka.controller.{delays}": 1}}},
        {"shutdown": {"broker": 2}},
        {"await": {"topic": "t", "leader": 1, "metrics": {f"kafka.controller.{shutdowns}": 1}}},
    )
    assert result.passed, result.steps[-1]


@pytest.mark.covers("I8")
def test_a_story_contains_alerts() -> None:
    steps = [{"crash": {"broker": broker}} for broker in (2, 1, 0)]
    config: dict[str, object] = {"unclean.recovery.strategy": "proactive"}
    ends = [
        {"await": {"metrics": {OFFLINE: 1}, "within": "60s"}},
        {"start": {"broker": 2}},
        {"await": {"metrics": {OFFLINE: 0}, "within": "60s"}},
    ]
    scenario = scenario_from(raw(*steps, *ends, config=config), "inline")
    engine = CheckedEngine(spec_of(scenario, 0))
    assert Runner(scenario, engine).run().passed
    alerts = [line.partition("ALERT: ")[2] for line in render(engine.traces()) if "ALERT" in line]
    assert alerts == [
        "t-0 is offline: it has no leader",
        "t-0 may have lost acknowledged records: broker 2 was elected uncleanly in epoch 2",
    ]
    assert engine.metrics()[UNCLEAN] == 1
