"""Administration of generation `v3` on the simulator: topics, partitions, and a cluster whose ISR updates change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.engines.admin_requests import (
    add_partitions,
    alter_config,
    create_topic,
    delete_topic,
    elect_leader,
    reassign,
    remove_partitions,
)
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import TopicPartition
from protocol.messages.partitions import ElectionType
from tests.sim.v3_cluster_helpers import KEEP, V3Bench


@pytest.mark.covers("A18", "A20", "A28")
def test_a_deleted_topic_leaves_no_replica_and_can_be_created_again() -> None:
    bench = V3Bench()
    old = bench.produce()
    bench.run_for(1_000)
    deleted = bench.administer(delete_topic("t"))
    bench.run_for(3_000)
    assert bench.error(deleted) is ErrorCode.NONE
    assert all(bench.cluster.disks[broker].log_names() == [] for broker in range(3))
    bench.administer(create_topic("t", ((2, 1, 0),), {}))
    bench.run_for(2_000)
    assert bench.state.leader == 2
    assert not any(bench.holds(broker, old) for broker in range(3))
    new = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(new)


@pytest.mark.covers("A34", "M36")
@pytest.mark.parametrize("removes_topic", [True, False])
def test_a_replica_of_a_former_target_of_a_reassignment_is_stopped_with_its_partition(removes_topic: bool) -> None:
    """Brokers 2 and 3 cannot fetch, so that neither move completes; the second takes the place of the first."""
    bench = V3Bench(brokers=4, replicas=((0, 1), (0, 1)))
    for target in (2, 3):
        bench.cut(0, target)
        bench.administer(reassign("t", 1, (0, target)))
        bench.run_for(2_000)
    assert all(len(bench.cluster.disks[broker].log_names()) == 1 for broker in (2, 3))
    bench.administer(delete_topic("t") if removes_topic else remove_partitions("t", (1,)))
    bench.run_for(5_000)
    assert all(bench.cluster.disks[broker].log_names() == [] for broker in (2, 3))


@pytest.mark.covers("A24", "A34", "A36", "M36")
def test_a_broker_that_was_down_deletes_the_logs_of_a_deleted_topic() -> None:
    bench = V3Bench()
    down = next(broker for broker in range(3) if broker != bench.controller)
    bench.produce()
    bench.run_for(1_000)
    bench.cluster.crash(down, KEEP)
    bench.run_for(9_000)
    bench.administer(delete_topic("t"))
    bench.run_for(3_000)
    assert bench.cluster.disks[down].log_names()
    bench.cluster.start(down)
    bench.run_for(5_000)
    assert bench.cluster.disks[down].log_names() == []


@pytest.mark.covers("A9", "A21")
def test_partitions_are_added_and_removed_through_their_admin_paths() -> None:
    bench = V3Bench()
    bench.administer(add_partitions("t", 1, ((1, 2), (2, 0))))
    bench.run_for(3_000)
    assert [bench.state_of(index).leader for index in range(3)] == [0, 1, 2]
    written = bench.produce(partition=2)
    bench.run_for(1_000)
    assert bench.acked(written)
    bench.administer(remove_partitions("t", (2,)))
    bench.run_for(3_000)
    assert TopicPartition("t", 2) not in bench.engine.store_view().partitions
    assert all(bench.broker(broker).context.replica_named("t", 2) is None for broker in range(3))
    bench.administer(add_partitions("t", 2, ((2, 0),)))
    bench.run_for(3_000)
    assert bench.state_of(2).leader_epoch > 0, "above the epochs of the removed partition"
    assert not bench.holds_in(2, 2, written)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (create_topic("t", ((0, 1),), {}), ErrorCode.TOPIC_ALREADY_EXISTS),
        (create_topic("u", ((0, 7),), {}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (create_topic("a b", ((0,),), {}), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (delete_topic("nothing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (reassign("t", 0, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (reassign("t", 0, (0, 1), may_change_factor=False), ErrorCode.INVALID_REPLICATION_FACTOR),
        (reassign("t", 5, (0, 1)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (remove_partitions("t", (0,)), ErrorCode.INVALID_PARTITIONS),
        (alter_config("t", {"min.insync.replicas": 2}), ErrorCode.UNSUPPORTED_VERSION),
        (elect_leader("t", 0, ElectionType.PREFERRED, None), ErrorCode.ELECTION_NOT_NEEDED),
        (elect_leader("t", 0, ElectionType.LONGEST_LOG_PROACTIVE, None), ErrorCode.UNSUPPORTED_VERSION),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_answered_with_its_error(request_: object, error: ErrorCode) -> None:
    bench = V3Bench()
    answered = bench.administer(request_)  # type: ignore[arg-type]
    bench.run_for(2_000)
    assert bench.error(answered) is error


@pytest.mark.covers("A14", "C3", "C7", "N12")
def test_an_unclean_election_is_marked_and_its_leader_clears_the_mark() -> None:
    bench = V3Bench(replicas=((0, 1),))
    bench.cluster.crash(1, KEEP)
    bench.run_for(9_000)
    assert bench.state.isr == (0,)
    bench.cluster.crash(0, KEEP)
    bench.run_for(9_000)
    assert bench.state.leader == -1, "no assigned replica is alive, and clients can see that (A15)"
    bench.cluster.start(1)
    bench.run_for(5_000)
    marked = [trace for _, _, trace in bench.seen("store_changed") if '"is_unclean_leader":true' in str(trace)]
    assert marked
    assert (bench.state.leader, bench.state.isr) == (1, (1,))
    assert not bench.state.leader_recovery_state


@pytest.mark.covers("K13", "N4")
def test_a_cluster_in_which_some_leaders_write_and_some_ask_the_controller() -> None:
    """A rolling restart brings the config that lets the controller write; followers leave and join in between."""
    bench = V3Bench(replicas=((0, 1, 2), (1, 2, 0), (2, 0, 1)), config={"replica.lag.time.max.ms": 4_000}, topic={})
    values = {"replica.lag.time.max.ms": 4_000, "inter.broker.protocol.isr.updates": "controller"}
    for restarted in range(3):
        bench.cluster.crash(restarted, KEEP)
        bench.run_for(9_000)
        bench.cluster.spec = replace(bench.cluster.spec, config=ClusterConfig.of(Generation.V3, values))
        bench.cluster.start(restarted)
        bench.run_for(15_000)
        for leader, silent in ((0, 1), (1, 2), (2, 0)):
            bench.cut(leader, silent)
        bench.run_for(8_000)
        bench.engine.heal_links()
        bench.run_for(70_000)
        for partition in range(3):
            assert sorted(bench.state_of(partition).isr) == [0, 1, 2]
            leadership = bench.replica(bench.state_of(partition).leader, partition).leadership
            assert leadership is not None
            assert leadership.partition_epoch == bench.state_of(partition).partition_epoch
        written = [bench.produce(partition=partition) for partition in range(3)]
        bench.run_for(2_000)
        assert all(bench.acked(number) for number in written)
