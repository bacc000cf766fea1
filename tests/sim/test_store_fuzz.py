"""Random runs of generation `v3`: within its tolerance nothing is violated, and what a seed gives never changes."""

from __future__ import annotations

import pytest

from experiments.engines.port import Loss
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.swarm import draw
from protocol.config import ISR_UPDATES, Generation
from protocol.ids import STORE
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


@pytest.mark.parametrize("seed", [53, 178])
def test_a_follower_whose_log_ends_within_a_batch_of_its_leader_truncates_there(seed: int) -> None:
    """Logs that diverge at equal offsets (M42) have batches with different ends."""
    result = run_plan(draw(seed, Generation.V3))
    assert result.violation is None, result.violation
