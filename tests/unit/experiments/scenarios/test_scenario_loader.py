"""Scenario files: what is read, and the one line that says what is wrong with a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.scenarios.loader import load_scenario, require_engine, scenario_from
from experiments.scenarios.model import STEPS
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError

SHIPPED = sorted((Path(__file__).parents[4] / "experiments" / "scenarios").glob("*.yaml"))
KINDS = "one of produce, crash, shutdown, start, "
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


GOOD_STEPS: list[dict[str, Any]] = [
    {"produce": {"topic": "t", "partition": 0, "records": 1, "acks": 0, "expect_error": "NOT_ENOUGH_REPLICAS"}},
    *({"crash": {"broker": 0, "lose": lose}} for lose in ("none", "unflushed", "all", 0, 3)),
    {"crash": {"controller": 1000}},
    *({kind: {"urm": True}} for kind in ("crash", "shutdown", "start", "pause", "resume")),
    {"cut": {"between": ["urm", "rest"]}},
    {"cut": {"from": "urm", "to": 1}},
    {"shutdown": {"broker": 2}},
    {"start": {"controller": 1000}},
    {"pause": {"broker": 0}},
    {"resume": {"broker": 0}},
    {"cut": {"between": [0, "rest"]}},
    {"cut": {"from": "controllers", "to": 1}},
    {"heal": "all"},
    {"heal": {"between": [0, 1000]}},
    {"fault": {"kind": "flapping_link", "duration": "5s", "source": [0], "target": [1], "down_ms": 100, "up_ms": 900}},
    {"fault": {"kind": "slow_disk", "duration": "250ms", "node": 2, "write_ms": 10}},
    {"flush": {"broker": 0}},
    {"elect": {"topic": "t", "type": "unclean", "expect_error": "ELECTION_NOT_NEEDED"}},
    {"reassign": {"topic": "t", "replicas": [2, 1]}},
    {"reassign": {"topic": "t", "cancel": True, "expect_error": "NO_REASSIGNMENT_IN_PROGRESS"}},
    {"configure": {"topic": "t", "config": {"min.insync.replicas": 2}}},
    {"configure": {"config": {"unclean.leader.election.enable": True}}},
    {"update_feature": {"feature": "metadata.version", "level": 1, "downgrade": "safe"}},
    {"update_feature": {"feature": "unclean.recovery.enabled", "level": 1, "expect_error": "INVALID_UPDATE_VERSION"}},
    {"unregister": {"broker": 2, "expect_error": "BROKER_ID_NOT_REGISTERED"}},
    {"create_topic": {"name": "u", "assignments": [[0, 1], [1, 2]], "config": {"min.insync.replicas": "2"}}},
    {"delete_topic": {"name": "t"}},
    {"add_partitions": {"name": "t", "assignments": [[0, 1]]}},
    {"remove_partitions": {"name": "w", "partitions": [2, 1]}},
    {"wait": "250ms"},
    {"await": {"broker": 0, "state": "fenced", "within": "60s"}},
    {"expect": {"topic": "t", "isr": [], "log_end_offset": {2: 18}, "lost_acked": 0, "leader": -1}},
    {"expect": {"controller": 1000, "role": "leader"}},
    {"add_voter": {"controller": 1000, "expect_error": "DUPLICATE_VOTER"}},
    {"remove_voter": {"controller": 1000}},
    {"expect": {"voters": [1000]}},
    {"expect": {"topic": "t", "leader": 0, "voters": [1000]}},
]


@pytest.mark.parametrize("step", GOOD_STEPS, ids=str)
def test_steps_of_the_interface_are_accepted(step: dict[str, Any]) -> None:
    [kind] = step
    raw = with_step(step)
    raw["topics"].append({"name": "w", "assignments": [[0], [1], [2]]})
    assert scenario_from(raw, "s.yaml").steps[1].kind == kind
    assert {next(iter(good)) for good in GOOD_STEPS} == set(STEPS) - {"expire"}, "every kind of step is here"


GOOD_STEPS_OF_V3: list[dict[str, Any]] = [
    {"expire": {"broker": 0}},
    {"crash": {"store": True}},
    {"pause": {"store": True}},
    {"cut": {"between": ["store", 1]}},
    {"expect": {"controller_broker": 1}},
    {"await": {"controller_epoch": 2, "within": "5s"}},
    {"expect": {"topic": "t", "isr": [0, 1, 2], "controller_epoch": 2}},
]
STEPS_OF_OTHERS: list[dict[str, Any]] = [
    {"configure": {"config": {"min.insync.replicas": 2}}},
    {"crash": {"urm": True}},
    {"cut": {"between": ["controllers", 1]}},
    {"add_voter": {"controller": 1000}},
    {"expect": {"topic": "t", "elr": [1]}},
    {"expect": {"voters": [1000]}},
]
V3 = {"brokers": 3, "generation": "v3"}


@pytest.mark.parametrize("step", GOOD_STEPS_OF_V3, ids=str)
def test_steps_of_v3_are_accepted_there_and_refused_elsewhere(step: dict[str, Any]) -> None:
    [kind] = step
    raw = with_step(step)
    with pytest.raises(InputError, match="allowed: generation v3"):
        scenario_from(raw, "s.yaml")
    assert scenario_from({**raw, "cluster": V3}, "s.yaml").steps[1].kind == kind


@pytest.mark.parametrize("step", STEPS_OF_OTHERS, ids=str)
def test_steps_that_v3_does_not_have_are_refused_there(step: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"steps\[1\]"):
        scenario_from({**with_step(step), "cluster": V3}, "s.yaml")


@pytest.mark.parametrize(
    ("cluster", "field"),
    [
        ({**V3, "controllers": 1}, "cluster.controllers"),
        ({**V3, "config": {"unclean.recovery.strategy": "manual"}}, "cluster.config.unclean.recovery.strategy"),
        ({**V3, "config": {"controller.quorum.voters": "1000"}}, "cluster.config.controller.quorum.voters"),
        ({**V3, "store": {"session_timeout": "0ms"}}, "cluster.store.session_timeout"),
        ({**V3, "store": {"sessions": 0}}, "cluster.store.sessions"),
        ({"brokers": 3, "store": {}}, "cluster.store"),
        (
            {"brokers": 3, "config": {"inter.broker.protocol.isr.updates": "leader"}},
            "cluster.config.inter.broker.protocol.isr.updates",
        ),
    ],
)
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


BAD_FILES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"name": ""}, "name", "''", "1 or more characters"),
    ({"name": 5}, "name", "5", "text"),
    ({"extra": 1}, "extra", "1", "one of name, description, cluster, topics, steps"),
    ({"steps": []}, "steps", "[]", "1 or more items"),
    ({"steps": ["wait"]}, "steps[0]", "'wait'", "a mapping"),
    ({"steps": [{}]}, "steps[0]", "0 keys", "exactly " + KINDS),
    ({"cluster": {"brokers": 0}}, "cluster.brokers", "0", "1 or more"),
    ({"cluster": {"brokers": "3"}}, "cluster.brokers", "'3'", "a whole number"),
    ({"cluster": {"brokers": 3, "generation": "v9"}}, "cluster.generation", "'v9'", "kip-497, kip-966-elr, kip-966"),
    ({"cluster": {}}, "cluster.brokers", "nothing", "a value (required)"),
    ({"cluster": {"brokers": 2}}, "topics[0].assignments[0]", "broker 2", "brokers 0 to 1"),
    ({"topics": [{"name": "t", "assignments": []}]}, "topics[0].assignments", "[]", "1 or more items"),
    ({"topics": [{"name": "t", "assignments": [[0, 0]]}]}, "topics[0].assignments[0]", "[0, 0]", "each broker once"),
    ({"topics": [{"name": "t", "replicas": [[0]]}]}, "topics[0].replicas", "[[0]]", "one of name, assignments, config"),
    ({"topics": [{"name": "a b", "assignments": [[0]]}]}, "topics[0].name", "'a b'", "ASCII letters, digits"),
    ({"topics": [{"name": "t", "assignments": [[0, 1], [2]]}]}, "topics[0].assignments[1]", "[2]", "2 brokers, as in"),
    ({"cluster": {"brokers": 3, "controllers": 10}}, "cluster.controllers", "10", "9 or less"),
    ({"cluster": {"brokers": 3, "voters": []}}, "cluster.voters", "[]", "1 or more items"),
    ({"cluster": {"brokers": 3, "voters": [1001]}}, "cluster.voters", "[1001]", "controllers 1000 to 1000, each once"),
    ({"cluster": {"brokers": 3, "voters": [1000, 1000]}}, "cluster.voters", "[1000, 1000]", "each once"),
    (
        {"cluster": {"brokers": 3, "controllers": 2, "config": {"controller.quorum.voters": "1000,1002"}}},
        "cluster.config.controller.quorum.voters",
        "[1000, 1002]",
        "controllers 1000 to 1001, each once",
    ),
    ({"topics": BASE["topics"] * 2}, "topics[1].name", "'t'", "a name that no other topic has"),
]


@pytest.mark.parametrize(("mutation", "field", "found", "allowed"), BAD_FILES)
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


SIMILAR: dict[str, tuple[object, str]] = {
    "a step": ({"produse": {"topic": "t", "records": 1}}, "steps[1]: found 'produse'. Did you mean 'produce'?"),
    "a field": ({"produce": {"topic": "t", "recods": 1}}, "recods: found 1. Did you mean 'records'?"),
    "a fault": ({"fault": {"kind": "slow_dsk"}}, "kind: found 'slow_dsk'. Did you mean 'slow_disk'?"),
    "a config": (
        {"configure": {"topic": "t", "config": {"min.insync.replica": 1}}},
        "config: found 'min.insync.replica'. Did you mean 'min.insync.replicas'?",
    ),
}


@pytest.mark.parametrize(("step", "words"), SIMILAR.values(), ids=SIMILAR)
def test_the_most_similar_name_is_suggested_for_an_unknown_one(step: object, words: str) -> None:
    assert f"{words}; allowed: one of " in str(problem(with_step(step)))


BAD_STEPS: list[tuple[object, str, str, str]] = [
    ({"nothing": 1}, "", "'nothing'", KINDS),
    ({"wait": "1s", "heal": "all"}, "", "2 keys", "exactly " + KINDS),
    ({"wait": 5}, ".wait", "5", "a number and a unit"),
    ({"wait": "5"}, ".wait", "'5'", "a number and a unit"),
    ({"wait": None}, ".wait", "None", "a number and a unit"),
    ({"produce": {"topic": "t"}}, ".produce.records", "nothing", "a value (required)"),
    ({"produce": {"topic": "t", "records": 0}}, ".produce.records", "0", "1 or more"),
    ({"produce": {"topic": "t", "records": True}}, ".produce.records", "True", "a whole number"),
    ({"produce": {"topic": "t", "records": "3"}}, ".produce.records", "'3'", "a whole number"),
    ({"produce": {"topic": "t", "records": 1, "acks": 2}}, ".produce.acks", "2", "0, 1 or 'all'"),
    ({"produce": {"topic": "t", "records": 1, "expect_error": "NONE"}}, ".produce.expect_error", "'NONE'", "one of "),
    ({"produce": {"topic": "t", "records": 1, "wait": 1}}, ".produce.wait", "1", "one of topic, partition, records"),
    ({"produce": {"topic": "u", "records": 1}}, ".produce.topic", "'u'", "a topic: t"),
    ({"produce": {"topic": "t", "records": 1, "partition": 1}}, ".produce.partition", "1", "from 0 to 0"),
    ({"produce": 5}, ".produce", "5", ""),
    ({"produce": None}, ".produce", "None", ""),
    ({"crash": {}}, ".crash", "{}", "either broker or controller or urm"),
    ({"crash": {"broker": 0, "controller": 1000}}, ".crash", "{'broker': 0, ", "either broker or controller or urm"),
    ({"pause": {"broker": 0, "urm": True}}, ".pause", "{'broker': 0, ", "either broker or controller or urm"),
    ({"pause": {"urm": False}}, ".pause.urm", "False", "True"),
    ({"cut": {"between": [2000, 1]}}, ".cut.between", "2000", "controllers 1000 to 1000"),
    ({"crash": {"broker": 3}}, ".crash.broker", "3", "brokers 0 to 2"),
    ({"crash": {"controller": 1001}}, ".crash.controller", "1001", "controllers 1000 to 1000"),
    ({"crash": {"broker": 0, "lose": "some"}}, ".crash.lose", "'some'", "none, unflushed, all, or a number of records"),
    ({"crash": {"broker": 0, "lose": -1}}, ".crash.lose", "-1", "none, unflushed, all, or a number of records"),
    ({"add_voter": {"controller": 1001}}, ".add_voter.controller", "1001", "controllers 1000 to 1000"),
    ({"remove_voter": {}}, ".remove_voter.controller", "nothing", "a value (required)"),
    ({"expect": {"voters": [1001]}}, ".expect.controller", "1001", "controllers 1000 to 1000"),
    ({"expect": {"voters": 1000}}, ".expect.voters", "1000", ""),
    ({"flush": {"broker": -1}}, ".flush.broker", "-1", "0 or more"),
    ({"flush": {"controller": 1000}}, ".flush.controller", "1000", "one of broker"),
    ({"cut": "all"}, ".cut", "'all'", "from and to; a side is a node id, controllers, urm, store or rest"),
    ({"heal": "everything"}, ".heal", "'everything'", "all, or between: [x, y], or from and to; a side is a node id"),
    ({"heal": {"all": "all"}}, ".heal", "{'all': 'all'}", "all, or between: [x, y], or from and to"),
    ({"heal": None}, ".heal", "None", "all, or between"),
    ({"heal": {"from": "all", "to": 0}}, ".heal.from", "'all'", "a node id, controllers, urm, store or rest"),
    ({"fault": 3}, ".fault", "3", "a mapping of fields: kind, duration"),
    ({"fault": {"kind": "earthquake"}}, ".fault.kind", "'earthquake'", "one of crash, power_loss"),
    ({"fault": {"kind": "pause", "node": 0}}, ".fault.duration", "nothing", "a value (required)"),
    ({"fault": {"kind": "pause", "node": 0, "duration": 5}}, ".fault.duration", "5", "a number and a unit"),
    ({"fault": {"kind": "pause", "node": 9, "duration": "5s"}}, ".fault", "node 9", "one of "),
    ({"fault": {"kind": "pause", "node": 0, "at_ms": 5}}, ".fault.at_ms", "5", "one of kind, duration, node"),
    ({"fault": {"kind": "slow_disk", "duration": "5s", "node": 0, "write_ms": 0}}, ".fault.write_ms", "0", "1 or more"),
    ({"fault": {"kind": "configure", "duration": "5s", "topic": "u", "config": {}}}, ".fault", "u-0", "of t"),
    ({"cut": {"from": 0}}, ".cut", "{'from': 0}", "either between: [x, y], or from and to"),
    ({"cut": {"between": [0]}}, ".cut.between", "[0]", "2 or more items"),
    ({"cut": {"between": [0, 7]}}, ".cut.between", "7", "brokers 0 to 2"),
    ({"cut": {"between": [0, "clients"]}}, ".cut.between[1]", "'clients'", ""),
    ({"cut": {"between": ["rest", "rest"]}}, ".cut", "{'between'", "rest on one side only"),
    ({"cut": {"from": 0, "to": 1001}}, ".cut.", "1001", "controllers 1000 to 1000"),
    ({"elect": {"topic": "t", "type": "random"}}, ".elect.type", "'random'", "'preferred', 'unclean'"),
    ({"elect": {"topic": "t", "type": "designation"}}, ".elect", "{'topic'", "desired_leader with type designation"),
    ({"elect": {"topic": "t", "type": "unclean", "desired_leader": 1}}, ".elect", "{'topic'", "and only there"),
    (
        {"elect": {"topic": "t", "type": "designation", "desired_leader": 3}},
        ".elect.desired_leader",
        "3",
        "brokers 0 to 2",
    ),
    ({"reassign": {"topic": "t"}}, ".reassign", "{'topic': 't'}", "either replicas or cancel: true"),
    ({"reassign": {"topic": "t", "replicas": [0, 9]}}, ".reassign.replicas", "broker 9", "brokers 0 to 2"),
    ({"create_topic": {"name": "t", "assignments": [[0]]}}, ".create_topic.name", "'t'", "no other topic has"),
    ({"delete_topic": {"name": "u"}}, ".delete_topic.name", "'u'", "a topic: t"),
    ({"add_partitions": {"name": "t", "assignments": [[5]]}}, ".add_partitions.assignments[0]", "broker 5", "0 to 2"),
    ({"remove_partitions": {"name": "t", "partitions": [0]}}, ".remove_partitions.partitions", "[0]", "and not all"),
    ({"remove_partitions": {"name": "t", "partitions": []}}, ".remove_partitions.partitions", "[]", "1 or more items"),
    ({"remove_partitions": {"name": "u", "partitions": [0]}}, ".remove_partitions.name", "'u'", "a topic: t"),
    ({"expect": {"topic": "t"}}, ".expect", "{'topic': 't'}", "elr, high_watermark"),
    ({"expect": {"topic": "t", "broker": 1, "leader": 1}}, ".expect", "{'topic'", "exactly one of topic, broker"),
    ({"expect": {"broker": 1, "leader": 1}}, ".expect", "{'broker'", "with broker one or more of state"),
    ({"expect": {"broker": 1, "state": "dead"}}, ".expect.state", "'dead'", "'fenced', 'unfenced' or 'shutdown'"),
    ({"expect": {"topic": "t", "log_end_offset": {9: 1}}}, ".expect.log_end_offset", "9", "brokers 0 to 2"),
    ({"await": {"topic": "t", "leader": 1, "within": "soon"}}, ".await.within", "'soon'", "a number and a unit"),
]


@pytest.mark.parametrize(("step", "field", "found", "allowed"), BAD_STEPS, ids=str)
def test_a_bad_step(step: object, field: str, found: str, allowed: str) -> None:
    error = problem(with_step(step))
    assert error.field.startswith("steps[1]" + field)
    assert str(error.found).startswith(found)
    assert allowed in error.allowed


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ([{"delete_topic": {"name": "t"}}, {"produce": {"topic": "t", "records": 1}}], "steps[1].produce"),
        (
            [{"produce": {"topic": "u", "records": 1}}, {"create_topic": {"name": "u", "assignments": [[0]]}}],
            "steps[0]",
        ),
        (
            [
                {"add_partitions": {"name": "t", "assignments": [[0]]}},
                {"elect": {"topic": "t", "partition": 2, "type": "unclean"}},
            ],
            "steps[1].elect",
        ),
        (
            [
                {"add_partitions": {"name": "t", "assignments": [[0], [0], [0]]}},
                {"remove_partitions": {"name": "t", "partitions": [2, 3]}},
                {"produce": {"topic": "t", "partition": 2, "records": 1}},
            ],
            "steps[2].produce",
        ),
        (
            [
                {"add_partitions": {"name": "t", "assignments": [[0], [0]]}},
                {"remove_partitions": {"name": "t", "partitions": [1]}},
            ],
            "steps[1].remove_partitions",
        ),
    ],
    ids=["deleted before", "created after", "not added", "removed before", "not the last"],
)
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


@pytest.mark.parametrize(
    ("fields", "field", "allowed"),
    [
        ({"cluster": {"brokers": 3, "kafka_rules": ["none"]}}, "cluster.kafka_rules[0]", "one of returning-replica"),
        ({"violates": ["EpochsRise"]}, "violates", "nothing, without cluster.kafka_rules"),
        ({"violates": ["Unknown"]}, "violates[0]", "one of "),
    ],
)
def test_wrong_rules_and_violations_are_refused(fields: dict[str, Any], field: str, allowed: str) -> None:
    error = problem(copy.deepcopy(BASE) | fields)
    assert error.field == field
    assert error.allowed.startswith(allowed)


def test_a_fault_step_runs_on_the_simulator_only() -> None:
    scenario = scenario_from(with_step({"fault": {"kind": "pause", "node": 0, "duration": "5s"}}), "s.yaml")
    require_engine(scenario, "sim")
    with pytest.raises(InputError, match=r"steps\[1\].fault: found --engine ray; allowed: --engine sim"):
        require_engine(scenario, "ray")
