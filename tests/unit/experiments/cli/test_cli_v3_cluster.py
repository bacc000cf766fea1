"""The tools and a cluster of generation `v3`: what works, and what is refused because v3 has no such thing."""

from __future__ import annotations

import pytest

from experiments.cli.cluster_document import cluster_document
from experiments.engines.admin_client import AdminClient
from protocol.features import Generation
from protocol.ids import TopicPartition, node_name
from tests.unit.experiments.cli.cli_helpers import CliBench, MakeBench


@pytest.fixture
def cluster(make_bench: MakeBench) -> CliBench:
    made = make_bench(Generation.V3, brokers=3)
    made.ok("topics", "--create", "--topic", "t", "--partitions", "2", "--config", "min.insync.replicas=2")
    return made


def test_topics_are_created_described_extended_and_deleted(cluster: CliBench) -> None:
    assert cluster.ok("topics", "--list").split() == ["t"]
    found = cluster.ok("topics", "--describe", "--topic", "t").splitlines()
    assert "PartitionCount: 2\tReplicationFactor: 1\tConfigs: min.insync.replicas=2" in found[0]
    assert [f"Partition: {index}\tLeader: " in line for index, line in enumerate(found[1:])] == [True, True]
    cluster.ok("topics", "--alter", "--topic", "t", "--partitions", "3")
    cluster.engine.run_for(1_000)
    assert len(cluster.ok("topics", "--describe").splitlines()) == 4
    described = cluster.ok("configs", "--describe", "--entity-type", "topics", "--entity-name", "t")
    assert "min.insync.replicas=2" in described
    cluster.ok("topics", "--delete", "--topic", "t")
    assert not cluster.ok("topics", "--list").split()


def test_a_reassignment_under_way_is_listed(cluster: CliBench) -> None:
    cluster.await_(lambda: TopicPartition("t", 0) in cluster.engine.store_view().partitions)
    assert cluster.ok("reassign-partitions", "--list") == "No partition reassignments found.\n"
    (now,) = cluster.state().replicas
    controller = cluster.engine.active_controller()
    target = next(broker for broker in (0, 1, 2) if broker not in (now, controller))
    cluster.engine.pause(target)
    AdminClient(cluster.port).alter_reassignments({TopicPartition("t", 0): (target,)})
    cluster.engine.run_for(500)
    listed = cluster.ok("reassign-partitions", "--list")
    assert f"t-0: replicas: {target},{now}. adding: {target}. removing: {now}." in listed


def test_a_broker_that_has_ended_is_shown_as_not_registered(cluster: CliBench) -> None:
    cluster.kill(next(broker for broker in (0, 1, 2) if broker != cluster.engine.active_controller()))
    started = [node_name(node) for node in cluster.engine.spec.node_ids]
    running = {node_name(node) for node in cluster.engine.spec.node_ids if cluster.engine.is_running(node)}
    found = cluster_document(AdminClient(cluster.port), running, started, (), cluster.broker_epoch)
    assert not found.healthy
    assert [row.state for row in found.brokers] == ["unfenced", "unfenced", "not registered"]


def test_status_names_the_controller_and_the_brokers_that_are_not_registered(cluster: CliBench) -> None:
    controller = cluster.engine.active_controller()
    found = cluster.json("status")
    assert (found["healthy"], found["controller"], found["controllers"]) == (True, controller, [])
    assert [(row["node"], row["state"]) for row in found["brokers"]] == [(f"broker-{b}", "unfenced") for b in (0, 1, 2)]
    lines = [line.split() for line in cluster.ok("status").splitlines()]
    assert ["store", "runs"] in lines
    assert lines[-1] == ["controller:", f"broker-{controller};", "metadata", "in", "a", "store"]


@pytest.mark.parametrize(
    ("arguments", "request_name"),
    [
        ("metadata-quorum describe --status", "DescribeQuorumRequest"),
        ("features describe", "DescribeFeaturesRequest"),
        ("acls --list", "DescribeAclsRequest"),
        (
            "configs --alter --entity-type topics --entity-name t --add-config retention.ms=5",
            "IncrementalAlterConfigsRequest",
        ),
    ],
    ids=["quorum", "features", "access control", "configs"],
)
def test_what_v3_does_not_have_is_refused_in_one_line(cluster: CliBench, arguments: str, request_name: str) -> None:
    code, out, err = cluster.run(*arguments.split())
    assert (code, out) == (1, "")
    assert err.endswith(f"UNSUPPORTED_VERSION: v3 has no {request_name}\n")
    assert err.count("\n") == 1
