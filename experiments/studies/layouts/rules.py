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
the next one, so that each broker is in a set if P is 2 or more. Two brokers that meet in two sets count once for the
scatter width, so a permutation that has such a pair is drawn up to `DRAWS` times, and the draw with the fewest counts.
Brokers that have too few partners after P permutations, as those of a rest may, get further sets until each has S. Sets
are taken in turn, and the first replica, the preferred leader, rotates within the set, so that partitions and leaders
are spread evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import ceil
from random import Random
from typing import NamedTuple

from experiments.studies.layouts.layout import Brokers, Layout, TopicLayout, layout_of
from protocol.controller.placement import UsableBroker
from protocol.controller.placement import place as place_striped

RULES = ("rack-aware", "random", "copysets")
Partners = dict[int, set[int]]
"""The other brokers of each one's sets."""
DRAWS = 100
"""How often a permutation is drawn that repeats a pair of brokers."""


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
    `scatter_width` is for `copysets` alone (default: twice the fewest, 2 (R - 1), or as many as there are). Raises
    ValueError for another rule, a topic with more replicas than there are brokers, and a scatter width that is more
    than a broker can have partners.
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
        used = {racks.get(broker) for broker in taken}
        for broker in order:
            if len(taken) == factor:
                break
            if broker not in taken and (may_share or not racks or racks.get(broker) not in used):
                taken.append(broker)
                used.add(racks.get(broker))
    for broker in taken:
        order.remove(broker)
    return tuple(taken)


def most_partners(brokers: Brokers, racks: Mapping[int, str], factor: int) -> int:
    """The largest scatter width that each broker can have: with racks for all replicas, those of the other racks."""
    if len(set(racks.values())) < factor:
        return len(brokers) - 1
    sizes = Counter(racks[broker] for broker in brokers)
    return len(brokers) - max(sizes.values())


def copysets(brokers: Brokers, racks: Mapping[int, str], factor: int, scatter_width: int, rng: Random) -> list[Brokers]:
    """The replica sets of `factor` brokers, each once, in which each broker has `scatter_width` partners or more.
    ValueError where so many are impossible."""
    if factor == 1:
        return [(broker,) for broker in brokers]
    most = most_partners(brokers, racks, factor)
    if scatter_width > most:
        raise ValueError(f"scatter_width {scatter_width} with {factor} replicas: allowed: at most {most}")
    found: list[Brokers] = []
    partners: Partners = {broker: set() for broker in brokers}
    rest: list[int] = []
    for _ in range(ceil(scatter_width / (factor - 1))):
        sets, rest = _permutation(brokers, racks, factor, rest, partners, rng)
        found += sets
        _meet(sets, partners)
    for broker in brokers:
        while len(partners[broker]) < scatter_width:
            others = rng.sample(brokers, len(brokers))
            known = partners[broker] | {broker}
            others.remove(broker)
            order = [broker, *sorted(others, key=lambda other: (other in known, len(partners[other])))]
            found.append(_take_one_set(order, racks, factor))
            _meet(found[-1:], partners)
    once: dict[frozenset[int], Brokers] = {}
    for each in found:
        once.setdefault(frozenset(each), each)
    return list(once.values())


def _permutation(
    brokers: Brokers, racks: Mapping[int, str], factor: int, rest: list[int], partners: Partners, rng: Random
) -> tuple[list[Brokers], list[int]]:
    """The sets of one permutation, which begins with the `rest` of the last one, and its own rest."""
    best: tuple[int, list[Brokers], list[int]] | None = None
    for _ in range(DRAWS):
        drawn = rng.sample(brokers, len(brokers))
        order = rest + [broker for broker in drawn if broker not in rest]
        sets: list[Brokers] = []
        while len(order) >= factor:
            sets.append(_take_one_set(order, racks, factor))
        repeated = sum(b in partners[a] for each in sets for a, b in combinations(each, 2))
        if best is None or repeated < best[0]:
            best = repeated, sets, order
        if best[0] == 0:
            break
    assert best is not None
    return best[1:]


def _meet(sets: Iterable[Brokers], partners: Partners) -> None:
    """Adds to the partners of brokers those of the sets."""
    for each in sets:
        for broker in each:
            partners[broker].update(other for other in each if other != broker)


def _on_sets(
    brokers: Brokers, racks: Mapping[int, str], topic: PlacedTopic, seed: int, scatter_width: int | None
) -> list[Brokers]:
    """The partitions on the replica sets, which all topics of one replication factor share."""
    factor = topic.replication_factor
    default = min(2 * (factor - 1), most_partners(brokers, racks, factor))
    width = default if scatter_width is None else scatter_width
    sets = copysets(brokers, racks, factor, width, Random(f"{factor} {width} {seed}"))
    placed = []
    for index in range(topic.partitions):
        members, turn = sets[index % len(sets)], index // len(sets) % factor
        placed.append(members[turn:] + members[:turn])
    return placed
