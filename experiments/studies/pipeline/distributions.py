"""Gold: distributions of times (failovers, handovers, ...) per cell, with quantiles and their limits.

A time counts with its weight. The times of a cell fall into buckets of equal ratio (`BUCKETS_PER_E` to a factor of
e); a bucket keeps the sum of its weights, so that buckets of parts of the data add up, and their number does not grow
with the data. The order within a bucket is that of whole milliseconds. So each time has its place in the (weighted)
empirical distribution though no task sees all times of a cell, and quantiles are exact, not approximate.

The limits of a quantile need a second look at the times: the sums over trials of the times up to it say how many
independent times they are worth (`estimation/intervals.py`), and the order statistics at the ranks that follow from it
are the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.estimation.intervals import LEVELS, Shares, shares_of
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.times import FAILOVER, HANDOVER
from experiments.studies.pipeline.schemas import GOLD, conform

BUCKETS_PER_E = 100
KEY = ["cell", "kind"]
_ROUNDING = 1e-9

Key = tuple[int, str]
"""A cell and a kind of time."""


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
    session = times.sparkSession
    columns = ", ".join(["cell int", "kind string", *(f"{key} long" for key in LEVELS)])
    levels = session.createDataFrame([(*key, *(row[level] for level in LEVELS)) for key, row in rows.items()], columns)
    shares = {(row["cell"], row["kind"]): _shares(row) for row in _counts(times, levels).collect()}
    bounds = _bounds(placed, shares)
    return {key: FailoverTimes(**_without_key(row) | bounds[key]) for key, row in rows.items()}


def _quantile(share: Column) -> Column:
    return F.min(F.when(F.col("place") >= share - _ROUNDING, F.col("ms")))


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
    return per_trial.groupBy(*KEY).agg(
        F.count("*").alias("trials"),
        F.sum("events").alias("events"),
        F.sum("weight_squares").alias("weight_squares"),
        F.sum(total).alias("exposure"),
        F.sum(total * total).alias("exposure_squares"),
        *(
            F.sum(what).alias(f"{key}_{name}")
            for key in LEVELS
            for name, what in (
                ("value", F.col(key)),
                ("value_squares", F.col(key) * F.col(key)),
                ("value_exposure", F.col(key) * total),
            )
        ),
    )


def _shares(row: Row) -> dict[str, Shares]:
    sums = [
        (
            p,
            Sums(
                trials=row["trials"],
                exposure=row["exposure"],
                exposure_squares=row["exposure_squares"],
                years=row["exposure"],
                events=row["events"],
                weight=row["exposure"],
                weight_squares=row["weight_squares"],
                largest_weight=0.0,
                **{name: row[f"{key}_{name}"] for name in ("value", "value_squares", "value_exposure")},
            ),
        )
        for key, p in LEVELS.items()
    ]
    return dict(zip(LEVELS, shares_of(sums), strict=True))


def _bounds(placed: DataFrame, shares: Mapping[Key, Mapping[str, Shares]]) -> dict[Key, dict[str, float | None]]:
    """The order statistics at the shares, by key and field of `FailoverTimes`."""
    names = [(f"{level}_ci_{side}", level, side) for level in LEVELS for side in ("low", "high")]
    rows = [(*key, *(getattr(found[level], side) for _, level, side in names)) for key, found in shares.items()]
    columns = ", ".join(["cell int", "kind string", *(f"share_{name} double" for name, _, _ in names)])
    wanted = placed.sparkSession.createDataFrame(rows, columns)
    found = (
        placed.join(F.broadcast(wanted), KEY)
        .groupBy(*KEY)
        .agg(*(_quantile(F.col(f"share_{name}")).alias(name) for name, _, _ in names))
    )
    return {(row["cell"], row["kind"]): _without_key(row) for row in found.collect()}


def _without_key(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.asDict().items() if key not in KEY}
