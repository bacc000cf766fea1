"""Mutants: focused runs are clean while the guard is on and violate something without it; guards are restored."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.check.authorization import RULE
from experiments.check.history import Finding
from experiments.check.invariants import INVARIANTS
from experiments.check.v3_suite import STORE_RULES
from experiments.cli.main import application
from experiments.hunt.fuzz.bias import Bias
from experiments.hunt.fuzz.plan import TimelineFile, load, save
from experiments.hunt.fuzz.run import ANSWERED, HISTORY, SERVED, WHOLE
from experiments.hunt.mutants.campaign import SEEDS, page, verdict, verdicts
from experiments.hunt.mutants.mutant import Change, Mutant, PlanFocus, QuorumFocus, function_named, switched_off
from experiments.hunt.mutants.registry import all_mutants, by_name, mutated
from experiments.hunt.mutants.registry import load as load_mutants
from experiments.hunt.quorum import chaos, safety
from experiments.hunt.quorum.liveness import LIVENESS
from experiments.support.errors import InputError
from protocol.broker import leadership

FEW = 12
"""How many seeds a mutant may need."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"
OF_THE_QUORUM = sorted(name for name, mutant in all_mutants().items() if isinstance(mutant.focus, QuorumFocus))
SCRIPTS = {
    name: mutant.focus
    for name, mutant in sorted(all_mutants().items())
    if isinstance(mutant.focus, PlanFocus) and mutant.focus.script is not None
}
FOCUSED = sorted(name for name, mutant in all_mutants().items() if mutant.focus.why)
FOUND: dict[str, str | None] = {}  # what the first run with a focus violates; several mutants have one focus
FINDINGS = {f"{HISTORY}.{finding.__name__}" for finding in Finding.__subclasses__()}
OTHER = {WHOLE, ANSWERED, SERVED, RULE, "ProtocolInvariantError", "IndexError"}
QUORUM = {invariant.__name__ for invariant in safety.SAFETY_INVARIANTS} | {
    *LIVENESS,
    chaos.HEALTHY_LEADER_STAYS,
    chaos.CONTROLLERS_JOIN,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FOCUSED)
def test_the_focus_of_a_mutant_is_clean_while_the_guard_is_on(name: str) -> None:
    focus = all_mutants()[name].focus
    runs = focus.model_dump_json(exclude={"why"})
    if runs not in FOUND:
        FOUND[runs] = focus.first_violation(0)
    assert FOUND[runs] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_a_timeline_as_users_write_it(name: str, tmp_path: Path) -> None:
    plan = SCRIPTS[name].plan(5)
    assert plan.seed == 5
    file = TimelineFile(mutant=name, trace_hash="0" * 32, before=plan.sizes, after=plan.sizes, plan=plan)
    save(file, tmp_path / "script.yaml")
    assert load(tmp_path / "script.yaml") == file


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.covers("M49")
@pytest.mark.parametrize("name", all_mutants())
def test_every_mutant_is_killed_by_an_expected_violation(name: str) -> None:
    found = verdict(name, SEEDS)
    assert found.killed
    assert found.seeds <= FEW
    assert found.invariant in all_mutants()[name].expected


def test_every_mutant_describes_its_guard_and_expects_known_violations() -> None:
    assert len(all_mutants()) >= 30
    known = {invariant.__name__ for invariant in INVARIANTS} | {*STORE_RULES} | FINDINGS | OTHER
    for mutant in all_mutants().values():
        assert set(mutant.expected) <= (QUORUM if mutant.name in OF_THE_QUORUM else known), mutant.name
        assert mutant.guard.endswith("."), mutant.name
        assert mutant.instead.endswith("."), mutant.name
        assert (mutant.focus in (PlanFocus(), QuorumFocus())) == (not mutant.focus.why), mutant.name


@pytest.mark.slow
def test_mutants_of_the_quorum_run_in_the_quorums_simulation() -> None:
    assert len(OF_THE_QUORUM) >= 20
    with mutated("vote-given-twice"):
        focus = all_mutants()["vote-given-twice"].focus
        assert "OneVotePerEpoch" in [focus.first_violation(seed) for seed in range(FEW)]
    assert {all_mutants()[name].focus.violation_without_focus(0) for name in OF_THE_QUORUM[:2]} == {None}


@pytest.mark.parametrize("name", sorted(all_mutants()))
def test_a_guard_is_replaced_and_restored(name: str) -> None:
    functions = [function_named(change.function) for change in all_mutants()[name].changes]
    before = [function.__code__ for function in functions]
    with mutated(name):
        assert all(function.__code__ is not code for function, code in zip(functions, before, strict=True))
    assert [function.__code__ for function in functions] == before


def test_a_guard_is_restored_after_an_error() -> None:
    original = leadership.may_join.__code__
    with pytest.raises(ValueError, match="stop"), mutated("expansion-without-catching-up"):
        raise ValueError("stop")
    assert leadership.may_join.__code__ is original


@pytest.mark.parametrize(
    ("function", "before"),
    [
        ("leadership:may_join", "no_such_rule"),
        ("leadership:may_join", "leadership"),
        ("leadership:no_such_rule", ""),
        ("no_such_module:may_join", ""),
    ],
    ids=["code that is not there", "code that is there twice", "a function", "a module"],
)
def test_a_change_of_something_else_is_refused(function: str, before: str) -> None:
    change = Change(function=f"protocol.broker.{function}", before=before, after="None")
    mutant = Mutant(name="none", guard="g.", instead="i.", expected=(), changes=(change,))
    with pytest.raises(InputError, match=rf"{function.replace(':', ': ')}: .*{before}.* has there once"):
        switched_off(mutant).__enter__()


def test_a_file_that_holds_no_mutants_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "area.yaml"
    file.write_text("mutants: [{name: n, guard: g., instead: i., expected: [], changes: [], focus: {bias: {x: 1}}}]")
    with pytest.raises(InputError, match="focus"):
        load_mutants(file)


def test_names_are_unique() -> None:
    mutant = all_mutants()["maximal-isr-not-used"]
    with pytest.raises(ValueError, match="same name"):
        by_name((mutant, mutant))


def test_the_page_lists_the_same_mutants() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(all_mutants())


def test_verdicts_come_in_order_and_survivors_are_named() -> None:
    names = ["fetch-from-old-leader-epoch-accepted", "leader-epoch-not-raised"]
    found = list(verdicts(names, seeds=1, jobs=1))
    assert [item.mutant for item in found] == names
    assert "| `leader-epoch-not-raised` |" in page(found)
    with pytest.MonkeyPatch.context() as patch:
        harmless = Mutant(
            name="harmless",
            guard="g.",
            instead="i.",
            expected=(),
            changes=(),
            focus=PlanFocus(bias=Bias(weights={"pause": 1}), why="w."),
        )
        patch.setitem(all_mutants(), "harmless", harmless)
        [survivor] = verdicts(["harmless"], seeds=1, jobs=1)
        assert (survivor.killed, survivor.seeds, survivor.invariant) == (False, 1, None)
        assert "not in 1" in page([survivor])


@pytest.mark.slow
def test_swarm_verdicts_are_made_without_the_focus() -> None:
    names = ["partition-epoch-not-raised", "reassignment-completes-below-min-isr"]
    found, swarmed = (list(verdicts(names, seeds=1, jobs=1, swarm=swarm)) for swarm in (False, True))
    assert swarmed == [verdict(name, 1, swarm=True) for name in names]
    assert [item.killed for item in found] == [True, True]
    assert [item.killed for item in swarmed] == [True, False]
    lines = page(found, swarmed).splitlines()
    assert lines[0].endswith("| seeds | caught by | swarm | caught by |")
    assert lines[2].endswith("| 1 | EpochsRise | 1 | EpochsRise |")
    assert lines[3].endswith("| 1 | ReassignmentKeepsMinIsr | not in 1 |  |")


def test_the_command_reports_swarm_verdicts() -> None:
    arguments = ["--only", "partition-epoch-not-raised", "--jobs", "1", "--swarm", "2", "--json"]
    result = CliRunner().invoke(application(), ["mutants", *arguments])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    assert found["swarm"] == {"killed": True, "seeds": 1, "invariant": "EpochsRise"}


def test_the_command_reports_a_killed_mutant_and_exits_with_0() -> None:
    runner = CliRunner()
    result = runner.invoke(application(), ["mutants", "--only", "partition-epoch-not-raised", "--jobs", "1", "--json"])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    assert found == {
        "mutant": "partition-epoch-not-raised",
        "guard": all_mutants()["partition-epoch-not-raised"].guard,
        "killed": True,
        "seeds": 1,
        "invariant": "EpochsRise",
    }
