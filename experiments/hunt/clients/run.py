"""Runs the plans of seeds, sorts what they show into classes, and makes the smallest run of each class.

One line per seed goes to `seeds.jsonl`, so that an interrupted search goes on where it was. Of each class the seed with
the fewest faults is made smaller: faults are left out as in the fuzz (`minimised`), then the workload is simplified,
while the class of the finding stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.faults.schema import Fault
from experiments.hunt.clients.application import application, quiet
from experiments.hunt.clients.findings import findings
from experiments.hunt.clients.plan import BROKERS, TOPIC, ClientFinding, ClientPlan, FindingFile, draw, save, smaller
from experiments.hunt.fuzz.shrink import minimised
from experiments.virtual.simulation import SimulatedKafka, StuckError

MAX_RUNS = 300
SEEDS_FILE = "seeds.jsonl"


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The findings of a run and its trace hash, which is empty where the run did not end."""

    findings: Sequence[ClientFinding]
    trace_hash: str = ""
    duration_ms: int = 0

    def of_class(self, name: str) -> ClientFinding | None:
        return next((finding for finding in self.findings if finding.name == name), None)


def run_plan(plan: ClientPlan, html: Path | None = None) -> PlanResult:
    """Runs a plan; with `html` it also writes the page of the run."""
    kafka = SimulatedKafka(
        plan.seed,
        plan.faults,
        brokers=BROKERS,
        topics={TOPIC: plan.partitions},
        topic_config={"min.insync.replicas": 2},
        cluster={"controllers": plan.controllers},
    )
    kafka.html = html
    try:
        with quiet():
            result = kafka.run(application, plan)
    except StuckError as error:
        return PlanResult([ClientFinding(kind="stuck-run", detail=str(error))])
    return PlanResult(findings(plan, result), result.trace_hash, result.duration_ms)


@dataclass(slots=True)
class Search:
    """What a search has found: `seeds` by class, in order. `client_s` is the virtual time of the applications."""

    runs: int = 0
    client_s: float = 0.0
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def add(self, seed: int, client_ms: int, classes: Sequence[str]) -> None:
        self.runs += 1
        self.client_s += client_ms / 1_000
        for name in classes:
            self.seeds.setdefault(name, []).append(seed)


def search(seeds: Sequence[int], out: Path, progress: Callable[[Search], None] = lambda _: None) -> Search:
    """Runs the seeds that `out` does not have the results of yet; results of other seeds there do not count. An
    interrupt ends it early.
    """
    out.mkdir(parents=True, exist_ok=True)
    found, path, wanted = Search(), out / SEEDS_FILE, dict.fromkeys(seeds)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        seed, client_ms, classes = json.loads(line)
        if seed in wanted:
            del wanted[seed]
            found.add(seed, client_ms, classes)
    try:
        with path.open("a", encoding="utf-8") as file:
            for seed in wanted:
                progress(found)
                result = run_plan(draw(seed))
                classes = [finding.name for finding in result.findings]
                file.write(json.dumps([seed, result.duration_ms, classes]) + "\n")
                file.flush()
                found.add(seed, result.duration_ms, classes)
    except KeyboardInterrupt:
        pass
    progress(found)
    return found


def smallest(found: Search, out: Path) -> dict[str, tuple[FindingFile, Path]]:
    """The smallest run of each class, and its file in `out`."""
    files = {}
    for name, seeds in sorted(found.seeds.items()):
        plan = min(map(draw, seeds), key=lambda plan: len(plan.faults))
        path = out / f"{re.sub('[^A-Za-z0-9.]+', '-', name)}.yaml"
        files[name] = (shrink(plan, name, len(seeds)), path)
        save(*files[name])
    return files


def shrink(plan: ClientPlan, name: str, seeds: int = 1) -> FindingFile:
    """A smaller plan with a finding of this class, which the plan has. ValueError if it has none."""
    best, result, runs = plan, run_plan(plan), 0
    if result.of_class(name) is None:
        raise ValueError(f"seed {plan.seed} has no finding of the class {name}")

    def has(candidate: ClientPlan) -> bool:
        """Whether a plan has the finding; if so it is the best one from now on."""
        nonlocal best, result, runs
        runs += 1
        if runs > MAX_RUNS:
            return False
        found = run_plan(candidate)
        if found.of_class(name) is not None:
            best, result = candidate, found
            return True
        return False

    def has_with(faults: Sequence[Fault]) -> bool:
        return has(best.model_copy(update={"faults": tuple(faults)}))

    minimised(best.faults, has_with)
    while any(has(candidate) for candidate in smaller(best)):
        pass
    minimised(best.faults, has_with)
    finding = result.of_class(name)
    assert finding is not None
    return FindingFile(finding=finding, seeds=seeds, trace_hash=result.trace_hash, plan=best)
