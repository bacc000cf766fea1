"""Replica placement: the striped placement of Kafka's controller.

Goals, the most important first: the replicas of a partition are in different racks; replicas and leaders are spread
over the brokers; active brokers come before fenced ones. A broker has at most one replica of a partition, and the first
replica, the preferred leader, is on an active broker. Brokers without a rack share one.

Algorithm: the racks form a circle, and so do the active and the fenced brokers of each rack. A partition takes its
leader from the first rack with an active broker, counted from its own position in the circle. It takes the other
replicas rack by rack, one from each, without the leader's rack in the first round; a rack gives its active brokers
before its fenced ones. The next partition begins one rack further, and each circle of brokers that was used begins one
broker further, which makes the stripes. All circles begin at random positions and are shuffled after as many partitions
as there are active brokers, so that stripes do not repeat.

Since racks come first, brokers of small racks get more replicas where racks differ in size, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from random import Random

from protocol.errors import ErrorCode, Refused
from protocol.ids import BrokerId
from protocol.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class UsableBroker:
    broker_id: BrokerId
    rack: str | None = None
    fenced: bool = False


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """All registered brokers except unfenced ones in controlled shutdown."""
    return [
        UsableBroker(broker, registration.rack, registration.fenced)
        for broker, registration in sorted(image.brokers.items())
        if registration.fenced or not registration.in_controlled_shutdown
    ]


def place(
    brokers: Sequence[UsableBroker], partition_count: int, replication_factor: int, rng: Random
) -> list[tuple[BrokerId, ...]]:
    """The replicas of `partition_count` partitions, the preferred leader first. Raises Refused with
    INVALID_REPLICATION_FACTOR, also where all brokers are fenced.
    """
    active = sum(not broker.fenced for broker in brokers)
    reason = ""
    if replication_factor <= 0:
        reason = f"replication factor {replication_factor} is not positive"
    elif not active:
        reason = "all brokers are fenced or shutting down"
    elif replication_factor > len(brokers):
        reason = f"replication factor {replication_factor} is above the number of brokers, {len(brokers)}"
    if reason:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
    racks = _racks(brokers, rng)
    first = rng.randrange(len(racks))
    placed = []
    for number in range(partition_count):
        if active > 1 and number and number % active == 0:
            rng.shuffle(racks)
            for circle in _circles(racks):
                rng.shuffle(circle.brokers)
        placed.append(_place_one(racks, (first + number) % len(racks), replication_factor))
    return placed


@dataclass(slots=True)
class _Circle:
    """Brokers in a circle; the next round begins at `start`."""

    brokers: list[BrokerId] = field(default_factory=list)
    start: int = 0

    def round(self) -> Iterator[BrokerId]:
        """Every broker once. If any is taken, the next round begins one broker further."""
        start = self.start
        self.start += 1
        for step in range(len(self.brokers)):
            yield self.brokers[(start + step) % len(self.brokers)]


@dataclass(slots=True)
class _Rack:
    active: _Circle = field(default_factory=_Circle)
    fenced: _Circle = field(default_factory=_Circle)


def _racks(brokers: Sequence[UsableBroker], rng: Random) -> list[_Rack]:
    """The racks in order of their names, that of brokers without a rack before all others."""
    racks: dict[tuple[bool, str], _Rack] = {}
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        rack = racks.setdefault((broker.rack is not None, broker.rack or ""), _Rack())
        (rack.fenced if broker.fenced else rack.active).brokers.append(broker.broker_id)
    ordered = [rack for _, rack in sorted(racks.items())]
    for circle in _circles(ordered):
        circle.start = rng.randrange(len(circle.brokers))
    return ordered


def _circles(racks: Sequence[_Rack]) -> list[_Circle]:
    return [circle for rack in racks for circle in (rack.active, rack.fenced) if circle.brokers]


def _place_one(racks: Sequence[_Rack], first: int, replication_factor: int) -> tuple[BrokerId, ...]:
    order = [*range(first, len(racks)), *range(first)]
    leader_rack = next(index for index in order if racks[index].active.brokers)
    active = [rack.active.round() for rack in racks]
    supply = [chain(active[index], rack.fenced.round()) for index, rack in enumerate(racks)]
    placed = [next(active[leader_rack])]
    asked = chain((index for index in order if index != leader_rack), cycle(order))
    # A loop, since mypyc makes a list of a generator expression, and `asked` has no end.
    while len(placed) < replication_factor:
        broker = next(supply[next(asked)], None)
        if broker is not None:
            placed.append(broker)
    return tuple(placed)
