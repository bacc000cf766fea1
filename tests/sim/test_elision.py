"""Leaving out idle timers changes nothing but the idle traffic itself."""

from __future__ import annotations

import pytest

from experiments.sim.network import NetworkModel
from protocol.config import Generation
from tests.sim.chaos import Chaos
from tests.sim.run_scenario import SCENARIOS, run_file


@pytest.mark.parametrize("seed", range(100, 106))
@pytest.mark.parametrize("generation", [Generation.KIP_497, Generation.KIP_966])
def test_the_trace_is_the_same_with_all_timers_fired(seed: int, generation: Generation) -> None:
    model = NetworkModel(base_ms=2, jitter_ms=0)
    elided = Chaos(seed, generation, duration_ms=90_000, model=model).run()
    full = Chaos(seed, generation, duration_ms=90_000, model=model, elide_idle=False).run()
    assert elided.story() == full.story()
    assert elided.acked == full.acked
    assert elided.engine.cluster.event_count < full.engine.cluster.event_count


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_end_the_same_with_all_timers_fired(path: object) -> None:
    name = path.stem  # type: ignore[attr-defined]
    elided, full = run_file(name, 2), run_file(name, 2, elide_idle=False)
    assert full.passed
    assert elided.partitions == full.partitions
    assert elided.trace_hash == full.trace_hash
