"""The shipped scenarios on ray: the same files, the same expectations, real processes.

Scenarios under rules of Kafka's, and on what its releases changed, run on the simulator only. Of those on unclean
recovery and on quorums those run here in which real processes and disks may behave in another way than the simulator's.
`scenario_choice.py` decides which of them have the marker `proof`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from experiments.scenarios.model import Scenario
from tests.ray.cluster_helpers import ProcessPool
from tests.ray.scenario_choice import rest_as_proof
from tests.ray.scenario_helpers import check_on_ray_as_on_sim
from tests.sim.scenario_helpers import SCENARIOS, shipped
from tests.sim.test_scenario_cases import cases

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


OF_A_QUORUM = ("bootstrap", "disk-replaced", "auto-join")
WITH_A_STORE = ("leader-failover", "session-expiry")


def of_names(prefix: str, names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(shipped(f"{prefix}{name}"), id=name) for name in names]


PARAMETERS = rest_as_proof(
    {
        "general": of_names("", [path.stem for path in GENERAL]),
        "recovery": of_names("recovery-", RECOVERIES),
        "quorum": of_names("quorum-", OF_A_QUORUM),
        "store": of_names("store-", WITH_A_STORE),
        "case": [
            pytest.param(case.scenario(generation), id=str(name), marks=marks)
            for (case, generation, _), marks, name in cases(on_ray=True)
        ],
    },
    elsewhere=[shipped("store-controller-failover")],  # test_v3_brokers_on_ray.py
)


@pytest.mark.covers("M1", "M2", "M3", "M14", "M15", "M25", "M40", "M41", "K17")
@pytest.mark.parametrize("scenario", PARAMETERS["general"])
def test_scenario_holds_on_ray_as_on_sim(scenario: Scenario, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(scenario, tmp_path / "recording", pool)


@pytest.mark.covers("F22", "J4", "M17", "M59", "M62", "M63", "M65", "M68", "M70", "K17")
@pytest.mark.parametrize("scenario", PARAMETERS["recovery"])
def test_recovery_holds_on_ray_as_on_sim(scenario: Scenario, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(scenario, tmp_path / "recording", pool)


@pytest.mark.covers("M77", "M78", "D31", "D32", "K18")
@pytest.mark.parametrize("scenario", PARAMETERS["quorum"])
def test_quorum_scenario_holds_on_ray_as_on_sim(scenario: Scenario, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(scenario, tmp_path / "recording", pool)


@pytest.mark.covers("A52", "M39")
@pytest.mark.parametrize("scenario", PARAMETERS["store"])
def test_scenario_with_a_store_holds_on_ray_as_on_sim(scenario: Scenario, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(scenario, tmp_path / "recording", pool)


@pytest.mark.parametrize("scenario", PARAMETERS["case"])
def test_a_case_holds_on_ray_as_on_sim(scenario: Scenario, pool: ProcessPool, tmp_path: Path) -> None:
    check_on_ray_as_on_sim(scenario, tmp_path / "recording", pool)
