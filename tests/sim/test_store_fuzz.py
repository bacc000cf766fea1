"""Random runs of generation `v3`: within its tolerance nothing is violated, and what a seed gives never changes."""

from __future__ import annotations

import pytest

from experiments.check.engine import CheckedEngine
from experiments.engines.port import Loss
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from protocol.config import ISR_UPDATES, Generation
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.events.store import CommandCarriedOut, ControllerElected, StoreChanged
from protocol.ids import STORE, NodeId, TopicPartition
from protocol.zookeeper.records import LeaderAndIsr
from tests.sim.store_cluster_helpers import KEEP, StoreBench


@pytest.mark.parametrize("seed", range(8))
def test_a_seed_is_clean(seed: int) -> None:
    result = run_plan(draw(seed, Generation.V3))
    assert result.violation is None, result.violation


@pytest.mark.parametrize("seed", [0, 3])
def test_a_seed_gives_one_trace_with_idle_timers_and_with_encoded_messages(seed: int) -> None:
    plan = draw(seed, Generation.V3)
    expected = run_plan(plan).trace_hash
    assert run_plan(plan).trace_hash == expected
    assert run_plan(plan, elide_idle=False).trace_hash == expected
    assert run_plan(plan, paranoid=True).trace_hash == expected


@pytest.mark.covers("K12")
def test_plans_have_a_store_no_controllers_and_either_writer_of_isrs() -> None:
    plans = [draw(seed, Generation.V3) for seed in range(40)]
    assert {plan.config[ISR_UPDATES] for plan in plans} == {"leader", "controller"}
    assert all(plan.spec().controller_ids == () and plan.spec().store_ids == (STORE,) for plan in plans)
    assert {fault.kind for plan in plans for fault in plan.faults} >= {"expire", "crash", "pause", "cut", "disturb"}


@pytest.mark.covers("A46")
def test_a_leader_uses_an_isr_whose_write_was_answered_after_the_proposal_was_repeated() -> None:
    """The store is away while a follower leaves: the leader repeats its proposal, and the first one is written."""
    bench = StoreBench(config={"replica.lag.time.max.ms": 1_000, "request.timeout.ms": 1_000})
    silent = next(broker for broker in range(3) if broker not in (bench.state.leader, bench.controller))
    bench.run_for(1_000)
    bench.cluster.crash(STORE, Loss("none"))
    bench.cluster.crash(silent, KEEP)
    bench.run_for(4_000)
    bench.cluster.start(STORE)
    bench.run_for(1_000)
    leader = bench.replica(bench.state.leader).leadership
    assert leader is not None
    assert silent not in bench.state.isr
    assert (leader.proposed_isr, leader.partition_epoch) == (None, bench.state.partition_epoch)
    bench.cluster.start(silent)
    bench.run_for(20_000)
    assert sorted(bench.state.isr) == [0, 1, 2]


@pytest.mark.parametrize("seed", [53, 178, 648])
def test_a_seed_with_logs_that_diverge_is_clean_within_tolerance(seed: int) -> None:
    """Logs that diverge at equal offsets (M42) have batches with different ends; a leader that has not heard of its new
    epoch counts a follower that has truncated since.
    """
    result = run_plan(draw(seed, Generation.V3))
    assert result.violation is None, result.violation


T0 = TopicPartition("t", 0)


def published(version: int = 0, **changes: object) -> tuple[NodeId, Trace]:
    """The store reports a state of t-0."""
    state = LeaderAndIsr(leader=0, leader_epoch=0, isr=(0, 1), controller=0, controller_epoch=0)
    data = state.model_copy(update=changes).encode().decode()
    return STORE, StoreChanged("/brokers/topics/t/0/leaderAndISR", version, data)


def carried_out(controller: int, epoch: int) -> tuple[NodeId, Trace]:
    return 1, CommandCarriedOut("LeaderAndIsrRequest", controller, epoch, False, (), "NONE")


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("VersionsGrow", [published(), published(2)]),
        ("OneControllerPerEpoch", [(0, ControllerElected(0)), (1, ControllerElected(0))]),
        ("DecisionsAreFenced", [published(controller_epoch=3)]),
        ("LeaderEpochsRise", [published(), published(1, leader_epoch=2)]),
        ("LeaderEpochsRise", [published(), published(1, leader=1)]),
        ("ElectionAddsNoMember", [published(), published(1, leader_epoch=1, isr=(0, 1, 2))]),
        ("LeaderInIsr", [published(isr=(1, 2))]),
        ("CommandsInOrder", [(0, ControllerElected(0)), carried_out(1, 0)]),
        ("OneLeaderPerEpoch", [published(), (1, BecameLeader(T0, 0, 0, 0))]),
    ],
)
def test_a_rule_fires_on_events_that_break_it(rule: str, events: list[tuple[NodeId, Trace]]) -> None:
    engine = CheckedEngine(draw(0, Generation.V3).spec())
    for node, trace in events:
        for observer in engine.cluster.trace_observers:
            observer(0, node, trace)
    assert rule in {found.invariant for found in engine.suite.violations}
