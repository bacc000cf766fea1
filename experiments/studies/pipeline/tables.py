"""The tables of silver: their columns, and the functions that make them of the trace of a batch; and `README.md` of a
study's directory, which describes all files of the study and how to open them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from experiments.studies.design.study import StudyPlan, metrics_of
from experiments.studies.pipeline import changes, records, silver
from experiments.studies.pipeline.rows import Trace
from experiments.studies.pipeline.schemas import GOLD, READS, SILVER, Columns, digests, trial_columns
from experiments.studies.pipeline.trials import per_trial
from experiments.studies.sweeps.output import LAYOUT, StudyRecord
from experiments.studies.trace.schema import TRACE_SCHEMA
from experiments.studies.trials.batch import TRIALS_SCHEMA
from experiments.support.templates import templates


class Table(NamedTuple):
    """A table's columns, and its rows of one batch, a pure function."""

    columns: Columns
    rows: Callable[[Trace], pa.Table]


_ROWS: Mapping[str, Callable[[Trace], pa.Table]] = {
    "intervals": silver.intervals,
    "outages": silver.outages,
    "elections": changes.elections,
    "isr_changes": changes.isr_changes,
    "recoveries": changes.recoveries,
    "catch_ups": changes.catch_ups,
    "regressions": changes.regressions,
    "records": records.records,
    "cuts": records.cuts,
    "counts": records.counts,
    "losses": silver.losses,
    "measured": silver.measured,
}
NAMES = (*_ROWS, "reads", "trials")
"""Of all tables that a study may have."""


def tables_of(study: StudyPlan) -> dict[str, Table]:
    """The tables of a study, by their names."""
    custom = () if study.functions is None else study.functions.metrics
    names = tuple(metric.name for metric in metrics_of(study.functions))
    found = {name: Table(SILVER[name], rows) for name, rows in _ROWS.items()}
    if study.has_consumer:
        found["reads"] = Table(READS, records.reads)
    measure = partial(per_trial, custom=tuple((metric.name, metric.unit) for metric in custom))
    return found | {"trials": Table(trial_columns(names), measure)}


def columns_of(record: StudyRecord) -> Mapping[str, Columns]:
    """The columns, with their types, of each Parquet table of the study, by the table's folder."""
    return {
        "trace": _columns(TRACE_SCHEMA),
        "trials": _columns(TRIALS_SCHEMA),
        **{f"silver/{name}": digests(table.columns) for name, table in tables_of(record.study).items()},
        **{f"gold/{name}": columns for name, columns in GOLD.items()},
    }


def _columns(schema: pa.Schema) -> Columns:
    return {field.name: str(field.type) for field in schema}


def readme(record: StudyRecord) -> str:
    """The page, as Markdown."""
    template = templates(Path(__file__).resolve().parent).get_template("readme.md.j2")
    return template.render(study=record.study, versions=record.versions, layout=LAYOUT, tables=columns_of(record))
