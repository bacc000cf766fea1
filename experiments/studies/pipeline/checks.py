"""The check of the losses that the simulator counted, as joins over tables of silver: functions from DataFrame to
DataFrame.

The simulator compares the payloads of acknowledged records with the log of each new leader, and counts what is missing
(`counts`). The same losses follow from the trace without its counters: an acknowledged record is lost if a later
election cuts the log at or below the record's offset while the record is followed (`cuts`). And `records` says of each
record whether it is lost. All three have to agree in every partition of every trial.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

PARTITION = ("cell", "trial", "partition")


def disagreements(records: DataFrame, cuts: DataFrame, counts: DataFrame) -> DataFrame:
    """One row per partition of a trial in which the numbers of lost records differ: cell, trial, partition, `counted`
    by the simulator, `cut` off by elections, `recorded` as lost in `records`. The arguments are the tables of silver
    of these names; a partition whose records were not followed has no row in `counts` and is left out."""
    acknowledged = records.where("acknowledged_ms IS NOT NULL").select(*PARTITION, "seq", "offset", "lost_ms")
    is_cut = (
        _same_partition(acknowledged, cuts)
        & (cuts["seq"] > acknowledged["seq"])
        & (cuts["offset"] <= acknowledged["offset"])
        & (cuts["since"] <= acknowledged["seq"])
    )
    cut = acknowledged.join(cuts, is_cut, "left_semi").groupBy(*PARTITION).agg(F.count("*").alias("cut"))
    lost = acknowledged.where("lost_ms IS NOT NULL").groupBy(*PARTITION).agg(F.count("*").alias("recorded"))
    together = (
        counts.withColumnRenamed("lost", "counted").join(cut, [*PARTITION], "left").join(lost, [*PARTITION], "left")
    )
    found = together.fillna(0, ["cut", "recorded"]).select(*PARTITION, "counted", "cut", "recorded")
    return found.where("counted != cut OR counted != recorded")


def _same_partition(one: DataFrame, other: DataFrame) -> Column:
    return (one["cell"] == other["cell"]) & (one["trial"] == other["trial"]) & (one["partition"] == other["partition"])
