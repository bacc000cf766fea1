"""Controlled shutdown: leaderships move, other brokers apply it, then the clean-shutdown file is written (M56)."""

from __future__ import annotations

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines import admin_requests
from experiments.engines.port import ClusterSpec, TraceEvent
from protocol.broker.lifecycle import CLEAN_SHUTDOWN_FILE
from protocol.config import ClusterConfig
from protocol.events.registry import detail_of
from protocol.features import LOG_GENERATIONS, Generation
from protocol.ids import FIRST_CONTROLLER
from protocol.messages.commands import AdminCommand, ProduceCommand, ProduceOutcome
from tests.sim.scenario_helpers import running_engine

PARTITIONS = 6
SHUTDOWN_TIME = "kafka.controller.controlled_shutdown_time_ms_last"


def cluster(generation: Generation) -> CheckedEngine:
    """Three brokers; broker 0 leads all partitions, each with a record of its own on all replicas."""
    engine = running_engine(1_000, ClusterSpec(3, 1, ClusterConfig.of(generation)))
    create = admin_requests.create_topic("t", ((0, 1, 2),) * PARTITIONS, {"min.insync.replicas": 2})
    engine.submit(AdminCommand(command_id=1, request=create))
    engine.run_for(1_000)
    produce(engine, 10)
    return engine


def produce(engine: CheckedEngine, first_id: int) -> None:
    for partition in range(PARTITIONS):
        payload = f"{first_id}-{partition}".encode()
        command = ProduceCommand(
            command_id=first_id + partition, topic="t", partition=partition, acks=-1, record_count=1, payload=payload
        )
        engine.submit(command)
    ids = range(first_id, first_id + PARTITIONS)
    assert engine.run_until(lambda: all(engine.outcome(number) is not None for number in ids), 60_000)
    outcomes = [engine.outcome(number) for number in ids]
    assert all(isinstance(outcome, ProduceOutcome) and outcome.error == 0 for outcome in outcomes)


def leaders(engine: CheckedEngine) -> set[int]:
    view = engine.view()
    assert view is not None
    return {state.leader for state in view.partitions.values()}


def first(engine: CheckedEngine, kind: str, **detail: object) -> TraceEvent:
    return next(
        event
        for event in engine.traces()
        if event.trace.kind == kind and detail.items() <= detail_of(event.trace).items()
    )


@pytest.mark.covers("M56", "E22")
@pytest.mark.parametrize("generation", LOG_GENERATIONS)
def test_leaderships_move_then_brokers_apply_it_then_the_clean_shutdown_file_is_written(generation: Generation) -> None:
    engine = cluster(generation)
    disk = engine.cluster.disks[0]
    engine.set_link(FIRST_CONTROLLER, 2, False)  # broker 2 reads no metadata for a while
    engine.terminate(0)
    assert engine.run_until(lambda: leaders(engine) == {1}, 60_000)
    engine.run_for(3_000)
    assert engine.is_running(0), "it waits for broker 2, who still asks it for records"
    assert disk.read_file(CLEAN_SHUTDOWN_FILE) is None
    engine.set_link(FIRST_CONTROLLER, 2, True)
    assert engine.run_until(lambda: not engine.is_running(0), 60_000)
    assert disk.read_file(CLEAN_SHUTDOWN_FILE) is not None
    assert all(disk.open_log(name).flushed_offset == disk.open_log(name).end_offset for name in disk.log_names())
    moved = first(engine, "became_leader", leader_epoch=1)
    stopped = first(engine, "broker_state", broker=0, state="stopped")
    assert moved.time_ms < stopped.time_ms
    assert engine.metrics()[SHUTDOWN_TIME] >= 3_000
    produce(engine, 20)
    assert not engine.violations()


def test_a_controlled_shutdown_without_waiting_takes_a_few_round_trips() -> None:
    engine = cluster(Generation.KIP_966)
    began_ms = engine.now_ms()
    engine.terminate(0)
    assert engine.run_until(lambda: not engine.is_running(0), 60_000)
    assert engine.now_ms() - began_ms < 100, "it asks again soon, not with the next heartbeat"
    assert leaders(engine) == {1}
