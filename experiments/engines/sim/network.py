"""The simulated network: one-way links with latency, and cuts.

A link is an ordered pair of nodes on one channel (data or control). Messages of a link arrive in the order sent.
Latency is a base plus a jitter, which is a hash of the seed, the link and the send time: a counter-based random source,
so that an additional or missing message does not change the latency of the others. Messages that only renew something
(`Message.RENEWAL`) take the base latency: their arrival is a function of their send time, so that the scheduler can
leave them out (`timers.py`). A cut drops the messages that are sent and those on their way. A disturbed direction
loses, duplicates, reorders or delays some of its messages (`Disturbance`), drawn from a hash of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message

NODE_BITS = 24
"""Bits of a node id, with one to spare."""
SEQUENCE_BITS = 40
"""The lowest bits of an event's order, reserved for a sequence number."""
_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """A 64-bit mixing function (the finalizer of SplitMix64), equal on every machine."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def jitter(seed: int, now_ms: TimeMs, below: int) -> int:
    """A number in [0, `below`), `below` <= 2**31: `mix64` of a signed 64-bit seed and the time."""
    return mix64((seed ^ now_ms) & _MASK) % below


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Latency of every link in ms: `base_ms` and a uniform jitter of up to `jitter_ms`."""

    base_ms: int = 1
    jitter_ms: int = 2


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The effect on `per_mille` of the messages of one direction, restricted to the types in `only` (empty: all types).

    `lose` drops a message, `duplicate` delivers it again up to `delay_ms` later, `reorder` delivers it up to `delay_ms`
    late so that later messages overtake it, and `delay` delivers it and all messages after it `delay_ms` later. `hold`
    delivers it at `until_ms`, and messages of other types before it.
    `keeps_idle`: idle timers of the pair sleep all the same, for a disturbance that loses all that they would send.
    """

    source: NodeId
    target: NodeId
    effect: Literal["lose", "duplicate", "reorder", "delay", "hold"]
    per_mille: int = 1_000
    delay_ms: int = 0
    only: tuple[type[Message], ...] = ()
    keeps_idle: bool = False
    until_ms: TimeMs = 0


@dataclass(slots=True)
class _Link:
    """A link: a signed 64-bit hash of the seed and its ends, and the arrival time of the last message sent on it."""

    hash: int
    last_arrival_ms: TimeMs = 0


@dataclass(slots=True)
class Route:
    """The route of messages of one type; of those that arrive together the smaller `order` is delivered first."""

    source: NodeId
    target: NodeId
    kind: type[Message]
    order: int
    is_renewal: bool
    link: _Link


class Network:
    """The links between all nodes, their cuts and disturbances; `seed` determines all jitter and draws."""

    def __init__(self, seed: int, model: NetworkModel) -> None:
        self.model = model
        self._seed = seed
        self._links: dict[tuple[NodeId, NodeId, bool], _Link] = {}
        self._routes: dict[tuple[NodeId, NodeId, type[Message]], Route] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._disturbances: dict[tuple[NodeId, NodeId], list[Disturbance]] = {}
        self._late_until_ms: dict[tuple[NodeId, NodeId], TimeMs] = {}
        self._draws = 0
        self.is_faultless = True
        """Whether no direction is cut or disturbed, and no message has ever been late."""

    def route(self, source: NodeId, target: NodeId, kind: type[Message]) -> Route:
        """The route of messages of this type."""
        name = (source, target, kind)
        route = self._routes.get(name)
        if route is None:
            link_name = (source, target, kind.CONTROL)
            link = self._links.get(link_name)
            if link is None:
                bits = mix64(self._seed ^ (source << 40) ^ (target << 20) ^ kind.CONTROL)
                link = self._links[link_name] = _Link(bits - (1 << 64) if bits >> 63 else bits)
            order = ((target << NODE_BITS) | (source << 1) | kind.CONTROL) << SEQUENCE_BITS
            route = self._routes[name] = Route(source, target, kind, order, kind.RENEWAL, link)
        return route

    def arrivals(self, now_ms: TimeMs, route: Route) -> Sequence[TimeMs]:
        """The arrival times of a message that is sent now: one, unless a disturbance loses or duplicates it."""
        source, target = route.source, route.target
        disturbances = self._disturbances.get((source, target))
        if disturbances is None:
            return (self.arrival_ms(now_ms, route),)
        held_ms, late_ms, until_ms, copies, lost = 0, 0, 0, 1, False
        for found in disturbances:
            if found.only and not issubclass(route.kind, found.only):
                continue
            if self._draw(now_ms, found) % 1_000 >= found.per_mille:
                continue
            lost = lost or found.effect == "lose"
            copies += found.effect == "duplicate"
            until_ms = max(until_ms, found.until_ms)
            held_ms += found.delay_ms if found.effect == "delay" else 0
            if found.effect in ("duplicate", "reorder"):
                late_ms = max(late_ms, self._draw(now_ms, found) % (found.delay_ms + 1))
        if lost:
            return ()
        arrival = max(until_ms, self.arrival_ms(now_ms, route, held_ms))
        self._late_until_ms[source, target] = max(self._late_until_ms.get((source, target), 0), arrival + late_ms)
        return [arrival, *[arrival + late_ms] * (copies - 1)] if copies > 1 else [arrival + late_ms]

    def _draw(self, now_ms: TimeMs, disturbance: Disturbance) -> int:
        """A random 64-bit number; each call returns another one."""
        self._draws += 1
        return mix64(self._seed ^ mix64(self._draws) ^ (disturbance.source << 40) ^ (disturbance.target << 20) ^ now_ms)

    def disturb(self, disturbance: Disturbance) -> None:
        """Begins a disturbance; a direction may have several."""
        self._disturbances.setdefault((disturbance.source, disturbance.target), []).append(disturbance)
        self.is_faultless = False

    def clear_disturbance(self, disturbance: Disturbance) -> None:
        """Ends a disturbance that `disturb` began."""
        link = (disturbance.source, disturbance.target)
        self._disturbances[link].remove(disturbance)
        if not self._disturbances[link]:
            del self._disturbances[link]
            self.is_faultless = self._has_no_fault()

    def arrival_ms(self, now_ms: TimeMs, route: Route, held_ms: int = 0) -> TimeMs:
        """The arrival time of a message that is sent now and delayed by `held_ms`; never before the previous one."""
        model, link = self.model, route.link
        arrival = now_ms + model.base_ms + held_ms
        if model.jitter_ms and not route.is_renewal:
            arrival += jitter(link.hash, now_ms, model.jitter_ms + 1)
        if arrival < link.last_arrival_ms:
            return link.last_arrival_ms
        link.last_arrival_ms = arrival
        return arrival

    def set_link(self, source: NodeId, target: NodeId, up: bool) -> None:
        if up:
            self._cuts.discard((source, target))
        else:
            self._cuts.add((source, target))
        self.is_faultless = self._has_no_fault()

    def _has_no_fault(self) -> bool:
        return not (self._cuts or self._disturbances or self._late_until_ms)

    def is_cut(self, source: NodeId, target: NodeId) -> bool:
        return bool(self._cuts) and (source, target) in self._cuts

    def is_sound(self, a: NodeId, b: NodeId, now_ms: TimeMs) -> bool:
        """Whether neither direction is cut or disturbed, and no late message is on its way."""
        late = self._late_until_ms
        if late and max(late.get((a, b), 0), late.get((b, a), 0)) >= now_ms:
            return False
        if self._disturbances and not (self._keeps_idle(a, b) and self._keeps_idle(b, a)):
            return False
        return not self._cuts or ((a, b) not in self._cuts and (b, a) not in self._cuts)

    def _keeps_idle(self, source: NodeId, target: NodeId) -> bool:
        return all(found.keeps_idle for found in self._disturbances.get((source, target), ()))

    def cuts(self) -> list[tuple[NodeId, NodeId]]:
        """The directions that are cut, sorted."""
        return sorted(self._cuts)
