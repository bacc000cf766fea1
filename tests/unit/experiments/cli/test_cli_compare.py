"""`isray compare` on the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.scenarios.loader import load_scenario
from tests.unit.experiments.cli.cli_helpers import Commands

RELEASES = ["--engines", "sim", "--kafka", "4.1.2,4.4.0"]


def test_a_shipped_scenario_under_two_releases(command: Commands) -> None:
    """`reassignment-too-few` is about the change of 4.3.0, which explains every difference."""
    code, out, _ = command.run("compare", "reassignment-too-few", *RELEASES, "--json")
    document = json.loads(out)
    assert (code, document["unexplained"]) == (0, 0)
    [found] = document["scenarios"]
    assert found["worlds"] == ["sim 4.1.2", "sim 4.4.0"]
    assert [it["changes"] for it in found["between_releases"]] == [["added-replicas-complete"]]
    assert found["first_difference"]["field"] == "steps[4].verdict"


def test_a_drawn_difference_is_saved_as_its_smallest_scenario(command: Commands, tmp_path: Path) -> None:
    code, out, _ = command.run("compare", "--draw", "1", "--seed", "21", *RELEASES, "--out", str(tmp_path))
    assert code == 0
    assert "by added-replicas-complete (since 4.3.0)" in out
    assert ">>" in out
    assert [step.kind for step in load_scenario(tmp_path / "seed-21.yaml").steps] == ["crash", "reassign"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "FILE is missing"),
        (["power-loss", "--engines", "sim,redpanda"], "--engines: found 'redpanda'; allowed: one or more of sim, ray"),
        (["power-loss", "--engines", "sim", "--kafka", "5.0"], "--kafka: found '5.0'"),
        (["power-loss", "--engines", "sim", "--kafka", "4.1.2,"], "--kafka: found ''"),
        (["power-loss", *RELEASES], "power-loss: cluster.generation: found kip-966, which no release of Kafka has"),
    ],
)
def test_wrong_input_is_one_line(command: Commands, arguments: list[str], line: str) -> None:
    code, _, err = command.run("compare", *arguments)
    assert code == 2
    assert line in err
    assert err.count("\n") == 1
