"""Quantiles of failover times and their limits: three passes over the outages that ended within their trial.

The (weighted) empirical distribution gives the quantiles. Then the sums over trials of the outages up to each quantile
say how many independent times the outages are worth (`estimation/quantiles.py`), and the order statistics at the ranks
that follow from it are the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from experiments.studies.estimation.estimates import FailoverTimes
from experiments.studies.estimation.moments import Sums
from experiments.studies.estimation.quantiles import LEVELS, Shares, shares_of

NONE = FailoverTimes(None, None, None)
_ROUNDING = 1e-9


def failover_times(outages: DataFrame) -> Mapping[int, FailoverTimes]:
    """The quantiles with their limits, by the cells that have outages which ended."""
    ordered = _ordered(outages.where("ended")).cache()
    try:
        quantiles = ordered.groupBy("cell").agg(
            *(_quantile(F.lit(p)).alias(key) for key, p in LEVELS.items()),
            F.max("failover_ms").alias("max"),
            F.count("*").alias("outages"),
        )
        found = {row["cell"]: row.asDict() for row in quantiles.collect()}
        shares = {row["cell"]: _shares(row.asDict()) for row in _counts(ordered, quantiles).collect()}
        bounds = _bounds(ordered, shares)
    finally:
        ordered.unpersist()
    return {cell: FailoverTimes(**_without(row, "cell") | bounds[cell]) for cell, row in found.items()}


def _ordered(outages: DataFrame) -> DataFrame:
    """The outages with their place in the empirical distribution of their cell: the share of times up to theirs."""
    whole = Window.partitionBy("cell")
    so_far = whole.orderBy("failover_ms", "trial", "partition", "start_ms").rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    return outages.select(
        "cell",
        "trial",
        "failover_ms",
        "weight",
        (F.sum("weight").over(so_far) / F.sum("weight").over(whole)).alias("place"),
    )


def _quantile(share: Column) -> Column:
    return F.min(F.when(F.col("place") >= share - _ROUNDING, F.col("failover_ms")))


def _counts(ordered: DataFrame, quantiles: DataFrame) -> DataFrame:
    """Per cell, the sums over trials of the outages, and of those up to each quantile."""
    weight = F.col("weight")
    per_trial = (
        ordered.join(F.broadcast(quantiles), "cell")
        .groupBy("cell", "trial")
        .agg(
            F.sum("weight").alias("all"),
            F.count("*").alias("events"),
            F.sum(weight * weight).alias("weight_squares"),
            *(F.sum(F.when(F.col("failover_ms") <= F.col(key), weight).otherwise(0.0)).alias(key) for key in LEVELS),
        )
    )
    total = F.col("all")
    return per_trial.groupBy("cell").agg(
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


def _shares(row: Mapping[str, Any]) -> dict[str, Shares]:
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


def _bounds(ordered: DataFrame, shares: Mapping[int, Mapping[str, Shares]]) -> dict[int, dict[str, float | None]]:
    """The order statistics at the shares, by cell and field of `FailoverTimes`."""
    names = [(f"{key}_ci_{side}", key, side) for key in LEVELS for side in ("low", "high")]
    rows = [(cell, *(getattr(found[key], side) for _, key, side in names)) for cell, found in shares.items()]
    if not rows:
        return {}
    columns = ", ".join(["cell int", *(f"share_{name} double" for name, _, _ in names)])
    wanted = ordered.sparkSession.createDataFrame(rows, columns)
    found = (
        ordered.join(F.broadcast(wanted), "cell")
        .groupBy("cell")
        .agg(*(_quantile(F.col(f"share_{name}")).alias(name) for name, _, _ in names))
    )
    return {row["cell"]: _without(row.asDict(), "cell") for row in found.collect()}


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
