"""The ray engine on three local Ray nodes with a dashboard: placement, names, metrics ports, and what close leaves."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.state import list_actors

from experiments.engines.port import Loss
from experiments.monitoring import dashboard, rules
from experiments.support.processes import orderly_signals
from protocol.errors import ErrorCode
from protocol.metrics import (
    CLUSTER_METRICS,
    FAILOVER_LATENCY,
    MANUAL_ELECTION_REQUIRED,
    OBSERVERS,
    OFFLINE,
    UNCLEAN_RECOVERY,
    UNCLEAN_RECOVERY_FINISHED,
    UNDER_MIN_ISR,
    VOTERS,
    exported,
)
from tests.promql import labels_used, series_used
from tests.ray.cluster_helpers import LEAVES_WITHIN_S, T0, RunningCluster, running_cluster
from tests.ray.command_helpers import free_port
from tests.strays import leaves_within

REPORTS_EVERY_MS = 500
"""How often a Ray node reports metrics to its port, which shows nothing new in between."""
LOOKS_EVERY_MS = 2 * REPORTS_EVERY_MS
DROPPED_AFTER_MS = 25_000
"""Longer than Ray serves a gauge that is not set again."""
STEADY = (UNDER_MIN_ISR, UNCLEAN_RECOVERY, MANUAL_ELECTION_REQUIRED, UNCLEAN_RECOVERY_FINISHED, VOTERS, OBSERVERS)
"""Metrics that do not change while all replicas are in sync."""


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[Cluster]:
    """Three Ray nodes on this machine, to which this process is connected."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "disabled")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
        environment.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()
        head = {"num_cpus": 2, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": free_port()}
        cluster = Cluster()
        try:
            cluster.add_node(**head, _system_config={"metrics_report_interval_ms": REPORTS_EVERY_MS})
            for _ in range(2):
                cluster.add_node(num_cpus=2)
            with orderly_signals():  # Ray sets a handler of its own; leaving this block restores ours
                ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared(ray_nodes: Cluster) -> Iterator[RunningCluster]:
    """A cluster shared by tests that leave all replicas in sync."""
    with running_cluster() as cluster:
        cluster.create_topic((0, 1, 2), min_isr=2)
        yield cluster


@pytest.fixture(scope="module")
def measured(shared: RunningCluster) -> RunningCluster:
    """The shared cluster with a record, another topic, and a replica that has left and joined the ISR."""
    shared.await_whole()
    assert shared.produce(b"measured") == [ErrorCode.NONE]
    shared.create_topic((1, 2), min_isr=1, name="measured")
    leave_and_join_the_isr(shared, 2)
    return shared


def test_actors_are_named_after_their_nodes_and_spread_over_ray_nodes(shared: RunningCluster) -> None:
    shared.until(lambda: all(actor.repr_name for actor in live_actors(shared)), "all actors report their names")
    actors = {actor.name: actor for actor in live_actors(shared)}
    assert set(actors) == {"broker-0", "broker-1", "broker-2", "controller-1000", "urm", "client-3000"}
    assert {actors[f"broker-{n}"].class_name for n in range(3)} == {"BrokerActor"}
    assert {actor.repr_name for actor in actors.values()} == set(actors)
    assert len({actors[f"broker-{n}"].node_id for n in range(3)}) == 3


@pytest.mark.covers("I1", "I2", "I4", "I9", "I10")
def test_metrics_are_served_on_the_ports_of_the_ray_nodes(measured: RunningCluster) -> None:
    expected = expected_series(measured)
    measured.until(lambda: is_served(measured, expected), "all metrics are served")
    assert "# HELP ray_kafka_controller_offline_partitions_count partitions: without a leader" in metric_lines()
    check_the_dashboard_and_the_rules(measured)


def expected_series(cluster: RunningCluster) -> dict[tuple[str, str], float | None]:
    """Series of the measured cluster by name and a label, with their values where these are known."""
    expected = {
        ("isray_messages_sent_total", 'type="FetchRequest"'): None,
        ("isray_produce_requests_total", 'acks="-1"'): None,
        ("isray_elections_total", 'topic="measured"'): 1.0,
        ("isray_isr_size", 'topic="measured"'): 2.0,
        ("isray_elr_size", 'topic="measured"'): 0.0,
        ("isray_high_watermark_lag", 'topic="measured"'): 0.0,
        ("kafka_log_log_end_offset", 'topic="measured"'): 0.0,
        ("kafka_server_isr_shrinks_total", 'node="broker-'): None,
        ("kafka_server_isr_expands_total", 'node="broker-'): None,
        ("kafka_server_partition_count", 'node="broker-0"'): 1.0,
        ("kafka_server_partition_count", 'node="broker-1"'): 2.0,
        ("kafka_server_leader_count", 'node="broker-2"'): 0.0,
        ("kafka_server_under_replicated_partitions", 'node="broker-1"'): 0.0,
        ("kafka_server_at_min_isr_partition_count", 'node="broker-1"'): 0.0,
        ("kafka_server_bytes_in_total", 'topic="t"'): float(len(b"measured")),
        ("kafka_server_messages_in_total", 'topic="t"'): 1.0,
        ("kafka_network_total_time_ms_count", 'request="Produce"'): None,
        ("kafka_server_raft_current_leader", 'node="broker-0"'): 1000.0,
        ("kafka_server_raft_current_leader", 'node="controller-1000"'): 1000.0,
        ("kafka_controller_active_broker_count", 'node="controller-1000"'): 3.0,
        ("kafka_controller_fenced_broker_count", 'node="controller-1000"'): 0.0,
        ("kafka_controller_global_partition_count", 'node="controller-1000"'): 2.0,
        ("kafka_controller_electable_leaders_count", 'topic="measured"'): 2.0,
        ("kafka_controller_active_controller_count", 'node="controller-1000"'): 1.0,
    }
    values = cluster.engine.metrics()
    assert tuple(values) == CLUSTER_METRICS
    expected |= {(name.replace(".", "_"), 'node="controller-1000"'): float(values[name]) for name in STEADY}
    expected |= {
        (name.replace(".", "_"), 'node="controller-1000"'): None for name in CLUSTER_METRICS if name not in STEADY
    }
    return expected


def is_served(cluster: RunningCluster, expected: dict[tuple[str, str], float | None]) -> bool:
    return missing(cluster, expected) == []


def missing(cluster: RunningCluster, expected: dict[tuple[str, str], float | None]) -> list[tuple[str, str]]:
    """The series that no port serves, or with another value."""
    lines = [line for line in metric_lines() if f'cluster="{cluster.engine.cluster.run}"' in line]
    return [
        (name, tag)
        for (name, tag), value in expected.items()
        if not any(
            line.startswith(f"ray_{name}{{") and tag in line and value in (None, float(line.split()[-1]))
            for line in lines
        )
    ]


def leave_and_join_the_isr(cluster: RunningCluster, follower: int) -> None:
    """Cuts the link from the leader of `t` to a follower until the ISR lacks it, heals it, and waits until it joins."""
    cluster.cut(0, follower)

    def has_left() -> bool:
        state = cluster.state()
        return state is not None and follower not in state.isr

    cluster.until(has_left, "the leader has removed the follower")
    cluster.engine.heal_links()
    cluster.await_whole()


def check_the_dashboard_and_the_rules(cluster: RunningCluster) -> None:
    """Every series of a query is served, with the labels by which queries group it, and every series is declared."""
    served: dict[str, set[str]] = {}
    for line in metric_lines():
        if f'cluster="{cluster.engine.cluster.run}"' in line:
            served.setdefault(line.partition("{")[0], set()).update(re.findall(r'(\w+)="', line))
    panels = [panel for panel in json.loads(dashboard.as_json())["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [rule.query for rule in (*rules.RECORDINGS, *rules.ALERTS)]
    recorded = {rule.name for rule in rules.RECORDINGS}
    for query in queries:
        names = series_used(query) - recorded
        assert names <= served.keys()
        if names:
            assert labels_used(query) <= set().union(*(served[name] for name in names))
    bases = [metric.series for metric in exported()]
    parts = ("", "_bucket", "_count", "_sum")
    assert [name for name in served if not any(name == f"{base}{part}" for base in bases for part in parts)] == []


@pytest.mark.covers("I8", "I10")
def test_a_failover_is_measured_and_an_offline_partition_is_alerted_to(ray_nodes: Cluster) -> None:
    with running_cluster(brokers=2) as cluster:
        cluster.create_topic((0, 1), min_isr=2)
        cluster.engine.crash(0, Loss("none"))
        latency = f"{FAILOVER_LATENCY}_count"
        cluster.until(lambda: cluster.engine.metrics()[latency] == 1, "broker 1 knows that it leads")
        assert cluster.engine.metrics()[UNDER_MIN_ISR] == 1
        cluster.engine.crash(1, Loss("none"))
        cluster.until(lambda: cluster.engine.metrics()[OFFLINE] == 1, "the partition has no leader")
        [alert] = [event for event in cluster.engine.traces() if event.trace.kind == "alert"]
        assert (alert.trace.partition, alert.trace.alert) == (T0, "offline_partition")

        def served() -> bool:
            parts = [f"ray_{OFFLINE.replace('.', '_')}{{", f'cluster="{cluster.engine.cluster.run}"']
            found = [line for line in metric_lines() if all(part in line for part in parts)]
            return any(float(line.split()[-1]) == 1 for line in found)

        cluster.until(served, "the metrics port shows it")


def test_the_sum_of_active_controllers_is_never_two_while_they_fail_over(measured: RunningCluster) -> None:
    """And for longer than Ray serves what is not set again, the last values of the killed process are gone, and all of
    another cluster, in which nothing happens, are still served."""
    with running_cluster(brokers=1, controllers=3) as cluster:
        cluster.await_unfenced(0)
        first = f"controller-{cluster.active_controller()}"
        cluster.until(lambda: active_controllers(cluster) == [first], "the port shows the first one")
        killed, successor = cluster.kill_the_active_controller()
        seen: list[list[str]] = []

        def is_shown() -> bool:
            seen.append(active_controllers(cluster))
            return seen[-1] == [f"controller-{successor}"]

        cluster.until(is_shown, "the port shows its successor")
        assert max(map(len, seen)) == 1
        assert gauges("isray_node_running", cluster)[f"controller-{killed}"] == 0
        expected = expected_series(measured)
        measured.until(lambda: is_served(measured, expected), "the other cluster's metrics are served")
        since_ms = cluster.engine.now_ms()

        def is_forgotten() -> bool:
            cluster.engine.run_for(LOOKS_EVERY_MS)
            assert active_controllers(cluster) == [f"controller-{successor}"]
            measured.until(lambda: True, "the other cluster is polled, which sets its polled metrics again")
            assert missing(measured, expected) == [], "a series is missing, though nothing has changed"
            return cluster.engine.now_ms() - since_ms > DROPPED_AFTER_MS

        cluster.until(is_forgotten, "the last values of the killed process are gone")
        assert {node: value for node, value in gauges("isray_node_running", cluster).items() if value != 1} == {
            f"controller-{killed}": 0
        }


def active_controllers(cluster: RunningCluster) -> list[str]:
    """The controllers that the metrics ports show as active."""
    found = gauges("kafka_controller_active_controller_count", cluster)
    return [node for node, value in found.items() if value == 1]


def gauges(name: str, cluster: RunningCluster) -> dict[str, float]:
    """The values of a gauge of a cluster by node; each node has one."""
    own = [line for line in metric_lines() if line.startswith(f"ray_{name}{{") and cluster.engine.cluster.run in line]
    found = {line.partition('node="')[2].partition('"')[0]: float(line.split()[-1]) for line in own}
    assert len(found) == len(own)
    return found


def metric_lines() -> list[str]:
    lines = []
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines += answer.read().decode().splitlines()
    return lines


def test_nothing_is_left_after_close(ray_nodes: Cluster) -> None:
    with running_cluster(brokers=1) as cluster:
        run = cluster.engine.cluster.run
        processes = list(cluster.engine.cluster.pids().values())
        assert len(processes) == len(cluster.engine.spec.node_ids)
        folder = Path(tempfile.gettempdir(), run)
        assert folder.exists()
    assert all(leaves_within(process, LEAVES_WITHIN_S) for process in processes)
    assert not folder.exists()
    assert not live_actors(cluster)


def live_actors(cluster: RunningCluster) -> list[Any]:
    actors = list_actors(
        detail=True, filters=[("ray_namespace", "=", cluster.engine.cluster.run), ("state", "!=", "DEAD")]
    )
    return list(actors)
