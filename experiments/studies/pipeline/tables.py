"""The tables of silver, and `README.md` of a study's directory, which describes all its files and how to open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from experiments.studies.design.study import metrics_of
from experiments.studies.pipeline import growth, records, silver
from experiments.studies.pipeline.rows import Trace
from experiments.studies.pipeline.schemas import GOLD, READS, SILVER, Columns, digests, trial_columns
from experiments.studies.pipeline.trials import per_trial
from experiments.studies.sweeps.output import LAYOUT, StudyRecord
from experiments.studies.trace.schema import TRACE_SCHEMA
from experiments.studies.trials.batch import TRIALS_SCHEMA
from experiments.support.templates import templates


class Table(NamedTuple):
    """A table's columns, and the function that makes its rows of a batch."""

    columns: Columns
    rows: Callable[[Trace], pa.Table]


_ROWS: Mapping[str, Callable[[Trace], pa.Table]] = {
    "intervals": silver.intervals,
    "outages": silver.outages,
    "elections": silver.elections,
    "isr_changes": silver.isr_changes,
    "recoveries": silver.recoveries,
    "catch_ups": silver.catch_ups,
    "regressions": silver.regressions,
    "records": records.records,
    "cuts": records.cuts,
    "counts": records.counts,
    "losses": silver.losses,
    "measured": silver.measured,
    "reasons": silver.reasons,
}
NAMES = (*_ROWS, growth.TABLE, "reads", "trials")
"""Of all tables that a study may have."""


def tables_of(record: StudyRecord) -> dict[str, Table]:
    """The tables of a study, by their names."""
    study = record.study
    models = (growth.model_of(cell.parameters) for cell in study.cells)
    harms = partial(growth.harms, dict(zip(record.cells, models, strict=False)))
    custom = () if study.functions is None else study.functions.metrics
    names = tuple(metric.name for metric in metrics_of(study))
    found = {name: Table(SILVER[name], rows) for name, rows in _ROWS.items()}
    found[growth.TABLE] = Table(SILVER[growth.TABLE], harms)
    if study.has_consumer:
        found["reads"] = Table(READS, records.reads)
    return found | {"trials": Table(trial_columns(names), partial(per_trial, custom=custom, topics=study.topics))}


def readme(record: StudyRecord) -> str:
    """The page, as Markdown."""
    schemas = {"trace": TRACE_SCHEMA, "trials": TRIALS_SCHEMA}
    columns: dict[str, Columns] = {
        **{name: {field.name: str(field.type) for field in schema} for name, schema in schemas.items()},
        **{f"silver/{name}": digests(table.columns) for name, table in tables_of(record).items()},
        **{f"gold/{name}": columns for name, columns in GOLD.items()},
    }
    template = templates(Path(__file__).resolve().parent).get_template("readme.md.j2")
    return template.render(study=record.study, versions=record.versions, layout=LAYOUT, tables=columns)
