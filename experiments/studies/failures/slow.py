"""Episodes of slow brokers: a broker is up, and all that it sends arrives late.

A Poisson process per broker, in a random stream of its own; an episode that begins during another one of the same
broker has no effect. Slowness is no outage: the broker keeps its state, and the protocol decides whether it stays in
the ISR (`replica.lag.time.max.ms`) and unfenced (`broker.session.timeout.ms`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from experiments.studies.design.mappings import SlowEpisodes
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.failures.sources import poisson_events
from protocol.ids import NodeId

HISTORY_EPISODES = 10
"""How long before its beginning a stationary process is drawn, in mean durations of an episode."""


class Episode(NamedTuple):
    """A broker is slow from `begins_ms` until `ends_ms`; times as in the timeline."""

    begins_ms: int
    ends_ms: int
    broker: NodeId


def episodes(slow: SlowEpisodes, params: CellParameters, seed: int, begins_ms: int) -> Iterator[Episode]:
    """The episodes of all brokers from `begins_ms` on, by time, without end. With a stationary start those that are
    under way then are among them."""
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
