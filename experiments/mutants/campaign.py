"""Every mutant against the hunt: how many seeds until it is caught, and by what.

Mutants are independent of each other; they are spread over processes, since a guard is switched off for a whole one.
Seeds are tried from 0 on, so a verdict is the same wherever and however often it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from experiments.mutants.hunt import Hunt
from experiments.mutants.mutant import switched_off
from experiments.mutants.registry import MUTANTS

SEEDS = 60
"""How many seeds a mutant may survive before it counts as not caught."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: `seeds` were tried, the last of them caught it if it is `killed`, by `invariant`."""

    mutant: str
    guard: str
    killed: bool
    seeds: int
    invariant: str | None


def verdict(name: str, seeds: int = SEEDS) -> Verdict:
    """Hunts one mutant with at most so many seeds. KeyError for a name that there is not."""
    mutant = MUTANTS[name]
    with switched_off(mutant):
        for seed in range(seeds):
            found = Hunt(seed, mutant.focus).run()
            if found is not None:
                return Verdict(name, mutant.guard, True, seed + 1, found.invariant)
    return Verdict(name, mutant.guard, False, seeds, None)


def verdicts(names: Sequence[str], seeds: int, jobs: int) -> Iterator[Verdict]:
    """The verdicts on these mutants, in their order, made by so many processes."""
    if jobs == 1:
        yield from (verdict(name, seeds) for name in names)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(verdict, names, [seeds] * len(names))


def page(found: Sequence[Verdict]) -> str:
    """The table of docs/mutants.md."""
    lines = ["| mutant | guard | without it | seeds | caught by |", "|---|---|---|---|---|"]
    for item in found:
        seeds = str(item.seeds) if item.killed else f"not in {item.seeds}"
        without = MUTANTS[item.mutant].instead
        lines.append(f"| `{item.mutant}` | {item.guard} | {without} | {seeds} | {item.invariant or ''} |")
    return "\n".join(lines)
