"""Silver: what changed and when: elections, ISR and ELR, recoveries, catch-ups, regressions.

- *elections*: a leader in a new leader epoch. `reason`: `isr` if it was in the ISR, `elr` if in the ELR, otherwise
  `unclean`; a *handover* replaces a leader that had not failed.
- *isr_changes*: the members before and after.
- *recoveries*: unclean recoveries, with the answers by which the leader was chosen where the generation asks for them;
  `recovered_ms` is null where the trial ended before.
- *catch_ups*: from the start of a broker's process until it is in the ISR of a partition again.
- *regressions*: a new leader's log ends below what consumers could read.

Everything but catch-ups follows from single rows: an interval has the state before it (`silver.py`).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from experiments.studies.pipeline.schemas import SILVER, conform
from experiments.studies.pipeline.silver import PARTITION, TRIAL
from experiments.studies.trace.schema import HW_REGRESSION, RECOVERY, START, UNCLEAN_RECOVERY

DECIDED_MS = 60_000
"""A recovery is decided at most this long before its leader is committed."""


def _members(name: str) -> Column:
    """The broker ids in a text of ids joined by commas."""
    return F.array_remove(F.split(name, ","), "")


def elections(intervals: DataFrame) -> DataFrame:
    """One row per election, with the columns of `schemas.SILVER["elections"]`."""
    leader = F.col("leader").cast("string")
    reason = (
        F.when(F.array_contains(_members("isr_before"), leader), "isr")
        .when(F.array_contains(_members("elr_before"), leader), "elr")
        .otherwise("unclean")
    )
    found = intervals.where((F.col("leader") >= 0) & (F.col("epoch") > F.col("epoch_before")))
    columns = {
        "time_ms": F.col("start_ms"),
        "reason": reason,
        "handover": (F.col("leader_before") >= 0) & ~F.col("leader_failed"),
    }
    return conform(found.withColumns(columns), SILVER["elections"])


def isr_changes(intervals: DataFrame) -> DataFrame:
    """One row per change of ISR or ELR."""
    changed = (F.col("isr") != F.col("isr_before")) | (F.col("elr") != F.col("elr_before"))
    members, before = _members("isr"), _members("isr_before")
    columns = {
        "time_ms": F.col("start_ms"),
        "joined": F.array_except(members, before),
        "left": F.array_except(before, members),
    }
    return conform(intervals.where(changed).withColumns(columns), SILVER["isr_changes"])


def recoveries(trace: DataFrame, intervals: DataFrame, trials: DataFrame) -> DataFrame:
    """One row per unclean recovery."""
    begun = trace.where(F.col("kind") == UNCLEAN_RECOVERY).select(
        *PARTITION, "time_ms", F.col("node").alias("leader"), F.exp("log_weight").alias("weight")
    )
    lasting = (
        intervals.where("recovering")
        .groupBy(*PARTITION, "recovery")
        .agg(F.min("start_ms").alias("time_ms"), F.max("end_ms").alias("end_ms"))
        .drop("recovery")
    )
    decided = trace.where(F.col("kind") == RECOVERY).select(
        *PARTITION,
        F.col("node").alias("leader"),
        F.col("time_ms").alias("decided_ms"),
        F.col("detail").alias("answers"),
    )
    close = F.col("decided_ms").between(F.col("time_ms") - DECIDED_MS, F.col("time_ms"))
    answered = (
        begun.join(decided, [*PARTITION, "leader"])
        .where(close)
        .groupBy(*PARTITION, "time_ms")
        .agg(F.max_by("answers", "decided_ms").alias("answers"))
    )
    found = (
        begun.join(lasting, [*PARTITION, "time_ms"], "left")
        .join(answered, [*PARTITION, "time_ms"], "left")
        .join(trials.select(*TRIAL, "duration_ms"), TRIAL)
        .withColumn("end_ms", F.coalesce("end_ms", "time_ms"))
    )
    recovered = F.when(F.col("end_ms") < F.col("duration_ms"), F.col("end_ms"))
    return conform(found.withColumn("recovered_ms", recovered), SILVER["recoveries"])


def catch_ups(trace: DataFrame, isr_changes: DataFrame) -> DataFrame:
    """One row per start of a broker and partition whose ISR it joined afterwards."""
    starts = trace.where(F.col("kind") == START).select(
        *TRIAL, F.col("node").alias("broker"), F.col("time_ms").alias("at_ms"), F.lit(-1).alias("partition")
    )
    joins = isr_changes.where(F.size("joined") > 0).select(
        *PARTITION,
        F.explode(F.col("joined").cast("array<int>")).alias("broker"),
        F.col("time_ms").alias("at_ms"),
        "weight",
    )
    so_far = Window.partitionBy(*TRIAL, "broker").orderBy("at_ms", "partition")
    started = F.last(F.when(F.col("partition") < 0, F.col("at_ms")), ignorenulls=True).over(so_far)
    found = (
        joins.unionByName(starts, allowMissingColumns=True)
        .repartition(*TRIAL)
        .withColumn("start_ms", started)
        .where((F.col("partition") >= 0) & F.col("start_ms").isNotNull())
        .groupBy(*PARTITION, "broker", "start_ms")
        .agg(F.min("at_ms").alias("in_sync_ms"), F.min_by("weight", "at_ms").alias("weight"))
    )
    return conform(found, SILVER["catch_ups"])


def regressions(trace: DataFrame) -> DataFrame:
    """One row per regression of the high watermark."""
    found = trace.where(F.col("kind") == HW_REGRESSION)
    return conform(found.withColumns({"leader": F.col("node"), "weight": F.exp("log_weight")}), SILVER["regressions"])
