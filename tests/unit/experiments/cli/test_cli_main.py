"""Exit codes, error lines for wrong input, and help pages."""

from __future__ import annotations

import errno
import os
import platform
import shlex
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.cli.help import CommandHelp, commands
from experiments.cli.output import ExitCode
from experiments.engines.ray.session import RayStartError
from experiments.support.errors import InputError
from tests.unit.experiments.cli.cli_helpers import Commands
from tests.yaml_rows import table

COMMANDS = commands(main.application())
HEAVY = {"ray", "pyspark", "scipy", "altair", "pandas", "pyarrow"}


def test_an_input_error_is_one_line_and_exit_code_2(monkeypatch: pytest.MonkeyPatch, command: Commands) -> None:
    def refuse(**options: object) -> None:
        raise InputError("study.yaml", "trials", 0, "a whole\nnumber above 0")

    monkeypatch.setattr(main, "application", lambda *_: refuse)
    assert command.run() == (2, "", "isray: study.yaml: trials: found 0; allowed: a whole number above 0\n")


def test_a_ray_that_does_not_start_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    def fail(**options: object) -> None:
        raise RayStartError("Ray did not start, tried 2 times: it timed out")

    monkeypatch.setattr(main, "application", lambda *_: fail)
    assert command.run() == (1, "", "isray: Ray did not start, tried 2 times: it timed out\n")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("out/trace.jsonl", "isray: out/trace.jsonl: No space left on device\n"),
        (None, "isray: a file that was being written: No space left on device\n"),
    ],
)
def test_a_full_disk_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, command: Commands, name: str | None, line: str
) -> None:
    def fail(**options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    monkeypatch.setattr(main, "application", lambda *_: fail)
    assert command.run() == (1, "", line)


INTERRUPT_DURING_IMPORTS = """
import os, signal, sys
from experiments.cli import __main__

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "experiments.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
__main__.run()
"""


def test_an_interrupt_during_the_imports_prints_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPT_DURING_IMPORTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


WRONG_USAGE = table(__file__, "wrong-usage.yaml")


@pytest.mark.parametrize(("arguments", "line"), WRONG_USAGE.items(), ids=WRONG_USAGE)
def test_wrong_usage_is_one_line_and_exit_code_2(command: Commands, arguments: str, line: str) -> None:
    assert command.run(*arguments.split()) == (2, "", f"isray: {line}\n")


WRONG_OPTIONS = table(__file__, "wrong-options.yaml")
"""The arguments of each command; behind `=>`, what the line names."""
COVERS = {"leader-election": ("J1", "J5", "J6", "J7", "J9")}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(name, line, marks=pytest.mark.covers(*COVERS[name]) if name in COVERS else ())
        for name, lines in WRONG_OPTIONS.items()
        for line in lines
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(command: Commands, name: str, line: str) -> None:
    arguments, _, named = line.partition("=> ")
    refused = command.refused(*name.split(), *shlex.split(arguments))
    assert refused.startswith("isray: ")
    assert "; allowed: " in refused
    assert named in refused


def test_a_group_without_a_subcommand_prints_its_help(command: Commands) -> None:
    code, out, err = command.run("scenario")
    assert (code, err) == (2, "")
    assert "Usage: isray scenario" in out


_INTERRUPTED_AT_WORK = """
import os, signal, sys
from experiments.cli import main
from experiments.cli.help import CommandHelp, commands
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
    """Output ends when the last process that could print has ended."""
    script = _INTERRUPTED_AT_WORK.format(**dict(zip(("module", "kind", "method"), place, strict=True)))
    command = [sys.executable, "-c", script, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=120, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert ("; go on with --seeds " in done.stderr) is arguments.startswith("fuzz")


@pytest.mark.parametrize("described", COMMANDS, ids=lambda described: described.path)
@pytest.mark.parametrize("columns", ["80", "40"])
def test_help_prints_every_option_whole_at_any_width(
    monkeypatch: pytest.MonkeyPatch, command: Commands, described: CommandHelp, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = command.ok(*described.path.split()[1:], "--help")
    assert f"Usage: {described.path}" in out
    assert all(names in out for names, _ in described.parameters)


@pytest.mark.parametrize("described", COMMANDS, ids=lambda described: described.path)
def test_every_command_has_an_example_of_itself_and_every_option_a_meaning(described: CommandHelp) -> None:
    assert described.examples
    assert all(f"{line} ".startswith(f"{described.path} ") for line in described.examples)
    assert described.help
    assert all(meaning and not meaning.startswith("[") for _, meaning in described.parameters)


def test_help_lists_the_commands_in_sections(command: Commands) -> None:
    headings = [line for line in command.ok("--help").splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Options:", "Experiments:", "Studies:", "Cluster:", "Tools:", "Benches:"]


def test_version_as_json_is_one_document(command: Commands) -> None:
    versions = command.json("version")
    assert set(versions) == {"isray", "ray", "pyspark", "pydantic", "python", "build"}
    assert versions["python"] == platform.python_version()


def test_the_command_imports_nothing_heavy() -> None:
    script = (
        f"import sys; from experiments.cli import main; main.application(); print([*({HEAVY!r} & sys.modules.keys())])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
