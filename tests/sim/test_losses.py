"""What scenarios and checks say about acknowledged records: lost by acks, undecided, deleted by retention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.check.check_recording import check
from experiments.check.engine import CheckedEngine
from experiments.check.recording import Recording
from experiments.scenarios.explored import run_explored
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner, ScenarioResult, run_recorded
from tests.sim.command_helpers import leave
from tests.sim.loss_scenario_helpers import DISK_GONE, LOSSES, TRUNCATED
from tests.sim.scenario_helpers import run_scenario, spec_of

KEYS = ("lost_acked", "lost_by_acks", "undecided", "deleted_by_retention")


def run(raw: dict[str, Any], *more: dict[str, Any]) -> ScenarioResult:
    return run_scenario(scenario_from({**raw, "steps": [*raw["steps"], *more]}, "inline"))


@pytest.mark.parametrize(("raw", "words", "figures"), LOSSES.values(), ids=LOSSES)
def test_a_result_counts_what_has_become_of_acknowledged_records(
    raw: dict[str, Any], words: str, figures: tuple[object, ...]
) -> None:
    result = run(raw)
    assert result.passed, result.steps
    assert result.losses.words() == words
    document = json.loads(json.dumps(result.document()))
    assert tuple(document[key] for key in KEYS) == figures
    [partition] = document["partitions"]
    assert tuple(partition[key] for key in KEYS) == figures


@pytest.mark.parametrize(("raw", "words", "figures"), LOSSES.values(), ids=LOSSES)
def test_a_recording_is_checked_to_the_same_numbers(
    raw: dict[str, Any], words: str, figures: tuple[object, ...], tmp_path: Path
) -> None:
    scenario = scenario_from(raw, "inline")
    assert run_recorded(Runner(scenario, CheckedEngine(spec_of(scenario, 0))), tmp_path / "recording").passed
    checked = check(Recording(tmp_path / "recording"))
    assert checked.violations == []
    assert tuple(checked.document()[key] for key in KEYS) == figures
    assert checked.losses.words() == words.replace("t-0 has no leader", "no broker led t-0 at the end")


@pytest.mark.parametrize(("raw", "words", "figures"), LOSSES.values(), ids=LOSSES)
def test_a_page_says_it(raw: dict[str, Any], words: str, figures: tuple[object, ...]) -> None:
    scenario = scenario_from(raw, "inline")
    runner = Runner(scenario, CheckedEngine(spec_of(scenario, 0)))
    _, page = run_explored(runner, runner.run, "losses")
    assert ("acknowledged records lost", words) in page.facts


UNKNOWN: dict[str, dict[str, Any]] = {
    "lost_acked": {"lost_acked": 0},
    "lost_by_acks of all": {"lost_by_acks": {"all": 0}},
    "deleted_by_retention": {"deleted_by_retention": 0},
}


@pytest.mark.parametrize(("name", "fields"), UNKNOWN.items(), ids=UNKNOWN)
@pytest.mark.parametrize("kind", ["expect", "await"])
def test_without_a_leader_no_number_of_losses_holds(name: str, fields: dict[str, Any], kind: str) -> None:
    result = run(DISK_GONE.scenario, {kind: {"topic": "t", **fields}})
    assert not result.passed
    assert result.steps[-1].detail.endswith(f"{name}: found unknown (t-0 has no leader); expected 0")


def test_of_a_partition_without_acknowledged_records_nothing_is_lost_whether_it_is_led_or_not() -> None:
    raw = {**DISK_GONE.scenario, "steps": [step for step in DISK_GONE.scenario["steps"] if "produce" not in step][:1]}
    result = run(raw, {"await": {"topic": "t", "leader": -1, "lost_acked": 0, "undecided": 0}})
    assert (result.passed, result.losses.words()) == (True, "0")


def test_an_await_waits_for_the_leader_that_decides() -> None:
    """The only replica comes back with an empty disk and leads: now all five are lost."""
    result = run(
        DISK_GONE.scenario, {"start": {"broker": 0}}, {"await": {"topic": "t", "lost_acked": 5, "within": "60s"}}
    )
    assert (result.passed, result.losses.words()) == (True, "5"), result.steps


def test_losses_of_several_partitions_add_up() -> None:
    """Of t-0, led again by an empty broker 0, two are lost; t-1 on broker 1 has no leader."""
    raw: dict[str, Any] = {
        "name": "two",
        "cluster": {"brokers": 2, "generation": "kip-497"},
        "topics": [{"name": "t", "assignments": [[0], [1]]}],
        "steps": [
            {"produce": {"topic": "t", "records": 2}},
            {"produce": {"topic": "t", "partition": 1, "records": 3}},
            {"produce": {"topic": "t", "partition": 1, "records": 1, "acks": 1}},
            {"crash": {"broker": 0, "lose": "all"}},
            {"start": {"broker": 0}},
            {"await": {"topic": "t", "leader": 0, "lost_acked": 2}},
            {"crash": {"broker": 1}},
            {"await": {"topic": "t", "partition": 1, "leader": -1, "undecided": 4}},
        ],
    }
    result = run(raw)
    assert result.passed, result.steps
    assert result.losses.words() == "2, undecided: 4 (t-1 has no leader)"
    document = result.document()
    assert [document[key] for key in KEYS] == [None, {"1": None, "all": None}, 4, None]
    assert [item["lost_acked"] for item in result.partitions] == [2, None]


def test_the_commands_print_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, folder = tmp_path / "truncated.yaml", str(tmp_path / "recording")
    file.write_text(yaml.safe_dump(TRUNCATED.scenario), encoding="utf-8")
    assert not leave(monkeypatch, "scenario", "run", str(file), "--trace", folder)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"passed; acknowledged records lost: {TRUNCATED.words}; trace " in printed
    assert not leave(monkeypatch, "check", folder)
    assert f"acknowledged records lost: {TRUNCATED.words}\n" in capsys.readouterr().out
    assert not leave(monkeypatch, "check", folder, "--json")
    assert json.loads(capsys.readouterr().out)["lost_by_acks"] == {"1": 5, "all": 0}
