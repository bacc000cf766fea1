"""Every command line and YAML block in the documents is validated, and every command block is run by some test.

All command lines are parsed by the application: their options exist and their values have the right form. A line of a
command block is run, too: here, on the simulator or against a simulated cluster, or by the test that
`testdata/documented-commands.yaml` names for it. A line that none of them covers fails
`test_every_command_block_is_run_by_a_test`.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from experiments.cli.help import as_input_error
from experiments.hunt.mutants.registry import all_mutants
from experiments.scenarios.loader import load_scenario
from experiments.studies.design.loader import load_study
from experiments.support.errors import InputError, MissingInput
from tests.unit.experiments.cli.cli_helpers import Commands, MakeBench, command_line
from tests.yaml_rows import table

ROOT = Path(__file__).parents[4]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = frozenset({".", "export", "ray start"})
"""What else command blocks may contain: preparations of a shell and of Ray."""

RUN_ON_CLUSTER, RUN_HERE, RUN_ELSEWHERE = table(__file__, "documented-commands.yaml").values()

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`isray ([^`]+)`")


def blocks(language: str, pages: list[Path] = PAGES) -> list[tuple[str, str]]:
    """The fenced blocks of a language, each with its page."""
    return [
        (page.relative_to(ROOT).as_posix(), body)
        for page in pages
        for found, body in _FENCE.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


def command_lines(body: str) -> list[str]:
    """The `isray` lines of a block, without `isray` and without comments."""
    lines = [line.partition("  #")[0].strip() for line in body.splitlines()]
    return [line.partition("isray ")[2] for line in lines if re.match(r"(ray job submit .* -- )?isray ", line)]


def block_lines() -> list[str]:
    """The command lines of the blocks outside docs/reference."""
    return [
        line for page, body in blocks("sh") if not page.startswith("docs/reference/") for line in command_lines(body)
    ]


def inline_lines() -> list[str]:
    """Commands named within text, with their optional parts."""
    names = command_line().commands
    found = {
        re.sub(r"[\[\]]", "", line) for page in PAGES for line in _INLINE.findall(page.read_text(encoding="utf-8"))
    }
    return sorted(line for line in found if line.split(" ")[0] in names)


def parse(line: str) -> InputError | None:
    """Parses a command line as `isray` does, without running it; returns what is wrong."""
    command: Any = command_line()
    try:
        context = command.make_context("isray", shlex.split(line))
        while rest := [*getattr(context, "_protected_args", ()), *context.args]:
            name, command, rest = command.resolve_command(context, rest)
            context = command.make_context(name, rest, context)
    except typer.TyperException as error:
        return as_input_error(error)
    return None


@pytest.mark.parametrize("line", sorted({line for _, body in blocks("sh") for line in command_lines(body)}))
def test_command_lines_of_blocks_parse(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize("line", inline_lines())
def test_commands_named_in_text_exist_with_their_options(line: str) -> None:
    """A mention may leave out what is required."""
    wrong = parse(line.replace("bench NAME", "bench sim").replace(" COMMAND", ""))
    assert wrong is None or isinstance(wrong, MissingInput), wrong


def test_named_mutants_exist() -> None:
    named = re.compile(r"isray .*--(?:only|mutant) ([a-z-]+)")
    names = {name for page in PAGES for name in named.findall(page.read_text(encoding="utf-8"))}
    assert names
    assert names <= all_mutants().keys()


def test_a_wrong_option_does_not_parse() -> None:
    wrong = parse("topics --create --topics t")
    assert wrong is not None
    assert "found option --topics" in str(wrong)


def test_every_command_block_is_run_by_a_test() -> None:
    run = {*RUN_ON_CLUSTER, *RUN_HERE, *RUN_ELSEWHERE}
    assert set(block_lines()) == run, "run the new line in a test, and enter it here"


@pytest.mark.parametrize(("line", "test"), RUN_ELSEWHERE.items(), ids=RUN_ELSEWHERE)
def test_the_named_test_runs_the_command(line: str, test: str) -> None:
    assert line.split()[0] in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("line", RUN_HERE)
def test_documented_commands_pass(monkeypatch: pytest.MonkeyPatch, command: Commands, line: str) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = command.run(*shlex.split(line))
    assert code == 0, (out, err)


def test_the_documented_session_runs_against_a_cluster(
    monkeypatch: pytest.MonkeyPatch, make_bench: MakeBench, tmp_path: Path
) -> None:
    assert [line for line in block_lines() if line in RUN_ON_CLUSTER] == RUN_ON_CLUSTER
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "topics.json").write_text(json.dumps({"version": 1, "topics": [{"topic": "t"}]}))
    bench = make_bench(brokers=3, controllers=3)
    for line in RUN_ON_CLUSTER:
        bench.ok(*shlex.split(line))


def test_command_blocks_hold_commands_only() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page, body in blocks("sh"):
        for line in filter(None, (line.partition("  #")[0].strip() for line in body.splitlines())):
            words = line.split()
            is_make = words[0] == "make" and words[1] in targets
            known = words[0] == "isray" or " -- isray " in line or words[0] in SHELL or " ".join(words[:2]) in SHELL
            assert is_make or known, f"{page}: {line}"


def test_blocks_are_of_languages_that_these_tests_check() -> None:
    languages = {found for page in PAGES for found, _ in _FENCE.findall(page.read_text(encoding="utf-8"))}
    assert languages <= {"sh", "console", "yaml", "python", "text"}


@pytest.mark.parametrize(("page", "body"), blocks("yaml"))
def test_documented_yaml_loads(page: str, body: str, tmp_path: Path) -> None:
    """A list is scenario steps; a mapping with `steps` is a scenario, any other one a study."""
    content, text = yaml.safe_load(body), body
    if isinstance(content, list):
        cluster = {"brokers": 6, "controllers": 3}
        topics = [{"name": name, "assignments": [[0, 1, 2], [1, 2, 0]]} for name in ("t", "u")]
        content = {"name": "s", "cluster": cluster, "topics": topics, "steps": content}
        text = yaml.safe_dump(content)
    (tmp_path / "outages.csv").write_text("node,down_ms,up_ms,kind\n0,43200000,86700000,unclean\n")
    path = tmp_path / "documented.yaml"
    path.write_text(text)
    loaded = load_scenario(path) if "steps" in content else load_study(path)
    assert loaded.name == content["name"]


def test_every_python_block_compiles() -> None:
    for page, body in blocks("python"):
        assert compile(body, page, "exec")
