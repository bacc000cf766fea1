"""Unclean recoveries on ray: those scenarios in which real processes and disks may tell another story than sim's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.engines.ray.session import ray_session
from tests.ray.scenario_helpers import hold_on_ray_as_on_sim
from tests.sim.scenario_helpers import FOLDER

REAL = (
    "answer-then-reboot",
    "balanced-waits",
    "controller-failover",
    "enabled-late",
    "longest-log",
    "manual",
    "power-loss",
    "proactive",
    "urm-crash",
)


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One private Ray for all scenarios; each brings up a cluster of its own on it."""
    with ray_session(None):
        yield


@pytest.mark.covers("F22", "J4", "M17", "M59", "M62", "M63", "M65", "M68", "M70")
@pytest.mark.parametrize("name", REAL)
def test_recovery_holds_on_ray_as_on_sim(name: str, session: None, tmp_path: Path) -> None:
    hold_on_ray_as_on_sim(FOLDER / f"recovery-{name}.yaml", tmp_path / "recording")
