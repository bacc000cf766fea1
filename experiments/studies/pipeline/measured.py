"""Gold: quantiles of what was measured in the trials of a cell. A pure function from DataFrame to DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def per_cell(measured: DataFrame) -> DataFrame:
    """One row per cell and kind of row of `silver/measured`: p50, p99 and max of its values."""
    return (
        measured.groupBy("cell", "kind")
        .agg(
            F.percentile("value", 0.5).alias("p50"),
            F.percentile("value", 0.99).alias("p99"),
            F.max("value").cast("double").alias("max"),
        )
        .orderBy("cell", "kind")
    )
