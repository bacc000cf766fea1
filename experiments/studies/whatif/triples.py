"""The answers for every three brokers of a cluster, without asking each partition about each three.

What a failure does to a partition depends on those of its replicas that fail. So for numbers of partitions the effect
of a set of brokers is a sum over its subsets, of what each subset does beyond its own subsets (Moebius inversion): with
f(S) the number after exactly the brokers S of a partition have failed, g(S) is the sum over T in S of (-1)^|S - T|
f(T), and f(S) is that of g over the subsets of S. A partition has a g for each set of up to three of its replicas,
seven of three replicas, which are added up over all partitions. Three brokers then take seven additions instead of a
look at all their partitions. The least number of page caches is that of the partitions counted by it.

The brokers fail one after the other, with writes between; of the orders the worst counts for each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, permutations
from math import comb
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.studies.layouts.layout import Brokers
from experiments.studies.whatif.decisions import Outcome, Positions

MOST_TRIPLES: Final = 25_000
"""The most sets of three that are asked; 54 brokers have 24,804."""
_SIZE = 3
_WRITABLE, _LEADERLESS, _LOSSES = 0, 1, 2
_WIDTH = _LOSSES + _SIZE + 1
Numbers = NDArray[np.int64]
"""Of each topic: how many partitions are writable, without leader, and may lose with 0, 1, 2 or 3 page caches."""


class Counted(NamedTuple):
    """A partition of the topic with that number: its replicas, its outcome without a failure, and that after failures
    of its replicas by position, in this order."""

    topic: int
    replicas: Brokers
    before: Outcome
    after: Callable[[Positions], Outcome]


def is_feasible(brokers: Sequence[int]) -> bool:
    """Whether there are at most `MOST_TRIPLES`."""
    return comb(len(brokers), _SIZE) <= MOST_TRIPLES


def after_each_three(
    partitions: Iterable[Counted], topics: int, brokers: Brokers
) -> Iterator[tuple[Brokers, list[list[int]]]]:
    """Every three brokers, ascending, and of each topic the numbers of `numbers_of`."""
    effects: dict[Brokers, Numbers] = {}
    for each in partitions:
        for places, effect in _effects(each):
            key = tuple(sorted(each.replicas[place] for place in places))
            effects.setdefault(key, np.zeros((topics, _WIDTH), np.int64))[each.topic] += effect
    nothing = effects.get((), np.zeros((topics, _WIDTH), np.int64))
    for three in combinations(sorted(brokers), _SIZE):
        found = nothing.copy()
        for size in range(1, _SIZE + 1):
            for subset in combinations(three, size):
                if subset in effects:
                    found += effects[subset]
        yield three, found.tolist()


def numbers_of(counts: Sequence[int]) -> tuple[int, int, int, int | None]:
    """Of the counts of a topic: writable, leaderless, may lose, and the least number of page caches for that."""
    losing = counts[_LOSSES:]
    least = next((caches for caches, count in enumerate(losing) if count), None)
    return counts[_WRITABLE], counts[_LEADERLESS], sum(losing), least


def _effects(partition: Counted) -> Iterator[tuple[Positions, Numbers]]:
    """g of every set of up to three places of the partition."""
    places = range(len(partition.replicas))
    after: dict[Positions, Numbers] = {(): _counts([partition.before])}
    for size in range(_SIZE + 1):
        for failed in combinations(places, size):
            if failed:
                after[failed] = _counts([partition.after(order) for order in permutations(failed)])
            signed = [
                (-1) ** (size - part) * after[subset]
                for part in range(size + 1)
                for subset in combinations(failed, part)
            ]
            yield failed, np.sum(signed, axis=0)


def _counts(outcomes: Sequence[Outcome]) -> Numbers:
    """A partition as counts of one: the worst of the outcomes."""
    counts = np.zeros(_WIDTH, np.int64)
    counts[_WRITABLE] = all(outcome.writable for outcome in outcomes)
    counts[_LEADERLESS] = any(outcome.leaderless for outcome in outcomes)
    losses = [outcome.losses for outcome in outcomes if outcome.losses is not None]
    if losses:
        counts[_LOSSES + min(losses)] = 1
    return counts
