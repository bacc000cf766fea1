"""Mutants: the hunt is quiet on the protocol as it is, notices guards that are gone, and puts every guard back."""

from __future__ import annotations

import json
import re
from inspect import getattr_static
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.check.invariants import INVARIANTS
from experiments.cli.main import app
from experiments.mutants.campaign import SEEDS, page, swarm_verdict, verdict, verdicts
from experiments.mutants.hunt import Hunt
from experiments.mutants.mutant import Focus, Mutant, Patch, by_name, replaced_by, switched_off
from experiments.mutants.registry import MUTANTS, mutated
from protocol.broker import leadership

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"
SCRIPTED = sorted(name for name, mutant in MUTANTS.items() if mutant.focus.script)
HISTORY = {"LostRecord", "MovedRecord", "DuplicatedRecord", "ReorderedRecords", "VanishedRead", "ReadsDiffer"}
OTHER = {"Liveness", "ProtocolInvariantError", "ReplicasDiffer", "ReadBeyondHighWatermark", "IndexError"}


@pytest.mark.parametrize("seed", range(8))
def test_the_hunt_finds_nothing_where_every_guard_stands(seed: int) -> None:
    assert Hunt(seed).run() is None


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_is_no_fault_of_the_protocol_and_catches_its_mutant_at_once(name: str) -> None:
    mutant = MUTANTS[name]
    assert Hunt(0, mutant.focus).run() is None
    with mutated(name):
        found = Hunt(0, mutant.focus).run()
    assert found is not None
    assert found.invariant in mutant.expected


@pytest.mark.covers("M49")
@pytest.mark.parametrize("name", ["maximal-isr-not-used", "acks-all-answered-at-append", "answers-not-counted"])
def test_a_guard_that_is_gone_is_noticed(name: str) -> None:
    found = verdict(name, SEEDS)
    assert found.killed
    assert found.invariant in MUTANTS[name].expected


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [Hunt(3) for _ in range(2)]
    assert [run.run() for run in runs] == [None, None]
    assert runs[0].engine.trace_hash() == runs[1].engine.trace_hash()


def test_there_are_mutants_enough_and_each_says_what_it_is() -> None:
    assert len(MUTANTS) >= 30
    known = {invariant.__name__ for invariant in INVARIANTS} | HISTORY | OTHER
    for mutant in MUTANTS.values():
        assert set(mutant.expected) <= known, mutant.name
        assert mutant.guard.endswith("."), mutant.name
        assert mutant.instead.endswith("."), mutant.name
        assert bool(mutant.focus.faults or mutant.focus.script) == bool(mutant.focus.why), mutant.name


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_guard_is_replaced_and_put_back(name: str) -> None:
    patches = MUTANTS[name].patches
    before = [getattr_static(patch.owner, patch.name) for patch in patches]
    with mutated(name):
        assert all(
            getattr_static(patch.owner, patch.name) is not original
            for patch, original in zip(patches, before, strict=True)
        )
    assert [getattr_static(patch.owner, patch.name) for patch in patches] == before


def test_a_guard_is_put_back_after_an_error() -> None:
    original = leadership.may_join
    with pytest.raises(ValueError, match="stop"), mutated("expansion-without-catching-up"):
        raise ValueError("stop")
    assert leadership.may_join is original


def test_a_patch_without_an_original_is_refused() -> None:
    mutant = Mutant("none", "g.", "i.", (), (Patch(leadership, "no_such_rule", replaced_by(None)),))
    with pytest.raises(AttributeError, match="no_such_rule"), switched_off(mutant):
        pass


def test_names_are_unique() -> None:
    mutant = MUTANTS["maximal-isr-not-used"]
    with pytest.raises(ValueError, match="same name"):
        by_name((mutant, mutant))


def test_the_page_lists_the_same_mutants() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(MUTANTS)


def test_verdicts_come_in_order_and_survivors_are_named() -> None:
    names = ["fetch-from-old-leader-epoch-accepted", "leader-epoch-not-raised"]
    found = list(verdicts(names, seeds=1, jobs=1))
    assert [item.mutant for item in found] == names
    assert "| `leader-epoch-not-raised` |" in page(found)
    with pytest.MonkeyPatch.context() as patch:
        harmless = Mutant("harmless", "g.", "i.", (), (), Focus(settings={"duration_ms": 4_000}))
        patch.setitem(MUTANTS, "harmless", harmless)
        [survivor] = verdicts(["harmless"], seeds=1, jobs=1)
        assert (survivor.killed, survivor.seeds, survivor.invariant) == (False, 1, None)
        assert "not in 1" in page([survivor])


def test_the_swarm_is_tried_beside_the_hunt() -> None:
    names = ["partition-epoch-not-raised", "repetition-numbered-anew"]
    found, swarmed = (list(verdicts(names, seeds=1, jobs=1, swarm=swarm)) for swarm in (False, True))
    assert swarmed == [swarm_verdict(name, 1) for name in names]
    assert [item.killed for item in swarmed] == [True, False]
    lines = page(found, swarmed).splitlines()
    assert lines[0].endswith("| seeds | caught by | swarm | caught by |")
    assert lines[2].endswith("| 1 | EpochsRise | 1 | EpochsRise |")
    assert lines[3].endswith("| not in 1 |  |")


def test_the_command_tells_of_the_swarm_too() -> None:
    arguments = ["--only", "partition-epoch-not-raised", "--jobs", "1", "--swarm", "2", "--json"]
    result = CliRunner().invoke(app, ["mutants", *arguments])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    assert found["swarm"] == {"killed": True, "seeds": 1, "invariant": "EpochsRise"}


def test_the_command_reports_and_its_exit_code_tells() -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["mutants", "--only", "partition-epoch-not-raised", "--jobs", "1", "--json"])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    assert found == {
        "mutant": "partition-epoch-not-raised",
        "guard": MUTANTS["partition-epoch-not-raised"].guard,
        "killed": True,
        "seeds": 1,
        "invariant": "EpochsRise",
    }
