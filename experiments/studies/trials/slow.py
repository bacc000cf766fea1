"""Slow brokers in the simulated cluster: during an episode every message of the broker is delayed.

Writes are continuous in the model, so the trial writes when an episode begins and when it ends: without a record to
fetch, a slow follower would never be behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import Disturbance
from experiments.studies.failures.slow import Episode
from protocol.ids import NodeId, TimeMs


class SlowBrokers:
    """Carries out `episodes`, whose time 0 is `zero_ms` of the cluster; calls `begins` and `ends` with the broker at
    the begin and the end of each."""

    def __init__(
        self,
        cluster: SimCluster,
        episodes: Iterator[Episode],
        delay_ms: int,
        zero_ms: TimeMs,
        begins: Callable[[NodeId], None],
        ends: Callable[[NodeId], None],
    ) -> None:
        self._cluster = cluster
        self._episodes = episodes
        self._delay_ms = delay_ms
        self._zero_ms = zero_ms
        self._begins = begins
        self._ends = ends
        self._slow: dict[NodeId, list[Disturbance]] = {}

    def await_next(self) -> None:
        """Schedules the next episode."""
        episode = next(self._episodes)
        self._cluster.call_at(self._zero_ms + episode.begins_ms, lambda: self._begin(episode))

    def _begin(self, episode: Episode) -> None:
        broker, spec = episode.broker, self._cluster.spec
        others = [node for node in spec.member_ids if node != broker]
        self._slow[broker] = [Disturbance(broker, node, "delay", delay_ms=self._delay_ms) for node in others]
        for disturbance in self._slow[broker]:
            self._cluster.disturb_link(disturbance)
        self._cluster.call_at(self._zero_ms + episode.ends_ms, lambda: self._end(broker))
        self._begins(broker)
        self.await_next()

    def _end(self, broker: NodeId) -> None:
        for disturbance in self._slow.pop(broker):
            self._cluster.clear_disturbance(disturbance)
        self._ends(broker)
