"""Silver: from the trace to intervals, outages and losses. Pure functions from DataFrame to DataFrame.

- *intervals*: a `state` row describes its partition until the next one, or the end of the trial. Intervals of length 0
  are dropped. An interval is `offline` without a leader, `stalled` if the recorded leader does not answer, otherwise
  `online`; it `refuses` acks=all writes if fewer than min ISR replicas are in sync, with or without a leader; it is
  `recovering` from an unclean election until the leader has reported that it recovered. Each of these lasts for an
  *episode* of contiguous intervals; `..._begins` marks the first one.
- *outages*: contiguous offline or stalled intervals. A leader that is replaced while it answers makes a *handover*
  (controlled shutdown, preferred election): its successor is the leader before it answers. Every other outage is a
  failover. An outage that the trial's end cuts off counts for the fractions of time, but its length is unknown
  (`ended` false).
- *losses*: each event that lost acknowledged records.

All windows are over the rows of one partition of one trial in their order. The rows are distributed by trial once, and
sorted once, for all windows of `intervals`; everything after it reads the stored intervals and needs no window. The
cell is an integer meanwhile: a text of 16 characters would be a third of each row that is exchanged.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from experiments.studies.pipeline.schemas import SILVER, conform
from experiments.studies.trace.metrics import FRACTIONS
from experiments.studies.trace.schema import END, LOSS, MEASURED, STATE

TRIAL = ["cell", "trial"]
PARTITION = [*TRIAL, "partition"]
_SHARES = tuple(metric.column for metric in FRACTIONS.values())


def intervals(trace: DataFrame) -> DataFrame:
    """One row per partition and interval of constant state, with the columns of `schemas.SILVER["intervals"]`.
    `weight`: the likelihood ratio at the end of the interval. The `end` row of a trial ends all of its partitions."""
    ends = F.col("kind") == END
    every = F.sequence(F.lit(0), F.col("partitions") - 1)
    rows = trace.where(F.col("kind").isin(STATE, END)).select(
        *TRIAL,
        F.explode(F.when(ends, every).otherwise(F.array("partition"))).alias("partition"),
        "seq",
        F.col("time_ms").alias("start_ms"),
        *(
            "leader",
            "leader_serves",
            "epoch",
            "isr",
            "elr",
            "isr_size",
            "elr_size",
            "min_isr",
            "recovering",
            "log_weight",
        ),
        ends.alias("ends"),
    )
    return conform(_with_episodes(_lasting(rows)), SILVER["intervals"])


def _in_order() -> WindowSpec:
    """The rows of a partition of a trial, in their order."""
    return Window.partitionBy(*PARTITION).orderBy("seq")


def _so_far() -> WindowSpec:
    """The rows of a partition up to the present one."""
    return _in_order().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _lasting(rows: DataFrame) -> DataFrame:
    """The states that last, with their ends; `failures` counts how often the partition's leader failed so far."""
    before = F.lag(F.struct("leader", "leader_serves")).over(_in_order())
    after = F.lead(F.struct("start_ms", "log_weight")).over(_in_order())
    same_leader = F.col("leader") == F.col("before.leader")
    fails = (F.col("leader") < 0) | (~F.col("leader_serves") & same_leader & F.col("before.leader_serves"))
    return (
        rows.repartition(*TRIAL)
        .withColumns({"before": before, "after": after})
        .withColumn("failures", F.sum(F.coalesce(fails, F.lit(False)).cast("int")).over(_so_far()))
        .where(~F.col("ends") & (F.col("after.start_ms") > F.col("start_ms")))
        .withColumns({"end_ms": F.col("after.start_ms"), "weight": F.exp("after.log_weight")})
    )


def _with_episodes(states: DataFrame) -> DataFrame:
    """Adds where episodes begin, and numbers the outages of the partition."""
    offline = F.col("leader") < 0
    described = states.withColumns(
        {
            "length_ms": F.col("end_ms") - F.col("start_ms"),
            "offline": offline,
            "refuses": F.col("isr_size") < F.col("min_isr"),
            "stalled": ~offline & ~F.col("leader_serves"),
            "online": ~offline & F.col("leader_serves"),
        }
    ).withColumn("out", ~F.col("online"))
    kept = ("leader", "epoch", "isr", "elr")
    before = F.lag(F.struct(*_SHARES, *kept, "out", "recovering", "failures")).over(_in_order())

    def begins(column: str) -> Column:
        return F.col(column) & ~F.coalesce(F.col(f"before.{column}"), F.lit(False))

    return (
        described.withColumn("before", before)
        .withColumn("outage", F.sum(begins("out").cast("int")).over(_so_far()))
        .withColumn("recovery", F.sum(begins("recovering").cast("int")).over(_so_far()))
        .withColumns({f"{name}_before": F.col(f"before.{name}") for name in kept})
        .withColumns({f"{name}_begins": begins(name) for name in _SHARES})
        .withColumn("leader_failed", F.col("failures") > F.coalesce(F.col("before.failures"), F.lit(-1)))
        .withColumn("outage", F.when(F.col("out"), F.col("outage")))
        .withColumn("recovery", F.when(F.col("recovering"), F.col("recovery")))
    )


def outages(intervals: DataFrame, trials: DataFrame) -> DataFrame:
    """One row per outage: start_ms, end_ms, failover_ms, whether it ended within the trial, whether it was a handover,
    and its last weight. `trials` gives the lengths of the trials."""
    found = (
        intervals.where(F.col("outage").isNotNull())
        .groupBy(*PARTITION, "outage")
        .agg(
            F.min("start_ms").alias("start_ms"),
            F.max(F.struct("end_ms", "weight")).alias("last"),
            (~F.max("leader_failed")).alias("handover"),
        )
        .join(trials.select(*TRIAL, "duration_ms"), TRIAL)
        .select("*", "last.end_ms", "last.weight")
    )
    return conform(
        found.withColumn("failover_ms", F.col("end_ms") - F.col("start_ms")).withColumn(
            "ended", F.col("end_ms") < F.col("duration_ms")
        ),
        SILVER["outages"],
    )


def losses(trace: DataFrame) -> DataFrame:
    """One row per loss event: time_ms, the number of acknowledged records lost, and the weight of the event."""
    found = trace.where(F.col("kind") == LOSS)
    return conform(found.withColumns({"records": F.col("value"), "weight": F.exp("log_weight")}), SILVER["losses"])


def measured(trace: DataFrame) -> DataFrame:
    """One row per time or rate that clients and operators would have measured; `kind` as in the trace."""
    return conform(trace.where(F.col("kind").isin(*sorted(MEASURED))), SILVER["measured"])
