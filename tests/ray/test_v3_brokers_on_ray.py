"""Generation `v3` on real processes: a scenario in which the broker that is the controller gets SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.check.check_recording import check
from experiments.check.recording import Recording
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.runner import Runner, run_recorded
from protocol.events.store import ControllerElected
from tests.ray.cluster_helpers import ProcessPool
from tests.sim.scenario_helpers import FOLDER, spec_of


@pytest.mark.covers("A1", "A32", "A33", "A35")
def test_another_broker_takes_over_from_a_killed_controller(pool: ProcessPool, tmp_path: Path) -> None:
    scenario = load_scenario(FOLDER / "store-controller-failover.yaml")
    engine = pool.engine(spec_of(scenario, 0))
    try:
        result = run_recorded(Runner(scenario, engine), tmp_path / "recording")
        elected = [event for event in engine.traces() if isinstance(event.trace, ControllerElected)]
    finally:
        engine.close()
    assert result.passed, result.steps[-1]
    assert result.losses.lost_acked == 0
    assert elected[-2].node == 0, "broker 0 was the controller when it was killed"
    assert elected[-1].node != 0
    epochs = [event.trace.epoch for event in elected if isinstance(event.trace, ControllerElected)]
    assert epochs == sorted(set(epochs))
    checked = check(Recording(tmp_path / "recording"))
    assert (checked.violations, checked.unjudged) == ([], [])
    assert checked.operations
