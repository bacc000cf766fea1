"""The shipped scenarios on ray: the same files, the same expectations, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.engines.ray.session import ray_session
from tests.ray.scenario_helpers import hold_on_ray_as_on_sim
from tests.sim.scenario_helpers import SCENARIOS

ON_RAY = [path for path in SCENARIOS if not path.stem.startswith(("recovery-", "quorum-"))]
"""Those of unclean recovery are in `test_recoveries_on_ray.py`, those of quorums in `test_controller_quorum.py`."""


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One private Ray for all scenarios; each brings up a cluster of its own on it."""
    with ray_session(None):
        yield


@pytest.mark.covers("M1", "M2", "M3", "M14", "M15", "M25", "M40", "M41")
@pytest.mark.parametrize("path", ON_RAY, ids=lambda path: path.stem)
def test_scenario_holds_on_ray_as_on_sim(path: Path, session: None, tmp_path: Path) -> None:
    hold_on_ray_as_on_sim(path, tmp_path / "recording")
