"""Silver: a trace turned into what a study measures. Pure functions from DataFrame to DataFrame.

- *intervals*: between one `state` of a partition and its next (or the trial's end) the partition is as that row says.
  States that last no time are dropped. An interval is offline without a leader, stalled when the leader on record
  does not answer, and refuses acks=all while fewer than min ISR replicas are in sync, whoever leads.
- *outages*: contiguous intervals without a leader that answers, whatever the reason; its length is the failover time.
  An outage that the trial's end cuts off counts for the fractions of time, but its length is not known (`ended`
  false).
- *losses*: each event in which acknowledged records were gone.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

PARTITION = ["cell", "trial", "partition"]


def intervals(trace: DataFrame, trials: DataFrame) -> DataFrame:
    """One row per partition and stretch of constant state: start_ms, end_ms, length_ms, the state, and what it
    means."""
    in_order = Window.partitionBy(*PARTITION).orderBy("seq")
    states = trace.where(F.col("kind") == "state").join(
        trials.select("cell", "trial", "duration_ms"), ["cell", "trial"]
    )
    end_ms = F.coalesce(F.lead("time_ms").over(in_order), F.col("duration_ms"))
    offline = F.col("leader") < 0
    return (
        states.withColumn("end_ms", end_ms)
        .where(F.col("end_ms") > F.col("time_ms"))
        .select(
            *PARTITION,
            F.col("time_ms").alias("start_ms"),
            "end_ms",
            (F.col("end_ms") - F.col("time_ms")).alias("length_ms"),
            "leader",
            "isr_size",
            "elr_size",
            "min_isr",
            offline.alias("offline"),
            (F.col("isr_size") < F.col("min_isr")).alias("refuses"),
            (~offline & ~F.col("leader_serves")).alias("stalled"),
        )
    )


def outages(intervals: DataFrame, trials: DataFrame) -> DataFrame:
    """One row per stretch without a serving leader: start_ms, end_ms, failover_ms, and whether it ended in the
    trial."""
    in_order = Window.partitionBy(*PARTITION).orderBy("start_ms")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    out = F.col("offline") | F.col("stalled")
    begins = out & ~F.coalesce(F.lag(out).over(in_order), F.lit(False))
    stretches = (
        intervals.withColumn("out", out)
        .withColumn("begins", begins.cast("int"))
        .withColumn("stretch", F.sum("begins").over(so_far))
        .where("out")
        .groupBy(*PARTITION, "stretch")
        .agg(F.min("start_ms").alias("start_ms"), F.max("end_ms").alias("end_ms"))
    )
    return stretches.join(trials.select("cell", "trial", "duration_ms"), ["cell", "trial"]).select(
        *PARTITION,
        "start_ms",
        "end_ms",
        (F.col("end_ms") - F.col("start_ms")).alias("failover_ms"),
        (F.col("end_ms") < F.col("duration_ms")).alias("ended"),
    )


def losses(trace: DataFrame) -> DataFrame:
    """One row per loss event: time_ms and how many acknowledged records were gone."""
    return trace.where(F.col("kind") == "loss").select(*PARTITION, "time_ms", F.col("value").alias("records"))
