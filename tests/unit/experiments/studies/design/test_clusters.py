"""Whole clusters in study files: whose values hold, which partitions are alike, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.studies.design.cluster import Cluster
from experiments.studies.design.loader import study_from
from experiments.studies.design.placement import racks_of, simulated_partitions
from experiments.studies.design.study import StudyPlan
from experiments.support.errors import InputError

RACKS = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
TOPICS = [{"name": "orders", "partitions": 30}, {"name": "logs", "partitions": 10, "acks": 1}]
CLUSTER = {"brokers": 6, "racks": RACKS, "placement": "rack-aware", "topics": TOPICS}
DESCRIBED = """Topic: orders\tPartitionCount: 3\tReplicationFactor: 2\tConfigs: min.insync.replicas=2
\tTopic: orders\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2
\tTopic: orders\tPartition: 1\tLeader: 2\tReplicas: 2,1\tIsr: 2,1
\tTopic: orders\tPartition: 2\tLeader: 1\tReplicas: 1,2\tIsr: 1,2
Topic: logs\tPartitionCount: 1\tReplicationFactor: 2\tConfigs:
\tTopic: logs\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2
"""


def plan_of(cluster: dict[str, Any], folder: Path = Path(), **fields: Any) -> StudyPlan:
    return study_from({"name": "c", "trials": 1, "base": {"cluster": cluster}} | fields, "s.yaml", folder=folder)


def cluster_of(*given: Any, **fields: Any) -> Cluster:
    found = plan_of(*given, **fields).cells[0].parameters.cluster
    assert found is not None
    return found


def test_a_cluster_sets_the_sizes_and_its_partitions_are_classes() -> None:
    params = plan_of(CLUSTER).cells[0].parameters
    cluster = params.cluster
    assert cluster is not None
    assert (params.brokers, params.partitions, params.replication_factor, params.racks) == (6, 40, 3, 3)
    assert racks_of(params) == [(0, 1), (2, 3), (4, 5)]
    assert sum(params.counts) == 40
    assert len(set(cluster.classes)) == len(cluster.classes) == len(simulated_partitions(params))
    assert all(len({broker // 2 for broker in each.replicas}) == 3 for each in cluster.classes), "one in each rack"
    assert {each.acks for each in cluster.classes} == {"all", "1"}
    assert plan_of(CLUSTER).objective == "incidents_per_year"
    assert plan_of(CLUSTER).topics == ("orders", "logs")


def test_equal_partitions_of_a_described_cluster_are_one_class(tmp_path: Path) -> None:
    """orders-0, orders-2 and logs-0 have the replicas 1, 2 in this order; orders-1 has them in the other one. min ISR
    is 2 in the file for orders, and the default of 2 for logs, so three partitions are alike."""
    (tmp_path / "d.txt").write_text(DESCRIBED)
    cluster = cluster_of({"placement": "d.txt"}, tmp_path)
    assert cluster.brokers == (1, 2)
    assert cluster.topics == ("logs", "orders")
    found = {each.replicas: (each.size, each.min_insync_replicas, each.members) for each in cluster.classes}
    assert found == {(0, 1): (3, 2, ((0, 1, 0), (1, 2, 0))), (1, 0): (1, 2, ((1, 1, 1),))}
    assert cluster.replica_sets == 1
    assert cluster.name_of(0) == "logs-0 and 2 more"


def test_recorded_failures_of_a_cluster_name_the_ids_of_its_brokers(tmp_path: Path) -> None:
    """The brokers 1 and 2 have the numbers 0 and 1 in a trial."""
    (tmp_path / "d.txt").write_text(DESCRIBED)
    log = tmp_path / "log.csv"
    given = {"cluster": {"placement": "d.txt"}, "failures": "log.csv"}
    log.write_text("node,down_ms,up_ms,kind\n2,0,90000000,unclean\n1,5,7,lossy\n")
    params = plan_of({}, tmp_path, base=given, duration="1d").cells[0].parameters
    assert params.failures is not None
    assert [(outage.node, outage.kind) for outage in params.failures.outages] == [(1, "unclean"), (0, "lossy")]
    log.write_text("node,down_ms,up_ms,kind\n0,0,90000000,unclean\n")
    with pytest.raises(InputError, match="line 2: found node 0; allowed: a broker of the cell, 1, 2"):
        plan_of({}, tmp_path, base=given, duration="1d")


@pytest.mark.parametrize(
    ("topics", "fields", "least"),
    [
        ([], {}, {"orders": 2, "logs": 2}),
        ([], {"sweep": {"min_insync_replicas": [1]}}, {"orders": 1, "logs": 1}),
        ([{"name": "orders", "min_insync_replicas": 2}], {"min_insync_replicas": 1}, {"orders": 2, "logs": 1}),
    ],
    ids=["the file's and the default", "a swept value", "the topic's own"],
)
def test_whose_min_isr_holds(
    topics: list[object], fields: dict[str, object], least: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "d.txt").write_text(DESCRIBED)
    cluster = cluster_of({"placement": "d.txt", "topics": topics}, tmp_path, **fields)
    found = {cluster.topics[topic]: each.min_insync_replicas for each in cluster.classes for topic, *_ in each.members}
    assert found == least


def test_the_content_of_the_file_is_part_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text(DESCRIBED)
    before = plan_of({"placement": "d.txt"}, tmp_path)
    assert before.source["files"] == {"d.txt": DESCRIBED}
    (tmp_path / "d.txt").write_text(DESCRIBED.replace("Replicas: 2,1\tIsr: 2,1", "Replicas: 1,2\tIsr: 1,2"))
    after = plan_of({"placement": "d.txt"}, tmp_path)
    assert after.cells[0].parameters != before.cells[0].parameters
    again = study_from(before.source, "s.yaml", folder=tmp_path / "gone")
    assert again.cells == before.cells


def test_a_reassignment_is_a_placement_too(tmp_path: Path) -> None:
    moves = [{"topic": "t", "partition": index, "replicas": [index, 1 - index]} for index in range(2)]
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "partitions": moves}))
    cluster = cluster_of({"placement": "r.json", "brokers": 2, "racks": {"0": "a", "1": "b"}}, tmp_path)
    assert [each.replicas for each in cluster.classes] == [(0, 1), (1, 0)]
    assert cluster.racks == ("a", "b")


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        ({}, {"brokers": 6}, "s.yaml: base.brokers: found a value, and a cluster; allowed: no brokers beside cluster"),
        (
            {},
            {"partitions": 3},
            "base.partitions: found 3; allowed: no partitions beside a cluster that gives it",
        ),
        ({}, {"acks": "all", "placement": "spread"}, "base.placement: found a value, and a cluster"),
        ({"racks": {"a": [0, 1], "b": [2]}}, {}, "racks of 3 of 6 brokers, without broker 3; allowed"),
        ({"racks": {"a": [0, 1, 2, 3, 4, 5, 6]}}, {}, "a rack of broker 6; allowed: 6 brokers"),
        ({"racks": {"a": [0, 1], "b": [1]}}, {}, "cluster.racks.b: found broker 1 twice; allowed: each broker once"),
        ({"topics": TOPICS * 2}, {}, "base.cluster.topics: found topic 'orders' twice; allowed: each topic once"),
        ({"topics": []}, {}, "no topic; allowed: one or more with placement rack-aware"),
        ({"topics": [{"name": "x", "replication_factor": 7}]}, {}, "topic 'x'; allowed: a replication factor from 1"),
        ({"topics": [{"name": "x", "size": 7}]}, {}, "an unknown key"),
        ({"scatter_width": 4}, {}, "base.cluster.scatter_width: found 4; allowed: with placement copysets only"),
        ({}, {"engine": "ray", "duration": "1h"}, "sim with cluster: whole clusters are simulated"),
        ({}, {"estimator": "splitting"}, "plain or multifidelity with cluster"),
        ({}, {"reassignments": {"per_year": 1}}, "none with cluster: a move takes one partition"),
        ({}, {"sweep": {"cluster": ["none", CLUSTER]}}, "none in cell 0; allowed: a cluster in all cells, or in none"),
        ({"placement": "d.txt", "topics": [{"name": "ordres"}]}, {}, "topic 'ordres'. Did you mean 'orders'?"),
        (
            {"placement": "d.txt", "topics": [], "brokers": 2, "racks": {"a": [1, 3]}},
            {},
            "d.txt: partition 0 of 'logs': found broker 2; allowed: a broker of the cluster: 1, 3",
        ),
        ({"placement": "d.txt", "topics": []}, {"replication_factor": 3}, "base.replication_factor: found 3"),
        ({"placement": "cut.txt", "topics": []}, {}, "cut.txt: line 1: found 1 of 3 partitions of 'orders'"),
        ({"placement": "none.txt", "topics": []}, {}, "none.txt"),
        (
            {"placement": "d.txt", "topics": [], "brokers": 2, "racks": {"a": [1]}},
            {},
            "cluster.racks: found racks of 1 of 2 brokers, without broker 2; allowed: a rack for each broker",
        ),
        ({"placement": "copysets", "scatter_width": 6}, {}, "scatter_width 6 with 3 replicas; allowed: at most 4"),
    ],
)
def test_what_is_refused(change: dict[str, Any], fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text(DESCRIBED)
    (tmp_path / "cut.txt").write_text("".join(DESCRIBED.splitlines(keepends=True)[:2]))
    with pytest.raises(InputError) as error:
        plan_of(CLUSTER | change, tmp_path, **fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
