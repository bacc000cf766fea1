"""Brokers that are up and registered, but behind or slow: the network loses or delays some of their messages.

*Catch-up.* The replicas of a broker that was away are behind for a while: it was down, cut off from a leader of theirs,
paused, or its disk stalled, or several of these, one after the other or at once, in which case it is back when the last
one ends. How long follows from what was written since it left, and from the volume of its disk if that was lost
(`failures/absences.py`). Until then the network loses its
fetch requests, so the leaders count it as behind and keep it out of the ISR. Afterwards the broker's next renewal of
its fetch session, within `replica.fetch.wait.max.ms`, begins a new session, and the replicas join the ISR as the
protocol has it. All other messages are delivered, so the broker may be elected leader where the protocol allows that; a
broker that has led all its partitions since its start has no leader to catch up with, which ends the wait. A broker
that fails before it has caught up has the rest still to fetch.

*Slow episodes.* During an episode every message that the broker sends is delayed. Episodes are a Poisson process per
broker, in a random stream of its own; an episode that begins during another one of the same broker has no effect. The
broker keeps its state, and the protocol decides whether it stays in the ISR (`replica.lag.time.max.ms`) and unfenced
(`broker.session.timeout.ms`). Writes are continuous in the model, so the trial writes when an episode begins and when
it ends: without a record to fetch, a slow follower would never be behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import Disturbance
from experiments.studies.design.mappings import CatchUp, SlowEpisodes
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.failures.absences import Absences
from experiments.studies.failures.sources import poisson_events
from experiments.studies.trials.observer import Observer
from experiments.studies.trials.states import PartitionStates
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.ids import NodeId, TimeMs, TopicPartition, is_broker
from protocol.messages.data import FetchRenewal, FetchRequest

DOWN = "down"
CUT_OFF = "cut off"
HISTORY_EPISODES = 10
"""How long before its beginning a stationary process is drawn, in mean durations of an episode."""


class _Disturbed:
    """Brokers of `cluster` some of whose messages the network disturbs."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._held: dict[NodeId, list[Disturbance]] = {}

    def _hold(self, broker: NodeId, disturbances: list[Disturbance]) -> None:
        self._held[broker] = disturbances
        for disturbance in disturbances:
            self._cluster.disturb_link(disturbance)

    def _release(self, broker: NodeId) -> None:
        for disturbance in self._held.pop(broker, ()):
            self._cluster.clear_disturbance(disturbance)


class CatchUps(_Disturbed):
    """Holds back the followers of `cluster` that are behind; `states` says where the replicas are."""

    def __init__(self, catch_up: CatchUp, cluster: SimCluster, states: PartitionStates) -> None:
        super().__init__(cluster)
        self._absences = Absences(catch_up)
        self._states = states
        self._until_ms: dict[NodeId, TimeMs] = {}
        self._reasons: dict[NodeId, set[str]] = {}
        self._led: dict[NodeId, set[TopicPartition]] = {}
        cluster.trace_observers.append(self._observe)

    def fail(self, broker: NodeId, lost_disk: bool) -> None:
        """The broker has failed, or its disk was lost while it was down."""
        self._absences.fail(broker, self._cluster.now_ms, lost_disk)
        self._reasons.setdefault(broker, set()).add(DOWN)
        self._led.pop(broker, None)

    def start(self, broker: NodeId) -> None:
        """The broker is about to start: from now on it is behind, once nothing else keeps it away."""
        self._reasons.setdefault(broker, set()).discard(DOWN)
        if not self._reasons[broker]:
            self._catch_up(broker)

    def leave(self, broker: NodeId, reason: str) -> None:
        """The broker, up or down, does not fetch from now on."""
        self._absences.fail(broker, self._cluster.now_ms, lost_disk=False)
        self._reasons.setdefault(broker, set()).add(reason)

    def come_back(self, broker: NodeId, reason: str) -> None:
        """That reason keeps the broker away no longer: if none does, it is behind from now on, unless it leads all its
        partitions."""
        reasons = self._reasons.get(broker, set())
        if reason not in reasons:
            return
        reasons.remove(reason)
        if not reasons:
            partitions = self._states.partitions
            replicas = self._states.replicas_on(broker)
            led = self._led[broker] = {name for name in replicas if partitions[name].leader == broker}
            self._catch_up(broker)
            if led.issuperset(replicas):
                self._end_at_once(broker)

    def _catch_up(self, broker: NodeId) -> None:
        now_ms = self._cluster.now_ms
        self._release(broker)
        until_ms = self._until_ms[broker] = self._absences.start(broker, now_ms)
        if until_ms == now_ms:
            return
        fetches = (FetchRequest, FetchRenewal)
        others = (other for other in self._cluster.spec.broker_ids if other != broker)
        self._hold(broker, [Disturbance(broker, other, "lose", only=fetches, keeps_idle=True) for other in others])
        self._cluster.call_at(until_ms, lambda: self._end(broker, until_ms))

    def copy(self, broker: NodeId) -> None:
        """The broker, which runs, is to get a replica: from now on it is behind by the whole log."""
        self.fail(broker, lost_disk=True)
        self.start(broker)

    def _end(self, broker: NodeId, until_ms: TimeMs) -> None:
        if self._until_ms[broker] == until_ms:
            self._release(broker)

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, BecameLeader) and is_broker(node):
            led = self._led.setdefault(node, set())
            led.add(trace.partition)
            if node in self._held and led.issuperset(self._states.replicas_on(node)):
                self._end_at_once(node)

    def _end_at_once(self, broker: NodeId) -> None:
        """The broker leads all its partitions: it has nothing to fetch."""
        now_ms = self._until_ms[broker] = self._cluster.now_ms
        self._absences.end(broker, now_ms)
        self._cluster.call_at(now_ms, lambda: self._end(broker, now_ms))


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


class SlowBrokers(_Disturbed):
    """Delays all messages of brokers during `episodes`, whose time 0 is `zero_ms` of the cluster."""

    def __init__(
        self, cluster: SimCluster, observer: Observer, episodes: Iterator[Episode], delay_ms: int, zero_ms: TimeMs
    ) -> None:
        super().__init__(cluster)
        self._observer, self._episodes, self._delay_ms, self._zero_ms = observer, episodes, delay_ms, zero_ms

    def await_next(self) -> None:
        """Schedules the next episode."""
        episode = next(self._episodes)
        self._cluster.call_at(self._zero_ms + episode.begins_ms, lambda: self._begin(episode))

    def _begin(self, episode: Episode) -> None:
        broker = episode.broker
        others = (node for node in self._cluster.spec.member_ids if node != broker)
        self._hold(broker, [Disturbance(broker, node, "delay", delay_ms=self._delay_ms) for node in others])
        self._cluster.call_at(self._zero_ms + episode.ends_ms, lambda: self._end(broker))
        self._observer.handle_slow(broker)
        self.await_next()

    def _end(self, broker: NodeId) -> None:
        self._release(broker)
        self._observer.write_to(broker)
