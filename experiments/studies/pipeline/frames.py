"""Tables of numbers as Spark data frames."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession", "to_spark"]


def to_spark(spark: SparkSession, table: pa.Table) -> DataFrame:
    """An Arrow table as a data frame of that session."""
    return spark.createDataFrame(table)
