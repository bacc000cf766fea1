"""The recovery manager of a cluster that was born without one: it starts when unclean recovery is enabled."""

from __future__ import annotations

from collections.abc import Iterable

from actors.cluster import ActorCluster
from actors.nodes import PollReport
from experiments.engines.port import enables_recovery
from protocol.ids import RECOVERY_MANAGER, NodeId


def needs_recovery_manager(cluster: ActorCluster, reports: Iterable[tuple[NodeId, PollReport]]) -> bool:
    """Whether the cluster, of whose nodes these are the newest reports, is to have a recovery manager and has none."""
    enabled = any(enables_recovery(trace) for _, report in reports for _, trace in report.traces)
    return enabled and not cluster.is_running(RECOVERY_MANAGER)
