"""`README.md` of a study's directory: the study, what its files hold, and how to open them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from experiments.studies.pipeline.schemas import GOLD, Columns, digests
from experiments.studies.pipeline.tables import tables_of
from experiments.studies.sweeps.output import LAYOUT, StudyRecord
from experiments.studies.trace.schema import TRACE_SCHEMA
from experiments.studies.trials.batch import TRIALS_SCHEMA
from experiments.support.templates import templates


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
