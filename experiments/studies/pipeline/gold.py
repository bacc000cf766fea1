"""Gold: sums per cell and metric, products of paired trials, and quantiles of what was measured.

The estimates need sums only (`estimation/moments.py`). They are added up in a fixed order, that of the trials' numbers,
in blocks of `BLOCK` trials and then over the blocks, so that the same trials give the same sums to the last bit, on any
number of machines and also where a study was extended.

There are hundreds of sums, so they are written in SQL: a query in text takes milliseconds to build, the same one of
`Column` objects, each of which is a call from Python to the JVM, takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from experiments.studies.estimation.pairs import ROUNDING
from experiments.studies.pipeline.schemas import GOLD, conform

BLOCK = 4096
"""Trials that one task holds at a time."""

Term = str
"""A number of one trial: an SQL expression of the struct `row`, which is the trial's row."""


def ordered_sums(trials: DataFrame, terms: Mapping[str, Term], largest: Mapping[str, Term]) -> DataFrame:
    """One row per cell: the sums of `terms` over its trials in the order of their numbers, the largest of `largest`,
    and the number of trials. `trials` has the columns `cell` and `trial`, each trial once."""
    fields = ", ".join(_quoted(name) for name in ("trial", *(name for name in trials.columns if name not in _KEYS)))
    blocks = trials.groupBy("cell", (F.col("trial") / BLOCK).cast("int").alias("block")).agg(
        F.expr(f"array_sort(collect_list(struct({fields})))").alias("rows")
    )
    sums = _folded("rows", terms, largest)
    per_block = blocks.selectExpr("cell", "block", "cast(size(rows) AS bigint) AS trials", *sums)
    fields = ", ".join(_quoted(name) for name in ("block", "trials", *terms, *largest))
    ordered = F.expr(f"array_sort(collect_list(struct({fields})))").alias("blocks")
    per_cell = per_block.groupBy("cell").agg(ordered, F.sum("trials").alias("trials"))
    totals = _folded("blocks", {name: _column(name) for name in terms}, {name: _column(name) for name in largest})
    return per_cell.selectExpr("cell", "trials", *totals)


def _folded(rows: str, terms: Mapping[str, Term], largest: Mapping[str, Term]) -> list[str]:
    """The columns with the sums of `terms`, and the largest of `largest`, over an array of rows."""
    total = "aggregate({}, 0D, (total, row) -> total + cast({} AS double)) AS {}"
    most = "aggregate({}, 0D, (most, row) -> greatest(most, {})) AS {}"
    folds = [(total, *item) for item in terms.items()] + [(most, *item) for item in largest.items()]
    return [fold.format(rows, term, _quoted(name)) for fold, name, term in folds]


_KEYS = ("cell", "trial")


def _quoted(name: str) -> str:
    return f"`{name}`"


def _column(name: str) -> Term:
    return f"row.{_quoted(name)}"


def _field(metric: str, name: str) -> Term:
    return f"{_column(metric)}.{name}"


def _by_metric(metrics: Sequence[str], names: Sequence[str]) -> str:
    """A row per metric: its name, and the columns `METRIC__NAME` under their names."""
    fields = {metric: ", ".join(f"{_quoted(f'{metric}__{name}')} AS {name}" for name in names) for metric in metrics}
    structs = (f"struct('{metric}' AS metric, {columns})" for metric, columns in fields.items())
    return f"inline(array({', '.join(structs)}))"


def per_cell(trials: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """One row per cell and metric: the fields of `Sums`, and `states`, the rows of state of all trials."""
    terms = {
        "exposure": "row.exposure",
        "exposure_squares": "row.exposure * row.exposure",
        "years": "row.partition_years",
        "states": "row.states",
        "partitions": "row.partitions",
    }
    shared, largest = list(terms), dict[str, Term]()
    for metric in metrics:
        terms |= {f"{metric}__{name}": term for name, term in _sums_of(metric).items()}
        largest |= {f"{metric}__{name}": _field(metric, name) for name in _LARGEST}
    sums = ordered_sums(trials, terms, largest)
    rows = sums.selectExpr("cell", "trials", *shared, _by_metric(metrics, [*_sums_of(""), *_LARGEST]))
    return conform(rows, GOLD["cells"]).orderBy("cell", "metric")


_LARGEST = ("largest_weight", "largest_size")


def _sums_of(metric: str) -> dict[str, Term]:
    """The sums of one metric over trials, by the fields of `estimation.moments.Sums`."""
    value = _field(metric, "value")
    return {
        "value": value,
        "value_squares": f"{value} * {value}",
        "value_exposure": f"{value} * row.exposure",
        **{name: _field(metric, name) for name in ("events", "weight", "weight_squares", "size_squares")},
    }


def products(trials: DataFrame, reference: int, metrics: Sequence[str]) -> DataFrame:
    """One row per cell and metric: the fields of `Products` with the cell `reference`, by pairs of trials."""
    values = [f"{_quoted(metric)}.value AS {_quoted(metric)}" for metric in metrics]
    columns = ", ".join(("exposure", *map(_quoted, metrics)))
    mine = trials.where(F.col("cell") != reference).selectExpr("cell", "trial", "exposure", *values)
    its = trials.where(F.col("cell") == reference).selectExpr("trial", "exposure", *values)
    pairs = mine.join(its.selectExpr("trial", f"struct({columns}) AS its"), "trial")
    terms = {"exposure_exposure": _product("exposure", "exposure")}
    for metric in metrics:
        value, other = _column(metric), f"row.its.{_quoted(metric)}"
        terms[f"{metric}__value_value"] = _product(metric, metric)
        terms[f"{metric}__value_exposure"] = _product(metric, "exposure")
        terms[f"{metric}__exposure_value"] = _product("exposure", metric)
        tolerance = f"{ROUNDING}D * greatest(abs({value}), abs({other}))"
        terms[f"{metric}__differing"] = f"if(abs({value} - {other}) > {tolerance}, 1, 0)"
    sums = ordered_sums(pairs, terms, {})
    names = ("value_value", "value_exposure", "exposure_value", "differing")
    found = sums.selectExpr("cell", "trials AS pairs", "exposure_exposure", _by_metric(metrics, names))
    return conform(found, GOLD["pairs"])


def _product(mine: str, its: str) -> Term:
    return f"{_column(mine)} * row.its.{_quoted(its)}"


def measured_quantiles(measured: DataFrame) -> DataFrame:
    """One row per cell and kind of row of `silver/measured`: p50, p99 and max of its values."""
    p50, p99 = (F.percentile("value", share).alias(name) for name, share in (("p50", 0.5), ("p99", 0.99)))
    most = F.max("value").cast("double").alias("max")
    return measured.groupBy("cell", "kind").agg(p50, p99, most).orderBy("cell", "kind")
