"""Gold: one row per trial and metric, then sums per cell and metric. Pure functions from DataFrame to DataFrame.

Everything is weighted: an event with the likelihood ratio of its row, time with that of the row that ends its interval
(`trace/schema.py`). The estimates need sums only (`estimation/moments.py`): Spark's part ends with them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES
from experiments.studies.trace.schema import STATE, YEAR_MS

TRIAL = ["cell", "trial"]
PARTITION = [*TRIAL, "partition"]
EVENT_SUMS = ("events", "weight", "weight_squares", "size_squares")
EVENT_LARGEST = ("largest_weight", "largest_size")


def per_trial(trace: DataFrame, trials: DataFrame, intervals: DataFrame) -> DataFrame:
    """One row per trial and metric: partition_years, exposure and value (weighted; a share of time is measured in
    partition-years), the number of events or episodes, and the sums and maxima of their weights and sizes."""
    measured = (
        _events(trace)
        .unionByName(_episodes(intervals))
        .groupBy(*TRIAL, "metric")
        .agg(
            F.sum("value").alias("value"),
            F.sum("events").alias("events"),
            F.sum("weight").alias("weight"),
            F.sum(F.col("weight") * F.col("weight")).alias("weight_squares"),
            F.max("weight").alias("largest_weight"),
            F.sum(F.col("size") * F.col("size")).alias("size_squares"),
            F.max("size").alias("largest_size"),
        )
    )
    exposures = intervals.groupBy(*TRIAL).agg(F.sum(F.col("weight") * F.col("length_ms") / YEAR_MS).alias("exposure"))
    every = F.explode(F.array(*(F.lit(metric.name) for metric in METRICS)))
    return (
        trials.select(*TRIAL, (F.col("partitions") * F.col("duration_ms") / YEAR_MS).alias("partition_years"))
        .join(exposures, TRIAL)
        .withColumn("metric", every)
        .join(measured, [*TRIAL, "metric"], "left")
        .fillna(0)
    )


def _events(trace: DataFrame) -> DataFrame:
    """One row per event and rate that it counts for."""
    weight = F.exp("log_weight")
    counted = [
        F.when(
            F.col("kind") == metric.trace_kind,
            F.struct(
                F.lit(metric.name).alias("metric"),
                (weight * F.col("value") if metric.sums_values else weight).alias("value"),
            ),
        )
        for metric in RATES.values()
    ]
    return (
        trace.where(F.col("kind").isin(sorted({metric.trace_kind for metric in RATES.values()})))
        .withColumn("counted", F.explode(F.array(*counted)))
        .where(F.col("counted").isNotNull())
        .select(
            *TRIAL,
            "counted.metric",
            "counted.value",
            F.lit(1).alias("events"),
            weight.alias("weight"),
            F.col("counted.value").alias("size"),
        )
    )


def _episodes(intervals: DataFrame) -> DataFrame:
    """One row per interval and share of time that it counts for; an episode counts in its first interval."""
    in_order = Window.partitionBy(*PARTITION).orderBy("start_ms")

    def counted(name: str, column: str) -> Column:
        begins = ~F.coalesce(F.col(f"{column}_before"), F.lit(False))
        return F.when(F.col(column), F.struct(F.lit(name).alias("metric"), begins.cast("int").alias("events")))

    columns = {metric.name: metric.column for metric in FRACTIONS.values()}
    before = {f"{column}_before": F.lag(column).over(in_order) for column in columns.values()}
    return (
        intervals.withColumns(before)
        .where(" or ".join(columns.values()))
        .withColumn("counted", F.explode(F.array(*(counted(*names) for names in columns.items()))))
        .where(F.col("counted").isNotNull())
        .select(
            *TRIAL,
            "counted.metric",
            (F.col("weight") * F.col("length_ms") / YEAR_MS).alias("value"),
            "counted.events",
            (F.col("weight") * F.col("counted.events")).alias("weight"),
            F.lit(0.0).alias("size"),
        )
    )


def per_cell(trials: DataFrame) -> DataFrame:
    """One row per cell and metric: the fields of `estimation.moments.Sums`."""
    value, exposure = F.col("value"), F.col("exposure")
    return (
        trials.groupBy("cell", "metric")
        .agg(
            F.count("*").alias("trials"),
            F.sum(value).alias("value"),
            F.sum(value * value).alias("value_squares"),
            F.sum(exposure).alias("exposure"),
            F.sum(exposure * exposure).alias("exposure_squares"),
            F.sum(value * exposure).alias("value_exposure"),
            F.sum("partition_years").alias("years"),
            *(F.sum(name).alias(name) for name in EVENT_SUMS),
            *(F.max(name).alias(name) for name in EVENT_LARGEST),
        )
        .orderBy("cell", "metric")
    )


def changes(trace: DataFrame, trials: DataFrame) -> DataFrame:
    """One row per cell: the changes of state of a partition in a trial, on average."""
    found = trace.where(F.col("kind") == STATE).groupBy("cell").agg(F.count("*").alias("states"))
    partitions = trials.groupBy("cell").agg(F.sum("partitions").alias("partitions"))
    return found.join(partitions, "cell").select("cell", (F.col("states") / F.col("partitions")).alias("changes"))


def products(trials: DataFrame, reference: int) -> DataFrame:
    """One row per cell and metric: the fields of `estimation.pairs.Products` with the cell `reference`, whose trial k
    is paired with trial k of the other cell."""
    other = trials.where(F.col("cell") == reference).select(
        "trial", "metric", F.col("value").alias("other_value"), F.col("exposure").alias("other_exposure")
    )

    def product(mine: str, its: str) -> Column:
        return F.sum(F.col(mine) * F.col(f"other_{its}")).alias(f"{mine}_{its}")

    return (
        trials.where(F.col("cell") != reference)
        .join(other, ["trial", "metric"])
        .groupBy("cell", "metric")
        .agg(
            F.count("*").alias("pairs"),
            product("value", "value"),
            product("value", "exposure"),
            product("exposure", "value"),
            product("exposure", "exposure"),
        )
    )
