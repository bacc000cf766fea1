"""Every mutant against the fuzz, or against chaos in the quorum's laboratory: how many seeds until it is caught, and by
what; and against the swarm of `isray fuzz`, or runs of the laboratory that are drawn without a bias.

Mutants are independent of each other; they are spread over processes, since a guard is switched off for a whole one.
Seeds are tried from 0 on, so a verdict is the same wherever and however often it is made.

The hunt looks where a mutant's focus tells it to. The default seeds know nothing of mutants: their column says how much
of the protocol they would notice the loss of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.hunt.mutants.registry import MUTANTS, mutated
from experiments.support.processes import process_pool

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
    """Hunts one mutant with at most so many seeds. InputError for a name that there is not."""
    with mutated(name):
        return _first(name, seeds, MUTANTS[name].focus.noticed)


def swarm_verdict(name: str, seeds: int) -> Verdict:
    """Runs at most so many seeds on one mutant that know nothing of it. InputError for a name that there is not."""
    with mutated(name):
        return _first(name, seeds, MUTANTS[name].focus.noticed_anywhere)


def _first(name: str, seeds: int, noticed: Callable[[int], str | None]) -> Verdict:
    """The verdict by the first seed that breaks something."""
    for seed in range(seeds):
        invariant = noticed(seed)
        if invariant is not None:
            return Verdict(name, MUTANTS[name].guard, True, seed + 1, invariant)
    return Verdict(name, MUTANTS[name].guard, False, seeds, None)


def verdicts(names: Sequence[str], seeds: int, jobs: int, swarm: bool = False) -> Iterator[Verdict]:
    """The verdicts on these mutants, in their order, made by so many processes: the hunt's, or the swarm's."""
    decide = swarm_verdict if swarm else verdict
    if jobs == 1:
        yield from (decide(name, seeds) for name in names)
        return
    with process_pool(jobs) as pool:
        under_way = [pool.submit(decide, name, seeds) for name in names]
        yield from (future.result() for future in under_way)


def page(found: Sequence[Verdict], swarm: Sequence[Verdict] = ()) -> str:
    """The table of docs/mutants.md; with two more columns where there are verdicts of the swarm on the same mutants."""
    titles = ["mutant", "guard", "without it", "seeds", "caught by", *(["swarm", "caught by"] if swarm else [])]
    lines = [_row(titles), "|" + "---|" * len(titles)]
    for index, item in enumerate(found):
        cells = [f"`{item.mutant}`", item.guard, MUTANTS[item.mutant].instead, *_cells(item)]
        lines.append(_row(cells + (_cells(swarm[index]) if swarm else [])))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(item: Verdict) -> list[str]:
    return [str(item.seeds), str(item.invariant)] if item.killed else [f"not in {item.seeds}", ""]
