"""Runs a campaign: rounds of seeds over workers, with a barrier after each, in a folder from which it goes on.

A seed is finished when its result is in the folder. Stopping at any moment, by an interrupt, a limit of time or
SIGKILL, loses only what workers had not returned; the next start runs those seeds again, with the same plans.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from experiments.hunt.campaign.folder import (
    ROUND,
    CampaignFolder,
    CurvePoint,
    Identity,
    Line,
    State,
    code_digest,
    curve_drawing,
    curve_table,
    open_campaign,
)
from experiments.hunt.campaign.mutate import mutated_plan
from experiments.hunt.campaign.rounds import Corpus, Finding, Origin, add_finding
from experiments.hunt.fuzz import coverage
from experiments.hunt.fuzz.plan import Plan, save
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.registry import mutated
from experiments.hunt.seeds import (
    Hunt,
    SeedResult,
    SeedsResult,
    check_can_hold_files,
    counts_read,
    counts_written,
    hunt_plan,
    violation_document,
)
from experiments.hunt.spread import Spread, workers
from experiments.support.atomic import write_text

PLANS_IN_MEMORY = 500
"""Of the kept plans, so many that were used last; a plan takes some 120 KB, and a long campaign keeps tens of
thousands.
"""


@dataclass(frozen=True, slots=True)
class Campaign(Hunt):
    """The specification of a campaign. Its identity is the first of the `seeds`, `generation`, `mutant`, `release`
    and `round_size`; how far the seeds go, `minutes` and `jobs` may differ from start to start.
    """

    seeds: range
    round_size: int = ROUND

    @property
    def identity(self) -> Identity:
        return Identity(
            code=code_digest(),
            first_seed=self.seeds.start,
            round_size=self.round_size,
            generation=None if self.generation is None else self.generation.value,
            mutant=self.mutant,
            release=self.release,
        )


@dataclass(slots=True)
class CampaignResult(SeedsResult):
    """A campaign so far, over all its starts. `started_with` are the seeds that were finished before this start, with
    their events; `ran_s` is how long this start has run, `seconds` how long all of them have.
    """

    folder: Path
    rounds: int
    started_with: tuple[int, int]
    ran_s: float
    features: int
    kept: int
    findings: list[Finding]
    curve: tuple[CurvePoint, ...]

    @property
    def rates(self) -> tuple[float, float]:
        """Plans and events per second of this start."""
        seeds, events = self.started_with
        ran_s = max(self.ran_s, 1e-9)
        return (self.seeds - seeds) / ran_s, (self.events - events) / ran_s

    def path(self, finding: Finding) -> Path:
        return self.folder / "findings" / finding.file

    def document(self) -> dict[str, object]:
        """The JSON document: that of a hunt, and the campaign."""
        plans, events = self.rates
        violations = [
            violation_document(finding.seed, finding.violation, self.path(finding))
            | {"shape": finding.shape, "count": finding.count}
            for finding in self.findings
        ]
        return {
            **self.hunt_document(events, violations),
            "campaign": {
                "folder": str(self.folder),
                "rounds": self.rounds,
                "plans_per_second": round(plans, 2),
                "seeds_of_this_start": self.seeds - self.started_with[0],
                "features": self.features,
                "kept_plans": self.kept,
                "curve": [point.model_dump() for point in self.curve],
            },
        }


def run_campaign(
    spec: Campaign, folder: Path, progress: Callable[[CampaignResult], None] = lambda _: None
) -> CampaignResult:
    """Runs the seeds that are not finished yet, in a folder that is new, empty or this campaign's; calls `progress`
    before the first seed and after each. A KeyboardInterrupt ends it early. InputError for an unknown mutant, or a
    folder that is another campaign's or cannot hold files; WorkerLost where a worker ends.
    """
    with mutated(spec.mutant):
        pass
    check_can_hold_files("--campaign", folder)
    with open_campaign(folder, spec.identity) as files:
        driver = _Driver(spec, files, progress)
        try:
            with workers(spec.jobs) as spread:
                driver.run(spread)
        except KeyboardInterrupt:
            driver.interrupted = True
        finally:
            driver.draw_curve()
        return driver.result()


_Slot = tuple[int, tuple[Plan, ...]]
"""A seed of a round with the kept plan that it mutates and the one whose parts it may use; without them it is drawn."""


def _plan(slot: _Slot, spec: Campaign) -> Plan:
    seed, kept = slot
    return mutated_plan(seed, *kept) if kept else draw(seed, spec.generation, release=spec.release)


def _run_slots(slots: Sequence[_Slot], spec: Campaign) -> list[SeedResult]:
    return [hunt_plan(_plan(slot, spec), spec.mutant) for slot in slots]


class _Driver:
    """A campaign while it runs: `_state` of the complete rounds, `_round` the finished seeds of the present one."""

    def __init__(self, spec: Campaign, files: CampaignFolder, progress: Callable[[CampaignResult], None]) -> None:
        self._spec, self._files, self._progress = spec, files, progress
        self._began_s = time.monotonic()
        self._state = files.read_state()
        self._corpus = Corpus(Counter(self._state.hits), {int(seed): new for seed, new in self._state.kept.items()})
        self._kept: Callable[[int], Plan] = lru_cache(PLANS_IN_MEMORY)(files.kept)
        seeds = self._seeds_of_round()
        lines = [line for line in files.read_round() if line.seed in seeds]
        self._round = {line.seed: line for line in lines}
        self._before_s = max([self._state.seconds, *(line.at_s for line in lines)])
        self._findings = dict(self._state.findings)
        self._counts = counts_read(self._state.counts)
        for line in lines:
            self._count(line)
        self._started_with = self._finished, self._events
        self.interrupted = False

    def run(self, spread: Spread) -> None:
        """Runs rounds until all seeds are finished, or the time is over."""
        self._progress(self.result())
        while True:
            self._finish_round(spread)
            if len(self._round) < self._spec.round_size:
                return
            self._close_round()

    def _seeds_of_round(self) -> range:
        begin = self._spec.seeds.start + self._state.rounds * self._spec.round_size
        return range(begin, begin + self._spec.round_size)

    def _finish_round(self, spread: Spread) -> None:
        """Runs what is left of the round, as far as seeds and time go."""
        slots = [
            self._slot(origin)
            for origin in self._corpus.origins(self._seeds_of_round())
            if origin.seed not in self._round and origin.seed in self._spec.seeds
        ]
        task = partial(_run_slots, spec=self._spec)
        for results in spread(task, self._spec.tasks(slots), self._spec.limit_from(self._began_s)):
            for result in results:
                line = Line(at_s=self._seconds, **dict(result))
                self._files.append(line)
                self._round[line.seed] = line
                self._count(line)
                self._progress(self.result())

    def _slot(self, origin: Origin) -> _Slot:
        return origin.seed, tuple(self._kept(seed) for seed in (origin.parent, origin.other) if seed is not None)

    def _count(self, line: Line) -> None:
        self._counts.update(counts_read(line.counts))
        if line.file is not None:
            finding = add_finding(self._findings, line.seed, line.file)
            path = self._files.root / "findings" / finding.file
            path.parent.mkdir(exist_ok=True)
            if finding.seed == line.seed or not path.exists():
                save(line.file, path)

    def _close_round(self) -> None:
        """Takes over what the round has reached, in the order of its seeds, and stores it."""
        for origin in list(self._corpus.origins(self._seeds_of_round())):
            line = self._round[origin.seed]
            if self._corpus.take(line.seed, line.features, is_clean=line.file is None):
                self._files.keep(_plan(self._slot(origin), self._spec), line.trace_hash)
        reachable = coverage.known().keys() - {coverage.MET}
        point = CurvePoint(
            round=self._state.rounds + 1,
            seeds=self._finished,
            events=self._events,
            seconds=round(self._seconds, 3),
            features=len(self._corpus.hits),
            behaviours=sum(bool(count) and group in reachable for (group, _), count in self._counts.items()),
            kept=len(self._corpus.kept),
            findings=len(self._findings),
        )
        self._state = State(
            rounds=point.round,
            events=point.events,
            seconds=point.seconds,
            counts=counts_written(self._counts),
            hits=dict(self._corpus.hits),
            kept={str(seed): new for seed, new in self._corpus.kept.items()},
            findings=self._findings,
            curve=(*self._state.curve, point),
        )
        self._files.write_state(self._state)
        write_text(self._files.root / "curve.csv", curve_table(self._state.curve))
        self._round = {}

    def draw_curve(self) -> None:
        if self._state.curve:
            write_text(self._files.root / "curve.svg", curve_drawing(self._state.curve))

    @property
    def _finished(self) -> int:
        return self._state.rounds * self._spec.round_size + len(self._round)

    @property
    def _events(self) -> int:
        return self._state.events + sum(line.events for line in self._round.values())

    @property
    def _seconds(self) -> float:
        return self._before_s + time.monotonic() - self._began_s

    def result(self) -> CampaignResult:
        return CampaignResult(
            folder=self._files.root,
            rounds=self._state.rounds,
            seeds=self._finished,
            events=self._events,
            seconds=self._seconds,
            started_with=self._started_with,
            ran_s=time.monotonic() - self._began_s,
            interrupted=self.interrupted,
            counts=self._counts,
            features=len(self._corpus.hits),
            kept=len(self._corpus.kept),
            findings=sorted(self._findings.values(), key=lambda finding: finding.seed),
            curve=self._state.curve,
        )
