"""Slow brokers: during an episode every message that a broker sends is delayed.

Episodes are a Poisson process per broker, in a random stream of its own; an episode that begins during another one of
the same broker has no effect. The broker keeps its state, and the protocol decides whether it stays in the ISR
(`replica.lag.time.max.ms`) and unfenced (`broker.session.timeout.ms`). Writes are continuous in the model, so the trial
writes when an episode begins and when it ends: without a record to fetch, a slow follower would never be behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import Disturbance
from experiments.studies.design.mappings import SlowEpisodes
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.failures.sources import poisson_events
from protocol.ids import NodeId, TimeMs

HISTORY_EPISODES = 10
"""How long before its beginning a stationary process is drawn, in mean durations of an episode."""


class Episode(NamedTuple):
    """A broker is slow from `begins_ms` until `ends_ms`; times as in the timeline."""

    begins_ms: int
    ends_ms: int
    broker: NodeId


def episodes(slow: SlowEpisodes, params: CellParameters, seed: int, begins_ms: int) -> Iterator[Episode]:
    """The episodes of all brokers from `begins_ms` on, by time; with a stationary start those under way, too."""
    history_ms = HISTORY_EPISODES * slow.duration.mean_ms if params.start == "stationary" else 0
    each = (_of_broker(slow, broker, seed, begins_ms - history_ms) for broker in range(params.brokers))
    for episode in heapq.merge(*each):
        if episode.ends_ms > begins_ms:
            yield episode._replace(begins_ms=max(episode.begins_ms, begins_ms))


def _of_broker(slow: SlowEpisodes, broker: NodeId, seed: int, begins_ms: int) -> Iterator[Episode]:
    over_ms = begins_ms
    for at_ms, draws in poisson_events(f"broker/{broker}/slow", slow.per_year / YEAR_MS, seed, begins_ms):
        ends_ms = at_ms + slow.duration.sample_ms(draws.event)
        if at_ms >= over_ms:
            over_ms = ends_ms
            yield Episode(at_ms, ends_ms, broker)


@dataclass(slots=True)
class SlowBrokers:
    """Delays all messages of brokers during episodes, whose time 0 is `_zero_ms` of the cluster; calls `_begins` and
    `_ends` with the broker at the begin and the end of each."""

    _cluster: SimCluster
    _episodes: Iterator[Episode]
    _delay_ms: int
    _zero_ms: TimeMs
    _begins: Callable[[NodeId], None]
    _ends: Callable[[NodeId], None]
    _slow: dict[NodeId, list[Disturbance]] = field(default_factory=dict)

    def await_next(self) -> None:
        """Schedules the next episode."""
        episode = next(self._episodes)
        self._cluster.call_at(self._zero_ms + episode.begins_ms, lambda: self._begin(episode))

    def _begin(self, episode: Episode) -> None:
        broker = episode.broker
        others = [node for node in self._cluster.spec.member_ids if node != broker]
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
