"""Silver: from the trace to intervals, outages and losses. Pure functions from DataFrame to DataFrame.

- *intervals*: a `state` row describes its partition until the next one, or the end of the trial. Intervals of length 0
  are dropped. An interval is `offline` without a leader, `stalled` if the recorded leader does not answer; it `refuses`
  acks=all writes if fewer than min ISR replicas are in sync, with or without a leader.
- *outages*: contiguous offline or stalled intervals; the length of an outage is the failover time. An outage that the
  trial's end cuts off counts for the fractions of time, but its length is unknown (`ended` false).
- *losses*: each event that lost acknowledged records.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from experiments.studies.trace.schema import END, LOSS, STATE

PARTITION = ["cell", "trial", "partition"]


def intervals(trace: DataFrame) -> DataFrame:
    """One row per partition and interval of constant state: start_ms, end_ms, length_ms, the state, and the booleans
    that the fractions of time are measured by. `weight`: the likelihood ratio at the end of the interval."""
    in_order = Window.partitionBy(*PARTITION).orderBy("seq")
    ends = trace.where(F.col("kind") == END).select(
        "cell", "trial", F.col("time_ms").alias("last_ms"), F.col("log_weight").alias("last_log_weight")
    )
    states = trace.where(F.col("kind") == STATE).join(ends, ["cell", "trial"])
    end_ms = F.coalesce(F.lead("time_ms").over(in_order), F.col("last_ms"))
    log_weight = F.coalesce(F.lead("log_weight").over(in_order), F.col("last_log_weight"))
    offline = F.col("leader") < 0
    return (
        states.withColumns({"end_ms": end_ms, "weight": F.exp(log_weight)})
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
            "weight",
        )
    )


def outages(intervals: DataFrame, trials: DataFrame) -> DataFrame:
    """One row per outage: start_ms, end_ms, failover_ms, whether it ended within the trial, and its last weight."""
    in_order = Window.partitionBy(*PARTITION).orderBy("start_ms")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    out = F.col("offline") | F.col("stalled")
    begins = out & ~F.coalesce(F.lag(out).over(in_order), F.lit(False))
    found = (
        intervals.withColumn("out", out)
        .withColumn("begins", begins.cast("int"))
        .withColumn("outage", F.sum("begins").over(so_far))
        .where("out")
        .groupBy(*PARTITION, "outage")
        .agg(
            F.min("start_ms").alias("start_ms"),
            F.max("end_ms").alias("end_ms"),
            F.max_by("weight", "end_ms").alias("weight"),
        )
    )
    return found.join(trials.select("cell", "trial", "duration_ms"), ["cell", "trial"]).select(
        *PARTITION,
        "start_ms",
        "end_ms",
        (F.col("end_ms") - F.col("start_ms")).alias("failover_ms"),
        (F.col("end_ms") < F.col("duration_ms")).alias("ended"),
        "weight",
    )


def losses(trace: DataFrame) -> DataFrame:
    """One row per loss event: time_ms, the number of acknowledged records lost, and the weight of the event."""
    return trace.where(F.col("kind") == LOSS).select(
        *PARTITION, "time_ms", F.col("value").alias("records"), F.exp("log_weight").alias("weight")
    )
