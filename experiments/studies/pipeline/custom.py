"""The metrics of a script, in the form of the built-in ones (`gold.py`): from the values in `trials/`.

A value counts with the likelihood ratio of the whole trial, that of its last row. A rate's value is a count: so many
events of that weight. A share of the trial, measured in partition-years as the built-in shares of time are, is one
episode.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from experiments.studies.design.functions import MetricDeclaration
from experiments.studies.trace.schema import END

TRIAL = ["cell", "trial"]


def per_trial(
    measured: DataFrame, trace: DataFrame, trials: DataFrame, metrics: Sequence[MetricDeclaration]
) -> DataFrame:
    """One row per trial and custom metric, with the columns of `measured`, which holds the built-in ones."""
    exposures = measured.select(*TRIAL, "partition_years", "exposure").distinct()
    weights = trace.where(F.col("kind") == END).select(*TRIAL, F.exp("log_weight").alias("ratio"))
    declared = [
        F.struct(
            F.lit(metric.name).alias("metric"),
            F.lit(metric.unit == "fraction").alias("share"),
            F.element_at("custom", index + 1).alias("raw"),
        )
        for index, metric in enumerate(metrics)
    ]
    raw, share, ratio = F.col("own.raw"), F.col("own.share"), F.col("ratio")
    events = F.when(share, (raw > 0).cast("int")).otherwise(F.ceil(raw).cast("int"))
    return (
        trials.select(*TRIAL, F.explode(F.array(*declared)).alias("own"))
        .join(exposures, TRIAL)
        .join(weights, TRIAL)
        .select(
            *TRIAL,
            "partition_years",
            "exposure",
            "own.metric",
            F.when(share, raw * F.col("exposure")).otherwise(raw * ratio).alias("value"),
            events.alias("events"),
            (events * ratio).alias("weight"),
            (events * ratio * ratio).alias("weight_squares"),
            F.when(events > 0, ratio).otherwise(0.0).alias("largest_weight"),
            F.when(share, 0.0).otherwise(raw * ratio * ratio).alias("size_squares"),
            F.when(share | (events == 0), 0.0).otherwise(ratio).alias("largest_size"),
        )
    )
