"""`isray fuzz --jobs ray`: the same results as in one process, and only the JSON document on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.hunt.seeds import Hunt, hunt
from tests.ray.command_helpers import isray


def in_a_process(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and standard output of the command in a process of its own, which starts a Ray."""
    code, text, _ = isray(*arguments, folder=folder)
    return code, text


def in_this_process(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and standard output of the command, on the Ray of this process."""
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout


@pytest.mark.parametrize(
    ("seeds", "mutant", "run"),
    [(range(6), None, in_this_process), (range(2), "partition-epoch-not-raised", in_a_process)],
)
def test_ray_finds_what_one_process_finds(
    private_ray: None,
    seeds: range,
    mutant: str | None,
    run: Callable[[list[str], Path], tuple[int, str]],
    tmp_path: Path,
) -> None:
    arguments = ["fuzz", "--seeds", f"0..{seeds.stop - 1}", "--jobs", "ray", "--out", str(tmp_path / "ray"), "--json"]
    arguments += [] if mutant is None else ["--mutant", mutant]
    code, text = run(arguments, tmp_path)
    expected = hunt(Hunt(seeds, mutant=mutant), tmp_path / "one")
    assert code == (0 if mutant is None else 1)
    assert bool(expected.violations) == (mutant is not None)
    assert text.count("\n") == 1
    found, wanted = json.loads(text), json.loads(json.dumps(expected.document()))
    files = [Path(item.pop("file")) for item in found["violations"]]
    for item in wanted["violations"]:
        del item["file"]
    for name in ("seeds", "events", "violations", "coverage"):
        assert found[name] == wanted[name]
    assert [path.read_text(encoding="utf-8") for path in files] == [
        path.read_text(encoding="utf-8") for _, _, path in expected.violations
    ]
