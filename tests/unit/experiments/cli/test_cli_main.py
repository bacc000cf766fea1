"""The command's exit codes and what it prints when the user is wrong."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.support.errors import InputError

HEAVY = ("ray", "pyspark", "scipy", "matplotlib", "pandas", "pyarrow")


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["isray", *arguments])
    with pytest.raises(SystemExit) as left:
        main.run()
    return left.value.code


def test_an_input_error_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**options: object) -> None:
        raise InputError("study.yaml", "trials", 0, "a whole\nnumber above 0")

    monkeypatch.setattr(main, "app", refuse)
    assert leave(monkeypatch) == 2
    assert capsys.readouterr() == ("", "isray: study.yaml: trials: found 0; allowed: a whole number above 0\n")


WRONG_USAGE = {
    "--wrong": "isray: found option --wrong; allowed: one of --help",
    "study wrong": "isray study: found command 'wrong'; allowed: one of run, sweep, analyze, report",
    "conformance": "files: found none; allowed: a value (required)",
    "scenario run": "file: found none; allowed: a value (required)",
    "scenario run x --engine paper": "--engine: found 'paper'; allowed: one of 'sim', 'ray'",
    "study run": "file: found none; allowed: a value (required)",
    "version x y": "isray version: found more arguments: x y; allowed: what --help says",
    "explore --brokers 9": "--brokers: found '9'; allowed: 2 to 5",
    "explore --brokers few": "--brokers: found 'few'; allowed: 2 to 5",
    "explore --brokers": "--brokers: found Option '--brokers' requires an argument; allowed: what --help says",
    "mutants --seeds 0": "--seeds: found '0'; allowed: greater than or equal to 1",
    "mutants --seeds x": "--seeds: found 'x'; allowed: a whole number",
    "fuzz --minutes x": "--minutes: found 'x'; allowed: a number",
    "fuzz --jobs 2": "--seeds: found none; allowed: a value (required)",
    "leader-election --partition=-1": "--partition: found '-1'; allowed: 0 to 2147483647",
}


@pytest.mark.parametrize(("arguments", "line"), WRONG_USAGE.items(), ids=WRONG_USAGE)
def test_wrong_usage_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert leave(monkeypatch, *arguments.split()) == 2
    assert capsys.readouterr() == ("", f"isray: {line}\n")


def test_who_does_not_say_what_to_do_is_shown_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "scenario") == 2
    out, err = capsys.readouterr()
    assert "Usage: isray scenario" in out
    assert err == ""


_INTERRUPTED_AT_WORK = """
import os, signal, sys
from experiments.cli import main
from {module} import {kind}

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in what runs in the background
original = {kind}.{method}

def interrupted(self, *arguments):
    os.killpg(0, signal.SIGINT)
    return original(self, *arguments)

{kind}.{method} = interrupted
sys.argv = ["isray", *sys.argv[1:]]
main.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ("explore --brokers 5", ("experiments.hunt.explore.model", "Model", "successors")),
        ("mutants --jobs 2", ("experiments.check.engine", "CheckedEngine", "start")),
        ("mutants --jobs 1", ("experiments.check.engine", "CheckedEngine", "start")),
        ("fuzz --jobs 2 --seeds 0..99999", ("experiments.check.engine", "CheckedEngine", "start")),
        ("fuzz --jobs 1 --seeds 0..99999", ("experiments.check.engine", "CheckedEngine", "start")),
    ],
)
def test_an_interrupt_ends_a_search_and_its_processes_without_a_traceback(
    arguments: str, place: tuple[str, str, str]
) -> None:
    """What is printed is read to its end, which is when the last process is gone that could print."""
    script = _INTERRUPTED_AT_WORK.format(**dict(zip(("module", "kind", "method"), place, strict=True)))
    command = [sys.executable, "-c", script, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=120, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["conformance"],
        ["scenario", "run"],
        ["study", "run"],
        ["study", "sweep"],
        ["study", "analyze"],
        ["study", "report"],
        ["version"],
        ["up"],
        ["down"],
        ["status"],
        ["topics"],
        ["leader-election"],
        ["reassign-partitions"],
        ["configs"],
        ["features", "describe"],
        ["features", "upgrade"],
        ["features", "downgrade"],
        ["features", "disable"],
        ["acls"],
    ],
)
def test_every_command_has_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert leave(monkeypatch, *command, "--help") == 0
    assert f"Usage: isray {' '.join(command)}" in capsys.readouterr().out


def test_version_as_json_is_one_document(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "version", "--json") == 0
    versions = json.loads(capsys.readouterr().out)
    assert set(versions) == {"isray", "ray", "pyspark", "pydantic", "python"}
    assert versions["python"] == platform.python_version()


def test_the_command_imports_nothing_heavy() -> None:
    script = f"import sys, experiments.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
