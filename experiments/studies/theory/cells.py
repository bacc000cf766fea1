"""The cells that `isray study validate` runs: those of a file, or its own.

A file is a YAML list of cells, each a mapping of parameters as in study files; `trials` is one more key. A cell that
gives neither `trials` nor `duration` gets as many events as the budget allows (`validation.py`). A study file does as
well: its cells are validated, with its trials and duration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from experiments.studies.design.loader import parse_study, resolve_cell, study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.theory.answers import model_of
from experiments.studies.theory.validation import MIN_TRIALS, ValidationCell, sized
from experiments.support.errors import InputError
from experiments.support.yaml_input import parse_yaml, read_text

WHAT = "a list of cells, each a mapping of study parameters; or a study file"
COVERS = (
    "exponential broker_mttf and broker_mttr, generation, strategy proactive or balanced, detection, unclean and tail "
    "loss probabilities, everything else at its default; up to 5 replicas, 3 with detection or clean shutdowns"
)


def load_cells(path: Path) -> list[ValidationCell]:
    """The cells in a file. Raises InputError for a wrong file, and for a cell that no Markov model covers."""
    text, source = read_text(path, WHAT), str(path)
    raw = parse_yaml(text, source, WHAT)
    if isinstance(raw, dict):
        return _of_study(parse_study(text, source), source)
    if not isinstance(raw, list) or not raw:
        raise InputError(source, "", "an empty list" if raw == [] else type(raw).__name__, WHAT)
    cells = []
    for index, values in enumerate(raw):
        if not isinstance(values, dict):
            raise InputError(source, f"cells[{index}]", type(values).__name__, "a mapping of study parameters")
        cells.append(_cell({str(name): value for name, value in values.items()}, source, f"cells[{index}]"))
    return cells


def _of_study(raw: dict[str, object], source: str) -> list[ValidationCell]:
    if "trials" not in raw and "precision" not in raw:
        raw = raw | {"trials": MIN_TRIALS}
    study = study_from({"name": "validation"} | raw, source)
    cells = [ValidationCell(cell.swept, cell.parameters, study.max_trials) for cell in study.cells]
    for index, cell in enumerate(cells):
        _require_model(cell.parameters, source, f"cells[{index}]")
    return cells


def _cell(values: Mapping[str, object], source: str, place: str) -> ValidationCell:
    trials = values.get("trials")
    if trials is not None and (type(trials) is not int or trials < 2):
        raise InputError(source, f"{place}.trials", repr(trials), "a whole number from 2")
    given = {name: value for name, value in values.items() if name != "trials"}
    parameters = resolve_cell(given, source, place)
    _require_model(parameters, source, place)
    cell = sized(given, parameters)
    if "duration" in given:
        cell = ValidationCell(given, parameters, cell.trials)
    return cell if trials is None else ValidationCell(given, cell.parameters, trials)


def _require_model(parameters: CellParameters, source: str, place: str) -> None:
    if model_of(parameters) is None:
        raise InputError(source, place, "a cell that no Markov model covers", COVERS)


def usable_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))
