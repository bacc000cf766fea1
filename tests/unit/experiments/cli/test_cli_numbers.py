"""`isray study numbers`: its options, its output, and wrong input."""

from __future__ import annotations

from pathlib import Path

from tests.unit.experiments.cli.cli_helpers import Commands


def test_the_command_measures_under_the_conditions_that_are_given(command: Commands, tmp_path: Path) -> None:
    file = tmp_path / "numbers.md"
    given = ["--partitions", "20", "--write-latency", "6ms", "--sessions", "2", "--multi", "5", "--only", "L1,L2"]
    found = command.json("study", "numbers", *given, "--write", str(file))
    assert {row["item"] for row in found} == {"L1", "L2"}
    assert {"item", "claim", "claimed", "measured", "unit", "ratio", "command", "note"} <= set(found[0])
    assert found[0] | {"claimed": 0.12, "measured": 0.12, "unit": "s", "ratio": 1.0} == found[0]
    conditions = "--partitions 20 --write-latency 6ms"
    assert found[0]["command"] == f"isray study numbers {conditions} --sessions 2 --multi 5 --only L1"
    assert conditions in file.read_text(encoding="utf-8")
    again = command.run("study", "numbers", *given)[1]
    assert again.splitlines()[1].split()[0] == "L1"
    assert "0.12 s" in again.splitlines()[1]


def test_a_cluster_that_cannot_be_measured_is_one_line_and_exit_code_1(command: Commands, tmp_path: Path) -> None:
    file = tmp_path / "numbers.md"
    slow = ["--partitions", "2", "--write-latency", "1m", "--only", "L8", "--write", str(file)]
    code, out, errors = command.run("study", "numbers", *slow)
    assert (code, out) == (1, "")
    assert "isray: L8: the topic cannot be created" in errors
    assert not file.exists()
