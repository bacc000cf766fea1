"""The columns of the Parquet tables of `silver/` and `gold/`, with their types.

`conform` gives a frame exactly the columns of its table, so that a table has the same schema whatever it was made of.
Tables of `silver/` name a cell by its digest, as `trace/` and `trials/` do: they stay valid when a study is extended.
Within the pipeline and in `gold/` a cell is the index of the cell in the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trace.schema import Values

_PARTITION: Final = {"cell": "int", "trial": "int", "partition": "int"}
_FIELDS: Final = {"value": "double", "events": "bigint"} | dict.fromkeys(
    ("weight", "weight_squares", "largest_weight", "size_squares", "largest_size"), "double"
)
"""One metric of one trial: the fields of `estimation.moments.Sums` that a trial has."""
_METRIC: Final = f"struct<{', '.join(f'{name}: {kind}' for name, kind in _FIELDS.items())}>"

_SHARES: Final = tuple(metric.column for metric in FRACTIONS.values())

Columns = Mapping[str, str]
"""Names of columns with their types, as Spark's DDL writes them."""

SILVER: Final[Mapping[str, Columns]] = {
    "intervals": _PARTITION
    | dict.fromkeys(("start_ms", "end_ms", "length_ms"), "bigint")
    | dict.fromkeys(("leader", "epoch", "isr_size", "elr_size", "min_isr"), "int")
    | dict.fromkeys(("isr", "elr"), "string")
    | dict.fromkeys(("online", *_SHARES, "recovering"), "boolean")
    | dict.fromkeys((*(f"{share}_begins" for share in _SHARES), "leader_failed"), "boolean")
    | dict.fromkeys(("outage", "recovery", "leader_before", "epoch_before"), "int")
    | {"isr_before": "string", "elr_before": "string", "weight": "double"},
    "outages": _PARTITION
    | dict.fromkeys(("start_ms", "end_ms", "failover_ms"), "bigint")
    | {"ended": "boolean", "handover": "boolean", "weight": "double"},
    "elections": _PARTITION
    | {"time_ms": "bigint", "epoch": "int", "leader": "int", "leader_before": "int", "reason": "string"}
    | {"handover": "boolean", "isr": "string", "isr_before": "string", "elr_before": "string", "weight": "double"},
    "isr_changes": _PARTITION
    | {"time_ms": "bigint"}
    | dict.fromkeys(("isr_before", "isr", "elr_before", "elr"), "string")
    | {"joined": "array<string>", "left": "array<string>", "weight": "double"},
    "recoveries": _PARTITION
    | {"time_ms": "bigint", "leader": "int", "recovered_ms": "bigint", "answers": "string", "weight": "double"},
    "catch_ups": _PARTITION | {"broker": "int", "start_ms": "bigint", "in_sync_ms": "bigint", "weight": "double"},
    "regressions": _PARTITION | {"time_ms": "bigint", "leader": "int", "weight": "double"},
    "records": _PARTITION
    | {"seq": "int", "offset": "bigint", "sent_ms": "bigint", "outcome": "string"}
    | {"acknowledged_ms": "bigint", "visible_ms": "bigint", "durable": "boolean"}
    | {"lost_ms": "bigint", "lost_epoch": "int", "weight": "double"},
    "cuts": _PARTITION | {"seq": "int", "time_ms": "bigint", "epoch": "int", "offset": "bigint", "since": "int"},
    "counts": _PARTITION | {"records": "bigint", "lost": "bigint"},
    "losses": _PARTITION | {"time_ms": "bigint", "records": "bigint", "weight": "double"},
    "measured": _PARTITION | {"node": "int", "time_ms": "bigint", "kind": "string", "value": "bigint"},
}

READS: Final[Columns] = (
    _PARTITION
    | {"seq": "int", "time_ms": "bigint", "leader": "int", "epoch": "int", "outcome": "string"}
    | {"offset": "bigint", "records": "bigint", "undone": "bigint", "undone_ms": "bigint", "weight": "double"}
)
"""`silver/reads`, which only a study with a consumer has."""

GOLD: Final[Mapping[str, Columns]] = {
    "cells": {"cell": "int", "metric": "string", "trials": "bigint"}
    | dict.fromkeys(("value", "value_squares", "exposure", "exposure_squares", "value_exposure", "years"), "double")
    | {"events": "bigint"}
    | dict.fromkeys(("weight", "weight_squares", "largest_weight", "size_squares", "largest_size"), "double")
    | {"states": "bigint", "partitions": "bigint"},
    "pairs": {"cell": "int", "metric": "string", "pairs": "bigint"}
    | dict.fromkeys(("value_value", "value_exposure", "exposure_value", "exposure_exposure"), "double")
    | {"differing": "bigint"},
    "distributions": {"cell": "int", "kind": "string", "up_to_ms": "double", "events": "bigint"}
    | dict.fromkeys(("weight", "share"), "double"),
    "measured": {"cell": "int", "kind": "string"} | dict.fromkeys(("p50", "p99", "max"), "double"),
}


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
METRIC_FIELDS: Final = tuple(_FIELDS)
_TYPES[_METRIC] = pa.struct([(name, _TYPES[kind]) for name, kind in _FIELDS.items()])


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
