"""Thousands of partitions lose their leaders at once: few, large requests, and every partition is recovered.

What is counted are the trace events of the nodes: the recovery manager reports how many partitions each of its requests
names, the controller what every recovery came to. A broker refuses a request for more than 2,000 partitions, and a
question without an answer is asked again; so a machine that is slow sees more requests, but none that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import Loss, TraceEvent
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, RECOVERY_MANAGER, TopicPartition
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.messages.recovery import MAX_PARTITIONS_PER_REQUEST
from protocol.metadata.partition import LeaderRecoveryState, PartitionState
from tests.ray.cluster_helpers import ProcessPool, RunningCluster, running_cluster

TOPICS, PARTITIONS = 3, 700
"""More partitions than a request may name."""
BROKERS = (0, 1, 2)
PATIENT_MS = 240_000
AT_LEAST_ON_AVERAGE = 100
"""Partitions per request, repeated requests included: far above one request per partition."""


@pytest.fixture
def cluster(pool: ProcessPool) -> Iterator[RunningCluster]:
    """Three brokers, and 2,100 partitions of three topics, each on all of them with min ISR 2."""
    with running_cluster(config={}, within_ms=PATIENT_MS, pool=pool) as found:
        for topic in range(TOPICS):
            request = create_topic(f"t{topic}", (BROKERS,) * PARTITIONS, {"min.insync.replicas": 2})
            number = found.submit(lambda number, request=request: AdminCommand(command_id=number, request=request))
            created = found.outcome(number, AdminOutcome)
            assert created.error is ErrorCode.NONE, created
        yield found


def states(cluster: RunningCluster) -> dict[TopicPartition, PartitionState]:
    view = cluster.engine.view()
    return {} if view is None else dict(view.partitions)


def traced(cluster: RunningCluster, kind: str) -> list[TraceEvent]:
    return [event for event in cluster.engine.traces() if event.trace.kind == kind]


@pytest.mark.covers("F20", "M71")
@pytest.mark.timeout(600)
def test_thousands_of_leaderless_partitions_are_queried_in_large_requests_and_recovered(
    cluster: RunningCluster,
) -> None:
    names = {TopicPartition(f"t{topic}", index) for topic in range(TOPICS) for index in range(PARTITIONS)}
    for broker in BROKERS:
        cluster.engine.crash(broker, Loss("unflushed"))
    cluster.until(lambda: {state.leader for state in states(cluster).values()} == {NO_LEADER}, "no partition has one")
    known = {broker for state in states(cluster).values() for broker in state.elr}
    assert traced(cluster, "log_info_asked") == []
    for broker in BROKERS:
        cluster.engine.start(broker)
    cluster.until(
        lambda: all(
            state.leader in known and state.leader_recovery_state is LeaderRecoveryState.RECOVERED
            for state in states(cluster).values()
        ),
        "all are led",
    )
    assert states(cluster).keys() == names
    assert {event.trace.partition for event in traced(cluster, "recovery")} == names
    asked: dict[object, list[int]] = {broker: [] for broker in BROKERS}
    for event in traced(cluster, "log_info_asked"):
        assert event.node == RECOVERY_MANAGER
        asked[event.trace.broker].append(event.trace.partitions)
    for broker in known:
        assert max(asked[broker]) == MAX_PARTITIONS_PER_REQUEST
        assert sum(asked[broker]) >= len(names)
    assert not [sizes for sizes in asked.values() if sum(sizes) < AT_LEAST_ON_AVERAGE * len(sizes)]
