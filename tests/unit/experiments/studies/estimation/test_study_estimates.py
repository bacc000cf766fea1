"""Estimates of cells: what is written to `gold/cells.json` is read back, and other files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.studies.design.loader import study_from
from experiments.studies.estimation.estimates import CellEstimates, CellSums, FailoverTimes, estimate, read_cells
from experiments.studies.estimation.statistics import Moments
from experiments.studies.trace.metrics import METRICS
from experiments.support.errors import InputError

STUDY = study_from({"name": "s", "trials": 2, "sweep": {"min_insync_replicas": [1, 2]}}, "s.yaml")


def estimates_of(losses: int) -> CellEstimates:
    moments = {metric.column: Moments(2, 0.0, 0.0) for metric in METRICS} | {"losses": Moments(2, losses, losses)}
    return estimate(CellSums(2, 2.0, moments, 0.0, FailoverTimes(None, None, None)))


def write_cells(out: Path, text: str) -> Path:
    path = out / "gold" / "cells.json"
    path.parent.mkdir()
    path.write_text(text)
    return out


def test_written_cells_are_read_back(tmp_path: Path) -> None:
    cells = [estimates_of(1), estimates_of(2)]
    documents = [values.document(cell.swept) for cell, values in zip(STUDY.cells, cells, strict=True)]
    assert read_cells(write_cells(tmp_path, json.dumps(documents)), STUDY.cells) == cells


def test_missing_cells_name_the_command_that_writes_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="isray study analyze"):
        read_cells(tmp_path, STUDY.cells)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[", "damaged"),
        ("{}", "damaged"),
        ("[1, 2]", "damaged"),
        ("[]", "another study"),
        ('[{"min_insync_replicas": 1}, {"min_insync_replicas": 2}]', "another study"),
        (json.dumps([estimates_of(0).document({"min_insync_replicas": value}) for value in (1, 3)]), "another study"),
        (json.dumps([estimates_of(0).document({"acks": value}) for value in (1, 3)]), "another study"),
    ],
)
def test_cells_that_are_damaged_or_of_another_study_are_refused(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read_cells(write_cells(tmp_path, text), STUDY.cells)
