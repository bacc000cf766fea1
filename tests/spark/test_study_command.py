"""`isray study run` from end to end, with a trial that needs no protocol: output, progress and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli.study import app
from experiments.studies.pipeline.options import GOLD, READING, SILVER_STAGE
from experiments.studies.trials import estimators
from experiments.support.errors import InputError
from experiments.support.processes import processes_naming
from tests.spark.trial_helpers import fake_trial

STUDY = """
name: small
trials: 6
duration: 1h
sweep: {generation: [kip-497, kip-966]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(estimators, "run_cell_trial", fake_trial)
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


def test_run_prints_one_document_and_a_second_run_the_table(
    file: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run has Spark in a process of its own, of which nothing is left."""
    out, files_of_spark = tmp_path / "out", tmp_path / "files"
    files_of_spark.mkdir()
    monkeypatch.setenv("TMPDIR", str(files_of_spark))  # which command lines of Spark's processes name
    result = CliRunner().invoke(app, ["run", str(file), "--out", str(out), "--json"])
    document = json.loads(result.stdout)
    stages = ["sweep", "starting Spark", READING, SILVER_STAGE, GOLD, "report"]
    shown = [stage for line in result.stderr.splitlines() for stage in stages if f"isray study: {stage}" in line]
    assert list(dict.fromkeys(shown)) == stages
    assert set(document) == {"out", "report", "headline", "cells"}
    assert document["cells"] == json.loads((out / "gold" / "cells.json").read_text())
    assert Path(document["report"]).read_text().startswith("<!DOCTYPE html>")
    assert not processes_naming([files_of_spark])
    assert not list(files_of_spark.iterdir())
    monkeypatch.delenv("TMPDIR")
    request.getfixturevalue("in_session")  # only one of the two needs a JVM of its own
    again = CliRunner().invoke(app, ["run", str(file), "--out", str(out)])
    assert again.exit_code == 0
    lines = again.stdout.splitlines()
    assert f"small: {document['headline']}" in " ".join(again.stdout.split())
    assert max(map(len, lines[:-1])) <= 100
    assert any("kip-966" in line and "│" in line for line in lines)
    assert again.stdout.strip().endswith(f"report: {out / 'report.html'}")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--engine", "kafka"], "--engine"), (["--trials", "0"], "--trials"), (["--address", "no-address"], "--address")],
)
def test_wrong_options_are_refused_before_any_trial(
    file: Path, tmp_path: Path, arguments: list[str], field: str
) -> None:
    result = CliRunner().invoke(app, ["sweep", str(file), "--out", str(tmp_path / "out"), *arguments])
    assert isinstance(result.exception, InputError)
    assert result.exception.source == field
    assert not list(tmp_path.glob("out/trials/*"))


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_directory_without_a_study_is_refused(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert isinstance(result.exception, InputError)
    assert not list(tmp_path.iterdir())
