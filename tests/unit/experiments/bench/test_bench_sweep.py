"""`isray bench sweep`: efficiency, costs and what is predicted from them; no test of a time."""

from __future__ import annotations

import pytest

from experiments.bench.sweep import SweepFigures, efficiency, predicted
from experiments.studies.sweeps.schedule import DRIVER_S, TASK_S, task_s

ONE = SweepFigures(nodes=1, trials=400, batches=400, elapsed_s=8.0, driver_ms=2.0, run_s=0.001, write_ms=9.0)


def test_efficiency_is_the_rate_per_node_against_that_of_one_node() -> None:
    four = SweepFigures(nodes=4, trials=1_600, batches=1_600, elapsed_s=16.0, driver_ms=2.0, run_s=0.001, write_ms=9.0)
    assert (ONE.rate, four.rate) == (50.0, 100.0)
    assert efficiency(four, ONE) == 0.5


def test_round_trip_is_what_running_and_writing_leave_of_the_time_between_batches() -> None:
    assert ONE.round_trip_ms == pytest.approx(20 - 1 - 9)


def test_batches_get_longer_when_the_driver_would_be_the_limit() -> None:
    small, large = predicted(10, 16, ONE), predicted(1_000, 16, ONE)
    assert small["task_s"] == TASK_S == task_s(160)
    assert small["driver_share"] == pytest.approx(0.002 * 160 / TASK_S)
    assert small["efficiency"] == pytest.approx(TASK_S / (TASK_S + 0.019), abs=1e-4)
    assert large["task_s"] == DRIVER_S * 16_000
    assert large["driver_share"] == pytest.approx(0.002 / DRIVER_S)
    assert large["efficiency"] > small["efficiency"]


def test_driver_that_is_busy_all_the_time_limits_the_efficiency() -> None:
    slow = SweepFigures(
        nodes=1, trials=1, batches=1, elapsed_s=1.0, driver_ms=1_000 * DRIVER_S * 4, run_s=0.9, write_ms=0.0
    )
    assert predicted(1_000, 16, slow)["efficiency"] == pytest.approx(0.25, rel=0.01)
