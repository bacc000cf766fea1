"""`isray fuzz` as a command: its report, its verdict, wrong input, several processes, an interrupt, a limit of time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli.hunt import verdict
from experiments.hunt.fuzz.coverage import MET, pairs
from experiments.hunt.seeds import Hunt, HuntResult, hunt
from tests.sim.command_helpers import leave

ROOT = Path(__file__).parents[2]


def test_the_command_reports_in_the_agreed_form(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "fuzz", "--seeds", "0..1", "--out", str(tmp_path), "--json") == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert set(document) == {"seeds", "events", "seconds", "events_per_second", "violations", "coverage"}
    assert (document["seeds"], document["violations"]) == (2, [])
    reached, missed = document["coverage"]["reached"], document["coverage"]["never_reached"]
    assert reached["election"]["from the ISR"] > 0
    for group, names in missed.items():
        assert set(names).isdisjoint(reached.get(group, ()))
        if group != MET:
            assert f"never reached, {group}: {', '.join(names)}" in said.err
    for operation, faults in pairs().items():
        assert re.search(rf"^ *{operation} +\d+ of {len(faults)}\b", said.err, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_hunt_ends_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fuzz", "--seeds", "0", "--generation", "kip-966", "--out", str(tmp_path)]
    assert leave(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out.endswith("\nNo invariant was violated in 1 seeds.\n")
    assert leave(monkeypatch, *arguments, "--mutant", "maximal-isr-not-used") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "1 of 1 seeds violated an invariant; the file above replays it."
    assert verdict(HuntResult()) == "No seed was run, so nothing was tested."


@pytest.mark.parametrize("arguments", [["fuzz", "--seeds", "1", "--mutant"], ["mutants", "--only"]])
def test_an_unknown_mutant_is_answered_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert leave(monkeypatch, *arguments, "maximal-isr-unused") == 2
    said = capsys.readouterr().err
    assert (
        f"{arguments[-1]}: found 'maximal-isr-unused'. Did you mean 'maximal-isr-not-used'?; allowed: one of " in said
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["fuzz", "--seeds", "5..1"],
        ["fuzz", "--seeds", "x"],
        ["fuzz", "--seeds", "\u0663..\u0664"],
        ["fuzz", "--seeds", "1..2", "--jobs", "0"],
        ["fuzz", "--seeds", "1..2", "--jobs", "\u0662"],
        ["fuzz", "--seeds", "1..2", "--jobs", "spark"],
        ["fuzz", "--seeds", "1..2", "--generation", "v9"],
        ["fuzz", "--seeds", "1..2", "--mutant", "none-such"],
        ["fuzz", "--seeds", "1..2", "--kafka-release", "3.9"],
        ["fuzz", "--seeds", "1..2", "--kafka-release", "any", "--generation", "kip-966"],
        ["fuzz", "--seeds", "1..2", "--minutes", "nan"],
        ["fuzz", "--seeds", "1..2", "--out", str(ROOT / "README.md")],
        ["fuzz", "--seeds", "1..2", "--out", str(ROOT / "README.md" / "found")],
        ["mutants", "--only", "none-such"],
        ["replay", "no-such-file.yaml"],
        ["replay", str(ROOT / "experiments" / "scenarios" / "elr-clean-restart.yaml")],
    ],
)
def test_wrong_input_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert leave(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1


@pytest.mark.slow
def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    one, two = hunt(Hunt(range(4), jobs=1), tmp_path), hunt(Hunt(range(4), jobs=2), tmp_path)
    assert (one.seeds, one.events, one.counts) == (two.seeds, two.events, two.counts)


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.slow
def test_an_interrupt_ends_the_hunt_with_a_report_of_what_was_run(jobs: str, tmp_path: Path) -> None:
    """The hunt interrupts itself when the first result has arrived."""
    program = """
import os, signal, sys
import experiments.hunt.seeds as module
from experiments.cli.main import run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in what runs in the background
take = module._add_result
def take_and_stop(*arguments):
    take(*arguments)
    os.kill(os.getpid(), signal.SIGINT)
module._add_result = take_and_stop
run()
"""
    arguments = ["fuzz", "--seeds", "0..99999", "--jobs", jobs, "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert json.loads(done.stdout)["seeds"] == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("interrupted: 1 of 100000 seeds were run")
    assert last.endswith("go on with --seeds 0..99999")
    assert "Traceback" not in done.stderr


def test_no_seed_begins_when_the_time_is_over(tmp_path: Path) -> None:
    assert hunt(Hunt(range(3), minutes=0.0), tmp_path).seeds == 0
