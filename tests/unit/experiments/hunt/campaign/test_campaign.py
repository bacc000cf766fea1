"""Campaigns: the same plans whatever stops them and whoever runs them, nothing finished is lost, findings are merged.

Workers run a stand-in that takes no time: what a plan reaches, and whether it violates an invariant, is read off the
plan. `tests/ray/test_fuzz_on_ray.py` runs a campaign with real plans.
"""

from __future__ import annotations

import csv
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import pytest

from experiments.hunt.campaign import run as run_module
from experiments.hunt.campaign.folder import CampaignFolder
from experiments.hunt.campaign.mutate import mutated_plan
from experiments.hunt.campaign.rounds import Corpus, Finding, Origin, add_finding, shape_of
from experiments.hunt.campaign.run import Campaign, CampaignResult, run_campaign
from experiments.hunt.fuzz.coverage import FROM_ELR
from experiments.hunt.fuzz.plan import Plan, PlanViolation, TimelineFile, dangling_references, load
from experiments.hunt.fuzz.run import BEGIN_MS
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.seeds import SeedResult, counts_written
from experiments.hunt.spread import WorkerLost
from experiments.support.errors import InputError
from protocol.features import Generation
from tests.sim.command_helpers import leave

pytestmark = pytest.mark.slow

BROKEN = "EpochsRise"
DRAWING = run_module.curve_drawing
SPEC = Campaign(range(100, 130), round_size=10)


def reached(plan: Plan) -> frozenset[str]:
    """Three features of a plan, of which others have some too."""
    rng = Random(plan.model_dump_json())
    return frozenset(f"feature {round(rng.expovariate(0.1))}" for _ in range(3))


def file_of(plan: Plan, *, faults: int = 1) -> TimelineFile:
    """A violation of the plan, shrunk to some faults without operations."""
    small = plan.model_copy(update={"faults": plan.faults[:faults], "operations": ()})
    violation = PlanViolation(invariant=BROKEN, step=plan.seed, time_ms=1, detail="as asked for")
    return TimelineFile(violation=violation, trace_hash="0", before=plan.sizes, after=small.sizes, plan=small)


def stand_in(plan: Plan, mutant: str | None) -> SeedResult:
    """What a worker does in these tests; plans of seeds that are divisible by 7 violate an invariant."""
    file = file_of(plan, faults=0) if plan.seed % 7 == 0 else None
    counts = Counter({("election", FROM_ELR): plan.seed})
    return SeedResult(
        seed=plan.seed,
        events=1_000,
        trace_hash=f"hash {plan.seed}",
        counts=counts_written(counts),
        features=tuple(sorted(reached(plan))),
        file=file,
    )


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that run no plan, which forked processes inherit; and no chart."""
    monkeypatch.setattr(run_module, "hunt_plan", stand_in)
    monkeypatch.setattr(run_module, "curve_drawing", lambda curve: f"{len(curve)} rounds")


def everything(folder: Path) -> dict[str, object]:
    """What a campaign has stored, without the times."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    del state["seconds"]
    for point in state["curve"]:
        del point["seconds"]
    files = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for place in ("corpus", "findings")
        for path in (folder / place).iterdir()
    }
    return {"state": state, **files}


def finished(folder: Path) -> list[int]:
    """The seeds in the journal of the round under way."""
    return [line.seed for line in CampaignFolder(folder).read_round()]


def test_rounds_keep_what_is_new_and_mutate_it(tmp_path: Path) -> None:
    result = run_campaign(SPEC, tmp_path)
    assert (result.rounds, result.seeds, result.events) == (3, 30, 30_000)
    assert result.counts["election", FROM_ELR] == sum(SPEC.seeds)
    corpus = Corpus()
    seen: set[str] = set()
    mutations = 0
    for first in (100, 110, 120):
        origins = list(corpus.origins(range(first, first + 10)))
        mutations += sum(origin.parent is not None for origin in origins)
        plans = {}
        for origin in origins:
            assert origin.parent is None or (origin.parent < first and origin.other in corpus.kept)
            kept = [load(tmp_path / "corpus" / f"{seed}.json").plan for seed in (origin.parent, origin.other) if seed]
            plans[origin.seed] = mutated_plan(origin.seed, *kept) if kept else draw(origin.seed)
        for seed, plan in plans.items():
            new = reached(plan) - seen if seed % 7 else frozenset()
            assert (tmp_path / "corpus" / f"{seed}.json").exists() is bool(new)
            if new:
                assert load(tmp_path / "corpus" / f"{seed}.json").plan == plan
            seen |= new
            corpus.take(seed, reached(plan), is_clean=bool(seed % 7))
    assert mutations >= 5
    assert (result.features, result.kept) == (len(seen), len(corpus.kept))
    with (tmp_path / "curve.csv").open(encoding="utf-8") as table:
        curve = list(csv.DictReader(table))
    assert [(row["seeds"], row["events"]) for row in curve] == [("10", "10000"), ("20", "20000"), ("30", "30000")]
    assert int(curve[-1]["features"]) == len(seen)
    assert (tmp_path / "curve.svg").read_text(encoding="utf-8") == "3 rounds"
    assert "plans kept" in DRAWING(result.curve)


def test_a_campaign_goes_on_after_any_end(tmp_path: Path) -> None:
    """An interrupt within a round, a limit of time, a smaller range and an incomplete last line, and 2 processes."""

    def interrupt(found: CampaignResult) -> None:
        if found.seeds == 14:
            raise KeyboardInterrupt

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = run_campaign(SPEC, whole)
    first = run_campaign(SPEC, parts, interrupt)
    assert (first.interrupted, first.rounds, first.seeds) == (True, 1, 14)
    with (parts / "round.jsonl").open("a", encoding="utf-8") as journal:
        journal.write('{"at_s": 1.0, "seed": 1')
    assert run_campaign(replace(SPEC, minutes=0.0), parts).seeds == 14
    shorter = run_campaign(replace(SPEC, seeds=range(100, 117), jobs=2), parts)
    assert (shorter.seeds, sorted(finished(parts))) == (17, list(range(110, 117)))
    last = run_campaign(replace(SPEC, jobs=2), parts)
    assert everything(parts) == everything(whole)
    assert (last.seeds, last.events, last.counts) == (expected.seeds, expected.events, expected.counts)
    assert [finding.model_dump() for finding in last.findings] == [item.model_dump() for item in expected.findings]
    assert last.seconds > last.ran_s
    assert last.document()["seeds"] == 30
    assert run_campaign(SPEC, parts).document()["campaign"]["seeds_of_this_start"] == 0  # type: ignore[index]


def test_a_killed_driver_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    """Killed within a round, and where a round is complete and not all of its files are written."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_campaign(SPEC, whole)

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_within_a_round() -> None:
        run_campaign(SPEC, killed, lambda found: kill(found) if found.seeds == 25 else None)

    def kill_at_the_end_of_a_round() -> None:
        run_module.curve_table = kill  # type: ignore[assignment]
        run_campaign(SPEC, killed)

    for end, seeds in ((kill_within_a_round, 25), (kill_at_the_end_of_a_round, 30)):
        process = get_context("fork").Process(target=end)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        state = CampaignFolder(killed).read_state()
        assert state.rounds * 10 + len(finished(killed)) == seeds
    assert run_campaign(SPEC, killed).seeds == 30
    assert everything(killed) == everything(whole)


def test_lines_of_a_complete_round_are_counted_once(tmp_path: Path) -> None:
    """The driver was killed when the state had been replaced, and the journal not yet emptied."""
    run_campaign(replace(SPEC, seeds=range(100, 119)), tmp_path)
    lines = (tmp_path / "round.jsonl").read_text(encoding="utf-8")
    run_campaign(replace(SPEC, seeds=range(100, 120)), tmp_path)
    (tmp_path / "round.jsonl").write_text(lines, encoding="utf-8")
    again = run_campaign(replace(SPEC, seeds=range(100, 120)), tmp_path)
    assert (again.rounds, again.seeds, again.events) == (2, 20, 20_000)


def test_a_lost_worker_ends_the_start_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def dies(plan: Plan, mutant: str | None) -> SeedResult:
        if plan.seed == 108:
            os.kill(os.getpid(), signal.SIGKILL)
        return stand_in(plan, mutant)

    monkeypatch.setattr(run_module, "hunt_plan", dies)
    with pytest.raises(WorkerLost):
        run_campaign(replace(SPEC, jobs=2), tmp_path)
    assert set(finished(tmp_path)) <= set(range(100, 105))
    monkeypatch.setattr(run_module, "hunt_plan", stand_in)
    assert run_campaign(SPEC, tmp_path).seeds == 30


def test_equal_findings_are_one(tmp_path: Path) -> None:
    """Seeds 105, 112, 119 and 126 violate an invariant with plans of one shape."""
    result = run_campaign(SPEC, tmp_path)
    [finding] = result.findings
    assert (finding.count, finding.seed, finding.shape) == (4, 105, "no fault; no operation")
    [path] = (tmp_path / "findings").iterdir()
    assert path == result.path(finding)
    saved = load(path)
    assert saved.violation is not None
    assert (saved.plan.seed, saved.violation.invariant) == (105, BROKEN)


def test_findings_differ_by_invariant_and_shape() -> None:
    findings: dict[str, Finding] = {}
    one, two = file_of(draw(7), faults=0), file_of(draw(7), faults=1)
    assert shape_of(one) != shape_of(two)
    add_finding(findings, 9, one)
    add_finding(findings, 5, one)
    add_finding(findings, 6, two)
    assert one.violation is not None
    other = one.model_copy(update={"violation": one.violation.model_copy(update={"invariant": "Other"})})
    add_finding(findings, 4, other)
    assert sorted((found.seed, found.count) for found in findings.values()) == [(4, 1), (5, 2), (6, 1)]
    assert len({found.file for found in findings.values()}) == 3


def test_plans_with_rare_features_are_mutated_more_often() -> None:
    corpus = Corpus()
    corpus.take(1, {"rare"}, is_clean=True)
    corpus.take(2, {"frequent"}, is_clean=True)
    for seed in range(3, 30):
        assert not corpus.take(seed, {"frequent"}, is_clean=True)
    assert not corpus.take(30, {"new"}, is_clean=False)
    parents = Counter(origin.parent for origin in corpus.origins(range(100, 400)))
    assert 100 < parents[None] < 200
    assert parents[1] > 10 * parents[2] > 0
    assert list(corpus.origins(range(250, 260))) == list(corpus.origins(range(100, 400)))[150:160]
    assert list(Corpus().origins([5])) == [Origin(5)]


@pytest.mark.parametrize("generation", list(Generation))
def test_mutated_plans_are_plans_of_the_same_cluster(generation: Generation) -> None:
    plans = [draw(seed, generation) for seed in range(6)]
    changed = Counter[str]()
    for seed in range(120):
        plan, other = plans[seed % 6], plans[seed % 5]
        found = mutated_plan(seed, plan, other)
        assert found == mutated_plan(seed, plan, other)
        assert Plan.model_validate(found.model_dump(mode="json")) == found
        assert list(dangling_references(found)) == []
        assert all(fault.at_ms >= BEGIN_MS and fault.duration_ms >= 1 for fault in found.faults)
        assert found.seed == seed
        kept = ("generation", "brokers", "controllers", "voters", "store", "topics", "within_tolerance")
        assert [getattr(found, name) for name in kept] == [getattr(plan, name) for name in kept]
        changed.update(
            name
            for name in ("faults", "operations", "config", "jitter_ms")
            if getattr(found, name) != getattr(plan, name)
        )
    assert min(changed[name] for name in ("faults", "operations", "config", "jitter_ms")) > 0


def test_a_folder_of_something_else_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "campaign"
    command = ("fuzz", "--seeds", "100..102", "--campaign", str(folder))

    def refused(*arguments: str) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert leave(monkeypatch, *arguments) == 2
        said = capsys.readouterr()
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        assert (said.out, said.err.count("\n")) == ("", 1)
        return said.err

    assert leave(monkeypatch, *command) == 0
    assert capsys.readouterr().out.endswith("\nNo invariant was violated in 3 seeds.\n")
    assert 'generation: found none; allowed: "kip-966"' in refused(*command, "--generation", "kip-966")
    assert "mutant: found none" in refused(*command, "--mutant", "partition-epoch-not-raised")
    assert "first_seed: found 100" in refused("fuzz", "--seeds", "101..102", "--campaign", str(folder))
    assert "--out" in refused(*command, "--out", str(tmp_path / "out"))
    identity = folder / "campaign.json"
    good = json.loads(identity.read_text(encoding="utf-8"))
    for field, value in (("code", "0123"), ("version", 2), ("format", "isray-timeline")):
        identity.write_text(json.dumps(good | {field: value}), encoding="utf-8")
        assert f"{field}: found {json.dumps(value)};" in refused(*command)
    identity.write_text("no JSON", encoding="utf-8")
    assert "not JSON" in refused(*command)
    identity.unlink()
    assert "files but no campaign.json" in refused(*command)


def test_a_damaged_file_of_a_campaign_is_refused_in_one_line(tmp_path: Path) -> None:
    run_campaign(replace(SPEC, seeds=range(100, 115)), tmp_path)
    kept = min((tmp_path / "corpus").iterdir())
    for path, damage in ((kept, {"version": 2}), (tmp_path / "state.json", {"version": 2})):
        good = path.read_text(encoding="utf-8")
        path.write_text(json.dumps(json.loads(good) | damage), encoding="utf-8")
        if path == kept:
            for file in (tmp_path / "corpus").iterdir():
                file.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        with pytest.raises(InputError, match=r"version: found 2; allowed: 1"):
            run_campaign(SPEC, tmp_path)
        path.write_text(good, encoding="utf-8")


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    def second(found: CampaignResult) -> None:
        with pytest.raises(InputError, match="another command that runs this campaign"):
            run_campaign(SPEC, tmp_path)
        raise KeyboardInterrupt

    assert run_campaign(SPEC, tmp_path, second).interrupted
