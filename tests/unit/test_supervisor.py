"""What the supervisor of a running cluster says of a node that has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from actors.cluster import ActorCluster, NodeFailedError
from actors.nodes import Report
from experiments.engine import ClusterSpec
from experiments.live.state import ClusterState
from experiments.ray import supervisor
from experiments.ray.supervisor import Supervisor
from protocol.config import ClusterConfig, Generation
from protocol.contract import Trace
from protocol.ids import NodeId


class EndingCluster:
    """Broker 1 ends with the first poll, which brings what it had to say."""

    def __init__(self, *traces: Trace, failure: str = "") -> None:
        self.traces, self.failure, self.nodes = traces, failure, [0, 1]

    def running(self) -> Sequence[NodeId]:
        return list(self.nodes)

    def is_running(self, node: NodeId) -> bool:
        return node in self.nodes

    def ended(self, node: NodeId) -> None:
        self.nodes.remove(node)

    def poll(self, wait_s: float) -> list[tuple[NodeId, Report]]:
        if self.failure:
            raise NodeFailedError(1, self.failure)
        self.nodes.remove(1)
        quiet, last = Report([], [], False, None), Report([(5, trace) for trace in self.traces], [], True, None)
        return [(0, quiet), (1, last)]


def storage_error(reason: str, halted: bool) -> Trace:
    return Trace("storage_error", None, {"reason": reason, "halted": halted})


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
def test_the_reason_is_told_in_one_line(cluster: EndingCluster, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(supervisor, "write_state", lambda state: None)
    spec = ClusterSpec(2, 1, ClusterConfig.of(Generation.KIP_966), 0)
    state = cast(ClusterState, ClusterState.model_construct(**cast(Any, {"dead": (), "events": ()})))
    watching = Supervisor(cast(ActorCluster, cluster), spec, state, said.append)
    watching.look()
    [line] = said
    assert line.endswith(reason)
    assert "\n" not in line
