"""`isray study list`."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.studies.design.loader import load_study
from experiments.support.shipped import STUDIES
from tests.unit.experiments.cli.cli_helpers import Commands


def test_list_names_every_shipped_study_and_its_question(command: Commands) -> None:
    code, out, _ = command.run("study", "list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == sorted(path.stem for path in STUDIES.glob("*.yaml"))
    assert all(load_study(Path(row["file"])).question == row["question"] and row["question"] for row in rows)
    assert rows[0]["name"] in command.run("study", "list")[1]
