"""The types of Spark's data frames, for annotations outside the pipeline."""

from __future__ import annotations

from pyspark.sql import DataFrame as DataFrame
from pyspark.sql import SparkSession as SparkSession
