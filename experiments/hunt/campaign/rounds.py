"""Rounds of a campaign: which plan a seed gets, which plans are kept, and which findings are one. Pure decisions.

All plans of a round are made from what was kept before it, and what they have reached is taken over when all of them
have ended, in the order of the seeds. The plans therefore depend on the first seed, the size of a round and the code
alone, not on workers or on how often the campaign was stopped.

Half of the seeds draw a plan as `isray fuzz` does, the others mutate a kept plan. A plan is kept if it has a feature
that no plan before it had. Plans with rare features are mutated more often: a kept plan's weight is 1 over the number
of plans that have the rarest of the features that it was first to reach (as in Lemieux and Sen, "FairFuzz", 2018).

Many plans meet the same defect. Their shrunk plans differ in nodes, times and sizes, and mostly agree in their *shape*:
the kinds of faults in the order in which they begin, and the kinds of operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, groupby
from random import Random
from typing import Annotated

from pydantic import Field

from experiments.hunt.fuzz.plan import PlanViolation, TimelineFile
from experiments.support.fields import StrictModel

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


class Finding(StrictModel):
    """Violations of one invariant by plans of one shape; `seed` is the lowest, with its timeline file's name."""

    file: str
    shape: str
    count: Annotated[int, Field(ge=1)]
    seed: int
    violation: PlanViolation


def shape_of(file: TimelineFile) -> str:
    """The shape of the file's plan, in words."""
    in_order = sorted(file.plan.faults, key=lambda fault: (fault.at_ms, fault.kind))
    faults = [kind for kind, _ in groupby(fault.kind for fault in in_order)]
    operations = sorted({operation.kind for operation in file.plan.operations})
    return f"{', '.join(faults) or 'no fault'}; {', '.join(operations) or 'no operation'}"


def add_finding(findings: dict[str, Finding], seed: int, file: TimelineFile) -> Finding:
    """Adds a violation; returns the finding that it belongs to, of which it may be the first."""
    assert file.violation is not None
    shape = shape_of(file)
    key = f"{file.violation.invariant} {shape}"
    digest = blake2b(key.encode(), digest_size=4).hexdigest()
    new = Finding(
        file=f"{file.violation.invariant}-{digest}.yaml", shape=shape, count=1, seed=seed, violation=file.violation
    )
    known = findings.get(key)
    first = new if known is None or seed < known.seed else known
    findings[key] = first.model_copy(update={"count": 1 if known is None else known.count + 1})
    return findings[key]
