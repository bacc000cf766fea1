"""The stories of the departures from Kafka's code: the same failures and commands under both rules."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from experiments.check.engine import CheckedEngine
from experiments.cli.main import application
from experiments.conformance.departures import DEPARTURES, Departure
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner
from protocol.events.quorum import QuorumLeaderResigned
from protocol.kafka_rules import KAFKA_RULES
from tests.sim.scenario_helpers import run_file, run_scenario, shipped, spec_of

STORIES = [departure for departure in DEPARTURES if departure.scenario]
each_departure = pytest.mark.parametrize("departure", STORIES, ids=lambda departure: departure.name)


def test_every_rule_of_kafka_is_a_declared_departure() -> None:
    assert [departure.name for departure in DEPARTURES] == list(KAFKA_RULES)


@each_departure
def test_isray_loses_nothing_and_kafkas_rule_what_the_departure_declares(departure: Departure) -> None:
    ours, theirs = run_file(departure.scenario), run_file(departure.kafka_scenario)
    assert (ours.passed, ours.losses.lost_acked, ours.violations) == (True, 0, [])
    assert (theirs.passed, theirs.losses.lost_acked) == (True, departure.lost)


def _commands(scenario: Scenario) -> list[str]:
    """What is done to the cluster; what is expected of it, errors too, differs between the rules."""
    done = (step.text for step in scenario.steps if step.kind not in ("await", "expect", "elect"))
    return [re.sub(r", expect_error: \w+", "", text) for text in done]


@each_departure
def test_both_scenarios_of_a_departure_have_the_same_cluster_and_failures(departure: Departure) -> None:
    ours, theirs = map(shipped, (departure.scenario, departure.kafka_scenario))
    assert theirs.cluster == ours.cluster.model_copy(update={"kafka_rules": [departure.name]})
    assert theirs.topics == ours.topics
    assert _commands(theirs) == _commands(ours)


@each_departure
def test_a_story_needs_its_rule(departure: Departure) -> None:
    """Under isray's own rule the scenario of Kafka's fails."""
    scenario = shipped(departure.kafka_scenario)
    cluster = scenario.cluster.model_copy(update={"kafka_rules": []})
    assert not run_scenario(scenario.model_copy(update={"cluster": cluster})).passed


@each_departure
def test_both_rules_run_side_by_side(departure: Departure) -> None:
    """The command that `isray conformance` prints for a departure."""
    line = f"scenario run {departure.scenario} --compare {departure.name} --json"
    result = CliRunner().invoke(application(), shlex.split(line))
    document = json.loads(result.stdout)
    assert (result.exit_code, document["compared_with"]) == (0, departure.name)
    assert "partition state" in [difference["what"] for difference in document["first_differences"]]


def test_a_violation_that_is_not_declared_fails_the_scenario() -> None:
    scenario = shipped("dead-last-known-leader-kafka")
    assert scenario.violates == ["ValidControllerState"]
    assert not run_scenario(scenario.model_copy(update={"violates": []})).passed
    assert not run_scenario(scenario.model_copy(update={"violates": ["ValidControllerState", "EpochsRise"]})).passed


def test_controllers_that_cannot_decide_fail_over_at_each_registration() -> None:
    """The state outlives the controller that wrote it: each one resigns at the next registration of broker 0."""
    scenario = shipped("cancelled-in-absence-kafka")
    engine = CheckedEngine(spec_of(scenario, 0))
    assert Runner(scenario, engine).run().passed
    resigned = [(it.node, it.trace.reason) for it in engine.traces() if isinstance(it.trace, QuorumLeaderResigned)]
    assert {reason for _, reason in resigned} == {"the last known leader 1 is none of the replicas [0]"}
    assert len({node for node, _ in resigned}) > 1
    assert len(resigned) > 60
