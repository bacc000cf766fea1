"""The simulated network: one-way links with latency, cuts, loss and duplication.

A link is the ordered pair of two nodes on one channel (data or control). Messages of a channel arrive in the order
sent. Latency is a base plus a jitter drawn from a generator that belongs to the link alone, so that traffic on one
link does not disturb another. Messages that only renew (`Message.RENEWAL`) travel at the base latency and draw
nothing: their arrival is a function of when they were sent, which is what lets the scheduler leave them out
(`timers.py`). A cut drops what is sent, and what is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Latency of every link in ms: `base_ms` and a uniform jitter of up to `jitter_ms`."""

    base_ms: int = 1
    jitter_ms: int = 2


class Network:
    """Links between nodes; see the module docstring."""

    def __init__(self, seed: int, model: NetworkModel) -> None:
        self.model = model
        self._seed = seed
        self._random: dict[tuple[NodeId, NodeId, bool], Random] = {}
        self._last_arrival: dict[tuple[NodeId, NodeId, bool], TimeMs] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()

    def arrival_ms(self, now_ms: TimeMs, source: NodeId, target: NodeId, message: Message) -> TimeMs:
        """When a message that is sent now arrives."""
        link = (source, target, message.CONTROL)
        arrival = now_ms + self.model.base_ms
        if not message.RENEWAL and self.model.jitter_ms:
            random = self._random.get(link)
            if random is None:
                random = self._random[link] = Random(f"{self._seed}/link/{link}")
            arrival += int(random.random() * (self.model.jitter_ms + 1))
        last = self._last_arrival.get(link, 0)
        if arrival < last:
            arrival = last
        self._last_arrival[link] = arrival
        return arrival

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        if up:
            self._cuts.discard((source, target))
        else:
            self._cuts.add((source, target))

    def is_cut(self, source: NodeId, target: NodeId) -> bool:
        return (source, target) in self._cuts

    def is_sound(self, a: NodeId, b: NodeId) -> bool:
        """Whether both directions carry everything in time."""
        return not self._cuts or ((a, b) not in self._cuts and (b, a) not in self._cuts)

    def cuts(self) -> list[tuple[NodeId, NodeId]]:
        """The directions that are cut, sorted."""
        return sorted(self._cuts)
