"""Trials: their numbers agree with closed-form answers where there are any."""

from __future__ import annotations

from itertools import pairwise

import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import DAY_MS, CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.failures.sources import Outage
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.theory.validation import ValidationCell, compare
from experiments.studies.trace.kinds import Crash, Loss, Start, State
from experiments.studies.trials.trial import Trial, run_trial
from protocol.ids import TopicPartition
from protocol.messages.batch import RecordBatch
from tests.sim.cluster_helpers import replica_of
from tests.trace_rows import as_rows

MTTF_DAYS, MTTR_DAYS, TAIL_LOSS = 12.0, 3.0, 0.6
TRIALS = 16


BASE = CellParameters(
    broker_mttf=Distribution(mean_ms=int(MTTF_DAYS * DAY_MS)),
    broker_mttr=Distribution(mean_ms=int(MTTR_DAYS * DAY_MS)),
    tail_loss_probability=TAIL_LOSS,
    detection_ms=None,
)


def _parameters(**changes: object) -> CellParameters:
    return CellParameters.model_validate(dict(BASE) | changes)


@pytest.mark.slow
@pytest.mark.covers("K4", "A13", "A15")
@pytest.mark.parametrize(
    ("generation", "replicas", "min_isr"),
    [("kip-497", 1, 1), ("kip-497", 2, 2), ("kip-497", 3, 2), ("kip-966", 1, 1), ("kip-966", 2, 1), ("kip-966", 3, 1)],
)
def test_simulation_agrees_with_the_markov_chain(generation: str, replicas: int, min_isr: int) -> None:
    """Those metrics of which enough events are expected; the time that writes are refused always is."""
    parameters = _parameters(
        generation=generation,
        brokers=replicas,
        replication_factor=replicas,
        min_insync_replicas=min_isr,
        broker_mttf=Distribution(mean_ms=6 * DAY_MS),
        duration_ms=120 * DAY_MS,
    )
    (found,) = compare([ValidationCell({}, parameters, TRIALS)], jobs=1)
    assert "reject_fraction" in {item.metric for item in found}
    assert [item for item in found if not item.agrees] == []


def test_trial_is_a_function_of_its_arguments() -> None:
    parameters = _parameters(duration_ms=60 * DAY_MS)
    first, second, other = (run_trial(parameters, seed) for seed in (5, 5, 6))
    assert first.rows == second.rows
    assert first.trace_hash == second.trace_hash
    assert first.trace_hash != other.trace_hash


def test_flushed_records_are_not_lost() -> None:
    """A tail that has reached the disk cannot be lost: the same faults, without and with a flush interval."""
    unflushed = _parameters(brokers=1, replication_factor=1, min_insync_replicas=1, tail_loss_probability=1.0)
    flushed = unflushed.model_copy(update={"flush_interval_ms": 1})
    assert any(isinstance(row.what, Loss) for row in run_trial(unflushed, 1).rows)
    rows = as_rows(run_trial(flushed, 1).rows)
    assert any(row.kind == Crash.KIND and row.detail == "lossy" for row in rows)
    assert not any(row.kind == Loss.KIND for row in rows)


def test_power_event_crashes_all_brokers_at_once() -> None:
    rows = as_rows(run_trial(_parameters(power_events_per_year=20.0, tail_loss_probability=0.0), 3).rows)
    crashes: dict[int, set[int]] = {}
    for row in rows:
        if row.kind == Crash.KIND:
            crashes.setdefault(row.time_ms, set()).add(row.node)
    assert max(len(nodes) for nodes in crashes.values()) >= 2
    assert not any(row.kind == Loss.KIND for row in rows), "the last known leader kept its page cache, and is elected"


def test_a_shared_failure_finds_what_was_acknowledged_last_on_each_of_its_brokers() -> None:
    """Partition b has its only replica on broker b. All machines lose what is younger than 30 s, an hour after the last
    change: the record that was acknowledged just before, in each partition."""
    parameters = _parameters(
        replication_factor=1, min_insync_replicas=1, partitions=3, writeback_ms=30_000, start="fresh"
    )
    outages = [Outage(3_600_000, 7_200_000, broker, "lossy", "power") for broker in range(3)]
    timeline = DrawnTimeline(parameters, 1, outages=outages, own_failures=False)
    rows = as_rows(Trial(parameters.model_copy(update={"duration_ms": DAY_MS}), 1, timeline).run().rows)
    assert sorted(row.partition for row in rows if row.kind == Loss.KIND) == [0, 1, 2]


def test_network_latency_delays_failover() -> None:
    """Fencing the crashed leader and electing the next one both take messages."""

    def mean_outage_ms(latency_ms: int) -> float:
        parameters = _parameters(detection_ms=1_000, network_latency_ms=latency_ms, duration_ms=90 * DAY_MS)
        states = [row for row in as_rows(run_trial(parameters, 1).rows) if row.kind == State.KIND]
        stalled = [(row, after) for row, after in pairwise(states) if row.leader != -1 and not row.leader_serves]
        outages = [after.time_ms - row.time_ms for row, after in stalled]
        return sum(outages) / len(outages)

    assert mean_outage_ms(200) > mean_outage_ms(1)


def test_restart_time_keeps_a_started_broker_out_of_the_isr() -> None:
    """With one replica the partition is offline until the process of its broker takes part."""

    def offline_ms(restart_time_ms: int) -> int:
        parameters = _parameters(
            brokers=1,
            replication_factor=1,
            min_insync_replicas=1,
            detection_ms=1_000,
            restart_time_ms=restart_time_ms,
            duration_ms=90 * DAY_MS,
        )
        rows = as_rows(run_trial(parameters, 1).rows)
        started = [row.time_ms for row in rows if row.kind == Start.KIND]
        served = [
            row.time_ms for row in rows if row.kind == State.KIND and row.leader_serves and row.time_ms > started[0]
        ]
        return served[0] - started[0]

    assert 0 <= offline_ms(0) < 30_000 <= offline_ms(30_000) < 60_000


@pytest.mark.slow
def test_eligible_leader_replicas_lose_less_where_some_shut_down_cleanly() -> None:
    """The same failures for both generations: the shipped study's result, on few trials."""

    def losses(generation: str) -> int:
        parameters = _parameters(
            generation=generation, min_insync_replicas=2, unclean_probability=0.5, writeback_ms=None
        )
        return sum(isinstance(row.what, Loss) for seed in range(8) for row in run_trial(parameters, seed).rows)

    before, after = losses("kip-497"), losses("kip-966")
    assert after < before


def test_records_deleted_by_retention_are_not_counted_as_lost() -> None:
    """Studies have no retention; the count of losses must still exclude such records."""
    parameters = _parameters(replication_factor=1, min_insync_replicas=1, brokers=1)
    trial = Trial(parameters, 0, DrawnTimeline(parameters, 0))
    trial.set_up()
    name = TopicPartition(TOPIC, 0)
    log = replica_of(trial.cluster, 0, TOPIC).log.storage
    for offset in range(3):
        log.append(RecordBatch(base_offset=offset, record_count=1, payload=b"%d" % offset))
        log.roll()
    log.delete_segments_before(2)
    acked = trial.observer.writer.writes[name].acked
    acked += [(0, b"0"), (1, b"1"), (2, b"2")]
    assert trial.observer.remove_lost(name, 0, log_end=3) == 0
    log.truncate(2)
    assert trial.observer.remove_lost(name, 0, log_end=2) == 1
    assert acked == [(0, b"0"), (1, b"1")]
