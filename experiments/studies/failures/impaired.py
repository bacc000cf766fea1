"""Which brokers are impaired, and so which links are cut: a function of the events of a timeline, for either engine.

A link is cut as long as an isolation of one of its ends covers it: overlapping ones end one by one. An isolation is
that of all brokers whose events have one kind, cause and span; they reach each other. A pause ends with the process
that it has stopped; one that finds no process has no effect. Isolations and slow disks are those of the broker's place:
a broker that is restarted meanwhile is still isolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.studies.design.impairments import ISOLATIONS, PAUSED, SLOW_DISK, Peers
from experiments.studies.failures.timeline import Event
from protocol.ids import NodeId

Link = tuple[NodeId, NodeId]
"""From the first node to the second."""


class _Cause(NamedTuple):
    kind: str
    cause: str
    span: tuple[int, int]


class ImpairedBrokers:
    """The impairments that last, after the events so far. `brokers`, `controllers`, `clients`: the nodes of the
    cluster; the recovery manager is with the controllers."""

    def __init__(self, brokers: Sequence[NodeId], controllers: Sequence[NodeId], clients: Sequence[NodeId]) -> None:
        self._peers: Mapping[Peers, tuple[NodeId, ...]] = {
            "others": (*brokers, *controllers),
            "brokers": tuple(brokers),
            "controllers": tuple(controllers),
            "clients": tuple(clients),
            "all": (*brokers, *controllers, *clients),
        }
        self._lasting: dict[_Cause, set[NodeId]] = {}

    def begin(self, event: Event) -> None:
        """An impairment of the event's broker begins."""
        self._lasting.setdefault(_Cause(event.kind, event.cause, event.span), set()).add(event.broker)

    def end(self, event: Event) -> bool:
        """The impairment ends; returns whether it lasted until now."""
        cause = _Cause(event.kind, event.cause, event.span)
        brokers = self._lasting.get(cause, set())
        if event.broker not in brokers:
            return False
        brokers.remove(event.broker)
        if not brokers:
            del self._lasting[cause]
        return True

    def end_pauses(self, broker: NodeId) -> list[str]:
        """The process of the broker has ended, and so do its pauses: their causes."""
        ended = [cause for cause, brokers in self._lasting.items() if cause.kind == PAUSED and broker in brokers]
        for cause in ended:
            self.end(Event(0, broker, PAUSED, cause.cause, True, cause.span))
        return [cause.cause for cause in ended]

    def is_paused(self, broker: NodeId) -> bool:
        """Whether the broker's process is paused."""
        return self._is(broker, PAUSED)

    def has_slow_disk(self, broker: NodeId) -> bool:
        """Whether nothing is appended to the broker's logs."""
        return self._is(broker, SLOW_DISK)

    def _is(self, broker: NodeId, kind: str) -> bool:
        return any(cause.kind == kind and broker in brokers for cause, brokers in self._lasting.items())

    def cuts(self) -> frozenset[Link]:
        """The links on which messages are lost."""
        cuts: set[Link] = set()
        for cause, brokers in self._lasting.items():
            if cause.kind in ISOLATIONS:
                peers, direction = ISOLATIONS[cause.kind]
                for broker in brokers:
                    for node in self._peers[peers]:
                        if node not in brokers:
                            cuts |= {(broker, node)} if direction != "in" else set()
                            cuts |= {(node, broker)} if direction != "out" else set()
        return frozenset(cuts)
