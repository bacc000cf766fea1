"""The worlds that a scenario is compared in: an engine, under the rules of a release of Kafka or of isray's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from experiments.check.engine import CheckedEngine
from experiments.compare.course import PACE, Course, run_course
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.processes import NodeFailed, Program
from experiments.engines.port import ClusterSpec, Engine
from experiments.scenarios.loader import require_engine
from experiments.scenarios.model import ConfigureStep, Scenario, Step
from experiments.support.errors import InputError
from experiments.support.processes import orderly_signals
from experiments.support.releases.installed import installed_release
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.features import RELEASED, Generation
from protocol.kafka_release import kafka_release
from protocol.kafka_rules import KAFKA_RULES

SIM, RAY, KAFKA = "sim", "ray", "kafka"
ENGINES = (SIM, RAY, KAFKA)


@dataclass(frozen=True, slots=True)
class World:
    """One world. `release` is exact, such as 4.1.2, or the name of a release's rules; empty in a generation that no
    release has. `seed` is that of the simulator: with another one messages take other times.
    """

    engine: str
    release: str = ""
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.engine} {self.release}".rstrip()


def require_world(scenario: Scenario, world: World) -> None:
    """InputError if a world cannot run the scenario, or is a real Kafka that is not installed, or has not the rules of
    Kafka's that the scenario names.
    """
    if world.release and Generation(scenario.cluster.generation) not in RELEASED:
        allowed = ", ".join(it.value for it in RELEASED)
        raise InputError(
            scenario.name,
            "cluster.generation",
            f"{scenario.cluster.generation}, which no release of Kafka has",
            allowed,
        )
    require_engine(scenario, world.engine)
    if world.engine == KAFKA:
        for rule in (KAFKA_RULES[name] for name in scenario.cluster.kafka_rules):
            if rule.first and not rule.holds_in(kafka_release(world.release)):
                found = f"{rule.name}, which Kafka {world.release} does not have"
                raise InputError(scenario.name, "cluster.kafka_rules", found, f"Kafka {rule.first} to {rule.last}")
        installed_release(world.release, os.environ, "--kafka")


def in_world(scenario: Scenario, world: World, rules: Iterable[str] = ()) -> Scenario:
    """The scenario as a world runs it: at the pace of a comparison, under the world's release and more of Kafka's
    rules.
    """
    cluster = scenario.cluster
    changes: dict[str, object] = {"config": {**PACE, **cluster.config}, "kafka_rules": [*cluster.kafka_rules, *rules]}
    if world.release:
        changes["kafka_release"] = kafka_release(world.release).value
    return scenario.model_copy(update={"cluster": cluster.model_copy(update=changes)})


def course_in(scenario: Scenario, world: World, pace: Course | None = None, rules: Sequence[str] = ()) -> Course:
    """The course of a scenario in a world, which is started for it and ended; `pace` as in `run_course`."""
    adapted = in_world(scenario, world, rules)
    with closing(_engine(world, adapted.cluster.spec(world.seed))) as engine:
        return run_course(adapted, engine, world.name, pace)


class KeptWorlds:
    """Runs as `course_in`, but each real Kafka goes on running for the next scenario that has the same nodes with the
    same configs: most of a short scenario's time is that of starting processes. `close` ends them. Call both from the
    main thread.
    """

    def __init__(self) -> None:
        self._kept: dict[World, tuple[ClusterSpec, KafkaEngine]] = {}
        self._signals = ExitStack()
        self._signals.enter_context(orderly_signals())

    def course_in(
        self, scenario: Scenario, world: World, pace: Course | None = None, rules: Sequence[str] = ()
    ) -> Course:
        if world.engine != KAFKA:
            return course_in(scenario, world, pace, rules)
        adapted = in_world(scenario, world, rules)
        spec = adapted.cluster.spec()
        engine = self._ready(world, replace(spec, config=replace(spec.config, kafka_rules=frozenset())))
        try:
            course = run_course(adapted, engine, world.name, pace)
        except BaseException:
            self._end(world)
            raise
        if any(_lasts(step) for step in scenario.steps):
            self._end(world)
        return course

    def _ready(self, world: World, spec: ClusterSpec) -> KafkaEngine:
        if world in self._kept:
            known, engine = self._kept[world]
            with suppress(NodeFailed):
                if known == spec and engine.begin_again():
                    return engine
            self._end(world)
        engine = KafkaEngine(spec, Program.of(world.release, os.environ))
        self._kept[world] = spec, engine
        return engine

    def _end(self, world: World) -> None:
        if world in self._kept:
            self._kept.pop(world)[1].close()

    def close(self) -> None:
        for world in list(self._kept):
            self._end(world)
        self._signals.close()


def _lasts(step: Step) -> bool:
    """Whether a step changes more of a cluster than its nodes, links and topics. A change of min ISR does: Kafka leaves
    its index of ELRs as it was, and once the topic is deleted it registers a broker of that index no more.
    """
    if isinstance(step.fields, ConfigureStep):
        return step.fields.topic is None or MIN_INSYNC_REPLICAS in (*step.fields.config, *step.fields.delete)
    return step.kind in ("add_voter", "remove_voter")


def _engine(world: World, spec: ClusterSpec) -> Engine:
    if world.engine == SIM:
        return CheckedEngine(spec)
    if world.engine == RAY:
        from experiments.engines.ray.engine import RayEngine

        return RayEngine(spec)
    return KafkaEngine(spec, Program.of(world.release, os.environ))
