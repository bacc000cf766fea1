"""The measurements of a real Kafka, on the simulator, whose figures are known."""

from __future__ import annotations

from contextlib import closing

import pytest

from experiments.bench.real_kafka import CLUSTER, failover, run, run_trials, started
from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, Engine
from experiments.scenarios.model import ClusterModel
from experiments.support.errors import InputError
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS


def test_a_failover_takes_the_rest_of_a_session_and_one_change() -> None:
    """The session counts from the last heartbeat, at most one interval before the kill. The records that fence the
    broker also move its leaderships.
    """
    spec = ClusterModel.model_validate(CLUSTER).spec()
    session_ms, heartbeat_ms = (
        spec.config.int_value(name) for name in (BROKER_SESSION_TIMEOUT_MS, BROKER_HEARTBEAT_INTERVAL_MS)
    )
    with closing(CheckedEngine(spec)) as engine:
        assert started(engine) < session_ms
        found = failover(engine, 50)
    assert found.partitions == 50
    assert session_ms - heartbeat_ms - 10 <= found.fenced_ms <= session_ms + 10
    assert found.moved_ms == found.fenced_ms


def test_at_least_one_trial_runs_and_each_on_a_new_cluster() -> None:
    seeds = []

    def makes(spec: ClusterSpec) -> Engine:
        seeds.append(spec.seed)
        return CheckedEngine(spec)

    found = run_trials(makes, trials=2, seconds=60)
    assert (found.count, seeds) == (2, [0, 1])
    assert found.per_minute > 0
    assert found.cpu_s > 0
    assert run_trials(makes, trials=2, seconds=0).count == 1


def test_a_release_that_is_not_installed_is_refused() -> None:
    with pytest.raises(InputError, match="--release"):
        run("3.9.0")
