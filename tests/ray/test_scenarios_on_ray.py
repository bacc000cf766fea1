"""The shipped scenarios on ray: the same files, the same expectations, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.check.recorded import check
from experiments.check.recording import Recording
from experiments.ray_engine import RayEngine
from experiments.ray_session import ray_session
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.recorded import run_recorded
from experiments.scenarios.runner import Runner
from tests.sim.run_scenario import SCENARIOS, run_scenario, spec_of

SAME = ("leader", "leader_epoch", "replicas", "elr", "last_known_elr", "leader_recovery_state", "high_watermark")


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One private Ray for all scenarios; each brings up a cluster of its own on it."""
    with ray_session(None):
        yield


@pytest.mark.covers("M1", "M2", "M3", "M14", "M15", "M25", "M40", "M41")
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_holds_on_ray_as_on_sim(path: Path, session: None, tmp_path: Path) -> None:
    scenario = load_scenario(path)
    engine = RayEngine(spec_of(scenario, 0))
    try:
        result = run_recorded(Runner(scenario, engine), tmp_path / "recording")
    finally:
        engine.close()
    assert result.passed, result.steps[-1]
    checked = check(Recording(tmp_path / "recording"))
    assert (checked.violations, checked.unjudged) == ([], [])
    assert checked.operations
    simulated = run_scenario(scenario)
    assert result.lost_acked == simulated.lost_acked
    for real, virtual in zip(result.partitions, simulated.partitions, strict=True):
        assert real["log_end_offsets"] == virtual["log_end_offsets"]
        assert sorted(real["isr"]) == sorted(virtual["isr"])
        assert {name: real[name] for name in SAME} == {name: virtual[name] for name in SAME}
