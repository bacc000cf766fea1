"""The impairments of a simulated trial: cut links, paused processes, disks that stall.

*Isolated*: the network cuts the links, so messages are lost, those on their way too. *Paused*: the simulator holds back
all events of the process until the end. A controlled shutdown that is due meanwhile waits. *Slow disk*: what would be
appended arrives at the end of the stall, which is as if it waited for the disk: the records of clients at a leader,
those of the leaders at a follower. The broker's threads that append are blocked, others are not, so it goes on to send
heartbeats and to serve fetches; its replica of the metadata log is on another disk.

Writes are continuous in the model, so the trial writes when an impairment begins and when it ends. A write that is lost
on a cut link between client and leader is given up at the end.

A replica is behind by what is written while it is away from its leader, whatever keeps it away
(`degraded.py`): the links to a leader are compared whenever a link or a leader changes.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.engines.sim.cluster import SimCluster
from experiments.engines.sim.network import Disturbance
from experiments.studies.design.impairments import ISOLATIONS, PAUSED, SLOW_DISK
from experiments.studies.failures.impaired import ImpairedBrokers, Link
from experiments.studies.failures.timeline import Event
from experiments.studies.trace.kinds import Impaired, Observation, Restored
from experiments.studies.trials.degraded import CUT_OFF, CatchUps
from experiments.studies.trials.observer import Observer
from protocol.events.base import Trace
from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, NodeId, TimeMs
from protocol.messages.data import FetchResponse, ProduceRequest

APPENDED = (ProduceRequest, FetchResponse)
"""The messages whose records a broker appends."""


class Impairments:
    """Carries out impairments on `cluster`. `catch_ups`: None without a volume to fetch; `add` takes the rows of the
    trace."""

    def __init__(
        self,
        cluster: SimCluster,
        observer: Observer,
        catch_ups: CatchUps | None,
        add: Callable[[Observation], None],
    ) -> None:
        self._cluster, self._observer, self._catch_ups, self._add = cluster, observer, catch_ups, add
        spec = cluster.spec
        self._impaired = ImpairedBrokers(spec.broker_ids, (*spec.controller_ids, *spec.manager_ids), spec.client_ids)
        self._cuts: frozenset[Link] = frozenset()
        self._stalls: dict[tuple[NodeId, str, tuple[int, int]], list[Disturbance]] = {}
        if catch_ups is not None:
            cluster.trace_observers.append(self._observe)

    def handle(self, event: Event) -> None:
        """An impairment begins or ends."""
        if event.ends:
            if not self._impaired.end(event):
                return
            self._add(Restored(event.broker, event.kind, event.cause))
        else:
            if event.kind == PAUSED and event.broker not in self._cluster.nodes:
                return
            self._impaired.begin(event)
            self._add(Impaired(event.broker, event.kind, event.cause))
        if event.kind in ISOLATIONS:
            self._cut_links()
        elif event.kind == PAUSED:
            self._pause(event.broker)
        else:
            self._stall(event)
        self._follow(event)

    def handle_crash(self, broker: NodeId) -> None:
        """The broker's process has ended, and so have its pauses."""
        for cause in self._impaired.end_pauses(broker):
            self._observer.states.handle_impairment(self._cluster.now_ms, broker, PAUSED, ends=True)
            self._add(Restored(broker, PAUSED, cause))
        if self._catch_ups is not None:
            self._catch_ups.come_back(broker, PAUSED)

    def is_paused(self, broker: NodeId) -> bool:
        """Whether the broker's process takes no input."""
        return self._impaired.is_paused(broker)

    def _cut_links(self) -> None:
        cuts = self._impaired.cuts()
        for source, target in sorted(self._cuts - cuts):
            self._cluster.set_link(source, target, True)
        for source, target in sorted(cuts - self._cuts):
            self._cluster.set_link(source, target, False)
        self._cuts = cuts
        if self._catch_ups is not None:
            for broker in self._cluster.spec.broker_ids:
                self._compare_links(self._catch_ups, broker)

    def _pause(self, broker: NodeId) -> None:
        cluster, is_paused = self._cluster, self._impaired.is_paused(broker)
        if is_paused != cluster.is_paused(broker):
            (cluster.pause if is_paused else cluster.resume)(broker)
        self._away(broker, PAUSED, is_paused)

    def _stall(self, event: Event) -> None:
        key = event.broker, event.cause, event.span
        until_ms = self._cluster.now_ms + event.span[1] - event.time_ms
        if event.ends:
            for disturbance in self._stalls.pop(key):
                self._cluster.clear_disturbance(disturbance)
        else:
            senders = (*self._cluster.spec.broker_ids, *self._cluster.spec.client_ids)
            nodes = (node for node in senders if node != event.broker)
            held = [Disturbance(node, event.broker, "hold", until_ms=until_ms, only=APPENDED) for node in nodes]
            self._stalls[key] = held
            for disturbance in held:
                self._cluster.disturb_link(disturbance)
        self._away(event.broker, SLOW_DISK, self._impaired.has_slow_disk(event.broker))

    def _follow(self, event: Event) -> None:
        """Writes, as clients do all the time."""
        peers = ISOLATIONS[event.kind][0] if event.kind in ISOLATIONS else "others"
        self._observer.states.handle_impairment(self._cluster.now_ms, event.broker, event.kind, event.ends)
        if event.ends and peers in ("clients", "all"):
            self._observer.give_up_writes(event.broker)
        if event.ends or peers != "controllers":
            self._observer.write_to(event.broker)

    def _observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        if self._cuts and isinstance(trace, PartitionChanged) and self._catch_ups is not None:
            for broker in trace.replicas:
                self._compare_links(self._catch_ups, broker)

    def _compare_links(self, catch_ups: CatchUps, broker: NodeId) -> None:
        """The broker is away while a link to the leader of one of its replicas is cut. Without a leader nothing is
        written: it is as before."""
        partitions = self._observer.states.partitions
        leaders = {partitions[name].leader for name in self._observer.states.replicas_on(broker)}
        known = leaders - {NO_LEADER, broker}
        if leaders == {NO_LEADER}:
            return
        is_cut = any((broker, leader) in self._cuts or (leader, broker) in self._cuts for leader in known)
        self._away(broker, CUT_OFF, is_cut)

    def _away(self, broker: NodeId, reason: str, is_away: bool) -> None:
        if self._catch_ups is not None:
            (self._catch_ups.leave if is_away else self._catch_ups.come_back)(broker, reason)
