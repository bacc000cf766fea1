"""Directed cases: races that random faults seldom hit. Each once lost a record, hung, or never came to rest."""

from __future__ import annotations

import pytest

from experiments.engines.admin_requests import reassign
from experiments.engines.sim.network import Disturbance
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.ids import FIRST_CONTROLLER
from protocol.messages.commands import AdminOutcome
from protocol.messages.control import AlterPartitionRequest
from protocol.messages.data import FetchPartition, FetchPartitionResult, FetchRequest, FetchResponse
from protocol.messages.quorum import QuorumFetchResponse
from tests.sim.partition_helpers import KEEP, Bench


@pytest.mark.parametrize("elide_idle", [True, False])
@pytest.mark.parametrize("after_ms", range(12))
def test_a_stale_answer_does_not_leave_a_broker_fenced(after_ms: int, elide_idle: bool) -> None:
    """The broker is paused, longer than its session, while the answer that unfences it is on its way."""
    bench = Bench(elide_idle=elide_idle)
    bench.cluster.crash(2, KEEP)
    bench.run_until(30_000)
    bench.cluster.start(2)
    bench.run_until(30_000 + after_ms)
    bench.cluster.pause(2)
    bench.run_until(60_000)
    bench.cluster.resume(2)
    bench.run_until(200_000)
    assert not bench.fenced(2)
    assert sorted(bench.state.isr) == [0, 1, 2]


def test_a_pause_of_a_paused_broker_and_the_end_of_none_change_nothing() -> None:
    """The second pause keeps what was held back, without which the broker would send no heartbeat again."""
    bench = Bench()
    bench.cluster.resume(2)
    bench.run_until(30_000)
    bench.cluster.pause(2)
    bench.run_until(60_000)
    bench.cluster.pause(2)
    assert bench.fenced(2)
    bench.cluster.resume(2)
    bench.cluster.resume(2)
    bench.run_until(90_000)
    assert not bench.fenced(2)


@pytest.mark.covers("M8", "E9", "H15")
@pytest.mark.parametrize("seed", range(20))
def test_an_isr_answer_does_not_overtake_a_higher_min_isr(seed: int) -> None:
    """Min ISR is raised while the leader shrinks its ISR to itself; then the leader dies with what it has
    acknowledged.
    """
    bench = Bench(replicas=(0, 1), min_isr=1, seed=seed)
    bench.produce()
    bench.run_until(4_000)
    bench.cut(0, 1)
    last = bench.produce()
    proposed: list[int] = []

    def raise_min_isr() -> None:
        bench.configure("flush.messages", 1_000)
        bench.configure("min.insync.replicas", 2)

    def observe(now_ms: int, node: int, trace: Trace) -> None:
        if trace.kind == "isr_proposed" and node == 0 and not proposed:
            proposed.append(now_ms)
            bench.cluster.call_at(now_ms, raise_min_isr)
        elif trace.kind == "produced" and trace.command_id == last and trace.error == "NONE":
            bench.cluster.call_at(now_ms, lambda: bench.cluster.crash(0, KEEP))

    bench.cluster.trace_observers.append(observe)
    bench.run_until(80_000)
    assert proposed
    leader = bench.state.leader
    assert not bench.acked(last) or leader == -1 or bench.holds(leader, last)


@pytest.mark.covers("E33")
def test_a_cancellation_keeps_the_replicas_that_min_isr_needs() -> None:
    bench = Bench(brokers=4, replicas=(0, 1), min_isr=2)
    bench.produce()
    bench.run_until(4_000)
    bench.cluster.crash(1, KEEP)
    bench.cluster.crash(3, KEEP)
    bench.run_until(20_000)
    bench.reassign(0, 2, 3)
    bench.run_until(24_000)
    assert sorted(bench.state.isr) == [0, 2]
    cancelled = bench.administer(reassign("t", 0, None))
    bench.run_until(25_000)
    outcome = bench.cluster.outcomes[cancelled]
    assert isinstance(outcome, AdminOutcome)
    assert outcome.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert sorted(bench.state.isr) == [0, 2]


def test_another_reassignment_does_not_drop_the_whole_isr() -> None:
    bench = Bench(brokers=5, replicas=(0, 1), min_isr=1)
    bench.produce()
    bench.run_until(4_000)
    bench.cluster.crash(1, KEEP)
    bench.run_until(20_000)
    bench.reassign(2, 1)
    bench.run_until(24_000)
    bench.cluster.crash(0, KEEP)
    bench.run_until(40_000)
    assert bench.state.isr == (2,)
    last = bench.produce()
    bench.run_until(41_000)
    assert bench.acked(last)
    bench.reassign(0, 1)
    bench.run_until(42_000)
    bench.cluster.start(0)
    bench.cluster.start(1)
    bench.run_until(200_000)
    assert (sorted(bench.state.replicas), sorted(bench.state.isr)) == ([0, 1], [0, 1])
    assert bench.holds(bench.state.leader, last)


@pytest.mark.covers("E28", "M53")
def test_a_fetch_of_a_former_incarnation_is_ignored() -> None:
    """An orphaned process goes on fetching under the broker's old epoch; the registered one has none of the record."""
    bench = Bench(replicas=(0, 1), min_isr=2)
    bench.produce()
    bench.run_until(4_000)
    old_epoch = bench.broker(1).context.broker_epoch
    bench.cluster.crash(1, KEEP)
    bench.run_until(20_000)
    bench.cluster.start(1)
    bench.run_until(40_000)
    assert sorted(bench.state.isr) == [0, 1]
    bench.cluster.pause(1)
    last = bench.produce()
    bench.run_until(40_100)
    leader = bench.replica(0)
    fetch = FetchPartition(
        topic_id=leader.key.topic_id,
        partition_id=0,
        current_leader_epoch=leader.leader_epoch,
        fetch_offset=leader.log.end_offset,
        last_fetched_epoch=leader.log.latest_epoch,
    )
    before = leader.log.high_watermark
    request = FetchRequest(replica_id=1, replica_epoch=old_epoch, partitions=(fetch,))
    bench.broker(0).receive(bench.cluster.now_ms, 1, request)
    assert leader.log.high_watermark == before < leader.log.end_offset
    assert not bench.acked(last)


@pytest.mark.covers("A26", "N1")
def test_a_repeated_response_does_not_truncate_again() -> None:
    """A deposed leader drops what no other replica has, and fetches as many records as it had. Then the answer that
    made it truncate arrives once more.
    """
    bench = Bench()
    for _ in range(2):
        bench.produce()
    bench.run_until(4_000)
    follower = bench.replica(0)
    common = follower.log.end_offset
    for other in (1, 2, FIRST_CONTROLLER):
        bench.cut(0, other)
    bench.produce(acks=1)
    bench.run_until(4_100)
    assert follower.log.end_offset == common + 1
    old = FetchPartition(
        topic_id=follower.key.topic_id,
        partition_id=0,
        current_leader_epoch=follower.leader_epoch + 1,
        fetch_offset=follower.log.end_offset,
        last_fetched_epoch=follower.log.latest_epoch,
    )
    bench.run_until(30_000)
    leader = bench.replica(bench.state.leader)
    assert leader.leader_epoch == old.current_leader_epoch
    diverging = leader.log.divergence(old.fetch_offset, old.last_fetched_epoch)
    assert diverging is not None
    for other in (1, 2, FIRST_CONTROLLER):
        bench.cut(0, other, up=True)
    bench.run_until(60_000)
    last = bench.produce()
    bench.run_until(61_000)
    assert (sorted(bench.state.isr), bench.acked(last)) == ([0, 1, 2], True)
    fetch = bench.replica(0).fetch_state
    assert fetch is not None
    assert (fetch.current_leader_epoch, fetch.fetch_offset) == (old.current_leader_epoch, old.fetch_offset)
    late = FetchResponse(partitions=(FetchPartitionResult.to(old, diverging_epoch=diverging),))
    bench.broker(0).receive(bench.cluster.now_ms, bench.state.leader, late)
    assert bench.holds(0, last)


@pytest.mark.covers("B19", "B22", "M53")
def test_a_copy_of_a_refused_and_withdrawn_proposal_is_refused() -> None:
    """A follower catches up while the controller has fenced it, which its leader has not heard of. The leader withdraws
    what was refused, and goes on without the follower, which is unfenced. Then the same proposal arrives once more.
    """
    bench = Bench()
    cluster, sent = bench.cluster, list[AlterPartitionRequest]()
    bench.produce()
    bench.run_until(4_000)
    bench.cut(0, 2)
    bench.run_until(40_000)
    assert sorted(bench.state.isr) == [0, 1]
    cluster.disturb_link(Disturbance(FIRST_CONTROLLER, 0, "lose", only=(QuorumFetchResponse,)))
    cluster.set_link(2, FIRST_CONTROLLER, False)
    bench.run_until(60_000)
    assert bench.fenced(2)
    cluster.on_message = lambda source, target, message: (
        sent.append(message) if isinstance(message, AlterPartitionRequest) else None
    )
    bench.cut(0, 2, up=True)
    bench.run_until(62_000)
    bench.cut(0, 2)
    bench.produce()
    cluster.set_link(2, FIRST_CONTROLLER, True)
    bench.run_until(63_000)
    leadership = bench.replica(0).leadership
    assert leadership is not None
    assert (sorted(leadership.maximal_isr), bench.fenced(2)) == ([0, 1], False)
    controller = cluster.nodes[FIRST_CONTROLLER]
    for proposal in sent:
        assert [member.broker_id for member in proposal.partitions[0].new_isr] == [0, 1, 2]
        controller.receive(cluster.now_ms, 0, proposal)
    assert sent
    assert sorted(bench.state.isr) == [0, 1]


@pytest.mark.covers("C5")
def test_a_recovering_leader_becomes_recovered_eventually() -> None:
    """The partition is changed while the leader's word that it has recovered cannot reach the controller."""
    bench = Bench()
    bench.produce()
    bench.run_until(4_000)
    for broker in (1, 2):
        bench.cluster.crash(broker, KEEP)
    bench.run_until(40_000)
    bench.cluster.crash(0, KEEP)
    bench.run_until(60_000)
    elected: list[int] = []

    def observe(now_ms: int, node: int, trace: Trace) -> None:
        if trace.kind == "became_leader" and now_ms > 60_000 and not elected:
            elected.append(node)
            cluster = bench.cluster
            cluster.call_at(now_ms, lambda: cluster.set_link(node, FIRST_CONTROLLER, False))
            cluster.call_at(now_ms + 1_000, lambda: bench.reassign(0, 2, 1))
            cluster.call_at(now_ms + 3_000, lambda: cluster.set_link(node, FIRST_CONTROLLER, True))

    bench.cluster.trace_observers.append(observe)
    for broker in (0, 1, 2):
        bench.cluster.start(broker)
    bench.run_until(300_000)
    assert elected
    assert (bench.state.leader_recovery_state, sorted(bench.state.isr)) == (0, [0, 1, 2])


@pytest.mark.covers("M41")
@pytest.mark.parametrize("elide_idle", [True, False])
def test_a_silent_follower_of_an_idle_partition_leaves_once(elide_idle: bool) -> None:
    bench = Bench(elide_idle=elide_idle)
    bench.produce()
    bench.run_until(4_000)
    bench.cut(0, 2)
    before = len(bench.changes())
    bench.run_until(400_000)
    assert len(bench.changes()) - before == 1
    assert sorted(bench.state.isr) == [0, 1]
