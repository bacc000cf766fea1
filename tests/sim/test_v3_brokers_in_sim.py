"""Generation `v3` end to end on the simulator: brokers, a store, and a controller that is one of the brokers."""

from __future__ import annotations

import pytest

from experiments.engines.admin_requests import reassign
from experiments.engines.port import Loss
from protocol.broker.lifecycle import LifecycleState
from protocol.errors import ErrorCode
from protocol.events.broker import LogTruncated
from protocol.events.store import CommandCarriedOut, ControllerDeposed, ControllerElected
from protocol.ids import STORE
from protocol.messages.base import Message
from protocol.messages.commands import ShutdownCommand
from protocol.messages.v3 import LeaderAndIsrRequest
from tests.sim.v3_cluster_helpers import KEEP, V3Bench

EXPIRED_MS = 9_000
"""A session of a crashed broker has expired, and its partitions have failed over."""


def followers_of(bench: V3Bench) -> list[int]:
    return [broker for broker in range(3) if broker != bench.state.leader]


def test_what_is_produced_with_any_acks_is_replicated_and_read() -> None:
    bench = V3Bench()
    written = [bench.produce(acks) for acks in (-1, 1, -1)]
    bench.run_for(1_000)
    assert all(bench.acked(number) for number in written)
    assert sorted(bench.consume()) == [str(number).encode() for number in written]
    assert all(bench.holds(broker, number) for broker in range(3) for number in written)


@pytest.mark.covers("A10")
def test_a_replica_has_log_high_watermark_and_role_and_the_leader_the_stored_state() -> None:
    bench = V3Bench()
    bench.produce()
    bench.run_for(1_000)
    leader = bench.state.leader
    for broker in range(3):
        replica = bench.replica(broker)
        assert (replica.name.topic, replica.name.partition) == ("t", 0)
        assert (replica.log.end_offset, replica.log.high_watermark) == (1, 1)
        assert (replica.leadership is not None, replica.leader_epoch) == (broker == leader, bench.state.leader_epoch)
    leadership = bench.replica(leader).leadership
    assert leadership is not None
    assert (leadership.replicas, leadership.isr) == (bench.state.replicas, bench.state.isr)
    assert leadership.partition_epoch == bench.state.partition_epoch, "the version of its path in the store"


@pytest.mark.covers("A1", "A11", "A17", "A24")
def test_one_broker_is_the_controller_and_its_first_command_to_each_broker_is_init() -> None:
    bench = V3Bench()
    elected = bench.seen("controller_elected")
    assert [node for _, node, _ in elected] == [bench.controller]
    first: dict[int, CommandCarriedOut] = {}
    for _, node, trace in bench.seen("command"):
        assert isinstance(trace, CommandCarriedOut)
        first.setdefault(node, trace)
    assert sorted(first) == [0, 1, 2]
    assert all(trace.is_init and trace.controller == bench.controller for trace in first.values())


@pytest.mark.covers("M42", "N1")
def test_followers_truncate_nothing_while_their_leader_stays() -> None:
    bench = V3Bench()
    written = [bench.produce() for _ in range(3)]
    bench.run_for(2_000)
    assert all(bench.holds(broker, command) for broker in range(3) for command in written)
    assert bench.seen("truncated") == []


@pytest.mark.covers("A13", "A16", "A27", "A36")
def test_a_crashed_leader_is_replaced_and_comes_back_as_a_follower() -> None:
    bench = V3Bench()
    leader = next(broker for broker in range(3) if broker != bench.controller)
    if bench.state.leader != leader:
        bench = V3Bench(replicas=((leader, *(b for b in range(3) if b != leader)),))
    before = bench.produce()
    bench.run_for(1_000)
    epoch = bench.state.leader_epoch
    bench.cluster.crash(leader, KEEP)
    bench.run_for(EXPIRED_MS)
    assert bench.state.leader != leader
    assert bench.state.leader_epoch == epoch + 1
    assert leader not in bench.state.isr
    after = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(after)
    commands = len([node for _, node, _ in bench.seen("command") if node == leader])
    bench.cluster.start(leader)
    bench.run_for(20_000)
    assert sorted(bench.state.isr) == [0, 1, 2]
    assert bench.holds(leader, before)
    assert bench.holds(leader, after)
    assert len([node for _, node, _ in bench.seen("command") if node == leader]) > commands
    assert bench.broker(leader).state is LifecycleState.RUNNING


@pytest.mark.covers("A32", "A33", "A35", "M33")
def test_a_crashed_controller_is_replaced_by_another_broker_with_a_larger_epoch() -> None:
    bench = V3Bench()
    former = bench.controller
    written = bench.produce()
    bench.run_for(1_000)
    bench.cluster.crash(former, KEEP)
    bench.run_for(EXPIRED_MS)
    assert bench.controller != former
    epochs = [trace.epoch for _, _, trace in bench.seen("controller_elected") if isinstance(trace, ControllerElected)]
    assert epochs == [1, 2]
    assert bench.engine.store_view().controller_epoch == 2
    assert former not in bench.state.isr
    assert bench.state.leader in bench.state.isr
    later = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(later)
    bench.cluster.start(former)
    bench.run_for(20_000)
    assert bench.controller != former
    assert sorted(bench.state.isr) == [0, 1, 2]
    assert bench.holds(former, written)
    assert bench.holds(former, later)


@pytest.mark.covers("A46", "A47", "A48", "B2")
def test_a_silent_follower_leaves_the_isr_by_a_write_of_the_leader_and_joins_again() -> None:
    bench = V3Bench(config={"replica.lag.time.max.ms": 5_000})
    bench.produce()
    bench.run_for(1_000)
    leader, version = bench.state.leader, bench.state.partition_epoch
    silent = followers_of(bench)[-1]
    bench.cut(leader, silent)
    last = bench.produce()
    bench.run_for(4_000)
    assert not bench.acked(last), "the ISR has not been written yet"
    bench.run_for(6_000)
    assert silent not in bench.state.isr
    assert (bench.state.leader, bench.state.leader_epoch) == (leader, 0), "an ISR change has no leader epoch"
    assert bench.state.partition_epoch == version + 1
    assert bench.acked(last)
    assert any("/isr_change_notification/" in str(trace) for _, _, trace in bench.seen("store_changed"))
    bench.cut(leader, silent, up=True)
    bench.run_for(20_000)
    assert sorted(bench.state.isr) == [0, 1, 2]
    assert bench.holds(silent, last)
    leadership = bench.replica(leader).leadership
    assert leadership is not None
    assert leadership.partition_epoch == bench.state.partition_epoch


@pytest.mark.covers("K12", "B22", "H12")
@pytest.mark.parametrize("role", ["leader", "controller"])
def test_the_isr_is_written_by_whom_the_config_says(role: str) -> None:
    bench = V3Bench(config={"replica.lag.time.max.ms": 5_000, "inter.broker.protocol.isr.updates": role})
    leader = bench.state.leader
    silent = next(broker for broker in followers_of(bench) if broker != bench.controller)
    assert leader != bench.controller
    seen: list[tuple[int, int, str]] = []

    def observe(source: int, target: int, message: Message) -> None:
        seen.append((source, target, type(message).__name__))

    bench.cluster.on_message = observe
    bench.cut(leader, silent)
    bench.run_for(12_000)
    assert silent not in bench.state.isr
    bench.cut(leader, silent, up=True)
    bench.run_for(20_000)
    assert sorted(bench.state.isr) == [0, 1, 2]
    notified = any("/isr_change_notification/" in str(trace) for _, _, trace in bench.seen("store_changed"))
    assert notified is (role == "leader")
    assert ((leader, bench.controller, "AlterPartitionRequest") in seen) is (role == "controller")


@pytest.mark.covers("B5")
def test_commands_of_the_only_writer_are_never_older_than_the_store() -> None:
    """While the ISR shrinks and grows, each LeaderAndIsr has the state that the store has when it is sent."""
    bench = V3Bench(config={"replica.lag.time.max.ms": 5_000, "inter.broker.protocol.isr.updates": "controller"})
    sent: list[tuple[int, tuple[int, ...]]] = []
    published: list[tuple[int, tuple[int, ...]]] = []

    def observe(source: int, target: int, message: Message) -> None:
        if isinstance(message, LeaderAndIsrRequest):
            for item in message.partitions:
                if item.partition_id == 0:
                    sent.append((item.version, item.isr))
                    published.append((bench.state.partition_epoch, bench.state.isr))

    bench.cluster.on_message = observe
    leader, silent = bench.state.leader, next(b for b in followers_of(bench) if b != bench.controller)
    bench.cut(leader, silent)
    bench.run_for(12_000)
    bench.cut(leader, silent, up=True)
    bench.run_for(20_000)
    assert {len(isr) for _, isr in sent} == {2, 3}
    assert sent == published


@pytest.mark.covers("A52", "M39")
def test_a_live_leader_whose_session_expires_loses_its_role_and_registers_again() -> None:
    bench = V3Bench()
    leader = bench.state.leader
    first = bench.produce()
    bench.run_for(1_000)
    former = bench.broker(leader).context.broker_epoch
    bench.engine.expire_sessions(leader)
    bench.run_for(5_000)
    assert bench.broker(leader).context.broker_epoch > former
    assert bench.engine.store_view().brokers[leader].broker_epoch == bench.broker(leader).context.broker_epoch
    assert bench.state.leader_epoch > 0
    bench.run_for(20_000)
    assert sorted(bench.state.isr) == [0, 1, 2]
    last = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(last)
    assert all(bench.holds(broker, number) for broker in range(3) for number in (first, last))


@pytest.mark.covers("M34", "A35")
def test_a_controller_whose_session_expires_is_deposed() -> None:
    bench = V3Bench()
    former = bench.controller
    bench.engine.expire_sessions(former)
    bench.run_for(5_000)
    deposed = [
        trace.epoch for _, node, trace in bench.seen("controller_deposed") if isinstance(trace, ControllerDeposed)
    ]
    assert deposed == [1]
    assert bench.engine.store_view().controller_epoch == 2
    assert bench.broker(bench.controller).controller.term is not None
    assert sum(bench.broker(broker).controller.term is not None for broker in range(3)) == 1


@pytest.mark.covers("A2", "M39")
def test_an_outage_of_the_store_stops_elections_and_not_the_data() -> None:
    bench = V3Bench()
    bench.cluster.crash(STORE, Loss("unflushed"))
    bench.run_for(60_000)
    written = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(written)
    bench.cluster.start(STORE)
    bench.run_for(20_000)
    assert sorted(bench.engine.store_view().brokers) == [0, 1, 2]
    assert sorted(bench.state.isr) == [0, 1, 2]
    bench.cluster.crash(bench.state.leader, KEEP)
    bench.run_for(2 * EXPIRED_MS)
    assert bench.acked(bench.produce()) or bench.state.leader in bench.state.isr


@pytest.mark.covers("N1", "A27")
def test_a_follower_truncates_to_its_own_high_watermark() -> None:
    """The leader has records that no follower has; it comes back as a follower."""
    bench = V3Bench(config={"replica.lag.time.max.ms": 60_000})
    bench.produce()
    bench.run_for(1_000)
    leader = bench.state.leader
    for follower in followers_of(bench):
        bench.cut(leader, follower)
    lost = bench.produce(acks=1)
    bench.run_for(100)
    assert bench.holds(leader, lost)
    bench.cluster.crash(leader, KEEP)
    for follower in followers_of(bench):
        bench.cut(leader, follower, up=True)
    bench.run_for(EXPIRED_MS)
    bench.cluster.start(leader)
    bench.run_for(20_000)
    truncated = [trace for _, node, trace in bench.seen("truncated") if node == leader]
    assert truncated
    assert all(isinstance(trace, LogTruncated) and trace.to_offset == trace.high_watermark for trace in truncated)
    assert not bench.holds(leader, lost)
    assert sorted(bench.state.isr) == [0, 1, 2]


@pytest.mark.covers("A37", "A39", "A40", "A41")
def test_a_reassignment_moves_a_partition_and_its_leader() -> None:
    bench = V3Bench(brokers=4)
    written = bench.produce()
    bench.run_for(1_000)
    answered = bench.administer(reassign("t", 0, (3, 1)))
    bench.run_for(60_000)
    assert bench.error(answered) is ErrorCode.NONE
    assert (bench.state.replicas, sorted(bench.state.isr)) == ((3, 1), [1, 3])
    assert bench.state.leader in (1, 3)
    assert bench.holds(3, written)
    assert bench.broker(0).context.replica_named("t", 0) is None
    assert bench.cluster.disks[0].log_names() == []
    later = bench.produce()
    bench.run_for(2_000)
    assert bench.acked(later)


@pytest.mark.covers("B3")
def test_a_controlled_shutdown_moves_the_leadership_before_the_broker_stops() -> None:
    bench = V3Bench()
    leader = bench.state.leader
    bench.produce()
    bench.run_for(1_000)
    bench.cluster.command(leader, ShutdownCommand())
    bench.run_for(1_000)
    assert leader not in bench.cluster.nodes
    assert bench.state.leader != leader
    assert leader not in bench.state.isr
    assert leader not in bench.engine.store_view().brokers


@pytest.mark.parametrize("options", [{"elide_idle": False}, {"paranoid": True}])
def test_elided_timers_and_the_codec_change_nothing(options: dict[str, bool]) -> None:
    def run(**given: bool) -> str:
        bench = V3Bench(seed=3, **given)
        bench.produce()
        bench.run_for(30_000)
        bench.cluster.crash(bench.state.leader, KEEP)
        bench.run_for(30_000)
        bench.produce()
        bench.run_for(5_000)
        return bench.engine.trace_hash()

    assert run() == run(**options)
