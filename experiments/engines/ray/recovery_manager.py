"""When to start the unclean recovery manager of a cluster whose generation begins without one."""

from __future__ import annotations

from collections.abc import Iterable

from actors.cluster import ActorCluster
from actors.nodes import PollReport
from experiments.engines.port import enables_recovery
from protocol.ids import RECOVERY_MANAGER, NodeId


def needs_recovery_manager(cluster: ActorCluster, reports: Iterable[tuple[NodeId, PollReport]]) -> bool:
    """Whether the newest reports of the nodes enable unclean recovery while no recovery manager runs."""
    enabled = any(enables_recovery(trace) for _, report in reports for _, trace in report.traces)
    return enabled and not cluster.is_running(RECOVERY_MANAGER)
