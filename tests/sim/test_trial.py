"""Trials: their numbers agree with closed-form answers where there are any."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from experiments.studies.design.distribution import Distribution
from experiments.studies.design.model import DAY_MS, YEAR_MS, CellParameters
from experiments.studies.estimation.statistics import Estimate, Moments, fraction, rate
from experiments.studies.failures.timeline import DrawnTimeline
from experiments.studies.trace.schema import CRASH, LOSS, START, STATE, TraceRow, check_trace
from experiments.studies.trials.states import TOPIC
from experiments.studies.trials.trial import Trial, run_trial
from protocol.ids import TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.nodes.broker import BrokerNode

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


def _time_in(rows: list[TraceRow], refuses: bool) -> float:
    """The fraction of the year spent without a leader, or refusing acks=all writes."""
    states = [row for row in rows if row.kind == STATE or row is rows[-1]]
    total = 0
    for row, following in pairwise(states):
        holds = row.isr_size < row.min_isr if refuses else row.leader == -1
        total += holds * (following.time_ms - row.time_ms)
    return total / rows[-1].time_ms


def _measure(parameters: CellParameters) -> tuple[Estimate, Estimate, Estimate]:
    """Loss rate, offline fraction and reject fraction of some trials."""
    losses, offline, refused = [], [], []
    for seed in range(TRIALS):
        rows = run_trial(parameters, seed).rows
        check_trace(rows, parameters.partitions, parameters.duration_ms)
        losses.append(sum(row.kind == LOSS for row in rows))
        offline.append(_time_in(rows, refuses=False))
        refused.append(_time_in(rows, refuses=True))
    return rate(Moments.of(losses), TRIALS), fraction(Moments.of(offline)), fraction(Moments.of(refused))


def _markov(replicas: int, min_isr: int) -> tuple[float, float, float]:
    """Loss events a year, offline and refusing fraction of the time, from a Markov chain's stationary distribution.

    All crashes are unclean. While k >= 1 replicas are up, all of them are in sync (catch-up is immediate). When the
    last one crashes, only it may lead again; meanwhile j others may be up. It loses its tail with `TAIL_LOSS`. That
    is so before KIP-966; with it, for min ISR 1 (otherwise every member of the ELR must have come back as well).
    """
    fail, repair = YEAR_MS / (MTTF_DAYS * DAY_MS), YEAR_MS / (MTTR_DAYS * DAY_MS)
    up = {count: count - 1 for count in range(1, replicas + 1)}
    waiting = {others: replicas + others for others in range(replicas)}
    generator = np.zeros((2 * replicas, 2 * replicas))

    def flow(source: int, target: int, per_year: float) -> None:
        generator[source, target] += per_year
        generator[source, source] -= per_year

    for count, state in up.items():
        flow(state, up[count - 1] if count > 1 else waiting[0], count * fail)
        if count < replicas:
            flow(state, up[count + 1], (replicas - count) * repair)
    for others, state in waiting.items():
        flow(state, up[others + 1], repair)
        if others:
            flow(state, waiting[others - 1], others * fail)
        if others < replicas - 1:
            flow(state, waiting[others + 1], (replicas - 1 - others) * repair)
    system = np.vstack([generator.T, np.ones(2 * replicas)])
    stationary = np.linalg.lstsq(system, np.append(np.zeros(2 * replicas), 1.0), rcond=None)[0]
    offline = float(sum(stationary[state] for state in waiting.values()))
    short = float(sum(stationary[up[count]] for count in up if count < min_isr))
    return float(stationary[up[1]]) * fail * TAIL_LOSS, offline, offline + short


@pytest.mark.slow
@pytest.mark.covers("K4", "A13", "A15")
@pytest.mark.parametrize(
    ("generation", "replicas", "min_isr"),
    [("kip-497", 1, 1), ("kip-497", 2, 2), ("kip-497", 3, 2), ("kip-966", 1, 1), ("kip-966", 2, 1), ("kip-966", 3, 1)],
)
def test_intervals_cover_the_markov_answer(generation: str, replicas: int, min_isr: int) -> None:
    parameters = _parameters(
        generation=generation, brokers=replicas, replication_factor=replicas, min_insync_replicas=min_isr
    )
    for estimate, expected in zip(_measure(parameters), _markov(replicas, min_isr), strict=True):
        assert estimate.ci_low <= expected <= estimate.ci_high


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
    assert any(row.kind == LOSS for row in run_trial(unflushed, 1).rows)
    rows = run_trial(flushed, 1).rows
    assert any(row.kind == CRASH and row.detail == "lossy" for row in rows)
    assert not any(row.kind == LOSS for row in rows)


def test_power_event_crashes_all_brokers_at_once() -> None:
    rows = run_trial(_parameters(power_events_per_year=20.0, tail_loss_probability=0.0), 3).rows
    crashes: dict[int, set[int]] = {}
    for row in rows:
        if row.kind == CRASH:
            crashes.setdefault(row.time_ms, set()).add(row.node)
    assert max(len(nodes) for nodes in crashes.values()) >= 2
    assert not any(row.kind == LOSS for row in rows), "the last known leader kept its page cache, and is elected"


def test_network_latency_delays_failover() -> None:
    """Fencing the crashed leader and electing the next one both take messages."""

    def mean_outage_ms(latency_ms: int) -> float:
        parameters = _parameters(detection_ms=1_000, network_latency_ms=latency_ms, duration_ms=90 * DAY_MS)
        states = [row for row in run_trial(parameters, 1).rows if row.kind == STATE]
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
        rows = run_trial(parameters, 1).rows
        started = [row.time_ms for row in rows if row.kind == START]
        served = [row.time_ms for row in rows if row.kind == STATE and row.leader_serves and row.time_ms > started[0]]
        return served[0] - started[0]

    assert 0 <= offline_ms(0) < 30_000 <= offline_ms(30_000) < 60_000


@pytest.mark.slow
def test_eligible_leader_replicas_lose_less_where_some_shut_down_cleanly() -> None:
    """The same failures for both generations: the shipped study's result, on few trials."""

    def losses(generation: str) -> int:
        parameters = _parameters(generation=generation, min_insync_replicas=2, unclean_probability=0.5)
        return sum(row.kind == LOSS for seed in range(8) for row in run_trial(parameters, seed).rows)

    before, after = losses("kip-497"), losses("kip-966")
    assert after < before


def test_records_deleted_by_retention_are_not_counted_as_lost() -> None:
    """Studies have no retention; the count of losses must still exclude such records."""
    parameters = _parameters(replication_factor=1, min_insync_replicas=1, brokers=1)
    trial = Trial(parameters, 0, DrawnTimeline(parameters, 0))
    trial.set_up()
    name = TopicPartition(TOPIC, 0)
    broker = trial.cluster.nodes[0]
    assert isinstance(broker, BrokerNode)
    replica = broker.context.replica_named(TOPIC, 0)
    assert replica is not None
    log = replica.log.storage
    for offset in range(3):
        log.append(RecordBatch(base_offset=offset, record_count=1, payload=b"%d" % offset))
        log.roll()
    log.delete_segments_before(2)
    acked = trial.observer.writes[name].acked
    acked += [(0, b"0"), (1, b"1"), (2, b"2")]
    assert trial.observer.remove_lost(name, 0, log_end=3) == 0
    log.truncate(2)
    assert trial.observer.remove_lost(name, 0, log_end=2) == 1
    assert acked == [(0, b"0"), (1, b"1")]
