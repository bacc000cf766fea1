"""Nodes of the store that an operator has changed, damaged or deleted: alerts, no silent stop, and nothing is lost."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.events.store import StoreAlert
from protocol.ids import STORE, TopicPartition
from protocol.messages.store import Create, Delete, SetData, WriteOperation
from protocol.v3.store import paths
from protocol.v3.store.node import StoreNode
from tests.sim.v3_cluster_helpers import KEEP, T0, V3Bench

STATE = paths.leader_and_isr(T0)
DAMAGE = b"?"


def store(bench: V3Bench) -> StoreNode:
    node = bench.cluster.nodes[STORE]
    assert isinstance(node, StoreNode)
    return node


def data(bench: V3Bench, path: str) -> bytes:
    node = store(bench).state.tree.find(path)
    assert node is not None
    return node.data


def change(bench: V3Bench, operation: WriteOperation) -> None:
    """An operator's write, in the name of a session that is there."""
    node = store(bench)
    decided = node.state.decide(min(node.state.sessions), (operation,))
    assert not decided.results[-1].error
    node._commit(bench.cluster.now_ms, decided)
    bench.cluster._carry_out(STORE, node._out.drain(), bench.cluster.now_ms)


def alerts(bench: V3Bench) -> list[str]:
    return [trace.reason for _, _, trace in bench.seen("store_alert") if isinstance(trace, StoreAlert)]


def followers(bench: V3Bench) -> tuple[int, int]:
    """The leader of t-0, and a follower that is not the controller."""
    leader = bench.state.leader
    return leader, next(broker for broker in (0, 1, 2) if broker not in (leader, bench.controller))


def test_a_leader_goes_on_from_a_version_that_it_has_not_written() -> None:
    """Each of its writes finds another version for a while: each raises an alert, and the ISR shrinks afterwards."""
    bench = V3Bench(seed=1)
    leader, follower = followers(bench)
    bench.cut(leader, follower)
    for _ in range(450):
        change(bench, SetData(path=STATE, data=data(bench, STATE)))
        bench.run_for(100)
    storm = [text for text in alerts(bench) if text.startswith(f"{STATE}: found version ")]
    bench.run_for(40_000)
    assert storm
    assert len(storm) <= 5, "attempts are as far apart as those of a leader always are"
    assert bench.state.isr == tuple(broker for broker in (0, 1, 2) if broker != follower)
    produced = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(produced)


def test_a_damaged_state_costs_its_own_partition_only() -> None:
    bench = V3Bench(replicas=((0, 1, 2), (1, 2, 0)))
    change(bench, SetData(path=STATE, data=DAMAGE))
    bench.cluster.crash(2, KEEP)
    bench.run_for(15_000)
    assert [text[:50] for text in alerts(bench)] == [f"damaged node {STATE}: found b'?'; allowed"[:50]]
    assert data(bench, STATE) == DAMAGE
    assert set(bench.engine.store_view().partitions) == {TopicPartition("t", 1)}
    assert set(bench.state_of(1).isr) == {0, 1}
    produced = bench.produce(partition=1)
    bench.run_for(1_000)
    assert bench.acked(produced)


@pytest.mark.parametrize("path", [paths.CONTROLLER_EPOCH, paths.CONTROLLER])
def test_an_election_waits_until_its_nodes_are_repaired(path: str) -> None:
    bench = V3Bench()
    controller, before = bench.controller, data(bench, path)
    change(bench, SetData(path=path, data=DAMAGE))
    if path == paths.CONTROLLER_EPOCH:
        bench.cluster.crash(controller, KEEP)
    bench.run_for(20_000)
    assert bench.engine.active_controller() is None
    assert len(alerts(bench)) == (2 if path == paths.CONTROLLER_EPOCH else 3), "one of each broker"
    assert all(text.startswith(f"damaged node {path}: found b'?'; allowed: ") for text in alerts(bench))
    change(bench, SetData(path=path, data=before))
    bench.run_for(10_000)
    assert (bench.controller == controller) is (path == paths.CONTROLLER)
    produced = bench.produce()
    bench.run_for(2_000)
    assert bench.acked(produced)


@pytest.mark.parametrize("updates", ["leader", "controller"])
@pytest.mark.parametrize("crashed", ["the controller", "another broker"])
def test_a_state_that_is_gone_is_reported_and_no_replica_is_deleted(crashed: str, updates: str) -> None:
    """Neither does a controller take the partition for a new one, nor does an INIT leave it out."""
    bench = V3Bench(config={"inter.broker.protocol.isr.updates": updates})
    produced = bench.produce()
    bench.run_for(1_000)
    assert bench.acked(produced)
    victim = bench.controller if crashed == "the controller" else followers(bench)[1]
    change(bench, Delete(path=STATE))
    bench.cluster.crash(victim, KEEP)
    bench.run_for(15_000)
    bench.cluster.start(victim)
    bench.run_for(5_000)
    path = paths.partition(T0)
    assert alerts(bench) == [f"damaged node {STATE}: found b''; allowed: a node, since {path} exists"]
    assert T0 not in bench.engine.store_view().partitions
    logs = [bench.cluster.disks[broker].log_names() for broker in (0, 1, 2)]
    assert [len(names) for names in logs] == [1, 1, 1]


@pytest.mark.parametrize(
    ("path", "alert"),
    [
        ("/unknown", None),
        (f"{paths.BROKER_IDS}/x", "damaged node /brokers/ids/x: found b''; allowed: JSON of "),
        (f"{paths.TOPICS}/x", "damaged node /brokers/topics/x: found b''; allowed: JSON of "),
        (f"{paths.ADDED}/x", None),
    ],
)
def test_an_unknown_node_changes_nothing(path: str, alert: str | None) -> None:
    bench = V3Bench()
    change(bench, Create(path=path))
    bench.cluster.crash(bench.controller, KEEP)
    bench.run_for(20_000)
    assert all(text.startswith(alert) for text in alerts(bench)) if alert else not alerts(bench)
    assert bool(alerts(bench)) is (alert is not None)
    produced = bench.produce()
    bench.run_for(2_000)
    assert bench.error(produced) is ErrorCode.NONE
