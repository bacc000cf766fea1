"""Gold: sums per cell and metric, products of paired trials, and distributions of times with their quantiles.

*Sums.* The estimates need sums only (`estimation/moments.py`). They are added up in a fixed order, that of the trials'
numbers, in blocks of `BLOCK` trials and then over the blocks, so that the same trials give the same sums to the last
bit, on any number of machines and also where a study was extended. They are written in SQL: a query in text takes
milliseconds to build, the same one of `Column` objects, each of which is a call from Python to the JVM, takes longer.

*Order.* Rows of gold are sorted by `ORDER` when they have been collected: sorting them in Spark takes two more stages.

*Distributions.* A time counts with its weight. The times of a cell fall into buckets of equal ratio (`BUCKETS_PER_E` to
a factor of e), whose number does not grow with the data; a bucket keeps the sum of its weights. The order within a
bucket is that of whole milliseconds. So each time has its place in the (weighted) empirical distribution though no task
sees all times of a cell, and quantiles are exact. The limits of a quantile need a second look at the times: the sums
over trials of the times up to it say how many independent times they are worth (`estimation/intervals.py`), and the
order statistics at the ranks that follow from it are the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.estimation.intervals import LEVELS, Shares, shares_of
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.pairs import ROUNDING
from experiments.studies.estimation.times import FAILOVER, HANDOVER
from experiments.studies.pipeline.schemas import GOLD, conform

BLOCK = 4096
"""Trials that one task holds at a time."""

BUCKETS_PER_E = 100
KEY = ["cell", "kind"]

Term = str
"""A number of one trial and metric, an SQL expression: of the struct `row`, which is the trial's row, and of `k`, the
place of the metric."""
Key = tuple[int, str]
"""A cell and a kind of time."""
_LARGEST = ("largest_weight", "largest_size")
_CELL: list[tuple[str, str]] = [("cell", "ascending")]
_METRIC = [*_CELL, ("metric", "ascending")]
_KIND = [*_CELL, ("kind", "ascending")]
ORDER: Mapping[str, list[tuple[str, str]]] = {
    "cells": _METRIC,
    "pairs": _METRIC,
    "distributions": [*_KIND, ("up_to_ms", "ascending")],
    "measured": _KIND,
    "reasons": [
        *_METRIC,
        *(("weight", "descending"), ("minutes", "descending"), ("reason", "ascending"), ("causes", "ascending")),
    ],
}
"""How the rows of each table are sorted, for `pyarrow.Table.sort_by`."""


def ordered_sums(
    trials: DataFrame, metrics: Sequence[str], terms: Mapping[str, Term], largest: Mapping[str, Term]
) -> DataFrame:
    """One row per cell and metric: the sums of `terms` over the cell's trials in the order of their numbers, the
    largest of `largest`, and the number of trials. `trials` has the columns `cell` and `trial`, each trial once, and
    lists whose k-th element is of the k-th metric: one expression then serves all metrics, and hundreds of them would
    take Spark seconds to plan."""
    names = (name for name in trials.columns if name not in ("cell", "trial"))
    fields = ", ".join(map(_quoted, ("trial", *names)))
    rows = f"array_sort(collect_list(struct({fields}))) AS rows"
    blocks = trials.groupBy("cell", F.expr(f"cast(trial / {BLOCK} AS int) AS block")).agg(F.expr(rows))
    names_of = ", ".join(f"'{metric}'" for metric in metrics)
    of_metrics = blocks.selectExpr("cell", "block", "rows", f"posexplode(array({names_of})) AS (k, metric)")
    trials_in = "cast(size(rows) AS bigint) AS trials"
    per_block = of_metrics.selectExpr("cell", "metric", "block", trials_in, *_folded("rows", terms, largest))
    fields = ", ".join(map(_quoted, ("block", "trials", *terms, *largest)))
    ordered = F.expr(f"array_sort(collect_list(struct({fields})))").alias("blocks")
    per_cell = per_block.groupBy("cell", "metric").agg(ordered, F.expr("sum(trials)").alias("trials"))
    totals = _folded("blocks", {name: _column(name) for name in terms}, {name: _column(name) for name in largest})
    return per_cell.selectExpr("cell", "metric", "trials", *totals)


def _folded(rows: str, terms: Mapping[str, Term], largest: Mapping[str, Term]) -> list[str]:
    """The columns with the sums of `terms`, and the largest of `largest`, over an array of rows."""
    total = "aggregate({}, 0D, (total, row) -> total + cast({} AS double)) AS {}"
    most = "aggregate({}, 0D, (most, row) -> greatest(most, {})) AS {}"
    folds = [(total, *item) for item in terms.items()] + [(most, *item) for item in largest.items()]
    return [fold.format(rows, term, _quoted(name)) for fold, name, term in folds]


def _quoted(name: str) -> str:
    return f"`{name}`"


def _column(name: str) -> Term:
    return f"row.{_quoted(name)}"


_VALUE: Term = "row.metrics[k].value"


def per_cell(trials: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """One row per cell and metric: the fields of `Sums`, and `states`, the rows of state of all trials."""
    terms = {
        "exposure": "row.exposure",
        "exposure_squares": "row.exposure * row.exposure",
        "years": "row.partition_years",
        "states": "row.states",
        "partitions": "row.partitions",
        "value": _VALUE,
        "value_squares": f"{_VALUE} * {_VALUE}",
        "value_exposure": f"{_VALUE} * row.exposure",
        **{name: f"row.metrics[k].{name}" for name in ("events", "weight", "weight_squares", "size_squares")},
    }
    largest = {name: f"row.metrics[k].{name}" for name in _LARGEST}
    structs = f"array({', '.join(map(_quoted, metrics))}) AS metrics"
    rows = trials.selectExpr("cell", "trial", "exposure", "partition_years", "states", "partitions", structs)
    return conform(ordered_sums(rows, metrics, terms, largest), GOLD["cells"])


def products(trials: DataFrame, references: Sequence[int], cells: int, metrics: Sequence[str]) -> DataFrame:
    """One row per reference, other cell and metric: the fields of `Products` of the other cell with the reference, by
    pairs of trials; the column `cell` has the number of the reference times `cells`, plus that of the other cell."""
    values = f"array({', '.join(f'{_quoted(metric)}.value' for metric in metrics)})"
    mine = trials.selectExpr("cell", "trial", "exposure", f"{values} AS `values`")
    its = trials.where(f"cell IN ({', '.join(map(str, references))})")
    its = its.selectExpr("cell AS reference", "trial", "exposure AS its_exposure", f"{values} AS its_values")
    pairs = mine.join(its, "trial").where("cell != reference").withColumn("cell", F.expr(f"reference * {cells} + cell"))
    value, other = "row.values[k]", "row.its_values[k]"
    tolerance = f"{ROUNDING}D * greatest(abs({value}), abs({other}))"
    terms = {
        "exposure_exposure": "row.exposure * row.its_exposure",
        "value_value": f"{value} * {other}",
        "value_exposure": f"{value} * row.its_exposure",
        "exposure_value": f"row.exposure * {other}",
        "differing": f"if(abs({value} - {other}) > {tolerance}, 1, 0)",
    }
    sums = ordered_sums(pairs.drop("reference"), metrics, terms, {})
    return conform(sums.withColumnRenamed("trials", "pairs"), GOLD["pairs"])


def of_reference(products: pa.Table, reference: int, cells: int) -> pa.Table:
    """The rows of `products` with this reference, by the numbers of the other cells."""
    found = products.filter(pc.equal(pc.divide(products["cell"], cells), reference))
    number = pc.subtract(found["cell"], reference * cells).cast(pa.int32())
    return found.set_column(found.column_names.index("cell"), "cell", number)


def measured_quantiles(measured: DataFrame) -> DataFrame:
    """One row per cell and kind of row of `silver/measured`: p50, p99 and max of its values."""
    shares = (f"percentile(value, {share}) AS {name}" for name, share in (("p50", 0.5), ("p99", 0.99)))
    return measured.groupBy("cell", "kind").agg(*map(F.expr, shares), F.expr("cast(max(value) AS double) AS max"))


def reasons(per_trial: DataFrame) -> DataFrame:
    """One row per cell, metric, reason and causes: the sums over trials in the order of their numbers, and the first
    trial in which an event has the reason, or else one that has time of it."""
    sums = _folded("rows", {name: f"row.{name}" for name in ("events", "weight", "minutes")}, {})
    keys = ("cell", "metric", "reason", "causes")
    rows = F.expr("array_sort(collect_list(struct(trial, events, weight, minutes)))").alias("rows")
    first = "coalesce(try_element_at(filter(rows, row -> row.events > 0), 1).trial, rows[0].trial) AS trial"
    found = per_trial.groupBy(*keys).agg(rows).selectExpr(*keys, *sums, first)
    return conform(found, GOLD["reasons"])


def outage_times(outages: DataFrame) -> DataFrame:
    """The lengths of the outages that ended, one row each: cell, trial, kind, ms, weight."""
    kind = f"if(handover, '{HANDOVER}', '{FAILOVER}') AS kind"
    return outages.where("ended").selectExpr("cell", "trial", kind, "failover_ms AS ms", "weight")


def lasting_times(frame: DataFrame, kind: str, begin: str, end: str) -> DataFrame:
    """The times from one column to another of the rows that have both, in the form of `outage_times`."""
    columns = ("cell", "trial", f"'{kind}' AS kind", f"{end} - {begin} AS ms", "weight")
    return frame.where(f"{end} IS NOT NULL").selectExpr(*columns)


def places(times: DataFrame) -> DataFrame:
    """One row per cell, kind and length: `events`, `weight`, and `place`, the share of times up to it."""
    bucket = F.expr(f"cast(floor(log1p(ms) * {BUCKETS_PER_E}) AS int) AS bucket")
    counts = (F.expr("count(*) AS events"), F.expr("sum(weight) AS weight"))
    lengths = times.groupBy(*KEY, bucket, "ms").agg(*counts)
    buckets = lengths.groupBy(*KEY, "bucket").agg(F.expr("sum(weight) AS inside"))
    whole, rows = "PARTITION BY cell, kind", "ROWS BETWEEN UNBOUNDED PRECEDING AND"
    offsets = buckets.selectExpr(
        *KEY,
        "bucket",
        f"coalesce(sum(inside) OVER ({whole} ORDER BY bucket {rows} 1 PRECEDING), 0D) AS before",
        f"sum(inside) OVER ({whole}) AS total",
    )
    within = f"sum(weight) OVER ({whole}, bucket ORDER BY ms {rows} CURRENT ROW)"
    placed = lengths.join(offsets, [*KEY, "bucket"])
    return placed.selectExpr(*lengths.columns, "before", "total", f"(before + {within}) / total AS place")


def distributions(placed: DataFrame) -> DataFrame:
    """One row per cell, kind and bucket: longest time, events, weight, the share of times up to its end."""
    sums = ("max(ms) AS up_to_ms", "sum(events) AS events", "sum(weight) AS weight", "max(place) AS share")
    return conform(placed.groupBy(*KEY, "bucket").agg(*map(F.expr, sums)), GOLD["distributions"])


def quantiles(times: DataFrame, placed: DataFrame) -> Mapping[Key, FailoverTimes]:
    """The quantiles with their limits, by the cells and kinds that have any times."""
    rows = {(row["cell"], row["kind"]): row for row in _counts(times, placed).collect()}
    if not rows:
        return {}
    bounds = _bounds(placed, {key: _shares(row) for key, row in rows.items()})
    names = (*LEVELS, "max", "outages")
    return {key: FailoverTimes(**{name: row[name] for name in names} | bounds[key]) for key, row in rows.items()}


def _quantile(share: str, name: str) -> Column:
    return F.expr(f"min(if(place >= {share} - {ROUNDING}D, ms, NULL)) AS {name}")


def _counts(times: DataFrame, placed: DataFrame) -> DataFrame:
    """Per cell and kind, the quantiles, the longest time, how many there are, and the sums over trials of the times,
    and of those up to each quantile."""
    levels = (_quantile(f"{p}D", key) for key, p in LEVELS.items())
    found = placed.groupBy(*KEY).agg(*levels, F.expr("max(ms) AS max"), F.expr("sum(events) AS outages"))
    up_to = (f"sum(if(ms <= {key}, weight, 0D)) AS up_to_{key}" for key in LEVELS)
    sums = ("sum(weight) AS all", "count(*) AS events", "sum(weight * weight) AS weight_squares", *up_to)
    kept = (*LEVELS, "max", "outages")
    per_trial = times.join(F.broadcast(found), KEY).groupBy(*KEY, "trial", *kept).agg(*map(F.expr, sums))
    terms = {name: name for name in ("events", "weight_squares")}
    terms |= {"exposure": "`all`", "exposure_squares": "`all` * `all`"}
    for key in LEVELS:
        value = f"up_to_{key}"
        terms |= {f"{key}_value": value, f"{key}_value_squares": f"{value} * {value}"}
        terms[f"{key}_value_exposure"] = f"{value} * `all`"
    columns = (F.expr(f"sum({term}) AS {name}") for name, term in terms.items())
    return per_trial.groupBy(*KEY, *kept).agg(F.expr("count(*) AS trials"), *columns)


def _shares(row: Row) -> dict[str, Shares]:
    shared = {name: row[name] for name in ("trials", "exposure", "exposure_squares", "events", "weight_squares")}
    shared |= {"years": row["exposure"], "weight": row["exposure"], "largest_weight": 0.0}
    own = ("value", "value_squares", "value_exposure")
    sums = [(p, Sums(**shared, **{name: row[f"{key}_{name}"] for name in own})) for key, p in LEVELS.items()]
    return dict(zip(LEVELS, shares_of(sums), strict=True))


def _bounds(placed: DataFrame, shares: Mapping[Key, Mapping[str, Shares]]) -> dict[Key, dict[str, float | None]]:
    """The order statistics at the shares, by key and field of `FailoverTimes`."""
    names = [(f"{level}_ci_{side}", level, side) for level in LEVELS for side in ("low", "high")]
    rows = (
        f"({cell}, '{kind}', {', '.join(_double(getattr(found[level], side)) for _, level, side in names)})"
        for (cell, kind), found in shares.items()
    )
    columns = ", ".join((*KEY, *(f"share_{name}" for name, _, _ in names)))
    wanted = placed.sparkSession.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS wanted({columns})")
    limits = [_quantile(f"share_{name}", name) for name, _, _ in names]
    found = placed.join(F.broadcast(wanted), KEY).groupBy(*KEY).agg(*limits)
    return {(row["cell"], row["kind"]): {name: row[name] for name, _, _ in names} for row in found.collect()}


def _double(value: float | None) -> str:
    return "CAST(NULL AS DOUBLE)" if value is None else f"CAST('{value!r}' AS DOUBLE)"
