"""Gold: sums per cell and metric, products of paired trials, and distributions of times with their quantiles.

*Sums.* The estimates need sums only (`estimation/moments.py`). They are added up in a fixed order, that of the trials'
numbers, in blocks of `BLOCK` trials and then over the blocks, so that the same trials give the same sums to the last
bit, on any number of machines and also where a study was extended. There are hundreds of sums, so they are written in
SQL: a query in text takes milliseconds to build, the same one of `Column` objects, each of which is a call from Python
to the JVM, takes seconds.

*Distributions.* A time counts with its weight. The times of a cell fall into buckets of equal ratio (`BUCKETS_PER_E` to
a factor of e), whose number does not grow with the data; a bucket keeps the sum of its weights. The order within a
bucket is that of whole milliseconds. So each time has its place in the (weighted) empirical distribution though no task
sees all times of a cell, and quantiles are exact. The limits of a quantile need a second look at the times: the sums
over trials of the times up to it say how many independent times they are worth (`estimation/intervals.py`), and the
order statistics at the ranks that follow from it are the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
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
"""A number of one trial: an SQL expression of the struct `row`, which is the trial's row."""
Key = tuple[int, str]
"""A cell and a kind of time."""
_LARGEST = ("largest_weight", "largest_size")


def ordered_sums(trials: DataFrame, terms: Mapping[str, Term], largest: Mapping[str, Term]) -> DataFrame:
    """One row per cell: the sums of `terms` over its trials in the order of their numbers, the largest of `largest`,
    and the number of trials. `trials` has the columns `cell` and `trial`, each trial once."""
    names = (name for name in trials.columns if name not in ("cell", "trial"))
    fields = ", ".join(map(_quoted, ("trial", *names)))
    blocks = trials.groupBy("cell", (F.col("trial") / BLOCK).cast("int").alias("block")).agg(
        F.expr(f"array_sort(collect_list(struct({fields})))").alias("rows")
    )
    sums = _folded("rows", terms, largest)
    per_block = blocks.selectExpr("cell", "block", "cast(size(rows) AS bigint) AS trials", *sums)
    fields = ", ".join(map(_quoted, ("block", "trials", *terms, *largest)))
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
    return conform(found, GOLD["pairs"]).orderBy("cell", "metric")


def _product(mine: str, its: str) -> Term:
    return f"{_column(mine)} * row.its.{_quoted(its)}"


def measured_quantiles(measured: DataFrame) -> DataFrame:
    """One row per cell and kind of row of `silver/measured`: p50, p99 and max of its values."""
    p50, p99 = (F.percentile("value", share).alias(name) for name, share in (("p50", 0.5), ("p99", 0.99)))
    most = F.max("value").cast("double").alias("max")
    return measured.groupBy("cell", "kind").agg(p50, p99, most).orderBy("cell", "kind")


def reasons(per_trial: DataFrame) -> DataFrame:
    """One row per cell, metric, reason and causes: the sums over trials in the order of their numbers, and the first
    trial in which an event has the reason, or else one that has time of it."""
    sums = _folded("rows", {name: f"row.{name}" for name in ("events", "weight", "minutes")}, {})
    keys = ("cell", "metric", "reason", "causes")
    rows = F.expr("array_sort(collect_list(struct(trial, events, weight, minutes)))").alias("rows")
    first = "coalesce(try_element_at(filter(rows, row -> row.events > 0), 1).trial, rows[0].trial) AS trial"
    found = per_trial.groupBy(*keys).agg(rows).selectExpr(*keys, *sums, first)
    order = (F.col("weight").desc(), F.col("minutes").desc(), "reason", "causes")
    return conform(found, GOLD["reasons"]).orderBy("cell", "metric", *order)


def outage_times(outages: DataFrame) -> DataFrame:
    """The lengths of the outages that ended, one row each: cell, trial, kind, ms, weight."""
    kind = F.when(F.col("handover"), HANDOVER).otherwise(FAILOVER).alias("kind")
    return outages.where("ended").select("cell", "trial", kind, F.col("failover_ms").alias("ms"), "weight")


def lasting_times(frame: DataFrame, kind: str, begin: str, end: str) -> DataFrame:
    """The times from one column to another of the rows that have both, in the form of `outage_times`."""
    ms = (F.col(end) - F.col(begin)).alias("ms")
    return frame.where(F.col(end).isNotNull()).select("cell", "trial", F.lit(kind).alias("kind"), ms, "weight")


def places(times: DataFrame) -> DataFrame:
    """One row per cell, kind and length: `events`, `weight`, and `place`, the share of times up to it."""
    bucket = F.floor(F.log1p(F.col("ms")) * BUCKETS_PER_E).cast("int").alias("bucket")
    lengths = times.groupBy(*KEY, bucket, "ms").agg(F.count("*").alias("events"), F.sum("weight").alias("weight"))
    buckets = lengths.groupBy(*KEY, "bucket").agg(F.sum("weight").alias("inside"))
    whole = Window.partitionBy(*KEY)
    before = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    offsets = buckets.select(
        *KEY,
        "bucket",
        F.coalesce(F.sum("inside").over(before), F.lit(0.0)).alias("before"),
        F.sum("inside").over(whole).alias("total"),
    )
    within = Window.partitionBy(*KEY, "bucket").orderBy("ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    placed = lengths.join(offsets, [*KEY, "bucket"])
    return placed.withColumn("place", (F.col("before") + F.sum("weight").over(within)) / F.col("total"))


def distributions(placed: DataFrame) -> DataFrame:
    """One row per cell, kind and bucket: longest time, events, weight, the share of times up to its end."""
    found = placed.groupBy(*KEY, "bucket").agg(
        F.max("ms").alias("up_to_ms"),
        F.sum("events").alias("events"),
        F.sum("weight").alias("weight"),
        F.max("place").alias("share"),
    )
    return conform(found, GOLD["distributions"]).orderBy(*KEY, "up_to_ms")


def quantiles(times: DataFrame, placed: DataFrame) -> Mapping[Key, FailoverTimes]:
    """The quantiles with their limits, by the cells and kinds that have any times."""
    found = placed.groupBy(*KEY).agg(
        *(_quantile(F.lit(p)).alias(key) for key, p in LEVELS.items()),
        F.max("ms").alias("max"),
        F.sum("events").alias("outages"),
    )
    rows = {(row["cell"], row["kind"]): row for row in found.collect()}
    if not rows:
        return {}
    columns = ", ".join(["cell int", "kind string", *(f"{key} long" for key in LEVELS)])
    values = [(*key, *(row[level] for level in LEVELS)) for key, row in rows.items()]
    levels = times.sparkSession.createDataFrame(values, columns)
    shares = {(row["cell"], row["kind"]): _shares(row) for row in _counts(times, levels).collect()}
    bounds = _bounds(placed, shares)
    return {key: FailoverTimes(**_without_key(row) | bounds[key]) for key, row in rows.items()}


def _quantile(share: Column) -> Column:
    return F.min(F.when(F.col("place") >= share - ROUNDING, F.col("ms")))


def _counts(times: DataFrame, quantiles: DataFrame) -> DataFrame:
    """Per cell and kind, the sums over trials of the times, and of those up to each quantile."""
    weight = F.col("weight")
    per_trial = (
        times.join(F.broadcast(quantiles), KEY)
        .groupBy(*KEY, "trial")
        .agg(
            F.sum("weight").alias("all"),
            F.count("*").alias("events"),
            F.sum(weight * weight).alias("weight_squares"),
            *(F.sum(F.when(F.col("ms") <= F.col(key), weight).otherwise(0.0)).alias(key) for key in LEVELS),
        )
    )
    total = F.col("all")
    sums = {name: F.col(name) for name in ("events", "weight_squares")}
    sums |= {"exposure": total, "exposure_squares": total * total}
    for key in LEVELS:
        value = F.col(key)
        sums |= {f"{key}_value": value, f"{key}_value_squares": value * value, f"{key}_value_exposure": value * total}
    columns = (F.sum(term).alias(name) for name, term in sums.items())
    return per_trial.groupBy(*KEY).agg(F.count("*").alias("trials"), *columns)


def _shares(row: Row) -> dict[str, Shares]:
    shared = {name: row[name] for name in ("trials", "exposure", "exposure_squares", "events", "weight_squares")}
    shared |= {"years": row["exposure"], "weight": row["exposure"], "largest_weight": 0.0}
    own = ("value", "value_squares", "value_exposure")
    sums = [(p, Sums(**shared, **{name: row[f"{key}_{name}"] for name in own})) for key, p in LEVELS.items()]
    return dict(zip(LEVELS, shares_of(sums), strict=True))


def _bounds(placed: DataFrame, shares: Mapping[Key, Mapping[str, Shares]]) -> dict[Key, dict[str, float | None]]:
    """The order statistics at the shares, by key and field of `FailoverTimes`."""
    names = [(f"{level}_ci_{side}", level, side) for level in LEVELS for side in ("low", "high")]
    rows = [(*key, *(getattr(found[level], side) for _, level, side in names)) for key, found in shares.items()]
    columns = ", ".join(["cell int", "kind string", *(f"share_{name} double" for name, _, _ in names)])
    wanted = placed.sparkSession.createDataFrame(rows, columns)
    limits = (_quantile(F.col(f"share_{name}")).alias(name) for name, _, _ in names)
    found = placed.join(F.broadcast(wanted), KEY).groupBy(*KEY).agg(*limits)
    return {(row["cell"], row["kind"]): _without_key(row) for row in found.collect()}


def _without_key(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.asDict().items() if key not in KEY}
