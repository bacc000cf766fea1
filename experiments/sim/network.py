"""The simulated network: one-way links with latency, and cuts.

A link is the ordered pair of two nodes on one channel (data or control). Messages of a channel arrive in the order
sent. Latency is a base plus a jitter that is a hash of the seed, the link and the time of sending: a counter-based
generator, so that a message more or less on a link does not change the fate of the others. Messages that only renew
(`Message.RENEWAL`) travel at the base latency: their arrival is a function of when they were sent, which is what lets
the scheduler leave them out (`timers.py`). A cut drops what is sent, and what is on its way.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message

_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """A 64-bit mixing function (the finalizer of SplitMix64): well spread, and the same everywhere."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


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
        self._link_hashes: dict[tuple[NodeId, NodeId, bool], int] = {}
        self._last_arrival: dict[tuple[NodeId, NodeId, bool], TimeMs] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()

    def arrival_ms(self, now_ms: TimeMs, source: NodeId, target: NodeId, message: Message) -> TimeMs:
        """When a message that is sent now arrives."""
        arrival = now_ms + self.model.base_ms
        link_key = (source, target, message.CONTROL)
        if not message.RENEWAL and self.model.jitter_ms:
            arrival += mix64(self._link_hash(link_key) ^ now_ms) % (self.model.jitter_ms + 1)
        arrival = max(arrival, self._last_arrival.get(link_key, 0))
        self._last_arrival[link_key] = arrival
        return arrival

    def _link_hash(self, link: tuple[NodeId, NodeId, bool]) -> int:
        """A hash of the seed and the link."""
        known = self._link_hashes.get(link)
        if known is None:
            source, target, is_control = link
            known = self._link_hashes[link] = mix64(self._seed ^ (source << 40) ^ (target << 20) ^ is_control)
        return known

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
