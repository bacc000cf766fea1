"""Losses of acknowledged records on processes: the same scenarios with the same figures as on the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner
from tests.ray.cluster_helpers import ProcessPool
from tests.ray.scenario_helpers import check_on_ray_as_on_sim, with_short_times
from tests.sim.loss_scenario_helpers import DISK_GONE, SMALLER_SET, TRUNCATED, downgraded
from tests.sim.scenario_helpers import spec_of
from tests.sim.seed_helpers import some

DECIDED: dict[str, dict[str, Any]] = {
    "acks=1 truncated": TRUNCATED.scenario,
    "smaller set": SMALLER_SET.scenario,
    "downgraded": downgraded("shutdown"),
}


@pytest.mark.covers("E32", "K10")
@pytest.mark.parametrize("name", some([*DECIDED], first=1))
def test_losses_on_ray_are_those_on_sim(name: str, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(scenario_from(DECIDED[name], "inline"), tmp_path / "recording", pool)


def test_without_a_leader_losses_are_undecided(pool: ProcessPool) -> None:
    scenario = with_short_times(scenario_from(DISK_GONE.scenario, "inline"))
    engine = pool.engine(spec_of(scenario, 0))
    try:
        result = Runner(scenario, engine).run()
    finally:
        engine.close()
    assert result.passed, result.steps
    assert result.losses.words() == DISK_GONE.words
    assert result.document()["lost_acked"] is None
