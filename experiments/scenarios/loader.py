"""Scenario files: YAML in, `Scenario` out, or `InputError`. What a scenario may name depends on the generation: `v3`
has a store and a controller that is a broker, and no quorum, no ELR, no features whose level could be changed, no
configs that change, and no registrations that outlive a session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import get_args

from experiments.engines.port import ClusterSpec
from experiments.faults.kinds import FAULT_KINDS
from experiments.faults.kinds.links import LinkFault
from experiments.scenarios.expectation_model import Expectation
from experiments.scenarios.model import (
    CONTROLLER_WORDS,
    STEPS,
    AddPartitionsStep,
    ControllerSide,
    FaultStep,
    LinkStep,
    LoseDiskStep,
    NodeStep,
    ReassignStep,
    RemovePartitionsStep,
    Scenario,
    ScenarioFile,
    Step,
    TopicModel,
)
from experiments.scenarios.on_kafka import require_kafka
from experiments.support.errors import InputError, shown
from experiments.support.fields import StrictModel
from experiments.support.yaml_input import flow_yaml, read_yaml_mapping, validated
from protocol.config import CONFIGS, CONTROLLER_QUORUM_BOOTSTRAP_SERVERS, CONTROLLER_QUORUM_VOTERS, node_ids
from protocol.errors import did_you_mean
from protocol.features import RELEASED, Generation
from protocol.ids import FIRST_CONTROLLER, NO_LEADER, NodeId

_FAULT_TIMES = ("at_ms", "duration_ms")


def load_scenario(path: Path) -> Scenario:
    """InputError if the file is no valid scenario."""
    return scenario_from(read_yaml_mapping(path, "a scenario file"), str(path))


def scenario_from(raw: dict[str, object], source: str, hosts: Collection[NodeId] = ()) -> Scenario:
    """The scenario described by a mapping; `source` names it in errors. Steps may cut links of `hosts`, too, which are
    hosts of applications.
    """
    file = validated(ScenarioFile, raw, source)
    steps = [_step(item, source, f"steps[{index}]") for index, item in enumerate(file.steps)]
    written = {name: getattr(file, name) for name in ScenarioFile.model_fields if name != "steps"}
    scenario = Scenario(**written, steps=steps)
    _check_references(scenario, source, hosts)
    cluster = scenario.cluster
    if isinstance(cluster.racks, list) and len(cluster.racks) != cluster.brokers:
        raise InputError(
            source, "cluster.racks", cluster.racks, f"{cluster.brokers} racks, one per broker, or a number"
        )
    if "kafka_release" in cluster.model_fields_set and Generation(cluster.generation) not in RELEASED:
        allowed = f"none with generation {cluster.generation}, which no release of Kafka has"
        raise InputError(source, "cluster.kafka_release", cluster.kafka_release, allowed)
    if scenario.violates and not scenario.cluster.kafka_rules:
        raise InputError(source, "violates", scenario.violates, "nothing, without cluster.kafka_rules")
    return scenario


def _step(raw: dict[str, object], source: str, place: str) -> Step:
    if len(raw) != 1:
        raise InputError(source, place, f"{len(raw)} keys", f"exactly one of {', '.join(STEPS)}")
    [(kind, fields)] = raw.items()
    if kind not in STEPS:
        raise InputError(source, place, f"{shown(kind)}{did_you_mean(str(kind), STEPS)}", f"one of {', '.join(STEPS)}")
    text, place = f"{kind}: {flow_yaml(fields)}", f"{place}.{kind}"
    if kind == "heal" and fields == "all":
        return Step(kind=kind, fields=None, text=text)
    model = STEPS[kind].fields
    if issubclass(model, LinkStep) and not (isinstance(fields, dict) and {*fields} <= {"between", "from", "to"}):
        raise InputError(source, place, shown(fields), model.SHAPE)
    if kind == "wait":
        fields = {"wait": fields}
        place = place.removesuffix(".wait")
    if kind == "fault":
        fields = _fault_fields(fields, source, place)
    return Step(kind=kind, fields=validated(model, fields, source, place), text=text)


def _fault_fields(raw: object, source: str, place: str) -> object:
    """The fields of a fault step, with its fault as a value; its beginning is set when the step runs."""
    if not isinstance(raw, dict):
        raise InputError(source, place, shown(raw), "a mapping of fields: kind, duration, and those of the kind")
    kind = raw.get("kind")
    if kind not in FAULT_KINDS:
        found = f"{shown(kind)}{did_you_mean(str(kind), FAULT_KINDS)}"
        raise InputError(source, f"{place}.kind", found, f"one of {', '.join(FAULT_KINDS)}")
    model = FAULT_KINDS[kind]
    names = ["kind", "duration", *(name for name in model.model_fields if name not in _FAULT_TIMES)]
    for name in raw:
        if name not in names:
            found = f"{shown(raw[name])}{did_you_mean(str(name), names)}"
            raise InputError(source, f"{place}.{name}", found, f"one of {', '.join(dict.fromkeys(names))}")
    own = {name: value for name, value in raw.items() if name != "duration"}
    given: dict[str, object] = {name: raw[name] for name in ("kind", "duration") if name in raw}
    stood_in = {name: _stand_in(value) for name, value in own.items() if name != "kind"}
    given["targets"] = {name: own[name] for name, value in stood_in.items() if value != own[name]}
    return given | {"fault": validated(model, own | stood_in | dict.fromkeys(_FAULT_TIMES, 1), source, place)}


def _stand_in(value: object) -> object:
    """A value, or the members of a list, with the first controller in the place of a word for one of them."""
    if isinstance(value, list):
        return list(map(_stand_in, value))
    return FIRST_CONTROLLER if value in get_args(ControllerSide) else value


def _check_references(scenario: Scenario, source: str, hosts: Collection[NodeId]) -> None:
    """Brokers, controllers, topics and partitions that a step names must exist when the step begins."""
    partitions: dict[str, int] = {}
    _check_former(scenario, source)
    if scenario.cluster.has_store:
        _require_v3(scenario, source)
    else:
        _forbid_v3(scenario, source)
        _check_quorum(scenario, source)
    for index, topic in enumerate(scenario.topics):
        _check_topic(scenario, topic, partitions, source, f"topics[{index}]")
    for index, step in enumerate(scenario.steps):
        place = f"steps[{index}].{step.kind}"
        if isinstance(step.fields, FaultStep):
            _check_fault(scenario, step.fields, partitions, source, place, hosts)
        elif isinstance(step.fields, TopicModel) and not _is_to_be_refused(step.fields):
            _check_topic(scenario, step.fields, partitions, source, place)
        elif step.fields is not None:
            _check_nodes(scenario, step.fields, source, place, hosts)
            if not _is_to_be_refused(step.fields):
                _check_step_topic(step, step.fields, partitions, source, place)


def _check_former(scenario: Scenario, source: str) -> None:
    """InputError where a step names the former controller before any step has named the active one."""
    for index, step in enumerate(scenario.steps):
        words = [*_words_of(step.fields)] if step.fields is not None else []
        if any(word.startswith("active") for word in words):
            return
        if words:
            allowed = "after a step that names the active controller"
            raise InputError(source, f"steps[{index}].{step.kind}", words[0], allowed)


def _words_of(fields: StrictModel) -> Iterator[str]:
    """The words of a step that stand for controllers."""
    targets = [*fields.targets.values()] if isinstance(fields, FaultStep) else [getattr(fields, "controller", None)]
    for value in fields.sides if isinstance(fields, LinkStep) else targets:
        members = value if isinstance(value, list) else [value]
        yield from (it for it in members if isinstance(it, str) and it in CONTROLLER_WORDS)


def _is_to_be_refused(fields: StrictModel) -> bool:
    """Whether a step expects an error, so that what it names need not exist."""
    return getattr(fields, "expect_error", None) is not None


def _check_step_topic(step: Step, fields: StrictModel, partitions: dict[str, int], source: str, place: str) -> None:
    """The topic and the partition that a step names must exist; `partitions` are counted as after the step."""
    name_field = "topic" if hasattr(fields, "topic") else "name"
    name = getattr(fields, name_field, None)
    if name is None:
        return
    if name not in partitions:
        allowed = f"a topic: {', '.join(partitions) or 'none exists'}"
        raise InputError(source, f"{place}.{name_field}", shown(name), allowed)
    count = partitions[name]
    partition = getattr(fields, "partition", 0)
    if partition >= count:
        raise InputError(source, f"{place}.partition", partition, f"a partition from 0 to {count - 1}")
    if step.kind == "delete_topic":
        del partitions[name]
    elif isinstance(fields, AddPartitionsStep):
        partitions[name] += len(fields.assignments)
    elif isinstance(fields, RemovePartitionsStep):
        left = count - len(fields.partitions)
        if left < 1 or sorted(fields.partitions) != list(range(left, count)):
            allowed = f"the last ones of partitions 0 to {count - 1}, and not all"
            raise InputError(source, f"{place}.partitions", fields.partitions, allowed)
        partitions[name] = left


def _check_fault(
    scenario: Scenario,
    fields: FaultStep,
    partitions: dict[str, int],
    source: str,
    place: str,
    hosts: Collection[NodeId],
) -> None:
    """The nodes and the partition that a fault names must exist."""
    spec, fault = scenario.cluster.spec(), fields.fault
    stood_in = {FIRST_CONTROLLER} if scenario.cluster.has_store and fields.targets else set()
    for node in fault.nodes:
        known = spec.broker_ids if node in fault.brokers else spec.node_ids
        if node not in {*known, *stood_in, *(hosts if isinstance(fault, LinkFault) else ())}:
            raise InputError(source, place, f"node {node}", f"one of {', '.join(map(str, known))}")
    named = fault.partition_named
    if named is not None and named.partition >= partitions.get(named.topic, 0):
        allowed = f"a partition of {', '.join(partitions) or 'a topic; none exists'}"
        raise InputError(source, place, str(named), allowed)


def _check_topic(scenario: Scenario, topic: TopicModel, partitions: dict[str, int], source: str, place: str) -> None:
    if topic.name in partitions:
        raise InputError(source, f"{place}.name", shown(topic.name), "a name that no other topic has")
    for index, replicas in enumerate(topic.assignments):
        _check_assignment(scenario, replicas, source, f"{place}.assignments[{index}]")
        factor = len(topic.assignments[0])
        if len(replicas) != factor:
            raise InputError(source, f"{place}.assignments[{index}]", replicas, f"{factor} brokers, as in the first")
    partitions[topic.name] = topic.partition_count(scenario.cluster.spec().config)


def _check_assignment(scenario: Scenario, replicas: list[int], source: str, place: str) -> None:
    last = scenario.cluster.brokers - 1
    for broker in replicas:
        if broker > last:
            raise InputError(source, place, f"broker {broker}", f"brokers 0 to {last}")
    if len(set(replicas)) != len(replicas):
        raise InputError(source, place, replicas, "each broker once")


def _check_nodes(scenario: Scenario, fields: StrictModel, source: str, place: str, hosts: Collection[NodeId]) -> None:
    last, controllers = scenario.cluster.brokers - 1, scenario.cluster.controller_ids
    is_refused = _is_to_be_refused(fields)
    for name, node in _named_nodes(fields):
        if node < FIRST_CONTROLLER and is_refused:
            continue
        is_link = name in ("between", "from/to")
        if is_link and node in hosts:
            continue
        is_broker_field = not (controllers if name == "controller" else is_link and node >= FIRST_CONTROLLER)
        if is_broker_field and not 0 <= node <= last:
            raise InputError(source, f"{place}.{name}", node, f"brokers 0 to {last}")
        if not is_broker_field and node not in controllers:
            allowed = f"controllers {controllers[0]} to {controllers[-1]}" if controllers else f"brokers 0 to {last}"
            raise InputError(source, f"{place}.{name}", node, allowed)
    if isinstance(fields, LoseDiskStep) and fields.urm:
        raise InputError(source, place, "urm", "a node with a disk: broker, controller or store")
    if isinstance(fields, ReassignStep) and fields.replicas is not None and not is_refused:
        _check_assignment(scenario, fields.replicas, source, f"{place}.replicas")
    if isinstance(fields, AddPartitionsStep) and not is_refused:
        for index, replicas in enumerate(fields.assignments):
            _check_assignment(scenario, replicas, source, f"{place}.assignments[{index}]")


def _check_quorum(scenario: Scenario, source: str) -> None:
    """The first voters, and those that the config names, are controllers of the cluster, each once."""
    cluster = scenario.cluster
    controllers = range(FIRST_CONTROLLER, FIRST_CONTROLLER + cluster.controllers)
    allowed = f"controllers {controllers[0]} to {controllers[-1]}, each once"
    named = {"cluster.voters": tuple(cluster.voters or ())}
    for name in (CONTROLLER_QUORUM_VOTERS, CONTROLLER_QUORUM_BOOTSTRAP_SERVERS):
        named[f"cluster.config.{name}"] = node_ids(str(cluster.config.get(name, "")))
    for place, nodes in named.items():
        if not set(nodes) <= set(controllers) or len(set(nodes)) != len(nodes):
            raise InputError(source, place, list(nodes), allowed)


def _named_nodes(fields: StrictModel) -> Iterator[tuple[str, int]]:
    for name in ("broker", "controller", "desired_leader", "controller_broker"):
        node = getattr(fields, name, None)
        if isinstance(node, int):
            yield name, node
    if isinstance(fields, LinkStep):
        place = "between" if fields.between else "from/to"
        yield from ((place, node) for node in fields.sides if isinstance(node, int))
    if isinstance(fields, Expectation):
        yield from (
            ("controller", controller)
            for controller in (*(fields.voters or ()), *(fields.registered_controllers or ()))
        )
        for name in ("isr", "elr", "last_known_elr", "replicas", "log_end_offset"):
            yield from ((name, broker) for broker in getattr(fields, name) or ())
        for name in ("leader", "last_known_leader"):
            broker = getattr(fields, name)
            if broker not in (None, NO_LEADER):
                yield name, broker


def require_engine(scenario: Scenario, engine: str) -> None:
    """InputError if the scenario has a step, or a rule of Kafka's, that the engine cannot run; Kafka has them."""
    if scenario.cluster.kafka_rules and engine == "ray":
        raise InputError(scenario.name, "cluster.kafka_rules", f"--engine {engine}", "--engine sim or kafka")
    for index, step in enumerate(scenario.steps if engine != "sim" else ()):
        if step.kind in ("fault", "load"):
            raise InputError(scenario.name, f"steps[{index}].{step.kind}", f"--engine {engine}", "--engine sim")
    if engine == "kafka":
        require_kafka(scenario)


def require_running(scenario: Scenario, spec: ClusterSpec, topics: Collection[str]) -> None:
    """InputError if the scenario, whose steps `require_engine` allows on ray, cannot be run on a cluster that runs
    already, with these `topics`: it names another cluster, sets clocks, or creates a topic that exists.
    """
    wanted, place = scenario.cluster.spec(spec.seed), scenario.name
    for name, asked, found in (
        ("generation", wanted.config.generation.value, spec.config.generation.value),
        ("kafka_release", wanted.config.kafka_release.value, spec.config.kafka_release.value),
        ("brokers", wanted.brokers, spec.brokers),
        ("controllers", len(wanted.controller_ids), len(spec.controller_ids)),
        ("racks", *([it.rack_of(broker) for broker in it.broker_ids] for it in (wanted, spec))),
        ("voters", *([key.id for key in it.first_voters.keys] for it in (wanted, spec))),
    ):
        if asked != found:
            raise InputError(place, f"cluster.{name}", asked, f"{found}, as the running cluster has")
    for config in scenario.cluster.config:
        asked, found = wanted.config.values[config], spec.config.values[config]
        if asked != found:
            raise InputError(place, f"cluster.config.{config}", asked, f"{found}, as the running cluster has")
    created = [(f"topics[{index}]", topic) for index, topic in enumerate(scenario.topics)]
    for index, step in enumerate(scenario.steps):
        if step.kind == "set_clock":
            raise InputError(place, f"steps[{index}].set_clock", "a running cluster", "isray scenario run")
        if isinstance(step.fields, TopicModel):
            created.append((f"steps[{index}].{step.kind}", step.fields))
    for where, topic in created:
        if topic.name in topics:
            raise InputError(place, f"{where}.name", f"{topic.name}, which exists", "a topic that does not exist yet")


# -- what a generation has ---------------------------------------------------------------------------------------------


_NOT_EXPECTED_OF_V3 = (
    "elr",
    "last_known_elr",
    "last_known_leader",
    "voters",
    "registered_controllers",
    "role",
    "controller",
)
_CONTROLLER_STEPS = ("add_voter", "remove_voter", "unregister_controller")
_NOT_V3 = "a generation other than v3"


def _require_v3(scenario: Scenario, source: str) -> None:
    """InputError where a scenario of generation `v3` names what that does not have."""
    cluster = scenario.cluster
    reasons = dict.fromkeys(("controllers", "voters"), "in v3 a broker is controller") | {"racks": "v3 has no racks"}
    for name, reason in reasons.items():
        if name in cluster.model_fields_set:
            found, allowed = shown(getattr(cluster, name)), f"nothing: {reason}"
            raise InputError(source, f"cluster.{name}", found, allowed)
    for place, name in _configs(scenario):
        generations = CONFIGS[name].generations
        if Generation.V3 not in generations:
            allowed = f"generations {', '.join(generation.value for generation in generations)}"
            raise InputError(source, f"{place}.{name}", Generation.V3.value, allowed)
    for index, step in enumerate(scenario.steps):
        place, fields = f"steps[{index}].{step.kind}", step.fields
        if step.kind in ("configure", "update_feature", "unregister", *_CONTROLLER_STEPS):
            raise InputError(source, place, Generation.V3.value, _NOT_V3)
        if isinstance(fields, NodeStep) and (fields.urm or isinstance(fields.controller, int)):
            raise InputError(source, place, "a node that v3 does not have", "broker or store")
        if isinstance(fields, LinkStep) and not {"controllers", "urm"}.isdisjoint(fields.sides):
            raise InputError(source, place, list(fields.sides), "a broker id, store or rest")
        if isinstance(fields, Expectation):
            _forbid(fields, _NOT_EXPECTED_OF_V3, source, place, _NOT_V3)


def _forbid_v3(scenario: Scenario, source: str) -> None:
    """InputError where a scenario of another generation names what only `v3` has."""
    if scenario.cluster.store is not None:
        raise InputError(source, "cluster.store", scenario.cluster.generation, "generation v3")
    for place, name in _configs(scenario):
        if CONFIGS[name].generations == (Generation.V3,):
            raise InputError(source, f"{place}.{name}", scenario.cluster.generation, "generation v3")
    for index, step in enumerate(scenario.steps):
        place, fields = f"steps[{index}].{step.kind}", step.fields
        names_store = (isinstance(fields, NodeStep) and fields.store) or (
            isinstance(fields, LinkStep) and "store" in fields.sides
        )
        if step.kind == "expire" or names_store:
            raise InputError(source, place, scenario.cluster.generation, "generation v3")
        if isinstance(fields, Expectation):
            _forbid(fields, ("controller_broker", "controller_epoch"), source, place, "generation v3")


def _configs(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """The configs that a scenario sets at first, each after its place in the file."""
    yield from (("cluster.config", name) for name in scenario.cluster.config)
    for index, topic in enumerate(scenario.topics):
        yield from ((f"topics[{index}].config", name) for name in topic.config)


def _forbid(fields: Expectation, names: tuple[str, ...], source: str, place: str, allowed: str) -> None:
    for name in names:
        if getattr(fields, name) is not None:
            raise InputError(source, f"{place}.{name}", shown(getattr(fields, name)), allowed)
