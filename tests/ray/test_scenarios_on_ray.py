"""The shipped scenarios on ray: the same files, the same expectations, real processes.

Scenarios under rules of Kafka's, and on what its releases changed, run on the simulator only. Of those on unclean
recovery and on quorums those run here in which real processes and disks may behave in another way than the simulator's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.scenarios.loader import load_scenario
from tests.ray.cluster_helpers import ProcessPool
from tests.ray.scenario_helpers import check_on_ray_as_on_sim
from tests.sim.scenario_helpers import SCENARIOS, shipped
from tests.sim.test_scenario_cases import Case, cases

DEPARTURES = (
    "returning-replica",
    "removed-replica-in-elr",
    "dead-last-known-leader",
    "withdrawn-replica",
    "cancelled-in-absence",
    "replaced-reassignment",
    "replaced-reassignment-kip-966-elr",
    "min-isr-change",
    "first-partition",
    "replaced-disk",
)
"""Decisions of the controller, which recorded answers of Kafka's are compared with; they vary nothing on processes."""
GENERAL = [
    path
    for path in SCENARIOS
    if not path.stem.startswith(("reassignment-", "recovery-", "quorum-", "store-", "v3-"))
    and not path.stem.endswith("-kafka")
    and path.stem not in DEPARTURES
]
RECOVERIES = (
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


@pytest.mark.covers("M1", "M2", "M3", "M14", "M15", "M25", "M40", "M41", "K17")
@pytest.mark.parametrize("path", GENERAL, ids=lambda path: path.stem)
def test_scenario_holds_on_ray_as_on_sim(path: Path, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(load_scenario(path), tmp_path / "recording", pool)


@pytest.mark.covers("F22", "J4", "M17", "M59", "M62", "M63", "M65", "M68", "M70", "K17")
@pytest.mark.parametrize("name", RECOVERIES)
def test_recovery_holds_on_ray_as_on_sim(name: str, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(shipped(f"recovery-{name}"), tmp_path / "recording", pool)


@pytest.mark.covers("M77", "M78", "D31", "D32", "K18")
@pytest.mark.parametrize("name", ["bootstrap", "disk-replaced", "auto-join"])
def test_quorum_scenario_holds_on_ray_as_on_sim(name: str, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(shipped(f"quorum-{name}"), tmp_path / "recording", pool)


@pytest.mark.covers("A52", "M39")
@pytest.mark.parametrize("name", ["leader-failover", "session-expiry"])
def test_scenario_with_a_store_holds_on_ray_as_on_sim(name: str, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(shipped(f"store-{name}"), tmp_path / "recording", pool)


@pytest.mark.parametrize(("case", "generation", "seed"), list(cases(on_ray=True)))
def test_a_case_holds_on_ray_as_on_sim(
    case: Case, generation: str, seed: int, pool: ProcessPool, tmp_path: Path
) -> None:
    check_on_ray_as_on_sim(case.scenario(generation), tmp_path / "recording", pool)
