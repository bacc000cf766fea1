"""`isray study list`, and what `isray study` reports when storage or workers fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.studies.design.loader import load_study, parse_study, study_from
from experiments.studies.pipeline import analysis
from experiments.studies.pipeline.options import LOCAL
from experiments.studies.sweeps import sweep as sweeping
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.identity import cell_digests
from experiments.studies.sweeps.output import claim, read_record
from experiments.studies.sweeps.storage import StorageFailed, store_at
from experiments.studies.trace.schema import TRACE_SCHEMA
from experiments.studies.trials.batch import TRIALS_SCHEMA, Batch
from experiments.support.shipped import STUDIES
from tests.unit.experiments.cli.cli_helpers import Commands

STUDY = """name: s
question: Is one enough?
trials: 2
duration: 1h
sweep:
  min_insync_replicas: [1, 2]
"""


def test_list_names_every_shipped_study_and_its_question(command: Commands) -> None:
    rows = command.json("study", "list")
    assert [row["name"] for row in rows] == sorted(path.stem for path in STUDIES.glob("*.yaml"))
    assert all(load_study(Path(row["file"])).question == row["question"] and row["question"] for row in rows)
    assert rows[0]["name"] in command.run("study", "list")[1]


def _sweep(folder: Path, trials: int) -> None:
    """A study of two cells and two trials each in `folder`, with batches of `trials` trials on disk."""
    study = study_from(parse_study(STUDY, "s.yaml"), "s.yaml", STUDY)
    store = store_at(folder)
    digests = cell_digests(study, "code")
    claim(store, study, digests)
    for digest in digests:
        commit(store, Batch(digest, 0, trials), TRACE_SCHEMA.empty_table(), TRIALS_SCHEMA.empty_table())


def test_results_are_listed_with_their_stage_and_the_next_command(command: Commands, tmp_path: Path) -> None:
    part, done, damaged = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    _sweep(part, 1)
    _sweep(done, 2)
    damaged.mkdir()
    (damaged / "study.yaml").write_text("- none\n")
    code, out, errors = command.run("study", "list", str(tmp_path), "--json")
    assert code == 1
    assert [(row["place"], row["stage"], row["trials"], row["wanted"]) for row in json.loads(out)] == [
        (str(part), "swept in part", 2, 4),
        (str(done), "swept", 4, 4),
    ]
    assert errors.startswith(f"isray: {damaged}/study.yaml: found ")
    assert f"next: isray study analyze {done}" in command.run("study", "open", str(done))[1]
    (done / "gold").mkdir()
    (done / "gold" / "cells.json").write_text("[]")
    assert command.json("study", "open", str(done))["stage"] == "analysed"
    (done / "report.html").write_text("")
    code, out, _ = command.run("study", "open", str(done))
    assert (code, out.splitlines()[-1]) == (0, f"report: {done}/report.html")


@pytest.mark.parametrize("arguments", [("open",), ("list",)])
def test_folder_without_results_is_one_line(command: Commands, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, out, errors = command.run("study", *arguments, str(tmp_path / "none"))
    assert (code, out, len(errors.splitlines())) == (2, "", 1)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntrials: 2\nduration: 1h\n")
    return str(path)


FULL = StorageFailed("out/x: No space left on device")
LOST = sweeping.WorkersLost("Ray is lost")


NONE = "no trial is in {out} yet; the same command begins again"
SOME = "2 of 4 trials are kept in {out}; the same command goes on"
ENDINGS: dict[str, tuple[BaseException, int, int, str]] = {
    "full, no trial": (FULL, 0, 1, f"isray: out/x: No space left on device; {NONE}"),
    "lost, no trial": (LOST, 0, 1, f"isray: Ray is lost; {NONE}"),
    "full": (FULL, 1, 1, f"isray: out/x: No space left on device; {SOME}"),
    "lost": (LOST, 1, 1, f"isray: Ray is lost; {SOME}"),
    "interrupted": (KeyboardInterrupt(), 1, 130, f"isray study: interrupted; {SOME}"),
}


@pytest.mark.parametrize(("ending", "trials", "exit_code", "line"), ENDINGS.values(), ids=ENDINGS)
def test_sweep_that_ends_early_says_what_is_kept_and_how_to_go_on(
    command: Commands,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: BaseException,
    trials: int,
    exit_code: int,
    line: str,
) -> None:
    out = tmp_path / "out"

    def ends_early(*arguments: object) -> int:
        if trials:
            _sweep(out, trials)
        raise ending

    monkeypatch.setattr(sweeping, "sweep", ends_early)
    code, output, errors = command.run("study", "sweep", file, "--out", str(out))
    assert (code, output, errors.splitlines()[-1]) == (exit_code, "", line.format(out=out))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("sweep", "FILE", "--out"), "--out"), (("analyze",), "study.yaml"), (("report",), "study.yaml")],
)
def test_bucket_that_does_not_answer_is_one_line_and_exit_code_2(
    command: Commands, file: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    for name, value in {"ENDPOINT_URL": "http://127.0.0.1:1", "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    given = [file if argument == "FILE" else argument for argument in arguments]
    code, out, errors = command.run("study", *given, "s3://bucket/s")
    last = errors.splitlines()[-1]
    assert (code, out) == (2, "")
    assert named in last
    assert "Could not connect to the endpoint URL" in last
    assert "Traceback" not in errors


def test_url_of_an_unknown_file_system_is_refused(command: Commands, file: str) -> None:
    code, _, errors = command.run("study", "sweep", file, "--out", "nowhere://x")
    assert code == 2
    assert "isray: --out: found nowhere://x" in errors


def test_an_interrupted_analysis_says_what_is_kept_and_how_to_go_on(
    command: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    _sweep(tmp_path, 2)
    monkeypatch.setattr(analysis, "run_pipeline", interrupted)
    code, _, errors = command.run("study", "analyze", str(tmp_path))
    assert code == 130
    assert "isray: interrupted; what was there before is kept, and the same command goes on" in errors


def test_a_folder_that_is_named_from_here_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _sweep(tmp_path / "s", 2)
    assert analysis.work_of(read_record("s"), "s", LOCAL)["out"] == str(tmp_path / "s")
