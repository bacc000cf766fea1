"""Gold: quantiles of what was measured in the trials of a cell. A pure function from DataFrame to DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from experiments.studies.trace.schema import MEASURED


def per_cell(trace: DataFrame) -> DataFrame:
    """One row per cell and kind of measured row: p50, p99 and max of its values."""
    return (
        trace.where(F.col("kind").isin(*sorted(MEASURED)))
        .groupBy("cell", "kind")
        .agg(
            F.percentile("value", 0.5).alias("p50"),
            F.percentile("value", 0.99).alias("p99"),
            F.max("value").cast("double").alias("max"),
        )
        .orderBy("cell", "kind")
    )
