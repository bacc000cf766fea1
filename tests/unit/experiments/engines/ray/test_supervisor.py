"""The supervisor's report of an ended node, and its start of the recovery manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from actors.cluster import ActorCluster, NodeFailedError
from actors.nodes import PollReport
from experiments.engines.port import ClusterSpec
from experiments.engines.ray import supervisor
from experiments.engines.ray.cluster_state import ClusterState
from experiments.engines.ray.supervisor import Report, Supervisor
from protocol.config import UNCLEAN_RECOVERY_ENABLED, ClusterConfig, Generation
from protocol.events.base import Trace
from protocol.events.broker import StorageFailed
from protocol.events.controller import FeatureLevelChanged
from protocol.ids import RECOVERY_MANAGER, NodeId


class EndingCluster:
    """A cluster whose broker 1 ends with the first poll, which returns its last report."""

    def __init__(self, *traces: Trace, failure: str = "") -> None:
        self.traces, self.failure, self.nodes = traces, failure, [0, 1]

    def running(self) -> Sequence[NodeId]:
        return list(self.nodes)

    def is_running(self, node: NodeId) -> bool:
        return node in self.nodes

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]:
        self.nodes.remove(1)
        if self.failure:
            raise NodeFailedError(1, self.failure)
        quiet, last = PollReport([], [], False, None), PollReport([(5, trace) for trace in self.traces], [], True, None)
        return [(0, quiet), (1, last)]


def storage_error(reason: str, halted: bool) -> Trace:
    return StorageFailed(None, reason, halted=halted)


def supervisor_of(cluster: EndingCluster, report: Report) -> Supervisor:
    spec = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966), 0)
    state = cast(ClusterState, ClusterState.model_construct(**cast(Any, {"dead": (), "events": ()})))
    return Supervisor(cast(ActorCluster, cluster), spec, state, report)


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        (EndingCluster(), "broker-1: its process has ended"),
        (EndingCluster(storage_error("odd", halted=False)), "broker-1: its process has ended"),
        (
            EndingCluster(storage_error("odd", halted=False), storage_error("/d: No space left", halted=True)),
            "broker-1: its disk has failed: /d: No space left",
        ),
        (EndingCluster(failure="it broke"), "broker-1 failed: it broke"),
    ],
)
def test_the_reason_of_a_nodes_end_is_one_line(
    cluster: EndingCluster, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(supervisor, "write_state", lambda state: None)
    supervisor_of(cluster, lines.append).poll()
    [line] = lines
    assert line.endswith(reason)
    assert "\n" not in line


class EnablingCluster(EndingCluster):
    """A cluster whose nodes all go on, and every poll of which sets the level of unclean recovery."""

    def __init__(self, level: int) -> None:
        super().__init__(FeatureLevelChanged(UNCLEAN_RECOVERY_ENABLED, level))

    def poll(self, wait_s: float) -> list[tuple[NodeId, PollReport]]:
        return [(0, PollReport([(5, trace) for trace in self.traces], [], False, None))]

    def start(self, node: NodeId) -> None:
        assert node not in self.nodes
        self.nodes.append(node)


@pytest.mark.parametrize(("level", "nodes"), [(0, [0, 1]), (1, [0, 1, RECOVERY_MANAGER])])
def test_the_recovery_manager_starts_once_unclean_recovery_is_enabled(level: int, nodes: list[NodeId]) -> None:
    cluster = EnablingCluster(level)
    supervised = supervisor_of(cluster, [].append)
    for _ in range(2):
        supervised.poll()
    assert cluster.nodes == nodes
