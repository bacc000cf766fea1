"""The text of a study: comments survive options and `study.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from experiments.studies.design.document import record_text, split_record, text_of, with_fields
from experiments.studies.design.loader import load_study

TEXT = (Path(__file__).parent / "testdata" / "commented-study.yaml").read_text(encoding="utf-8")


def test_options_change_their_field_and_leave_the_comments() -> None:
    changed = with_fields(TEXT, {"trials": 9})
    assert changed == TEXT.replace("trials: 5 ", "trials: 9 ")
    assert with_fields(TEXT, {}) == TEXT
    removed = with_fields(
        "name: s\nprecision: {relative_error: 0.1}  # narrow\n# end\n", {"precision": None, "trials": 2}
    )
    assert yaml.safe_load(removed) == {"name": "s", "trials": 2}


@pytest.mark.parametrize("text", [TEXT, "{name: s, trials: 5}", "name: s\nquestion: |\n  a\n    b\ntrials: 5\n"])
def test_record_holds_the_text_and_gives_it_back(text: str) -> None:
    record = record_text(text, [{"isray": "1"}], ["0f"])
    study, rest = split_record(record)
    assert study.strip() == text.strip()
    assert yaml.safe_load(rest) == {"runs": [{"isray": "1"}], "cells": ["0f"]}
    if "log" not in text:
        assert yaml.safe_load(record) == {"study": yaml.safe_load(text), "runs": [{"isray": "1"}], "cells": ["0f"]}


def test_marks_of_documents_are_left_out() -> None:
    text = with_fields("%YAML 1.2\n---\n# why\nname: s\n...\n", {})
    assert yaml.safe_load(record_text(text, [], [])) == {"study": {"name": "s"}, "runs": [], "cells": []}
    assert "# why" in text


def test_text_of_a_file_is_part_of_its_plan(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT)
    assert load_study(path).text == TEXT
    study = load_study(path, trials=7)
    assert "trials: 7     # per cell" in study.text
    assert study.source["trials"] == 7
    assert yaml.safe_load(text_of({"name": "é"})) == {"name": "é"}


def test_the_record_of_a_study_is_a_study_file(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    (tmp_path / "study.yaml").write_text(record_text(TEXT, [{"isray": "1"}], ["0f", "1f", "2f"]))
    plan, again = load_study(tmp_path / "s.yaml"), load_study(tmp_path / "study.yaml", trials=7)
    assert (again.source, again.cells) == (plan.source | {"trials": 7}, plan.cells)
    assert "trials: 7     # per cell" in again.text
