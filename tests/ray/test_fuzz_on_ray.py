"""`isray fuzz --jobs ray`: the same results as in one process, and only the JSON document on standard output; a
campaign has the same plans, the mutated ones too, and goes on with what the folder holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli.main import application
from experiments.hunt.campaign.run import Campaign, run_campaign
from experiments.hunt.seeds import Hunt, hunt
from experiments.hunt.spread import ON_RAY
from tests.ray.command_helpers import isray


def in_a_process(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and standard output of the command in a process of its own, which starts a Ray."""
    code, text, _ = isray(*arguments, folder=folder)
    return code, text


def in_this_process(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and standard output of the command, on the Ray of this process."""
    done = CliRunner().invoke(application(), arguments)
    return done.exit_code, done.stdout


@pytest.mark.parametrize(
    ("seeds", "mutant", "run"),
    [(range(3), None, in_this_process), (range(2), "partition-epoch-not-raised", in_a_process)],
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


def stored(folder: Path) -> dict[str, object]:
    """What a campaign has stored of its complete rounds, without the times."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    for timed in (state, *state["curve"]):
        del timed["seconds"]
    kept = {path.name: path.read_text(encoding="utf-8") for path in (folder / "corpus").iterdir()}
    return {"state": state, **kept}


def test_a_campaign_on_ray_goes_on_with_what_one_process_began(private_ray: None, tmp_path: Path) -> None:
    spec = Campaign(range(40, 48), round_size=4)
    expected = run_campaign(spec, tmp_path / "one")
    run_campaign(Campaign(range(40, 42), round_size=4), tmp_path / "ray")
    found = run_campaign(Campaign(spec.seeds, round_size=4, jobs=ON_RAY), tmp_path / "ray")
    assert (found.rounds, found.seeds, found.started_with[0]) == (2, 8, 2)
    assert (found.findings, expected.findings) == ([], [])
    assert stored(tmp_path / "ray") == stored(tmp_path / "one")
