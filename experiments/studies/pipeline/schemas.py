"""The columns of the Parquet tables of `silver/` and `gold/`, with their types.

Tables of `silver/` name a cell by its digest, as `trace/` and `trials/` do: they stay valid when a study is extended.
Within the pipeline and in `gold/` a cell is the index of the cell in the study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trace.schema import Values
from experiments.support.declared import declared

Columns = Mapping[str, str]
"""Names of columns with their types, as Spark's DDL writes them."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """The content of `schemas.yaml`, which describes its parts."""

    silver: dict[str, dict[str, str]]
    reads: dict[str, str]
    gold: dict[str, dict[str, str]]
    metric: dict[str, str]


def _with_shares(columns: Columns) -> Columns:
    """The columns with those of every share of time instead of `SHARE` and `SHARE_begins`."""
    shares = [metric.column for metric in FRACTIONS.values()]
    each = {"SHARE": shares, "SHARE_begins": [f"{share}_begins" for share in shares]}
    return {column: kind for name, kind in columns.items() for column in each.get(name, [name])}


_TABLES: Final = declared(_Tables, __file__, "schemas.yaml")
SILVER: Final = {name: _with_shares(columns) for name, columns in _TABLES.silver.items()}
READS: Final = _TABLES.reads
GOLD: Final = _TABLES.gold
_METRIC: Final = f"struct<{', '.join(f'{name}: {kind}' for name, kind in _TABLES.metric.items())}>"


def conform(frame: DataFrame, columns: Columns) -> DataFrame:
    """The frame with these columns, in this order and of these types, and no other."""
    return frame.selectExpr(*(f"CAST(`{name}` AS {kind}) AS `{name}`" for name, kind in columns.items()))


def trial_columns(metrics: tuple[str, ...]) -> Columns:
    """`silver/trials`: one row per trial; its controls as in `trials/`, and a struct for each of the metrics."""
    exposures = {"partitions": "int", "partition_years": "double", "exposure": "double", "states": "bigint"}
    controls = {"controls": "int", "control_exposure": "double", "control_exposure_mean": "double"}
    lists = dict.fromkeys(("control", "control_mean"), "array<double>")
    return {"cell": "int", "trial": "int"} | exposures | controls | lists | dict.fromkeys(metrics, _METRIC)


TYPES: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "array<double>": pa.list_(pa.float64()),
}
"""The types of Arrow, by those of Spark."""
METRIC_FIELDS: Final = tuple(_TABLES.metric)
TYPES[_METRIC] = pa.struct([(name, TYPES[kind]) for name, kind in _TABLES.metric.items()])


def digests(columns: Columns) -> Columns:
    """The columns of a table as it is stored: with the digest of the cell."""
    return {name: "string" if name == "cell" else kind for name, kind in columns.items()}


def ddl(columns: Columns) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def table(
    columns: Columns, cell: str, values: Callable[[str], Values | pa.Array], **others: Values | pa.Array
) -> pa.Table:
    """The table with these columns, those in `others` or else from `values`, of the cell with this digest."""
    arrays: dict[str, pa.Array] = {}
    for name in columns.keys() - {"cell"}:
        found = others[name] if name in others else values(name)
        arrays[name] = (found if isinstance(found, pa.Array) else pa.array(found)).cast(TYPES[columns[name]])
    arrays["cell"] = pa.array([cell]).take(pa.array(np.zeros(len(arrays["trial"]), np.int32)))
    return pa.table({name: arrays[name] for name in columns})
