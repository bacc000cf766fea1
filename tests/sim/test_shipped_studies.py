"""Every shipped study asks its question in its first line, and each of its cells runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.studies.design.loader import load_study
from experiments.studies.design.model import DAY_MS
from experiments.studies.trials.batch import Batch, run_batch
from experiments.studies.trials.trial import run_trial
from experiments.support.shipped import STUDIES

SHIPPED = sorted(STUDIES.glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_study_runs_and_asks_its_question_first(path: Path) -> None:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith("# ")
    assert "?" in first
    study = load_study(path)
    assert study.name == path.stem
    assert study.question
    for cell in study.cells:
        duration_ms = min(40 * DAY_MS, cell.parameters.duration_ms)
        parameters = cell.parameters.model_copy(update={"duration_ms": duration_ms, "engine": "sim"})
        _, trials = run_batch(run_trial, parameters, Batch("c", 0, 1), study.seed)
        assert trials["exposure"].to_pylist() == pytest.approx([parameters.partition_years])
        assert trials["events"].to_pylist()[0] > 50
