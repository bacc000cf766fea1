"""The command's exit codes and what it prints when the user is wrong."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.errors import InputError

HEAVY = ("ray", "pyspark", "scipy", "matplotlib", "pandas", "pyarrow")


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["isray", *arguments])
    with pytest.raises(SystemExit) as left:
        main.run()
    return left.value.code


def test_an_input_error_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise InputError("study.yaml", "trials", 0, "a whole\nnumber above 0")

    monkeypatch.setattr(main, "app", refuse)
    assert leave(monkeypatch) == 2
    assert capsys.readouterr() == ("", "isray: study.yaml: trials: found 0; allowed: a whole number above 0\n")


@pytest.mark.parametrize(
    "arguments", [["--wrong"], ["wrong"], ["conformance"], ["scenario", "run"], ["study", "run"], ["version", "x"]]
)
def test_wrong_usage_is_exit_code_2_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert leave(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage: isray" in err
    assert "Traceback" not in err


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
