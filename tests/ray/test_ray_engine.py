"""The ray engine on one Ray node: real processes, real kills, real disks; nothing is left when it is closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from actors.failures import NodeFailedError
from actors.frames import joined_frame
from experiments.engines.port import Loss
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import node_name
from tests.ray.cluster_helpers import LEAVES_WITHIN_S, T0, WITHIN_MS, ProcessPool, RunningCluster, running_cluster
from tests.strays import leaves_within


@pytest.fixture(scope="module")
def shared(pool: ProcessPool) -> Iterator[RunningCluster]:
    """One cluster for the tests that leave it whole: topic t on three brokers, min ISR 2."""
    with running_cluster(pool=pool) as cluster:
        cluster.create_topic((0, 1, 2), min_isr=2)
        yield cluster


@pytest.mark.covers("M25")
def test_killed_leader_is_replaced_and_returns_with_all_records(shared: RunningCluster) -> None:
    leader = shared.await_whole()
    others = {0, 1, 2} - {leader}
    before, epoch = shared.consumed(), shared.leader_epoch()
    assert shared.produce(b"a", b"b", b"c") == [ErrorCode.NONE] * 3
    shared.engine.crash(leader, Loss("unflushed"))
    assert not shared.engine.is_running(leader)
    assert shared.engine.replica(leader, T0) is None
    shared.await_partition("the dead leader leaves the ISR", isr=others)
    assert shared.leader_epoch() == epoch + 1
    assert shared.produce(b"d") == [ErrorCode.NONE]
    shared.engine.start(leader)
    assert shared.await_whole() in others
    shared.until(lambda: [len(shared.payloads(b)) for b in range(3)] == [len(before) + 4] * 3, "all caught up")
    assert [shared.payloads(broker) for broker in range(3)] == [[*before, b"a", b"b", b"c", b"d"]] * 3
    assert shared.consumed() == [*before, b"a", b"b", b"c", b"d"]


@pytest.mark.covers("M41")
def test_a_follower_that_is_cut_off_leaves_the_isr_and_returns_when_the_link_heals(shared: RunningCluster) -> None:
    leader = shared.await_whole()
    follower = min({0, 1, 2} - {leader})
    shared.cut(leader, follower)
    shared.await_partition("the cut follower leaves", isr={0, 1, 2} - {follower}, leader=leader)
    assert shared.produce(b"cut") == [ErrorCode.NONE]
    assert b"cut" not in shared.payloads(follower)
    shared.engine.heal_links()
    shared.await_whole()
    assert shared.payloads(follower) == shared.payloads(leader)


def test_a_cut_is_one_way(shared: RunningCluster) -> None:
    """What the follower sends still arrives, so it stays in the ISR as caught up until something is written."""
    leader = shared.await_whole()
    follower = min({0, 1, 2} - {leader})
    shared.engine.set_link(leader, follower, False)
    assert shared.produce(b"one way", acks=1) == [ErrorCode.NONE]
    shared.await_partition("the follower does not get the record", isr={0, 1, 2} - {follower}, leader=leader)
    shared.engine.set_link(leader, follower, True)
    shared.await_whole()


def test_paused_leader_is_replaced_and_truncates_its_uncommitted_record_when_it_resumes(shared: RunningCluster) -> None:
    leader = shared.await_whole()
    committed = shared.consumed()
    for follower in {0, 1, 2} - {leader}:
        shared.cut(leader, follower)
    assert shared.produce(b"lonely", acks=1) == [ErrorCode.NONE]
    process = Path(f"/proc/{shared.engine.cluster.pids()[leader]}/stat")
    shared.engine.pause(leader)
    assert shared.engine.is_running(leader)
    shared.engine.heal_links()
    shared.await_partition("the paused leader is replaced", isr={0, 1, 2} - {leader})
    assert shared.payloads(leader) == [*committed, b"lonely"]
    shared.until(lambda: process.read_text().rpartition(")")[2].split()[0] == "T", "stopped, though it was asked twice")
    assert shared.produce(b"after") == [ErrorCode.NONE]
    shared.engine.resume(leader)
    assert shared.await_whole() != leader
    assert [shared.payloads(broker) for broker in range(3)] == [[*committed, b"after"]] * 3


def test_nodes_have_the_priority_of_the_process_that_starts_them(shared: RunningCluster) -> None:
    """Ray's default, 15 lower, leaves them without processor time beside other work."""
    shared.await_whole()
    priorities = {os.getpriority(os.PRIO_PROCESS, pid) for pid in shared.engine.cluster.pids().values()}
    assert priorities == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_controlled_shutdown_of_a_broker_ends_its_process(shared: RunningCluster) -> None:
    leader = shared.await_whole()
    process = shared.engine.cluster.pids()[leader]
    shared.engine.terminate(leader)
    shared.until(lambda: not shared.engine.is_running(leader), "the broker is gone")
    assert leaves_within(process, LEAVES_WITHIN_S)
    shared.engine.start(leader)
    assert shared.await_whole() != leader


def test_a_killed_controller_comes_back_with_its_log(shared: RunningCluster) -> None:
    shared.await_whole()
    before = shared.engine.view()
    assert before is not None
    shared.engine.crash(1000, Loss("unflushed"))
    assert shared.engine.view() is None
    shared.engine.start(1000)
    shared.until(lambda: shared.engine.view() is not None, "the controller is back")
    after = shared.engine.view()
    assert after is not None
    assert T0 in after.partitions
    assert after.partitions[T0].leader_epoch >= before.partitions[T0].leader_epoch
    assert {b: r.incarnation_id for b, r in after.brokers.items()} == {
        b: r.incarnation_id for b, r in before.brokers.items()
    }
    assert shared.produce(b"go on") == [ErrorCode.NONE]


def test_malformed_bytes_are_dropped_and_no_node_fails(shared: RunningCluster) -> None:
    nodes = shared.engine.spec.node_ids
    for name in map(node_name, nodes):
        actor = ray.get_actor(name, shared.engine.cluster.run)
        for frame in (b"", b"junk", joined_frame([b"junk"]), joined_frame([])):
            ray.get([actor.deliver.remote(2, control, frame) for control in (False, True)], timeout=60)
    assert shared.produce(b"unharmed") == [ErrorCode.NONE]

    def reported() -> set[int]:
        return {event.node for event in shared.engine.traces() if event.trace.kind == "malformed"}

    shared.until(lambda: reported() == set(nodes), "every node reports malformed bytes")


def test_trace_events_are_append_only_and_change_the_digest(shared: RunningCluster) -> None:
    shared.await_whole()
    before, digest = list(shared.engine.traces()), shared.engine.trace_hash()
    shared.produce(b"traced")
    after = shared.engine.traces()
    assert list(after[: len(before)]) == before
    assert any(event.trace.kind == "produced" and event.node == 3000 for event in after[len(before) :])
    assert shared.engine.trace_hash() != digest


@pytest.fixture(scope="module")
def one_broker(private_ray: None) -> Iterator[RunningCluster]:
    """Another cluster, for crashes that cost records: topic t on one broker."""
    with running_cluster(brokers=1, generation=Generation.KIP_497) as cluster:
        cluster.create_topic((0,), min_isr=1)
        yield cluster


def test_clusters_on_one_ray_are_isolated(shared: RunningCluster, one_broker: RunningCluster) -> None:
    assert one_broker.produce(b"other") == [ErrorCode.NONE]
    assert one_broker.payloads(0) == [b"other"]
    assert b"other" not in shared.payloads(0)


@pytest.mark.parametrize(
    ("loss", "left"),
    [(Loss("none"), 6), (Loss("unflushed"), 2), (Loss("records", 1), 5), (Loss("records", 9), 2), (Loss("all"), 0)],
    ids=lambda value: getattr(value, "kind", value),
)
def test_crash_removes_the_specified_suffix_from_the_disk(one_broker: RunningCluster, loss: Loss, left: int) -> None:
    payloads = [b"%d" % number for number in range(6)]
    before = one_broker.payloads(0)
    assert one_broker.produce(*payloads[:2], acks=1) == [ErrorCode.NONE] * 2
    one_broker.engine.flush(0)
    assert one_broker.produce(*payloads[2:], acks=1) == [ErrorCode.NONE] * 4
    one_broker.engine.crash(0, loss)
    one_broker.engine.start(0)
    one_broker.await_unfenced(0)
    one_broker.until(lambda: (r := one_broker.engine.replica(0, T0)) is not None and r.leads, "broker 0 leads again")
    assert one_broker.payloads(0) == ([*before, *payloads[:left]] if left else [])


def test_a_damaged_disk_is_an_error_that_names_the_node(one_broker: RunningCluster) -> None:
    """The last test of this cluster, which has no controller afterwards."""
    one_broker.engine.crash(1000, Loss("none"))
    [log] = one_broker.engine.cluster.directory(1000).glob("logs/*/*/*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    one_broker.engine.start(1000)
    with pytest.raises(NodeFailedError, match=r"(?s)controller-1000 failed.*CorruptLogError"):
        one_broker.engine.run_until(lambda: False, WITHIN_MS)
