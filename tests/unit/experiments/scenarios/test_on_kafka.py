"""What a real Kafka cannot do is refused by name, before a process starts."""

from __future__ import annotations

import pytest

from experiments.scenarios.loader import require_engine, scenario_from
from experiments.support.errors import InputError

ELR = {"brokers": 2, "generation": "kip-966-elr"}
TOPIC = {"name": "t", "assignments": [[0, 1]]}
WAIT: dict[str, object] = {"wait": "1s"}


def refuse(step: dict[str, object], **cluster: object) -> str:
    """How a step is refused; empty where it is not."""
    raw = {"name": "s", "cluster": {**ELR, **cluster}, "topics": [TOPIC], "steps": [WAIT, step]}
    try:
        require_engine(scenario_from(raw, "s.yaml"), "kafka")
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"set_clock": {"broker": 0, "ahead": "1s"}}, "a process has the clock of its machine"),
        ({"update_feature": {"feature": "metadata.version", "level": 1}}, "its features are those of isray"),
        (
            {"remove_partitions": {"name": "t", "partitions": [0], "expect_error": "INVALID_REQUEST"}},
            "no release of Ka",
        ),
        ({"unregister_controller": {"controller": 1000}}, "no client of Kafka's protocol here has the request"),
        ({"crash": {"urm": True}}, "there is no unclean recovery manager"),
        ({"cut": {"between": ["urm", 0]}}, "there is no unclean recovery manager"),
        (
            {"elect": {"topic": "t", "type": "longest_log_balanced"}},
            "no release of Kafka has elections of the type long",
        ),
        ({"crash": {"controller": 1000, "lose": "all"}}, "the only controller has all metadata"),
        (
            {"expect": {"topic": "t", "high_watermark_regressions": 0}},
            "high_watermark_regressions follow from trace ev",
        ),
        (
            {"expect": {"metrics": {"kafka.controller.offline_partitions_count": 0}}},
            "the metrics of a controller are not read (kafka.controller.offline_partitions_count)",
        ),
    ],
)
def test_steps_that_kafka_cannot_carry_out(step: dict[str, object], reason: str) -> None:
    [kind] = step
    said = refuse(step)
    assert said.startswith(f"s: steps[1].{kind}: found --engine kafka; allowed: --engine sim or ray: {reason}")


@pytest.mark.parametrize(
    ("step", "cluster", "place", "allowed"),
    [
        (WAIT, {"generation": "kip-966"}, "cluster.generation: found kip-966", "kip-497, kip-966-elr"),
        (WAIT, {"config": {"super.users": "User:a"}}, "cluster.config.super.users", "nothing: there is no authorizer"),
        (
            {"configure": {"config": {"unclean.recovery.timeout.ms": 5}}},
            {},
            "steps[1].configure.config.unclean.recovery.timeout.ms",
            "nothing: no release of Kafka has it",
        ),
    ],
)
def test_settings_that_kafka_does_not_have(
    step: dict[str, object], cluster: dict[str, object], place: str, allowed: str
) -> None:
    said = refuse(step, **cluster)
    assert said.startswith(f"s: {place}")
    assert f"allowed: {allowed}" in said


@pytest.mark.parametrize(
    "step",
    [
        {"flush": {"broker": 0}},
        {"crash": {"broker": 0, "lose": "unflushed"}},
        {"elect": {"topic": "t", "type": "unclean"}},
        {"cut": {"from": 0, "to": "controllers"}},
        {"expect": {"topic": "t", "metrics": {"kafka.controller.electable_leaders_count": 0}}},
    ],
)
def test_what_kafka_can_do_is_not_refused(step: dict[str, object]) -> None:
    assert refuse(step) == ""


def test_rules_of_kafkas_code_are_those_of_a_real_kafka() -> None:
    raw = {"name": "s", "cluster": ELR | {"kafka_rules": ["min-isr-change-clears-elr"]}, "steps": [WAIT]}
    scenario = scenario_from(raw, "s.yaml")
    require_engine(scenario, "kafka")
    with pytest.raises(InputError, match="allowed: --engine sim or kafka"):
        require_engine(scenario, "ray")
