"""The columns of the Parquet tables of `silver/` and `gold/`, with their types.

`conform` gives a frame exactly the columns of its table, so that a table has the same schema whatever it was made of.
Tables of `silver/` name a cell by its digest, as `trace/` and `trials/` do: they stay valid when a study is extended.
Within the pipeline and in `gold/` a cell is the index of the cell in the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trace.schema import Values
from experiments.support.declared import declared

Columns = Mapping[str, str]
"""Names of columns with their types, as Spark's DDL writes them."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """The content of `schemas.yaml`, which says what the parts are."""

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
    return frame.select(*(F.col(name).cast(kind).alias(name) for name, kind in columns.items()))


def trial_columns(metrics: tuple[str, ...]) -> Columns:
    """`silver/trials`: one row per trial; a struct for each of the metrics."""
    exposures = {"partitions": "int", "partition_years": "double", "exposure": "double", "states": "bigint"}
    return {"cell": "int", "trial": "int"} | exposures | dict.fromkeys(metrics, _METRIC)


_TYPES: Final = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
}
METRIC_FIELDS: Final = tuple(_TABLES.metric)
_TYPES[_METRIC] = pa.struct([(name, _TYPES[kind]) for name, kind in _TABLES.metric.items()])


class Nullable(NamedTuple):
    """Values of a column, null where `missing`."""

    values: Values
    missing: NDArray[np.bool_]


class Named(Protocol):
    """Columns by their names."""

    def __getitem__(self, name: str, /) -> Values | pa.Array | Nullable: ...


def digests(columns: Columns) -> Columns:
    """The columns of a table as it is stored: with the digest of the cell."""
    return {name: "string" if name == "cell" else kind for name, kind in columns.items()}


def ddl(columns: Columns) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def table(columns: Columns, cell: str, values: Named, **others: Values | pa.Array | Nullable) -> pa.Table:
    """The table with these columns, those in `others` or else `values`, of the cell with this digest."""
    arrays: dict[str, pa.Array] = {}
    for name, kind in columns.items():
        if name == "cell":
            continue
        found = others[name] if name in others else values[name]
        if isinstance(found, Nullable):
            found = pa.array(found.values, mask=found.missing)
        arrays[name] = (found if isinstance(found, pa.Array) else pa.array(found)).cast(_TYPES[kind])
    length = len(arrays["trial"])
    codes = pa.array(np.zeros(length, np.int32))
    return pa.table({"cell": pa.array([cell]).take(codes), **arrays})
