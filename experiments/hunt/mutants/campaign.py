"""How many seeds each mutant survives, and which invariant kills it.

Each mutant runs with the seeds from 0 on, with its focus, until a run violates something. `--swarm` repeats that
without the focus: those verdicts say which guards the default swarm would miss. A guard is switched off for a whole
process, so mutants are spread over processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from experiments.hunt.mutants.mutant import switched_off
from experiments.hunt.mutants.registry import all_mutants, mutant_named
from experiments.support.processes import process_pool

SEEDS = 60
"""How many seeds a mutant runs with before it counts as survived."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one mutant, which ran with `seeds` seeds; if it was `killed`, the last violated `invariant`."""

    mutant: str
    guard: str
    killed: bool
    seeds: int
    invariant: str | None


def verdict(name: str, seeds: int = SEEDS, swarm: bool = False) -> Verdict:
    """Runs a mutant with its focus, or in the default swarm. InputError for an unknown name."""
    mutant = mutant_named(name)
    violation_of = mutant.focus.violation_without_focus if swarm else mutant.focus.first_violation
    with switched_off(mutant):
        violations = ((seed, violation_of(seed)) for seed in range(seeds))
        seed, invariant = next((found for found in violations if found[1] is not None), (seeds - 1, None))
    return Verdict(mutant.name, mutant.guard, invariant is not None, seed + 1, invariant)


def verdicts(names: Sequence[str], seeds: int, jobs: int, swarm: bool = False) -> Iterator[Verdict]:
    """The verdicts on these mutants, in their order, from `jobs` processes: with their focus, or with the swarm."""
    if jobs == 1:
        yield from (verdict(name, seeds, swarm) for name in names)
        return
    with process_pool(jobs) as pool:
        under_way = [pool.submit(verdict, name, seeds, swarm) for name in names]
        yield from (future.result() for future in under_way)


def page(found: Sequence[Verdict], swarm: Sequence[Verdict] = ()) -> str:
    """The table of docs/mutants.md, with two more columns if there are verdicts of the swarm on the same mutants."""
    titles = ["mutant", "guard", "without it", "seeds", "caught by", *(["swarm", "caught by"] if swarm else [])]
    rows = [titles]
    for found_by in zip_longest(found, swarm) if swarm else zip(found, strict=True):
        item = found_by[0]
        rows.append([f"`{item.mutant}`", item.guard, all_mutants()[item.mutant].instead])
        for one in found_by:
            rows[-1] += [str(one.seeds), str(one.invariant)] if one.killed else [f"not in {one.seeds}", ""]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(titles), *lines[1:]])
