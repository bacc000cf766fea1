"""Rounds of a campaign: which plan a seed gets, and which plans are kept. Pure decisions.

All plans of a round are made from what was kept before it, and what they have reached is taken over when all of them
have ended, in the order of the seeds. The plans therefore depend on the first seed, the size of a round and the code
alone, not on workers or on how often the campaign was stopped.

Half of the seeds draw a plan as `isray fuzz` does, the others mutate a kept plan. A plan is kept if it has a feature
that no plan before it had. Plans with rare features are mutated more often: a kept plan's weight is 1 over the number
of plans that have the rarest of the features that it was first to reach (as in Lemieux and Sen, "FairFuzz", 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

MUTATED = 0.5


@dataclass(frozen=True, slots=True)
class Origin:
    """The seed's plan mutates that kept from `parent` with parts of that from `other`, or is drawn (None)."""

    seed: int
    parent: int | None = None
    other: int | None = None


@dataclass(slots=True)
class Corpus:
    """`hits`: how many plans have had a feature. `kept`: by seed, the features that a kept plan was first to reach."""

    hits: Counter[str] = field(default_factory=Counter)
    kept: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def origins(self, seeds: Sequence[int]) -> Iterator[Origin]:
        """Where the plans of these seeds of a round come from; the corpus is that of the round's beginning."""
        parents = list(self.kept)
        weights = list(accumulate(1 / min(self.hits[name] for name in new) for new in self.kept.values()))
        for seed in seeds:
            rng = Random(f"{seed}/origin")
            if not parents or rng.random() >= MUTATED:
                yield Origin(seed)
            else:
                yield Origin(seed, rng.choices(parents, cum_weights=weights)[0], rng.choice(parents))

    def take(self, seed: int, features: Iterable[str], *, is_clean: bool) -> bool:
        """Counts a plan's features; returns whether it is kept: what is near a violation violates it again."""
        found = sorted(features)
        new = tuple(name for name in found if not self.hits[name])
        if is_clean and new:
            self.kept[seed] = new
        if is_clean:
            self.hits.update(found)
        return is_clean and bool(new)
