"""The worlds that a scenario is compared in: an engine, under the rules of a release of Kafka or of isray's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from experiments.check.engine import CheckedEngine
from experiments.compare.course import PACE, Course, run_course
from experiments.engines.port import ClusterSpec, Engine
from experiments.scenarios.loader import require_engine
from experiments.scenarios.model import Scenario
from experiments.support.errors import InputError
from experiments.support.releases.installed import installed_release
from protocol.features import RELEASED, Generation
from protocol.kafka_release import kafka_release

SIM, RAY, KAFKA = "sim", "ray", "kafka"
ENGINES = (SIM, RAY, KAFKA)


@dataclass(frozen=True, slots=True)
class World:
    """One world. `release` is exact, such as 4.1.2, or the name of a release's rules; empty in a generation that no
    release has.
    """

    engine: str
    release: str = ""

    @property
    def name(self) -> str:
        return f"{self.engine} {self.release}".rstrip()


def require_world(scenario: Scenario, world: World) -> None:
    """InputError if a world cannot run the scenario, or is a real Kafka that is not installed."""
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
    with closing(_engine(world, adapted.cluster.spec())) as engine:
        return run_course(adapted, engine, world.name, pace)


def _engine(world: World, spec: ClusterSpec) -> Engine:
    if world.engine == SIM:
        return CheckedEngine(spec)
    if world.engine == RAY:
        from experiments.engines.ray.engine import RayEngine

        return RayEngine(spec)
    from experiments.engines.kafka.engine import KafkaEngine
    from experiments.engines.kafka.processes import Program

    return KafkaEngine(spec, Program.of(world.release, os.environ))
