"""Processes that serve one cluster after another on the same Ray."""

from __future__ import annotations

from actors.cluster import ActorCluster
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine


class ProcessPool:
    """Hands the processes of one cluster to the next one on the same Ray, since to start a process takes a second of
    processor time. `close` ends them.
    """

    def __init__(self) -> None:
        self._retired: ActorCluster | None = None

    def engine(self, spec: ClusterSpec, with_load: bool = False) -> RayEngine:
        """An engine whose nodes run in the processes of the last cluster, and leave them to the next one."""
        retired, self._retired = self._retired, None
        return RayEngine(spec, with_load=with_load, former=retired, end=self._keep)

    def _keep(self, cluster: ActorCluster) -> None:
        if self._retired is None:
            cluster.retire()
            self._retired = cluster
        else:  # of two clusters at a time
            cluster.close()

    def close(self) -> None:
        """Ends the processes."""
        if self._retired is not None:
            self._retired.close()
        self._retired = None
