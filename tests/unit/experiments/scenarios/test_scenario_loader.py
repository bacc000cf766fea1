"""Scenario files: what is read, and the one line that says what is wrong with a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.engines.port import ClusterSpec
from experiments.scenarios.loader import load_scenario, require_engine, require_running, scenario_from
from experiments.scenarios.model import STEPS
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError
from protocol.config import ClusterConfig
from protocol.features import Generation
from tests.yaml_rows import rows

SHIPPED = sorted((Path(__file__).parents[4] / "experiments" / "scenarios").glob("*.yaml"))
BASE: dict[str, Any] = {
    "name": "s",
    "cluster": {"brokers": 3},
    "topics": [{"name": "t", "assignments": [[0, 1, 2]]}],
    "steps": [{"wait": "1s"}],
}


def problem(raw: dict[str, Any]) -> InputError:
    with pytest.raises(InputError) as caught:
        scenario_from(raw, "s.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("s.yaml: ")
    return caught.value


def with_step(step: object) -> dict[str, Any]:
    return copy.deepcopy(BASE) | {"steps": [{"wait": "1s"}, step]}


def test_every_kind_of_step_has_a_method_of_the_runner() -> None:
    assert [kind for kind in STEPS if not callable(getattr(Runner, f"_{kind}", None))] == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_load(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    assert scenario.description.strip()
    assert len(scenario.steps) == len(yaml.safe_load(path.read_text(encoding="utf-8"))["steps"])


def test_omitted_fields_have_their_defaults() -> None:
    scenario = scenario_from(with_step({"produce": {"topic": "t", "records": 3}}), "s.yaml")
    assert (scenario.cluster.controllers, scenario.cluster.generation, scenario.description) == (1, "kip-966", "")
    produce = scenario.steps[1].fields
    assert (produce.partition, produce.acks, produce.expect_error) == (0, "all", None)
    awaited = scenario_from(with_step({"await": {"topic": "t", "leader": 0}}), "s.yaml").steps[1].fields
    assert awaited.within == 30_000


STEPS_OF_EACH_KIND = rows(__file__, "steps.yaml")


@pytest.mark.parametrize("step", STEPS_OF_EACH_KIND)
def test_steps_of_the_interface_are_accepted(step: dict[str, Any]) -> None:
    [kind] = step
    raw = with_step(step)
    raw["topics"].append({"name": "w", "assignments": [[0], [1], [2]]})
    assert scenario_from(raw, "s.yaml").steps[1].kind == kind
    kinds = {next(iter(row.values[0])) for row in STEPS_OF_EACH_KIND}
    assert kinds == set(STEPS) - {"expire"}, "every kind of step is here"


V3 = {"brokers": 3, "generation": "v3"}


@pytest.mark.parametrize("step", rows(__file__, "steps-of-v3.yaml"))
def test_steps_of_v3_are_accepted_there_and_refused_elsewhere(step: dict[str, Any]) -> None:
    [kind] = step
    raw = with_step(step)
    with pytest.raises(InputError, match="allowed: generation v3"):
        scenario_from(raw, "s.yaml")
    assert scenario_from({**raw, "cluster": V3}, "s.yaml").steps[1].kind == kind


@pytest.mark.parametrize("step", rows(__file__, "steps-not-of-v3.yaml"))
def test_steps_that_v3_does_not_have_are_refused_there(step: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"steps\[1\]"):
        scenario_from({**with_step(step), "cluster": V3}, "s.yaml")


@pytest.mark.parametrize(("cluster", "field"), rows(__file__, "wrong-clusters.yaml"))
def test_settings_that_the_generation_does_not_have_are_refused(cluster: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from({**with_step({"wait": "1s"}), "cluster": cluster}, "s.yaml")
    assert caught.value.field == field


def test_an_unknown_setting_of_the_store_is_answered_with_those_that_it_has() -> None:
    cluster = {**V3, "store": {"session_timeout_ms": 0}}
    with pytest.raises(InputError) as caught:
        scenario_from({**with_step({"wait": "1s"}), "cluster": cluster}, "s.yaml")
    allowed = "one of write_latency, read_latency, session_timeout, multi, sessions"
    assert (caught.value.field, caught.value.allowed) == ("cluster.store.session_timeout_ms", allowed)


@pytest.mark.parametrize(("mutation", "field", "found", "allowed"), rows(__file__, "wrong-files.yaml"))
def test_a_bad_file(mutation: dict[str, Any], field: str, found: str, allowed: str) -> None:
    error = problem(copy.deepcopy(BASE) | mutation)
    assert (error.field, str(error.found)) == (field, found)
    assert allowed in error.allowed


@pytest.mark.parametrize("value", [0, "0", -1, "many", True, None])
def test_an_invalid_min_isr_is_refused_everywhere(value: object) -> None:
    config = {"min.insync.replicas": value}
    places = {
        "cluster.config": copy.deepcopy(BASE) | {"cluster": {"brokers": 3, "config": config}},
        "topics[0].config": copy.deepcopy(BASE) | {"topics": [{"name": "t", "assignments": [[0]], "config": config}]},
        "steps[1].configure.config": with_step({"configure": {"topic": "t", "config": config}}),
    }
    for place, raw in places.items():
        error = problem(raw)
        assert error.field.startswith(place)
        assert "a whole number >= 1" in error.allowed


@pytest.mark.parametrize(
    ("topic", "name", "known"),
    [("t", "no.such.config", "min.insync.replicas"), ("t", "broker.session.timeout.ms", "flush.ms")],
)
def test_unknown_configs_are_refused(topic: str, name: str, known: str) -> None:
    error = problem(with_step({"configure": {"topic": topic, "config": {name: 1}}}))
    assert error.field.startswith("steps[1].configure.config")
    assert name in str(error)
    assert known in error.allowed


@pytest.mark.parametrize(("step", "words"), rows(__file__, "unknown-names.yaml"))
def test_the_most_similar_name_is_suggested_for_an_unknown_one(step: object, words: str) -> None:
    assert f"{words}; allowed: one of " in str(problem(with_step(step)))


@pytest.mark.parametrize(("step", "field", "found", "allowed"), rows(__file__, "wrong-steps.yaml"))
def test_a_bad_step(step: object, field: str, found: str, allowed: str) -> None:
    error = problem(with_step(step))
    assert error.field.startswith("steps[1]" + field)
    assert str(error.found).startswith(found)
    assert allowed in error.allowed


@pytest.mark.parametrize(("steps", "place"), rows(__file__, "steps-out-of-order.yaml"))
def test_steps_may_name_what_exists_when_they_run(steps: list[dict[str, Any]], place: str) -> None:
    assert problem(copy.deepcopy(BASE) | {"steps": steps}).field.startswith(place)
    created = [{"create_topic": {"name": "u", "assignments": [[0]]}}, {"produce": {"topic": "u", "records": 1}}]
    assert len(scenario_from(copy.deepcopy(BASE) | {"steps": created}, "s.yaml").steps) == 2


BAD_TEXTS = {
    "a list": (b"- 1\n", "list", "a mapping: a scenario file"),
    "nothing": (b"", "nothing", "a mapping: a scenario file"),
    "no YAML": (b"name: [\n", "", "YAML"),
    "nested without end": (b"name: " + b"[" * 20_000, "", "a mapping"),
    "a text without end": (b'name: "a', "unexpected end of stream", "YAML"),
    "a key twice": (b"name: a\nname: b\n", "'name'", "each key once"),
    "no text": (b"\xff\xfe\xff", "not UTF-8", "a scenario file"),
}


@pytest.mark.parametrize(("text", "found", "allowed"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_a_file_without_a_scenario_is_refused(tmp_path: Path, text: bytes, found: str, allowed: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert caught.value.source == str(path)
    assert found in str(caught.value.found)
    assert allowed in caught.value.allowed
    assert "\n" not in str(caught.value)
    assert "found found" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_scenario(tmp_path / "none.yaml")


def test_rules_of_kafka_apply_on_the_simulator_only() -> None:
    cluster = {"brokers": 3, "kafka_rules": ["returning-replica-eligible"]}
    scenario = scenario_from(BASE | {"cluster": cluster}, "s.yaml")
    require_engine(scenario, "sim")
    with pytest.raises(InputError, match=r"cluster.kafka_rules: found --engine ray; allowed: --engine sim"):
        require_engine(scenario, "ray")


@pytest.mark.parametrize(("written", "release"), [(4.3, "4.3"), ("4.2.0", "4.1.2"), ("4.4", "4.4")])
def test_a_release_is_written_as_a_number_or_a_text(written: object, release: str) -> None:
    cluster = {"brokers": 3, "generation": "kip-497", "kafka_release": written}
    scenario = scenario_from(BASE | {"cluster": cluster}, "s.yaml")
    assert scenario.cluster.spec().config.kafka_release.value == release


@pytest.mark.parametrize(("fields", "field", "allowed"), rows(__file__, "wrong-rules.yaml"))
def test_wrong_rules_and_violations_are_refused(fields: dict[str, Any], field: str, allowed: str) -> None:
    error = problem(copy.deepcopy(BASE) | fields)
    assert error.field == field
    assert error.allowed.startswith(allowed)


def test_a_fault_step_runs_on_the_simulator_only() -> None:
    scenario = scenario_from(with_step({"fault": {"kind": "pause", "node": 0, "duration": "5s"}}), "s.yaml")
    require_engine(scenario, "sim")
    with pytest.raises(InputError, match=r"steps\[1\].fault: found --engine ray; allowed: --engine sim"):
        require_engine(scenario, "ray")


RUNNING = ClusterSpec(3, 1, ClusterConfig.of(Generation.KIP_966, {"broker.session.timeout.ms": 3_000}))


@pytest.mark.parametrize(
    ("fields", "topics", "line"),
    [
        ({}, set(), None),
        ({"cluster": {"brokers": 3, "config": {"broker.session.timeout.ms": 3_000}}}, {"others"}, None),
        ({"cluster": {"brokers": 4}}, set(), "s: cluster.brokers: found 4; allowed: 3"),
        ({"cluster": {"brokers": 3, "controllers": 3}}, set(), "s: cluster.controllers: found 3; allowed: 1"),
        (
            {"cluster": {"brokers": 3, "generation": "kip-497"}},
            set(),
            "s: cluster.generation: found",
        ),
        ({"cluster": {"brokers": 3, "racks": 3}}, set(), "s: cluster.racks: found"),
        (
            {"cluster": {"brokers": 3, "config": {"broker.session.timeout.ms": 9_000}}},
            set(),
            "s: cluster.config.broker.session.timeout.ms: found 9000; allowed: 3000",
        ),
        ({}, {"t"}, "s: topics[0].name: found t, which exists;"),
        (
            {"steps": [{"create_topic": {"name": "u", "assignments": [[0]]}}]},
            {"u"},
            "s: steps[0].create_topic.name",
        ),
        ({"steps": [{"set_clock": {"broker": 0, "ahead": "5s"}}]}, set(), "s: steps[0].set_clock: found"),
    ],
)
def test_what_a_running_cluster_cannot_do_is_refused(
    fields: dict[str, Any], topics: set[str], line: str | None
) -> None:
    scenario = scenario_from(copy.deepcopy(BASE) | {"name": "s"} | fields, "s.yaml")
    if line is None:
        require_running(scenario, RUNNING, topics)
        return
    with pytest.raises(InputError) as caught:
        require_running(scenario, RUNNING, topics)
    assert str(caught.value).startswith(line)
