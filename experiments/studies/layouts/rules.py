"""Placements by rule, to compare with the one that a cluster has.

- `rack-aware`: the placement of Kafka's controller (`protocol/controller/placement.py`).
- `random`: each partition on brokers that are drawn without replacement, of different racks where there are enough.
  With many partitions almost every set of brokers becomes a replica set, so that some partition is hit by almost any
  failure of as many brokers as there are replicas.
- `copysets`: few replica sets (Cidon et al., Copysets: Reducing the Frequency of Data Loss in Cloud Storage, USENIX
  ATC 2013, section 4). For a scatter width S and R replicas, P = S / (R - 1) permutations of the brokers, rounded up,
  are each cut into sets of R; a partition is put on one of these sets. Each broker is in P sets, so that its scatter
  width is at most P (R - 1), and there are P floor(N / R) sets instead of up to C(N, R). If k random brokers are
  down at once, all replicas of some partition are down with the probability that the k contain a used set; for k = R
  that is sets / C(N, R).

Where the paper leaves freedom: permutations are drawn, and a cut passes over a broker whose rack the set already has
where racks allow it (section 4.2); a rest that is no whole set joins none in its permutation, and is taken first in
the next one, so that each broker is in a set if P is 2 or more. Sets are taken in turn, and the first replica, the
preferred leader, rotates within the set, so that partitions and leaders are spread evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import ceil, comb
from random import Random
from typing import NamedTuple

from experiments.studies.layouts.layout import Brokers, Layout, TopicLayout, layout_of
from protocol.controller.placement import UsableBroker
from protocol.controller.placement import place as place_striped

RULES = ("rack-aware", "random", "copysets")


class PlacedTopic(NamedTuple):
    """A topic that is to be placed."""

    name: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int | None = None


def place(
    rule: str,
    brokers: Brokers,
    racks: Mapping[int, str],
    topics: Sequence[PlacedTopic],
    seed: int,
    scatter_width: int | None = None,
) -> Layout:
    """The topics placed by a rule of `RULES`, the same for the same seed. `racks` has every broker or is empty;
    `scatter_width` is for `copysets` alone (default: twice the fewest, 2 (R - 1)). Raises ValueError for another rule,
    and for a topic with more replicas than there are brokers.
    """
    rng = Random(f"{rule} {seed}")
    makers: Mapping[str, Callable[[PlacedTopic], list[Brokers]]] = {
        "rack-aware": lambda topic: _striped(brokers, racks, topic, rng),
        "random": lambda topic: [
            _drawn(brokers, racks, topic.replication_factor, rng) for _ in range(topic.partitions)
        ],
        "copysets": lambda topic: _on_sets(brokers, racks, topic, seed, scatter_width),
    }
    if rule not in makers:
        raise ValueError(f"placement {rule!r}: allowed: {', '.join(RULES)}")
    crowded = [topic.name for topic in topics if not 1 <= topic.replication_factor <= len(brokers)]
    if crowded:
        raise ValueError(f"topic {crowded[0]!r}: allowed: a replication factor from 1 to {len(brokers)}")
    placed = (TopicLayout(topic.name, tuple(makers[rule](topic)), topic.min_insync_replicas) for topic in topics)
    return layout_of(placed, brokers, racks)


def _striped(brokers: Brokers, racks: Mapping[int, str], topic: PlacedTopic, rng: Random) -> list[Brokers]:
    usable = [UsableBroker(broker, racks.get(broker)) for broker in brokers]
    return place_striped(usable, topic.partitions, topic.replication_factor, rng)


def _drawn(brokers: Brokers, racks: Mapping[int, str], factor: int, rng: Random) -> Brokers:
    return _take_one_set(rng.sample(brokers, len(brokers)), racks, factor)


def _take_one_set(order: list[int], racks: Mapping[int, str], factor: int) -> Brokers:
    """The first brokers in `order` of different racks, which are removed from it; of racks that the set has already
    only where the others have too few."""
    taken: list[int] = []
    for may_share in (False, True):
        for broker in list(order):
            used = {racks[other] for other in taken} if racks else set()
            if len(taken) < factor and (may_share or racks.get(broker) not in used):
                taken.append(broker)
                order.remove(broker)
    return tuple(taken)


def copysets(brokers: Brokers, racks: Mapping[int, str], factor: int, scatter_width: int, rng: Random) -> list[Brokers]:
    """The replica sets of `factor` brokers for a scatter width, without those that come twice."""
    if factor == 1:
        return [(broker,) for broker in brokers]
    found: dict[frozenset[int], Brokers] = {}
    rest: list[int] = []
    for _ in range(max(1, ceil(scatter_width / (factor - 1)))):
        drawn = rng.sample(brokers, len(brokers))
        order = rest + [broker for broker in drawn if broker not in rest]
        while len(order) >= factor:
            taken = _take_one_set(order, racks, factor)
            found.setdefault(frozenset(taken), taken)
        rest = order
    return list(found.values())


def _on_sets(
    brokers: Brokers, racks: Mapping[int, str], topic: PlacedTopic, seed: int, scatter_width: int | None
) -> list[Brokers]:
    """The partitions on the replica sets, which all topics of one replication factor share."""
    factor = topic.replication_factor
    width = 2 * (factor - 1) if scatter_width is None else scatter_width
    sets = copysets(brokers, racks, factor, width, Random(f"{factor} {width} {seed}"))
    placed = []
    for index in range(topic.partitions):
        members, turn = sets[index % len(sets)], index // len(sets) % factor
        placed.append(members[turn:] + members[:turn])
    return placed


def probability_of_a_hit(layout: Layout, down: int) -> float:
    """The probability that `down` different brokers, each choice equally likely, contain a replica set. For `down`
    equal to the replication factor of all topics it is the number of replica sets / C(brokers, down); for more it is
    counted over all choices.
    """
    sets = layout.replica_sets()
    if all(len(members) >= down for members in sets):
        return sum(len(members) == down for members in sets) / comb(len(layout.brokers), down)
    choices = (frozenset(chosen) for chosen in combinations(layout.brokers, down))
    return sum(any(members <= chosen for members in sets) for chosen in choices) / comb(len(layout.brokers), down)
