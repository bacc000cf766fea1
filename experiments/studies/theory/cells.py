"""The cells that `isray study validate` runs: those of a file, or its own.

A file is a YAML list of cells, each a mapping of parameters as in study files; `trials` is one more key. A cell that
gives neither `trials` nor `duration` gets as many events as the budget allows (`validation.py`). A study file does as
well: its cells are validated, with its trials and duration. A cell may ask for an estimator, but for splitting, which
counts events from a start with all brokers up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.studies.design.estimator import obstacle_to_importance
from experiments.studies.design.loader import TOP_LEVEL, parse_study, study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.theory.answers import model_of
from experiments.studies.theory.validation import MAX_FAILURES, MIN_TRIALS, WEIGHTED_TRIALS, ValidationCell, sized
from experiments.support.declared import declared
from experiments.support.errors import InputError
from experiments.support.yaml_input import kind_of, read_text
from experiments.support.yaml_text import parse_yaml

WHAT = "a list of cells, each a mapping of study parameters; or a study file"
COVERS = (
    "exponential broker_mttf and broker_mttr, generation, detection, unclean and tail loss probabilities, strategy "
    "balanced, or proactive with generation kip-966, everything else at its default; up to 5 replicas, or 3 where "
    "detection is not instant or failures are shared (power_events_per_year, burst with window 0s; all failures "
    "unclean), or 2 with one isolated (from others), paused or slow_disk of brokers, for an exponential time"
)


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """The content of `cells.yaml`: every one of `settings` is a cell with each of `generations`."""

    generations: list[dict[str, object]]
    settings: list[dict[str, object]]
    detection: list[dict[str, object]]
    shared: list[dict[str, object]]
    impaired: list[dict[str, object]]
    rare: list[dict[str, object]]


def default_cells() -> list[ValidationCell]:
    """Every generation and strategy with 3 and 5 replicas, min ISR 1 to 3 and MTTR / MTTF from 0.003 to 0.5. A share of
    0.1 to 1 of all failures loses records; the others are clean shutdowns, or crashes that lose nothing; nothing is
    written back. Brokers that fail together, and pairs whose brokers are isolated, paused or slow. These have plain
    trials; cells of rarer losses follow, which have importance sampling."""
    built_in, source = declared(_BuiltIn, __file__, "cells.yaml"), "built-in cells"
    given = [generation | setting for setting in built_in.settings for generation in built_in.generations]
    given += built_in.detection + built_in.shared + built_in.impaired
    common = [_cell(cell, source, f"cells[{index}]", failures=1_800) for index, cell in enumerate(given)]
    plain = [replace(cell, parameters=cell.parameters.model_copy(update={"estimator": "plain"})) for cell in common]
    return plain + [_cell(setting, source, f"rare[{index}]") for index, setting in enumerate(built_in.rare)]


def load_cells(path: Path) -> list[ValidationCell]:
    """The cells in a file. Raises InputError for a wrong file, and for a cell that no Markov model covers."""
    text, source = read_text(path, WHAT), str(path)
    raw = parse_yaml(text, source, WHAT)
    if isinstance(raw, dict):
        return _of_study(parse_study(text, source), source)
    if not isinstance(raw, list) or not raw:
        raise InputError(source, "", "an empty list" if raw == [] else kind_of(raw), WHAT)
    cells = []
    for index, values in enumerate(raw):
        if not isinstance(values, dict):
            raise InputError(source, f"cells[{index}]", kind_of(values), "a mapping of study parameters")
        cells.append(_cell({str(name): value for name, value in values.items()}, source, f"cells[{index}]"))
    return cells


def _of_study(raw: dict[str, object], source: str) -> list[ValidationCell]:
    if "trials" not in raw and "precision" not in raw:
        raw = raw | {"trials": MIN_TRIALS}
    study = study_from({"name": "validation"} | raw, source)
    for cell in study.cells:
        _require_model(cell.parameters, source, f"cells[{cell.index}]")
    return [ValidationCell(cell.swept, cell.parameters, study.max_trials) for cell in study.cells]


def _cell(values: Mapping[str, object], source: str, place: str, failures: int = MAX_FAILURES) -> ValidationCell:
    trials = values.get("trials")
    if trials is not None and (type(trials) is not int or trials < 2):
        raise InputError(source, f"{place}.trials", repr(trials), "a whole number from 2")
    given = {name: value for name, value in values.items() if name != "trials"}
    cell = ValidationCell(given, _resolved(given, source, place), trials or MIN_TRIALS)
    _require_model(cell.parameters, source, place)
    fitting = sized(cell, failures)
    parameters = cell.parameters if "duration" in given else fitting.parameters
    return ValidationCell(given, parameters, trials or (WEIGHTED_TRIALS if cell.is_weighted else fitting.trials))


def _resolved(given: Mapping[str, object], source: str, place: str) -> CellParameters:
    """The parameters of a cell, as those of a study that consists of it."""
    top = {name: given[name] for name in given if name in TOP_LEVEL}
    base = {name: given[name] for name in given if name not in top}
    try:
        (cell,) = study_from({"name": "validation", "trials": MIN_TRIALS, "base": base, **top}, source).cells
    except InputError as error:
        field = f"{place}.{error.field.removeprefix('base.')}"
        raise InputError(error.source, field, error.found, error.allowed) from error
    return cell.parameters


def _require_model(parameters: CellParameters, source: str, place: str) -> None:
    if model_of(parameters) is None:
        raise InputError(source, place, "a cell that no Markov model covers", COVERS)
    if parameters.estimator == "splitting":
        raise InputError(source, f"{place}.estimator", "splitting", "auto, plain or importance")
    obstacle = obstacle_to_importance(parameters)
    if parameters.estimator == "importance" and obstacle:
        raise InputError(source, f"{place}.estimator", "importance", f"auto or plain, as {obstacle}")
