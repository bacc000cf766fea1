"""The sequence of faults of a soak, a function of the seed.

Faults come in rounds. A round has every kind once, in an order that is drawn for the round; so no kind is left to
chance, and in the long run every kind follows every other. Each fault has a seed of its own for its other draws (its
target and variant), so that leaving out a kind changes no other fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """The fault number `index` of a soak; `seed` is that of its random source."""

    index: int
    kind: str
    seed: str


def schedule(seed: int, kinds: Sequence[str]) -> Iterator[ScheduledFault]:
    """An endless sequence of faults; `kinds` are distinct names, at least one."""
    index, round_ = 0, 0
    while True:
        order = sorted(kinds)
        Random(f"{seed}/round/{round_}").shuffle(order)
        for kind in order:
            yield ScheduledFault(index, kind, f"{seed}/{kind}/{round_}")
            index += 1
        round_ += 1
