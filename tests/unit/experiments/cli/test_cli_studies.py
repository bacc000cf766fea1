"""`isray study list`, and what `isray study` reports when storage or workers fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.studies.design.loader import load_study
from experiments.studies.sweeps import sweep as sweeping
from experiments.studies.sweeps.storage import StorageFailed
from experiments.support.shipped import STUDIES
from tests.unit.experiments.cli.cli_helpers import Commands


def test_list_names_every_shipped_study_and_its_question(command: Commands) -> None:
    code, out, _ = command.run("study", "list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == sorted(path.stem for path in STUDIES.glob("*.yaml"))
    assert all(load_study(Path(row["file"])).question == row["question"] and row["question"] for row in rows)
    assert rows[0]["name"] in command.run("study", "list")[1]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntrials: 2\nduration: 1h\n")
    return str(path)


@pytest.mark.parametrize("error", [StorageFailed("out/x: No space left on device"), sweeping.WorkersLost("trials 0")])
def test_failure_in_the_middle_of_a_sweep_is_one_line_and_exit_code_1(
    command: Commands, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*arguments: object) -> int:
        raise error

    monkeypatch.setattr(sweeping, "sweep", fails)
    code, out, errors = command.run("study", "sweep", file, "--out", str(tmp_path / "out"))
    assert (code, out, errors.splitlines()[-1]) == (1, "", f"isray: {error}")


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
