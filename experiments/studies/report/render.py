"""`isray study report`: `report.html`, from `study.yaml` and `gold/cells.json` alone.

The file contains its style and drawings, has no script and loads nothing. The same input gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from experiments.studies.design.functions import metrics_of
from experiments.studies.estimation.estimates import CellEstimates, read_cells
from experiments.studies.failures.words import shared_assumptions
from experiments.studies.report import advice, plots, words
from experiments.studies.sweeps.atomic import write_text
from experiments.studies.sweeps.output import StudyRecord, read_record
from experiments.studies.trace.metrics import FRACTION

FOLDER = Path(__file__).resolve().parent


def write_report(out: Path) -> Path:
    """Writes `out/report.html` and returns its path. Raises InputError if `out` holds no analysed study."""
    record = read_record(out)
    path = out / "report.html"
    write_text(path, render(record, read_cells(out, record.study.cells, metrics_of(record.study.functions))))
    return path


def render(record: StudyRecord, cells: Sequence[CellEstimates]) -> str:
    """The page as text; `cells` are the numbers of the study's cells, in their order."""
    study = record.study
    metrics = metrics_of(study.functions)
    names = [words.cell_name(cell.swept) for cell in study.cells]
    recommendation = advice.recommend(names, cells)
    trade_offs = advice.trade_offs(names, cells, recommendation, study.equivalence_margin)
    assumed, assumed_of_some = shared_assumptions(
        {name: cell.parameters for name, cell in zip(names, study.cells, strict=True)},
        None if study.functions is None else study.functions.failure_model,
    )
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": words.number,
        "with_code": _with_code,
        "interval_in_numbers": lambda value: words.interval(value, words.number),
        "interval_in_minutes": lambda value: words.interval(value, lambda share: _unbroken(words.minutes(share))),
        "minutes": lambda value: _unbroken(words.minutes(value)),
        "milliseconds": lambda value: _unbroken(words.milliseconds(value)),
    }
    return environment.get_template("report.html.j2").render(
        study=study,
        question=study.question or _question(study.cells[0].swept),
        recommendation=recommendation,
        names=names,
        cells=cells,
        metrics=metrics,
        fractions={metric.name for metric in metrics if metric.estimator is FRACTION},
        trade_offs=trade_offs,
        warnings=[(name, "; ".join(cell.warnings)) for name, cell in zip(names, cells, strict=True) if cell.warnings],
        gains=sorted(row.gain for row in trade_offs if row.gain is not None),
        loss_svg=Markup(plots.loss_plot(names, cells, recommendation.best)),
        availability_svg=Markup(plots.availability_plot(names, cells, recommendation.best)),
        parameters=words.parameter_rows([cell.parameters for cell in study.cells]),
        assumed=assumed,
        assumed_of_some=assumed_of_some,
        versions=record.versions,
        source=study.text,
        style=Markup((FOLDER / "report.css").read_text(encoding="utf-8")),
    )


def _question(swept: Mapping[str, object]) -> str:
    varied = " and ".join(swept) or "this setting"
    return (
        f"How often does a partition lose acknowledged records, and how long is it unavailable, depending on {varied}?"
    )


def _with_code(text: str) -> Markup:
    """A description as HTML: text between backticks becomes code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _unbroken(text: str) -> str:
    """A number and its unit, kept on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")
