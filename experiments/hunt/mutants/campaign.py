"""How many seeds each mutant survives, and which invariant kills it.

Each mutant runs with the seeds from 0 on, in the plans or quorum runs that its focus asks for, until a run violates
something. `--swarm` repeats that with the plans that the same seeds give without a focus: those verdicts say which
guards the default swarm would miss.

A guard is switched off for a whole process, so mutants are spread over processes. A verdict depends on the mutant and
the number of seeds only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.hunt.mutants.mutant import Mutant, switched_off
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


def verdict(name: str, seeds: int = SEEDS) -> Verdict:
    """Runs a mutant with at most `seeds` seeds and its focus. InputError for an unknown name."""
    mutant = mutant_named(name)
    return _first(mutant, seeds, mutant.focus.first_violation)


def swarm_verdict(name: str, seeds: int) -> Verdict:
    """Runs a mutant with at most `seeds` seeds of the default swarm. InputError for an unknown name."""
    mutant = mutant_named(name)
    return _first(mutant, seeds, mutant.focus.violation_without_focus)


def _first(mutant: Mutant, seeds: int, violation_of: Callable[[int], str | None]) -> Verdict:
    """The verdict of the first seed whose run violates something."""
    with switched_off(mutant):
        violations = ((seed, violation_of(seed)) for seed in range(seeds))
        seed, invariant = next((found for found in violations if found[1] is not None), (seeds - 1, None))
    return Verdict(mutant.name, mutant.guard, invariant is not None, seed + 1, invariant)


def verdicts(names: Sequence[str], seeds: int, jobs: int, swarm: bool = False) -> Iterator[Verdict]:
    """The verdicts on these mutants, in their order, from `jobs` processes: with their focus, or with the swarm."""
    decide = swarm_verdict if swarm else verdict
    if jobs == 1:
        yield from (decide(name, seeds) for name in names)
        return
    with process_pool(jobs) as pool:
        under_way = [pool.submit(decide, name, seeds) for name in names]
        yield from (future.result() for future in under_way)


def page(found: Sequence[Verdict], swarm: Sequence[Verdict] = ()) -> str:
    """The table of docs/mutants.md, with two more columns if there are verdicts of the swarm on the same mutants."""
    titles = ["mutant", "guard", "without it", "seeds", "caught by", *(["swarm", "caught by"] if swarm else [])]
    lines = [_row(titles), "|" + "---|" * len(titles)]
    for index, item in enumerate(found):
        cells = [f"`{item.mutant}`", item.guard, all_mutants()[item.mutant].instead, *_cells(item)]
        lines.append(_row(cells + (_cells(swarm[index]) if swarm else [])))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(item: Verdict) -> list[str]:
    return [str(item.seeds), str(item.invariant)] if item.killed else [f"not in {item.seeds}", ""]
