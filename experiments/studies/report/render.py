"""`isray study report`: `report.html` from `study.yaml` and `gold/cells.json`, nothing else.

One file: style and drawings are inside, there is no script, nothing is fetched. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from experiments.studies.analysis import read_cells
from experiments.studies.metrics import METRICS
from experiments.studies.output import StudyRecord, read_record, write_text
from experiments.studies.report import plots, words
from experiments.support.errors import InputError

FOLDER = Path(__file__).resolve().parent


def write_report(out: Path) -> Path:
    """Writes `out/report.html` and answers its path. Raises InputError if `out` holds no analysed study."""
    record, cells = read_record(out), read_cells(out)
    swept = [dict(cell.swept) for cell in record.study.cells]
    if [{name: cell.get(name) for name in names} for cell, names in zip(cells, swept, strict=False)] != swept:
        raise InputError(
            str(out / "gold" / "cells.json"), "", "cells of another study", "run `isray study analyze` again"
        )
    path = out / "report.html"
    write_text(path, render(record, cells))
    return path


def render(record: StudyRecord, cells: Sequence[Mapping[str, Any]]) -> str:
    """The page as text."""
    study = record.study
    names = [words.cell_name(cell.swept) for cell in study.cells]
    result = words.answer(names, cells)
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": words.number,
        "minutes": lambda value: _unbroken(words.minutes(value)),
        "milliseconds": lambda value: _unbroken(words.milliseconds(value)),
    }
    return environment.get_template("report.html.j2").render(
        study=study,
        question=study.question or _question(study.cells[0].swept),
        answer=result,
        names=names,
        cells=cells,
        metrics=METRICS,
        trade_offs=words.trade_offs(names, cells, result),
        loss_svg=Markup(plots.loss_plot(names, cells, result.best)),
        availability_svg=Markup(plots.availability_plot(names, cells, result.best)),
        parameters=words.parameter_rows(study.cells[0].parameters, list(study.cells[0].swept)),
        runs=record.runs,
        source=yaml.safe_dump(study.source, sort_keys=False, allow_unicode=True),
        style=Markup((FOLDER / "report.css").read_text(encoding="utf-8")),
    )


def _question(swept: Mapping[str, object]) -> str:
    varied = " and ".join(swept) or "this setting"
    return (
        f"How often does a partition lose acknowledged records, and how long is it unavailable, depending on {varied}?"
    )


def _unbroken(text: str) -> str:
    """A number and its unit, kept on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
