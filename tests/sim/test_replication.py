"""Replication between simulated brokers: changes of the ISR, the high watermark, fetch limits."""

from __future__ import annotations

import pytest

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import Loss
from experiments.hunt.mutants.registry import mutated
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.controller import PartitionChanged
from protocol.features import Generation
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NodeId, TimeMs, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ShutdownCommand
from protocol.messages.control import AlterPartitionResponse
from protocol.messages.data import ProduceRequest
from tests.sim.chaos_helpers import PARTITIONS, Chaos
from tests.sim.partition_helpers import KEEP, Bench

T0 = TopicPartition("t", 0)


class Watch:
    """Traces of the wanted kinds from now on, as (time, node, kind, detail)."""

    def __init__(self, bench: Bench, *kinds: str) -> None:
        self.seen: list[tuple[TimeMs, NodeId, Trace]] = []
        self._kinds = kinds
        bench.cluster.trace_observers.append(self._observe)

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if trace.kind in self._kinds:
            self.seen.append((now_ms, node, trace))


# -- ISR ---------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("M21")
def test_a_degraded_member_of_the_elr_leads_slowly_and_loses_nothing() -> None:
    """Broker 1 is paused long enough to move from the ISR to the ELR; later it is the only one left, and is paused
    again and again.
    """
    bench = Bench()
    first = bench.produce()
    bench.run_until(4_000)
    bench.cluster.crash(2, KEEP)
    bench.run_until(20_000)
    bench.cluster.pause(1)
    bench.run_until(40_000)
    assert (bench.state.isr, bench.state.elr) == ((0,), (1,))
    bench.cluster.crash(0, KEEP)
    bench.cluster.resume(1)
    bench.run_until(70_000)
    assert (bench.state.leader, bench.state.isr) == (1, (1,))
    assert bench.holds(1, first)
    bench.cluster.start(0)
    bench.cluster.start(2)
    for at_ms in range(80_000, 140_000, 4_000):
        bench.cluster.pause(1)
        bench.run_until(at_ms + 3_000)
        bench.cluster.resume(1)
        bench.run_until(at_ms + 4_000)
        if at_ms == 100_000:
            bench.cluster.pause(1)
            slow = bench.produce()
            bench.run_until(at_ms + 4_500)
            assert not bench.acked(slow), "it hangs"
            bench.cluster.resume(1)
    assert bench.acked(slow), "it serves"
    assert bench.state.leader == 1
    for broker in bench.state.isr:
        assert bench.holds(broker, first)
        assert bench.holds(broker, slow)


@pytest.mark.covers("M22", "E2")
def test_a_follower_fenced_by_the_controller_holds_the_high_watermark_until_it_joins_again() -> None:
    bench = Bench(replicas=(0, 1))
    bench.produce()
    bench.run_until(4_000)
    bench.cut(1, FIRST_CONTROLLER)
    bench.run_until(30_000)
    assert (bench.state.isr, bench.state.elr) == ((0,), (1,))
    before = bench.replica(0).log.high_watermark
    last = bench.produce(acks=1)
    bench.run_until(60_000)
    assert bench.acked(last)
    assert bench.holds(1, last), "data flows"
    assert bench.replica(0).log.high_watermark == before < bench.replica(0).log.end_offset
    watch = Watch(bench, "isr_proposed", "partition", "isr_committed", "high_watermark")
    bench.cut(1, FIRST_CONTROLLER, up=True)
    bench.run_until(90_000)
    assert sorted(bench.state.isr) == [0, 1]
    assert bench.replica(0).log.high_watermark == bench.replica(0).log.end_offset
    order = [trace.kind for _, _, trace in watch.seen if trace.about() == T0]
    assert order.index("isr_proposed") < order.index("partition") < order.index("high_watermark")
    assert "isr_committed" in order[order.index("partition") : order.index("high_watermark")]


@pytest.mark.covers("M50", "B18")
@pytest.mark.parametrize("delay_ms", range(8))
def test_a_proposal_survives_a_crash_of_the_controller(delay_ms: int) -> None:
    """The leader removes a silent follower; the controller crashes before, while or after it commits the proposal."""
    bench = Bench(seed=delay_ms, config={"replica.lag.time.max.ms": 5_000, "request.timeout.ms": 10_000})
    bench.produce()
    bench.run_until(4_000)
    proposals: list[TimeMs] = []

    def observe(now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if trace.kind == "isr_proposed" and not proposals:
            proposals.append(now_ms)
            cluster = bench.cluster
            cluster.call_at(now_ms + delay_ms, lambda: cluster.crash(FIRST_CONTROLLER, Loss("unflushed")))
            cluster.call_at(now_ms + 2_000, lambda: cluster.start(FIRST_CONTROLLER))

    bench.cluster.trace_observers.append(observe)
    bench.cut(0, 2)
    last = bench.produce()
    bench.run_until(120_000)
    assert proposals
    leadership = bench.replica(0).leadership
    assert leadership is not None
    assert (leadership.isr, leadership.partition_epoch) == (bench.state.isr, bench.state.partition_epoch)
    assert leadership.proposed_isr is None
    assert sorted(bench.state.isr) == [0, 1]
    assert bench.acked(last)
    assert bench.holds(0, last)
    assert bench.holds(1, last)


@pytest.mark.covers("M54", "B15")
def test_a_rolling_restart_takes_few_proposals_and_the_isr_does_not_flap() -> None:
    partitions = 24
    bench = Bench()
    bench.administer(create_topic("u", tuple((0, 1, 2) for _ in range(partitions)), {"min.insync.replicas": 2}))
    bench.run_until(10_000)
    watch = Watch(bench, "partition", "isr_proposed")
    for broker in (1, 2):
        watch.seen.clear()
        began_ms = bench.cluster.now_ms
        bench.cluster.command(broker, ShutdownCommand())
        bench.run_until(began_ms + 5_000)
        assert broker not in bench.cluster.nodes
        bench.cluster.start(broker)
        bench.run_until(began_ms + 60_000)
        changes: dict[TopicPartition, int] = {}
        for _, _, trace in watch.seen:
            if isinstance(trace, PartitionChanged):
                changes[trace.partition] = changes.get(trace.partition, 0) + 1
        assert len(changes) == partitions + 1
        assert set(changes.values()) == {2}, "out by the shutdown, in by the leader, and nothing else"
        rounds = {now_ms for now_ms, _, trace in watch.seen if trace.kind == "isr_proposed"}
        assert len(rounds) <= 2, "one proposal carries all partitions that one fetch has brought in sync"


@pytest.mark.covers("M49", "B13", "B14")
@pytest.mark.parametrize("mutant", [None, "maximal-isr-not-used"])
def test_without_the_maximal_isr_the_election_of_a_replica_just_added_loses_data(mutant: str | None) -> None:
    """The leader does not learn that the controller has added broker 2 to the ISR, and broker 2 lacks the record."""
    with mutated(mutant):
        bench = Bench(config={"replica.lag.time.max.ms": 3_000, "broker.session.timeout.ms": 9_000})
        bench.cut(0, 2)
        bench.run_until(9_000)
        assert (bench.state.leader, bench.state.isr) == (0, (0, 1))
        bench.cluster.set_link(FIRST_CONTROLLER, 0, False)
        bench.cut(0, 2, up=True)
        while set(bench.state.isr) != {0, 1, 2}:
            bench.run_until(bench.cluster.now_ms + 10)
            assert bench.cluster.now_ms < 15_000
        bench.cut(0, 2)
        written = bench.produce()
        bench.run_until(bench.cluster.now_ms + 1_000)
        assert bench.holds(1, written)
        assert bench.acked(written) is (mutant is not None)
        bench.cluster.crash(0, KEEP)
        bench.cluster.crash(1, KEEP)
        bench.run_until(bench.cluster.now_ms + 20_000)
        assert bench.state.leader == 2
        bench.cut(0, 2, up=True)
        bench.cut(0, FIRST_CONTROLLER, up=True)
        for broker in (0, 1):
            bench.cluster.start(broker)
        bench.run_until(bench.cluster.now_ms + 30_000)
        assert set(bench.state.isr) == {0, 1, 2}
        copies = [bench.holds(broker, written) for broker in range(3)]
        if mutant is not None:
            assert copies == [False] * 3, "an acknowledged record is lost"
        else:
            assert bench.acked(written) or not any(copies)


@pytest.mark.covers("M29")
def test_a_deposed_leader_commits_nothing_and_truncates_its_appends() -> None:
    """Broker 0 is paused during an election; then it appends a record before it learns of that. Nothing from the
    controller reaches it, while its proposals of an ISR without the others, who fetch from the new leader, arrive at
    the controller and are refused.
    """
    bench = Bench(min_isr=1, config={"replica.lag.time.max.ms": 5_000})
    bench.produce()
    bench.run_until(4_000)
    bench.cluster.pause(0)
    bench.run_until(30_000)
    leader = bench.state.leader
    assert leader != 0
    acked = bench.produce()
    bench.run_until(31_000)
    assert bench.acked(acked)
    bench.cluster.set_link(FIRST_CONTROLLER, 0, False)
    refused: list[ErrorCode] = []
    bench.cluster.on_message = lambda source, target, message: (
        refused.extend(result.error for result in message.partitions)
        if target == 0 and isinstance(message, AlterPartitionResponse)
        else None
    )
    bench.cluster.resume(0)
    before = bench.replica(0).log.high_watermark
    request = ProduceRequest(
        correlation_id=1, topic="t", partition=0, acks=1, batch=RecordBatch(record_count=1, payload=b"of the deposed")
    )
    bench.broker(0).receive(bench.cluster.now_ms, FIRST_CLIENT, request)
    bench.run_until(50_000)
    deposed = bench.replica(0)
    assert deposed.leadership is not None, "it still takes itself for the leader"
    assert deposed.log.high_watermark == before < deposed.log.end_offset
    assert deposed.leadership.isr == (0, 1, 2), "what it has proposed is not committed"
    assert set(refused) == {ErrorCode.FENCED_LEADER_EPOCH}
    assert bench.state.leader == leader
    watch = Watch(bench, "truncated")
    bench.cut(0, FIRST_CONTROLLER, up=True)
    bench.run_until(100_000)
    assert [node for _, node, _ in watch.seen] == [0]
    logs = [list(bench.replica(broker).log.storage.read(0, 1 << 20)) for broker in range(3)]
    assert logs[0] == logs[1] == logs[2]
    assert b"of the deposed" not in {batch.payload for batch in logs[0]}
    assert bench.holds(0, acked)


@pytest.mark.covers("B8")
def test_a_reassignment_completes_as_soon_as_the_new_replica_is_in_sync() -> None:
    bench = Bench(brokers=4)
    bench.produce()
    bench.run_until(4_000)
    watch = Watch(bench, "partition")
    bench.reassign(0, 1, 3)
    bench.run_until(5_000)
    assert (sorted(bench.state.replicas), sorted(bench.state.isr)) == ([0, 1, 3], [0, 1, 3])
    joined = next(now_ms for now_ms, _, trace in watch.seen if 3 in trace.isr)  # type: ignore[operator]
    assert watch.seen[-1][0] == joined, "the change that lets it in is the last one"


# -- fetches -----------------------------------------------------------------------------------------------------------

NARROW: dict[str, object] = {
    "num.replica.fetchers": 2,
    "replica.fetch.max.bytes": 100,
    "replica.fetch.response.max.bytes": 150,
    "replica.fetch.min.bytes": 120,
    "replica.fetch.wait.max.ms": 300,
}


@pytest.mark.slow
@pytest.mark.parametrize("elide_idle", [True, False])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("generation", [Generation.KIP_497, Generation.KIP_966])
def test_small_fetch_limits_slow_replication_down_and_lose_nothing(
    seed: int, generation: Generation, elide_idle: bool
) -> None:
    """With elided timers, a fetch that a full window delays is not repeated while links and nodes are up."""
    run = Chaos(seed, generation, config=NARROW, elide_idle=elide_idle).run()
    assert run.complaints() == []
    assert sum(len(run.acked[partition]) for partition in PARTITIONS) > 0


def test_a_follower_far_behind_catches_up_within_the_fetch_limits() -> None:
    behind = 200
    bench = Bench(config={"replica.fetch.response.max.bytes": 500})
    bench.cluster.crash(2, KEEP)
    bench.run_until(20_000)
    written = [bench.produce(acks=1) for _ in range(behind)]
    bench.run_until(30_000)
    watch = Watch(bench, "fetched")
    bench.cluster.start(2)
    bench.run_until(60_000)
    assert 2 in bench.state.isr
    assert all(bench.holds(2, number) for number in written)
    steps = [trace.log_end for _, node, trace in watch.seen if node == 2]
    assert len(steps) > behind * BATCH_OVERHEAD_BYTES // 500, "no message brings more than allowed"


@pytest.mark.parametrize("loss", [Loss("none"), Loss("all")], ids=["keeps its log", "comes back empty"])
def test_a_follower_below_the_leaders_log_start_starts_again_there(loss: Loss) -> None:
    topic = {"segment.bytes": 300, "retention.bytes": 900}
    bench = Bench(config={"log.retention.check.interval.ms": 5_000}, topic=topic)
    bench.produce()
    bench.run_until(4_000)
    bench.cluster.crash(2, loss)
    bench.run_until(20_000)
    for _ in range(100):
        bench.produce()
    bench.run_until(40_000)
    leader = bench.replica(0).log
    assert leader.start_offset > 1
    watch = Watch(bench, "reset")
    bench.cluster.start(2)
    bench.run_until(80_000)
    assert [node for _, node, _ in watch.seen] == [2]
    follower = bench.replica(2).log
    assert 2 in bench.state.isr
    assert (follower.start_offset, follower.end_offset) == (leader.start_offset, leader.end_offset)
    start = leader.start_offset
    assert list(follower.storage.read(start, 1 << 20)) == list(leader.storage.read(start, 1 << 20))
    assert follower.high_watermark == leader.high_watermark == leader.end_offset
