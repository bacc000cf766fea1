"""The runs behind the pages: of scenarios, recordings, timelines of the fuzz, and trials of studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.engines.sim.engine import SimEngine
from experiments.hunt.fuzz.plan import TimelineFile, save
from experiments.hunt.fuzz.run import explore_plan, run_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.registry import mutated
from experiments.scenarios.explored import run_explored
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.runner import Runner
from experiments.studies.design.loader import load_study
from experiments.studies.replay.replay import replay
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.identity import cell_digests
from experiments.studies.sweeps.output import claim
from experiments.studies.sweeps.storage import Folder
from experiments.studies.trials.batch import Batch, run_batch, trial_seed
from experiments.studies.trials.estimators import run_cell_trial
from experiments.support.errors import InputError
from experiments.support.shipped import SCENARIOS, STUDIES
from tests.sim.command_helpers import leave
from tests.unit.experiments.explorer.explorer_helpers import data_of

MUTANT = "maximal-isr-not-used"
STUDY = load_study(STUDIES / "last-replica-standing.yaml")
LOSING = 4
"""A trial of the first cell with one loss."""


def page_of(path: Path) -> list[Any]:
    """The runs that a page carries."""
    runs = data_of(path.read_text(encoding="utf-8"))["runs"]
    assert isinstance(runs, list)
    return runs


def kinds_of(run: Any, role: str) -> set[str]:
    """The kinds of a run's events in a role."""
    return {run["kinds"][kind][1] for kind in run["kind"] if run["kinds"][kind][0] == role}


def test_a_scenario_beside_another_generation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "pages" / "run.html"
    arguments = ("scenario", "run", "last-replica-standing", "--html", str(html), "--compare", "kip-497", "--json")
    assert leave(monkeypatch, *arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["html"], document["compared_with"]) == (str(html), "kip-497")
    found = {each["what"]: each["text"] for each in document["first_differences"]}
    assert "ELR {1}; last-replica-standing, kip-497: 10.076 s" in found["partition state"]
    first, second = page_of(html)
    assert not kinds_of(first, "violation")
    assert kinds_of(second, "violation") == {"AcknowledgedRecordsLost"}, "without ELR the records are lost"
    assert [len(run["headings"]) for run in (first, second)] == [29, 29]
    assert {"FetchRequest", "AlterPartitionRequest"} <= kinds_of(first, "send") & kinds_of(second, "receive")


def test_what_to_compare_with_must_be_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "scenario", "run", "last-replica-standing", "--compare", "maximal-isr-not-use") == 2
    said = capsys.readouterr().err
    assert "--compare" in said
    assert "Did you mean 'maximal-isr-not-used'?" in said
    assert leave(monkeypatch, "scenario", "run", "leader-failover", "--engine", "ray", "--compare", "kip-497") == 2
    assert "--engine sim" in capsys.readouterr().err


def test_a_mutant_that_breaks_a_node_ends_its_run_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "run.html"
    command = ("scenario", "run", "leader-failover", "--html", str(html), "--compare", "metadata-applied-twice")
    assert leave(monkeypatch, *command) == 0
    assert "first different event: leader-failover: " in " ".join(capsys.readouterr().out.split())
    original, broken = page_of(html)
    assert kinds_of(original, "violation") == set()
    assert "ProtocolInvariantError" in kinds_of(broken, "violation")


def test_a_recording_as_a_page_has_arrows_from_what_events_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "scenario", "run", "leader-failover", "--trace", str(tmp_path / "recording")) == 0
    html = tmp_path / "run.html"
    assert leave(monkeypatch, "check", str(tmp_path / "recording"), "--html", str(html)) == 0
    assert f"page: {html}" in capsys.readouterr().out
    [run] = page_of(html)
    assert kinds_of(run, "send") == set()
    assert kinds_of(run, "change") >= {"started", "crashed"}
    caused = {
        run["kinds"][kind][1]: run["kinds"][run["kind"][index - back]][1]
        for index, (kind, back) in enumerate(zip(run["kind"], run["cause"], strict=True))
        if back
    }
    assert caused == {"metadata_published": "committed", "fetched": "appended"}


def test_an_engine_without_messages_gives_a_run_with_its_steps() -> None:
    scenario = load_scenario(SCENARIOS / "leader-failover.yaml")
    runner = Runner(scenario, SimEngine(scenario.cluster.spec(0)))
    result, run = run_explored(runner, runner.run, scenario.name)
    assert result.passed
    assert [text for _, text in run.headings] == [step.text for step in scenario.steps]
    assert [index for index, _ in run.headings] == sorted(index for index, _ in run.headings)
    assert {event.role for event in run.events} == {"trace", "change"}
    assert "Messages between processes are not recorded" in run.notes[0]


@pytest.mark.slow
def test_a_timeline_with_a_mutant_beside_the_original(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = draw(1)
    with mutated(MUTANT):
        result, explored = explore_plan(plan, "a plan")
    assert (result.trace_hash, result.violation) == trace_without_recorder()
    assert result.violation is not None
    assert [event.kind for event in explored.events if event.role == "violation"] == [result.violation.invariant]
    file = tmp_path / "seed-1.yaml"
    save(
        TimelineFile(
            mutant=MUTANT,
            violation=result.violation,
            trace_hash=result.trace_hash,
            before=plan.sizes,
            after=plan.sizes,
            plan=plan,
        ),
        file,
    )
    html = tmp_path / "run.html"
    assert leave(monkeypatch, "replay", str(file), "--html", str(html), "--compare", "original") == 0
    assert "original" in capsys.readouterr().out
    saved, original = page_of(html)
    assert kinds_of(saved, "violation") == {result.violation.invariant}
    assert kinds_of(original, "violation") == set()


def trace_without_recorder() -> tuple[str, object]:
    """Trace hash and violation of the plan of seed 1 with the mutant."""
    with mutated(MUTANT):
        found = run_plan(draw(1))
    return found.trace_hash, found.violation


@pytest.mark.parametrize("study", ["last-replica-standing", "min-isr-2"])
def test_a_replayed_trial_has_the_trace_of_the_trial(study: str) -> None:
    plan = load_study(STUDIES / f"{study}.yaml")
    found = replay(plan, 0, 0)
    assert found.seed == trial_seed(plan.seed, 0)
    assert found.trace_hash == run_cell_trial(plan.cells[0].parameters, found.seed).trace_hash


def test_the_part_of_a_trial_explains_its_loss() -> None:
    found = replay(STUDY, 0, LOSING)
    assert (found.losses, found.loss) == (1, 0)
    events = found.run.events
    place = next(index for index, event in enumerate(events) if event.role == "violation")
    assert "1 acknowledged record is missing from the log of broker-2" in events[place].text
    assert events[place - 1].kind == "became_leader"
    states = [event.fields for event in events[:place] if event.kind == "partition"]
    whole = [len(state["isr"]) == len(state["replicas"]) for state in states]  # type: ignore[arg-type]
    assert whole.count(True) >= 1
    assert not whole[-1]
    story = "\n".join(found.story(60))
    assert "-- broker-0 crashes and loses its unflushed records" in story
    assert "-- violated: AcknowledgedRecordsLost" in story
    assert replay(STUDY, 0, LOSING, loss=1).loss is None


def test_the_command_replays_a_trial_of_a_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, digests = Folder(tmp_path), cell_digests(STUDY, "code")
    claim(store, STUDY, digests)
    batch = Batch(digests[0], LOSING, LOSING + 1)
    commit(store, batch, *run_batch(run_cell_trial, STUDY.cells[0].parameters, batch, STUDY.seed))
    html = tmp_path / "loss.html"
    command = ("study", "replay", str(tmp_path), "--cell", "0", "--trial", str(LOSING))
    assert leave(monkeypatch, *command, "--html", str(html), "--compare-cell", "2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["same"], document["losses"], document["compared_with"]) == (True, 1, "cell 2")
    assert len(page_of(html)) == 2
    assert leave(monkeypatch, "study", "replay", str(tmp_path), "--cell", "0", "--trial", "1") == 0
    assert "nothing in the study's directory to compare" in capsys.readouterr().out
    assert leave(monkeypatch, "study", "replay", str(tmp_path), "--cell", "9", "--trial", "0") == 2
    assert "0 to 5" in capsys.readouterr().err


def test_a_trial_on_processes_is_not_replayed() -> None:
    [cell, *_] = STUDY.cells
    parameters = cell.parameters.model_copy(update={"engine": "ray"})
    study = STUDY.model_copy(update={"cells": (cell.model_copy(update={"parameters": parameters}),)})
    with pytest.raises(InputError, match="a cell on the simulator"):
        replay(study, 0, 0)
