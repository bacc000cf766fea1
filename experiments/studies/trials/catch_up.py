"""Catch-up: a restarted broker is up and registered, and its replicas are behind for a while.

How long follows from what was written while it was down, and from the volume of its disk if that was lost
(`failures/absences.py`). Until then the network loses its fetch requests, so the leaders count it as behind and keep it
out of the ISR. Afterwards the broker's next renewal of its fetch session, within `replica.fetch.wait.max.ms`, begins a
new session, and the replicas join the ISR as the protocol has it. All other messages are delivered, so the broker may
be elected leader where the protocol allows that; a broker that has led all its partitions since its start has no leader
to catch up with, which ends the wait. A broker that fails before it has caught up has the rest still to fetch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import Disturbance
from experiments.studies.design.mappings import CatchUp
from experiments.studies.failures.absences import Absences
from protocol.events.base import Trace
from protocol.events.broker import BecameLeader
from protocol.ids import NodeId, TimeMs, TopicPartition, is_broker
from protocol.messages.data import FetchRenewal, FetchRequest


class CatchUps:
    """Holds back the followers of `cluster` that are behind. `replicas`: the partitions of each broker."""

    def __init__(
        self, catch_up: CatchUp, cluster: SimCluster, replicas: Mapping[NodeId, Collection[TopicPartition]]
    ) -> None:
        self._absences = Absences(catch_up)
        self._cluster = cluster
        self._replicas = replicas
        self._until_ms: dict[NodeId, TimeMs] = {}
        self._held: dict[NodeId, list[Disturbance]] = {}
        self._led: dict[NodeId, set[TopicPartition]] = {}
        cluster.trace_observers.append(self._observe)

    def fail(self, broker: NodeId, lost_disk: bool) -> None:
        """The broker has failed, or its disk was lost while it was down."""
        self._absences.fail(broker, self._cluster.now_ms, lost_disk)
        self._led.pop(broker, None)

    def start(self, broker: NodeId) -> None:
        """The broker is about to start: from now on it is behind."""
        now_ms = self._cluster.now_ms
        self._release(broker)
        until_ms = self._until_ms[broker] = self._absences.start(broker, now_ms)
        if until_ms == now_ms:
            return
        self._held[broker] = [
            Disturbance(broker, other, "lose", only=(FetchRequest, FetchRenewal), keeps_idle=True)
            for other in self._replicas
            if other != broker
        ]
        for disturbance in self._held[broker]:
            self._cluster.disturb_link(disturbance)
        self._cluster.call_at(until_ms, lambda: self._end(broker, until_ms))

    def _end(self, broker: NodeId, until_ms: TimeMs) -> None:
        if self._until_ms[broker] == until_ms:
            self._release(broker)

    def _release(self, broker: NodeId) -> None:
        for disturbance in self._held.pop(broker, ()):
            self._cluster.clear_disturbance(disturbance)

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if isinstance(trace, BecameLeader) and is_broker(node):
            led = self._led.setdefault(node, set())
            led.add(trace.partition)
            if node in self._held and led >= set(self._replicas[node]):
                self._until_ms[node] = now_ms
                self._absences.end(node, now_ms)
                self._cluster.call_at(now_ms, lambda: self._end(node, now_ms))
