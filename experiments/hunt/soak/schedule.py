"""Which fault comes next: a function of the seed.

Faults come in rounds. A round has every kind once, in an order that is drawn for the round; so the rare ones are not
left to chance, and every kind meets every other as its predecessor sooner or later. Each fault has a number of its own
for what else is to be drawn for it (whom it strikes, in which way), so that leaving out a kind changes no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Planned:
    """The fault number `index`, of a kind; `dice` seeds everything that is drawn for it."""

    index: int
    kind: str
    dice: str


def schedule(seed: int, kinds: Sequence[str]) -> Iterator[Planned]:
    """Faults without end; `kinds` are distinct and at least one."""
    index, round_ = 0, 0
    while True:
        order = sorted(kinds)
        Random(f"{seed}/round/{round_}").shuffle(order)
        for kind in order:
            yield Planned(index, kind, f"{seed}/{kind}/{round_}")
            index += 1
        round_ += 1
