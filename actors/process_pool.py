"""Processes that serve one cluster after the other."""

from __future__ import annotations

from actors.cluster import ActorCluster


class ProcessPool:
    """Hands the processes of one cluster to the next one on the same Ray, where many small clusters follow one another:
    to start a process costs more than most of what it does in a test.
    """

    def __init__(self) -> None:
        self._retired: ActorCluster | None = None

    def take(self) -> ActorCluster | None:
        """The retired cluster, if there is one, for the next cluster to take over."""
        retired, self._retired = self._retired, None
        return retired

    def keep(self, cluster: ActorCluster) -> None:
        """Retires a cluster, and keeps its processes."""
        cluster.retire()
        self._retired = cluster

    def close(self) -> None:
        """Ends the processes."""
        retired = self.take()
        if retired is not None:
            retired.close()
