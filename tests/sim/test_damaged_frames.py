"""Damaged requests to a whole cluster end their own connection at most (`cluster_fuzz.py`)."""

from __future__ import annotations

from tests.sim.cluster_fuzz import fuzz_cluster


def test_damaged_frames_leave_brokers_and_controllers_as_they_are() -> None:
    outcomes = fuzz_cluster(200, seed=1)
    assert sum(outcomes.values()) == 200
    assert min(outcomes["closed"], outcomes["open"]) > 40
