"""A trial on processes: the failures of its timeline happen, and its trace has what follows from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline, events_until
from experiments.studies.sweeps.batches import read_trials
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.storage import store_at
from experiments.studies.sweeps.sweep import needed_batches, sweep
from experiments.studies.trace.kinds import (
    Acknowledged,
    Crash,
    Failover,
    Impaired,
    Loss,
    Restarted,
    Restored,
    Start,
    State,
    Throughput,
)
from experiments.studies.trials.estimators import run_cell_trial
from experiments.studies.trials.trial import run_through, run_trial
from tests.trace_rows import as_rows, check_trace

SEED = 8340
"""Broker 0 fails and loses what it had not flushed; it starts again; then broker 2 fails. On any machine there is time
for acknowledged records before the first failure, and for the start of broker 0 before the end of the trial."""
PARAMETERS = CellParameters(
    engine="ray",
    start="fresh",
    replication_factor=1,
    min_insync_replicas=1,
    broker_mttf=Distribution(mean_ms=40_000),
    broker_mttr=Distribution(mean_ms=6_000),
    tail_loss_probability=0.5,
    detection_ms=1_500,
    duration_ms=36_000,
    time_compression=2.0,
)


@pytest.mark.slow
def test_crashes_and_starts_are_those_of_the_timeline_and_a_lossy_crash_is_counted_once(private_ray: None) -> None:
    rows = as_rows(run_trial(PARAMETERS, SEED).rows)
    check_trace(rows, PARAMETERS.partitions, PARAMETERS.duration_ms)

    events = list(events_until(DrawnTimeline(PARAMETERS, SEED), PARAMETERS.duration_ms))
    happened = [row for row in rows if row.kind in (Crash.KIND, Start.KIND)]
    expected = [(event.broker, event.kind) for event in events]
    assert [(row.node, row.detail or Start.KIND) for row in happened] == expected
    assert all(row.time_ms >= event.time_ms for row, event in zip(happened, events, strict=True))
    crash, start, _ = happened
    assert (crash.node, crash.detail, start.node) == (0, "lossy", 0)

    def of(kind: str) -> list[tuple[int, int]]:
        return [(row.node, row.value) for row in rows if row.kind == kind]

    acknowledged = [row for row in rows if row.kind == Acknowledged.KIND]
    before = sum(row.time_ms <= start.time_ms for row in acknowledged)
    [(leader, lost)] = of(Loss.KIND)
    assert leader == 0
    assert 1 <= lost <= before
    assert any(row.time_ms > start.time_ms for row in acknowledged)
    [(failed, failover_ms)] = of(Failover.KIND)
    down_ms = (start.time_ms - crash.time_ms) / PARAMETERS.time_compression
    assert (failed, failover_ms > down_ms) == (0, True)
    assert [node for node, _ in of(Restarted.KIND)] == [0]
    assert [value > 0 for _, value in of(Throughput.KIND)] == [True]
    leaders = [(row.leader, row.leader_serves) for row in rows if row.kind == State.KIND]
    assert leaders[0] == leaders[-1] == (0, True)
    assert (-1, False) in leaders


@pytest.mark.slow
def test_a_sweep_runs_the_same_cell_on_both_engines(private_ray: None, tmp_path: Path) -> None:
    """As in the shipped comparison of simulation and processes, in which `engine` is swept."""
    base = {"start": "fresh", "brokers": 2, "replication_factor": 2, "broker_mttf": "never", "detection": "2s"}
    raw = {"name": "engines", "trials": 1, "duration": "3s", "base": base, "sweep": {"engine": ["sim", "ray"]}}
    plan = study_from(raw, "engines.yaml")
    assert sweep(plan, tmp_path, run_cell_trial) == 2

    store = store_at(tmp_path)
    batches, schedule = needed_batches(read_record(tmp_path), store)
    assert schedule.finished
    tables = [read_trials(store, batch) for batch in batches]
    assert [table.num_rows for table in tables] == [1, 1]
    assert len({table["trace_hash"][0].as_py() for table in tables}) == 2
    assert {table["seed"][0].as_py() for table in tables} == {tables[0]["seed"][0].as_py()}
    assert all(table["trace_rows"][0].as_py() >= 2 for table in tables)


@pytest.mark.slow
def test_an_isolated_and_then_a_paused_leader_are_replaced_and_come_back(private_ray: None) -> None:
    """The leader is cut off from the others for 4 s, the next one is paused for 4 s, and cut off for 2 s of these,
    which its stopped process takes up; sessions last 1.5 s. A follower that is paused then crashes after a second and
    is back after another; at the end of the trial one process is stopped, and does not outlive it."""
    cell = CellParameters(engine="ray", start="fresh", broker_mttf=None, detection_ms=1_500, duration_ms=23_000)
    outages = (
        Outage(2_000, 6_000, 0, "isolated", "test"),
        Outage(8_000, 12_000, 1, "paused", "test"),
        Outage(9_000, 11_000, 1, "isolated", "test"),
        Outage(13_500, 60_000, 2, "paused", "test"),
        Outage(14_500, 15_500, 2, "unclean", "test"),
        Outage(22_000, 60_000, 0, "paused", "test"),
    )
    rows = as_rows(run_through(cell, 0, lambda: DrawnTimeline(cell, 0, outages=outages, own_failures=False)).rows)
    check_trace(rows, cell.partitions, cell.duration_ms)
    kinds = (Impaired.KIND, Restored.KIND, Crash.KIND, Start.KIND)
    changes = [(row.kind, row.node, row.detail) for row in rows if row.kind in kinds]
    assert changes == [
        (Impaired.KIND, 0, "isolated"),
        (Restored.KIND, 0, "isolated"),
        (Impaired.KIND, 1, "paused"),
        (Impaired.KIND, 1, "isolated"),
        (Restored.KIND, 1, "isolated"),
        (Restored.KIND, 1, "paused"),
        (Impaired.KIND, 2, "paused"),
        (Crash.KIND, 2, "unclean"),
        (Restored.KIND, 2, "paused"),
        (Start.KIND, 2, ""),
        (Impaired.KIND, 0, "paused"),
    ]
    states = [row for row in rows if row.kind == State.KIND]
    for outage in outages[:2]:
        during = [row for row in states if outage.down_ms < row.time_ms < outage.up_ms]
        assert during[-1].leader not in (outage.broker, -1), "another leader before the end"
        assert str(outage.broker) not in during[-1].isr.split(",")
    whole = [row for row in states if row.time_ms < outages[-1].down_ms][-1]
    assert (whole.isr_size, whole.leader_serves) == (3, True), "after the crash all are back"
