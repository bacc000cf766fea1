"""Runs the plans of a range of seeds in processes or on a Ray cluster, and shrinks and saves each violation.

The result of a seed depends on the seed, the generation and the mutant alone, so results arrive in any order and are
sorted. Workers shrink violations and return the timeline file; the caller writes it. An interrupt ends the workers; the
results that they had returned are reported.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from experiments.hunt.fuzz import coverage
from experiments.hunt.fuzz.plan import Plan, TimelineFile, save
from experiments.hunt.fuzz.run import PlanResult, run_plan
from experiments.hunt.fuzz.shrink import shrink
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.registry import mutated
from experiments.support.errors import InputError
from experiments.support.processes import process_pool
from protocol.config import Generation

ON_RAY = "ray"
SEEDS_PER_TASK = 5
TASKS_PER_WORKER = 2


@dataclass(frozen=True, slots=True)
class Hunt:
    """The specification of a hunt: `seeds` in order, each at most once; `generation` None for a drawn one, `mutant`
    None for the protocol as it is, `minutes` None for no limit. `jobs` is a number of processes, or ON_RAY.
    """

    seeds: Sequence[int]
    generation: Generation | None = None
    mutant: str | None = None
    minutes: float | None = None
    jobs: int | str = 1


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed: the events of its first run, what it reached, and the timeline file of a violation."""

    seed: int
    events: int
    counts: Counter[tuple[str, str]]
    file: TimelineFile | None


@dataclass(slots=True)
class HuntResult:
    """The results of all seeds that were run; `interrupted`: an interrupt left out the others."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    next_seed: int | None = None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[tuple[int, TimelineFile, Path]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """The JSON document (the project's interfaces, section 4)."""
        return {
            "seeds": self.seeds,
            "events": self.events,
            "seconds": round(self.seconds, 3),
            "events_per_second": round(self.events / max(self.seconds, 1e-9)),
            "violations": [
                {
                    "seed": seed,
                    "invariant": file.violation.invariant,
                    "step": file.violation.step,
                    "detail": file.violation.detail,
                    "file": str(path),
                }
                for seed, file, path in self.violations
                if file.violation is not None
            ],
            "coverage": coverage.document(self.counts),
        }


def hunt(spec: Hunt, out: Path, progress: Callable[[HuntResult], None] = lambda _: None) -> HuntResult:
    """Runs the seeds; writes each violation's timeline file to `out` when it is found, and calls `progress` before the
    first seed and after each. A KeyboardInterrupt ends it early. InputError for an unknown mutant, or an `out` that
    cannot hold files.
    """
    with mutated(spec.mutant):
        pass
    if not _can_hold_files(out):
        raise InputError("--out", "", str(out), "a folder that can be written to, or nothing yet in such a folder")
    began_s = time.monotonic()
    deadline_s = None if spec.minutes is None else began_s + spec.minutes * 60

    def is_over() -> bool:
        return deadline_s is not None and time.monotonic() >= deadline_s

    result, missing = HuntResult(), dict.fromkeys(spec.seeds)
    progress(result)
    try:
        with closing(_spread(spec, is_over)) as spread:
            for done in spread:
                _add_result(result, done, out, spec.mutant)
                del missing[done.seed]
                progress(result)
    except KeyboardInterrupt:
        result.interrupted = True
    result.next_seed = next(iter(missing), None)
    result.violations.sort(key=lambda found: found[0])
    result.seconds = time.monotonic() - began_s
    return result


def _can_hold_files(out: Path) -> bool:
    """Whether `out` is a folder that takes files, or can be made one; it is not made before there is a file."""
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _add_result(result: HuntResult, done: SeedResult, out: Path, mutant: str | None) -> None:
    result.seeds += 1
    result.events += done.events
    result.counts.update(done.counts)
    if done.file is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{'' if mutant is None else mutant + '-'}seed-{done.seed}.yaml"
        save(done.file, path)
        result.violations.append((done.seed, done.file, path))


def hunt_seed(seed: int, generation: Generation | None = None, mutant: str | None = None) -> SeedResult:
    """Draws and runs the plan of one seed, and shrinks a violation."""
    plan = draw(seed, generation)
    with mutated(mutant):
        first = run_plan(plan)
        file = None if first.violation is None else shrunk_file(plan, first, mutant)
    return SeedResult(seed, first.events, first.coverage.counts, file)


def shrunk_file(plan: Plan, first: PlanResult, mutant: str | None) -> TimelineFile:
    """The timeline file of a violation, shrunk. The block of `mutated` must be active."""
    small, result, _ = shrink(plan, first, run_plan)
    return TimelineFile(
        mutant=mutant,
        violation=result.violation,
        trace_hash=result.trace_hash,
        before=plan.sizes,
        after=small.sizes,
        story=result.story,
        plan=small,
    )


# -- spreading ---------------------------------------------------------------------------------------------------------


def _task(seeds: Sequence[int], generation: Generation | None, mutant: str | None) -> list[SeedResult]:
    return [hunt_seed(seed, generation, mutant) for seed in seeds]


def _spread(spec: Hunt, is_over: Callable[[], bool]) -> Generator[SeedResult]:
    size = SEEDS_PER_TASK if spec.jobs != 1 else 1
    parts = [spec.seeds[begin : begin + size] for begin in range(0, len(spec.seeds), size)]
    if spec.jobs == 1:
        for part in parts:
            if is_over():
                return
            yield from _task(part, spec.generation, spec.mutant)
    elif isinstance(spec.jobs, int):
        yield from _over_processes(spec, parts, is_over, spec.jobs)
    else:
        yield from _over_ray(spec, parts, is_over)


def _over_processes(
    spec: Hunt, parts: Iterable[Sequence[int]], is_over: Callable[[], bool], jobs: int
) -> Iterator[SeedResult]:
    with process_pool(jobs) as pool:
        waiting = iter(parts)
        under_way: set[Future[list[SeedResult]]] = set()
        while True:
            while len(under_way) < TASKS_PER_WORKER * jobs and not is_over():
                part = next(waiting, None)
                if part is None:
                    break
                under_way.add(pool.submit(_task, part, spec.generation, spec.mutant))
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()


def _over_ray(spec: Hunt, parts: Iterable[Sequence[int]], is_over: Callable[[], bool]) -> Iterator[SeedResult]:
    """Runs each part as a Ray task. The caller has called `stay_on_loopback` before Ray is imported."""
    from experiments.engines.ray.session import ray_session

    with ray_session():
        import ray

        remote = ray.remote(_task)
        resources: dict[str, float] = ray.cluster_resources()
        cpus = max(1, int(resources.get("CPU", 1)))
        waiting = iter(parts)
        under_way: list[ray.ObjectRef[list[SeedResult]]] = []
        while True:
            while len(under_way) < TASKS_PER_WORKER * cpus and not is_over():
                part = next(waiting, None)
                if part is None:
                    break
                under_way.append(remote.remote(part, spec.generation, spec.mutant))
            if not under_way:
                return
            done, under_way = ray.wait(under_way)
            for reference in done:
                yield from ray.get(reference)
