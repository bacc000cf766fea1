"""What a scenario may have to run on a real Apache Kafka: all else is refused by name, before a process starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.engines.kafka.properties import REFUSED
from experiments.scenarios.expectation_model import Expectation
from experiments.scenarios.model import (
    ConfigureStep,
    CrashStep,
    ElectStep,
    LinkStep,
    LoseDiskStep,
    NodeStep,
    Scenario,
    Step,
    TopicModel,
)
from experiments.support.errors import InputError
from protocol.features import RELEASED, Generation
from protocol.metrics import CLUSTER_METRICS

REFUSED_STEPS: Mapping[str, str] = {
    "set_clock": "a process has the clock of its machine",
    "expire": "there is no store",
    "remove_partitions": "no release of Kafka removes partitions",
    "update_feature": "its features are those of isray",
    "unregister_controller": "no client of Kafka's protocol here has the request (KIP-1312)",
}
"""Kinds of steps that a real Kafka cannot carry out, and why."""


def require_kafka(scenario: Scenario) -> None:
    """InputError for the first thing that a real Kafka cannot do."""
    generation = scenario.cluster.generation
    if Generation(generation) not in RELEASED:
        allowed = f"{', '.join(it.value for it in RELEASED)}, the generations that releases of Kafka run"
        raise InputError(scenario.name, "cluster.generation", generation, allowed)
    for place, name in _configs(scenario):
        if name in REFUSED:
            raise InputError(scenario.name, f"{place}.{name}", "--engine kafka", REFUSED[name])
    for index, step in enumerate(scenario.steps):
        if reason := _reason(scenario, step):
            allowed = f"--engine sim or ray: {reason}"
            raise InputError(scenario.name, f"steps[{index}].{step.kind}", "--engine kafka", allowed)


NOT_IN_RESPONSES = (
    "partition_epoch",
    "leader_recovery_state",
    "log_end_offset",
    "registration",
    "voters",
    "registered_controllers",
    "role",
)
"""Expectations about what requests to brokers do not show (`experiments/engines/kafka/protocol_state.py`)."""


def require_shown(scenario: Scenario) -> None:
    """InputError for what needs Kafka's files, where the state is read by requests to brokers only: an expectation
    about what these do not show, and a loss of unflushed records.
    """
    for index, step in enumerate(scenario.steps):
        fields, needed = step.fields, "flush" if step.kind == "flush" else ""
        if isinstance(fields, Expectation):
            needed = next((name for name in NOT_IN_RESPONSES if getattr(fields, name) is not None), "")
        if isinstance(fields, CrashStep | LoseDiskStep) and fields.lose not in ("none", "all"):
            needed = "lose"
        if needed:
            allowed = "a life cycle with state: metadata-log"
            raise InputError(scenario.name, f"steps[{index}].{step.kind}.{needed}", "state: protocol", allowed)


def _configs(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Every config that the scenario sets, after its place."""
    yield from (("cluster.config", name) for name in scenario.cluster.config)
    for index, topic in enumerate(scenario.topics):
        yield from ((f"topics[{index}].config", name) for name in topic.config)
    for index, step in enumerate(scenario.steps):
        if isinstance(step.fields, ConfigureStep | TopicModel):
            names = [*step.fields.config, *getattr(step.fields, "delete", ())]
            yield from ((f"steps[{index}].{step.kind}.config", name) for name in names)


def _reason(scenario: Scenario, step: Step) -> str:
    """Why a real Kafka cannot carry out a step; empty where it can."""
    fields = step.fields
    if step.kind in REFUSED_STEPS:
        return REFUSED_STEPS[step.kind]
    if isinstance(fields, NodeStep) and fields.urm:
        return "there is no unclean recovery manager"
    if isinstance(fields, LinkStep) and "urm" in fields.sides:
        return "there is no unclean recovery manager"
    if isinstance(fields, ElectStep) and fields.type not in ("preferred", "unclean"):
        return f"no release of Kafka has elections of the type {fields.type}"
    if isinstance(fields, CrashStep | LoseDiskStep) and fields.lose == "all" and fields.controller is not None:
        return "" if scenario.cluster.controllers > 1 else "the only controller has all metadata, and is not replaced"
    if isinstance(fields, Expectation):
        if fields.high_watermark_regressions is not None:
            return "high_watermark_regressions follow from trace events, and brokers report none"
        if named := sorted(set(fields.metrics or ()) & set(CLUSTER_METRICS)):
            return f"the metrics of a controller are not read ({', '.join(named)})"
    return ""
