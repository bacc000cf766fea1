"""Runs scenarios on sim for tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import experiments.scenarios
from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner, ScenarioResult

FOLDER = Path(experiments.scenarios.__file__).parent
SCENARIOS = sorted(FOLDER.glob("*.yaml"))
OF_EACH_KIND = ("last-replica-standing", "quorum-failover", "recovery-urm-crash", "store-leader-failover")
NAMES = [*OF_EACH_KIND, *(path.stem for path in SCENARIOS if path.stem not in OF_EACH_KIND)]


@cache
def shipped(name: str) -> Scenario:
    """A shipped scenario by name, of which the file is read once."""
    return load_scenario(FOLDER / f"{name}.yaml")


def spec_of(scenario: Scenario, seed: int) -> ClusterSpec:
    """The cluster that a scenario asks for."""
    return scenario.cluster.spec(seed)


def running_engine(for_ms: int, spec: ClusterSpec, *model: NetworkModel, **options: bool) -> CheckedEngine:
    """A cluster whose nodes were all started `for_ms` ago."""
    engine = CheckedEngine(spec, *model, **options)
    for node in engine.spec.node_ids:
        engine.start(node)
    engine.run_for(for_ms)
    return engine


def run_scenario(scenario: Scenario, seed: int = 0, **options: bool) -> ScenarioResult:
    return Runner(scenario, CheckedEngine(spec_of(scenario, seed), **options)).run()


def run_file(name: str, seed: int = 0, **options: bool) -> ScenarioResult:
    """Runs a shipped scenario by name."""
    return run_scenario(shipped(name), seed, **options)
