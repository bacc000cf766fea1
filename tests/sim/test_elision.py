"""Eliding idle timers changes nothing but the idle traffic itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.runner import Runner
from protocol.features import Generation
from tests.sim.chaos_helpers import Chaos
from tests.sim.scenario_helpers import NAMES, OF_EACH_KIND, SCENARIOS, run_file, shipped, spec_of
from tests.sim.seed_helpers import some


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
@pytest.mark.parametrize("generation", [Generation.KIP_497, Generation.KIP_966])
def test_the_trace_is_the_same_with_all_timers_fired(seed: int, generation: Generation) -> None:
    model = NetworkModel(base_ms=2, jitter_ms=0)
    elided = Chaos(seed, generation, duration_ms=90_000, model=model).run()
    full = Chaos(seed, generation, duration_ms=90_000, model=model, elide_idle=False).run()
    assert elided.story() == full.story()
    assert elided.acked == full.acked
    assert elided.engine.cluster.event_count < full.engine.cluster.event_count


@pytest.mark.slow
@pytest.mark.parametrize("name", some(NAMES, first=len(OF_EACH_KIND)))
def test_scenarios_have_the_same_result_with_all_timers_fired(name: str) -> None:
    elided, full = run_file(name, 2), run_file(name, 2, elide_idle=False)
    assert full.passed
    assert elided.partitions == full.partitions


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_have_the_same_trace_with_all_timers_fired_where_the_network_has_no_jitter(path: Path) -> None:
    scenario, model = shipped(path.stem), NetworkModel(jitter_ms=0)
    engines = (CheckedEngine(spec_of(scenario, 2), model, elide_idle=elide_idle) for elide_idle in (True, False))
    elided, full = (Runner(scenario, engine).run() for engine in engines)
    assert full.passed
    assert elided.trace_hash == full.trace_hash
