"""Runs the plans of a range of seeds (`spread.py` says where), and shrinks and saves each violation.

The result of a seed depends on the seed, the generation and the mutant alone, so results arrive in any order and are
sorted. Workers shrink violations and return the timeline file; the caller writes it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, TypeVar

from experiments.hunt.fuzz import coverage
from experiments.hunt.fuzz.plan import Plan, PlanViolation, TimelineFile, save
from experiments.hunt.fuzz.run import run_plan
from experiments.hunt.fuzz.shrink import shrink
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.registry import mutated
from experiments.hunt.spread import workers
from experiments.support.errors import InputError
from experiments.support.fields import AsTuple, StrictModel
from protocol.features import Generation

SEEDS_PER_TASK = 5
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Hunt:
    """The specification of a hunt: `seeds` in order, each at most once; `generation` None for a drawn one, `mutant`
    None for the protocol as it is, `minutes` None for no limit. `jobs` as for `workers`, `release` as for `draw`.
    """

    seeds: Sequence[int]
    generation: Generation | None = None
    mutant: str | None = None
    minutes: float | None = None
    jobs: int | str = 1
    release: str | None = None

    def tasks(self, items: Sequence[_Item]) -> list[Sequence[_Item]]:
        """The items as the tasks of workers."""
        size = SEEDS_PER_TASK if self.jobs != 1 else 1
        return [items[begin : begin + size] for begin in range(0, len(items), size)]

    def limit_from(self, began_s: float) -> Callable[[], bool]:
        """Whether the limit of time is reached, for a start at `began_s` of the monotonic clock."""
        deadline_s = inf if self.minutes is None else began_s + self.minutes * 60
        return lambda: time.monotonic() >= deadline_s


Counts = Annotated[tuple[Annotated[tuple[str, str, int], AsTuple], ...], AsTuple]
"""Group, name and count, as files have them."""


class SeedResult(StrictModel):
    """The events of a seed's first run, its trace hash, what it reached, and the timeline file of a violation."""

    seed: int
    events: int
    trace_hash: str
    counts: Counts
    features: Annotated[tuple[str, ...], AsTuple]
    file: TimelineFile | None = None


def counts_written(counts: Counter[tuple[str, str]]) -> Counts:
    return tuple((group, name, count) for (group, name), count in sorted(counts.items()))


def counts_read(counts: Counts) -> Counter[tuple[str, str]]:
    return Counter({(group, name): count for group, name, count in counts})


@dataclass(slots=True, kw_only=True)
class SeedsResult:
    """What hunts and campaigns report; `interrupted`: an interrupt left out some seeds."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def hunt_document(self, events_per_second: float, violations: list[dict[str, object]]) -> dict[str, object]:
        """The JSON document of `isray fuzz --json`, without the part about a campaign."""
        return {
            "seeds": self.seeds,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "events_per_second": round(events_per_second),
            "violations": violations,
            "coverage": coverage.document(self.counts),
        }


@dataclass(slots=True, kw_only=True)
class HuntResult(SeedsResult):
    """The results of all seeds that were run."""

    next_seed: int | None = None
    violations: list[tuple[int, TimelineFile, Path]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        found = [(seed, file.violation, path) for seed, file, path in self.violations if file.violation is not None]
        return self.hunt_document(
            self.events / max(self.seconds, 1e-9), [violation_document(*violation) for violation in found]
        )


def violation_document(seed: int, found: PlanViolation, path: Path) -> dict[str, object]:
    return {"seed": seed, **found.model_dump(include={"invariant", "step", "detail"}), "file": str(path)}


def hunt(spec: Hunt, out: Path, progress: Callable[[HuntResult], None] = lambda _: None) -> HuntResult:
    """Runs the seeds; writes each violation's timeline file to `out` when it is found, and calls `progress` before the
    first seed and after each. A KeyboardInterrupt ends it early. InputError for an unknown mutant, or an `out` that
    cannot hold files.
    """
    with mutated(spec.mutant):
        pass
    check_can_hold_files("--out", out)
    began_s = time.monotonic()
    result, missing = HuntResult(), dict.fromkeys(spec.seeds)
    progress(result)
    try:
        with workers(spec.jobs) as spread:
            task = partial(_hunt_seeds, generation=spec.generation, mutant=spec.mutant, release=spec.release)
            for results in spread(task, spec.tasks(spec.seeds), spec.limit_from(began_s)):
                for done in results:
                    _add_result(result, done, out, spec.mutant)
                    del missing[done.seed]
                    progress(result)
    except KeyboardInterrupt:
        result.interrupted = True
    result.next_seed = next(iter(missing), None)
    result.violations.sort(key=lambda found: found[0])
    result.seconds = time.monotonic() - began_s
    return result


def check_can_hold_files(option: str, out: Path) -> None:
    """InputError unless `out`, given by an option, is a folder that takes files, or can be made one; it is not made."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(option, "", str(out), "a folder that can be written to, or nothing yet in such a folder")


def _add_result(result: HuntResult, done: SeedResult, out: Path, mutant: str | None) -> None:
    result.seeds += 1
    result.events += done.events
    result.counts.update(counts_read(done.counts))
    if done.file is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{'' if mutant is None else mutant + '-'}seed-{done.seed}.yaml"
        save(done.file, path)
        result.violations.append((done.seed, done.file, path))


def hunt_seed(
    seed: int, generation: Generation | None = None, mutant: str | None = None, release: str | None = None
) -> SeedResult:
    """Draws and runs the plan of one seed, and shrinks a violation."""
    return hunt_plan(draw(seed, generation, release=release), mutant)


def _hunt_seeds(
    seeds: Sequence[int], generation: Generation | None, mutant: str | None, release: str | None
) -> list[SeedResult]:
    return [hunt_seed(seed, generation, mutant, release) for seed in seeds]


def hunt_plan(plan: Plan, mutant: str | None = None) -> SeedResult:
    """Runs a plan, and shrinks a violation."""
    file = None
    with mutated(mutant):
        first = run_plan(plan)
        if first.violation is not None:
            small, result, _ = shrink(plan, first, run_plan)
            file = TimelineFile(
                mutant=mutant,
                violation=result.violation,
                trace_hash=result.trace_hash,
                before=plan.sizes,
                after=small.sizes,
                story=result.story,
                plan=small,
            )
    return SeedResult(
        seed=plan.seed,
        events=first.events,
        trace_hash=first.trace_hash,
        counts=counts_written(first.coverage.counts),
        features=tuple(sorted(first.coverage.features())),
        file=file,
    )
