"""Gold: one row per trial, then one row per cell. Pure functions from DataFrame to DataFrame.

A cell's row holds, for every metric (`metrics.py`), the sum over its trials and the sum of the squares. The estimates
need nothing else: Spark's part ends here, and `estimates.py` computes the numbers and intervals from the rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from experiments.studies.design.model import YEAR_MS
from experiments.studies.trace.metrics import FRACTIONS, RATES
from experiments.studies.trace.schema import LOSS

TRIAL = ["cell", "trial"]
COUNTS = [metric.column for metric in RATES.values()]
TIMES = [metric.column for metric in FRACTIONS.values()]


def per_trial(trace: DataFrame, trials: DataFrame, intervals: DataFrame) -> DataFrame:
    """One row per trial: partition_years, the counts, the sum of squared loss sizes, the fractions of
    partition-time."""

    def counted(kind: str, value: Column) -> Column:
        return F.sum(F.when(F.col("kind") == kind, value).otherwise(0))

    counts = trace.groupBy(*TRIAL).agg(
        *(
            counted(metric.trace_kind, F.col("value") if metric.sums_values else F.lit(1)).alias(metric.column)
            for metric in RATES.values()
        ),
        counted(LOSS, F.col("value") * F.col("value")).alias("loss_size_squares"),
    )
    times = intervals.groupBy(*TRIAL).agg(
        *(F.sum(F.when(F.col(name), F.col("length_ms")).otherwise(0)).alias(name) for name in TIMES)
    )
    partition_ms = F.col("partitions") * F.col("duration_ms")
    return (
        trials.select(*TRIAL, "partitions", "duration_ms")
        .join(counts, TRIAL)
        .join(times, TRIAL)
        .select(
            *TRIAL,
            (partition_ms / YEAR_MS).alias("partition_years"),
            *COUNTS,
            "loss_size_squares",
            *((F.col(name) / partition_ms).alias(name) for name in TIMES),
        )
    )


def per_cell(trials: DataFrame, outages: DataFrame) -> DataFrame:
    """One row per cell, by cell: trials, partition_years, `<metric>_sum` and `<metric>_squares`, and the failover times
    (null where no outage ended)."""
    sums = [F.sum(name).alias(f"{name}_sum") for name in (*COUNTS, *TIMES)]
    squares = [F.sum(F.col(name) * F.col(name)).alias(f"{name}_squares") for name in (*COUNTS, *TIMES)]
    cells = trials.groupBy("cell").agg(
        F.count("*").alias("trials"),
        F.sum("partition_years").alias("partition_years"),
        F.sum("loss_size_squares").alias("loss_size_squares"),
        *sums,
        *squares,
    )
    failover = (
        outages.where("ended")
        .groupBy("cell")
        .agg(
            F.percentile("failover_ms", 0.5).alias("failover_p50_ms"),
            F.percentile("failover_ms", 0.99).alias("failover_p99_ms"),
            F.max("failover_ms").alias("failover_max_ms"),
        )
    )
    return cells.join(failover, "cell", "left").orderBy("cell")
