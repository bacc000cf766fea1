"""Silver: the fate of every record that was produced, and the check of the losses that the simulator counted.

A record is acknowledged or not; with acks=all it is then in the logs of the whole ISR, and consumers can read it
(`visible_ms`; unknown for acks=1, where the high watermark follows later). An election *cuts* the log of a partition at
`offset` if the new leader's log lacks records from there on that were acknowledged before. The record is lost by the
first cut at or below its offset after its acknowledgement; it is `durable` if no election of the trial cuts it off.
At a checkpoint all replicas have all records; of those acknowledged before it only the last one is followed on.

The simulator counts losses by comparing payloads as it elects. Here they follow from offsets and leader epochs, by a
join of records and elections; `disagreements` compares the two, trial by trial.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from experiments.studies.pipeline.schemas import SILVER, conform
from experiments.studies.pipeline.silver import PARTITION, TRIAL
from experiments.studies.trace.schema import ACKED, ACKS_1_LOSS, CHECKPOINT, ELECTED, FOLLOWED, LOSS, PRODUCED


def records(trace: DataFrame) -> DataFrame:
    """One row per produced record, with the columns of `schemas.SILVER["records"]`. `trace` has a column `acks_all`,
    whether the trial's producer waits for the whole ISR."""
    followed = trace.where(F.col("kind").isin(*sorted(FOLLOWED)))
    produced = followed.where(F.col("kind") == PRODUCED)
    joined = produced.join(_cuts(followed), PARTITION, "left")
    after = F.filter(
        "cuts",
        lambda cut: (
            (cut["seq"] > F.col("seq")) & (cut["offset"] <= F.col("offset")) & (cut["followed"] <= F.col("seq"))
        ),
    )
    acked = F.col("detail") == ACKED
    first = F.when(acked, F.try_element_at(after, F.lit(1)))
    columns = {
        "sent_ms": F.col("time_ms") - F.col("value"),
        "outcome": F.col("detail"),
        "acknowledged_ms": F.when(acked, F.col("time_ms")),
        "visible_ms": F.when(acked & F.col("acks_all"), F.col("time_ms")),
        "durable": acked & first.isNull(),
        "lost_ms": first["time_ms"],
        "lost_epoch": first["epoch"],
        "weight": F.exp("log_weight"),
    }
    return conform(joined.withColumns(columns), SILVER["records"])


def _cuts(followed: DataFrame) -> DataFrame:
    """One row per partition of a trial with elections that cut off acknowledged records: these, in their order."""
    so_far = Window.partitionBy(*PARTITION).orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    acked = (F.col("kind") == PRODUCED) & (F.col("detail") == ACKED)
    highest = F.max(F.when(acked, F.col("offset"))).over(so_far)
    last_acked = F.max(F.when(acked, F.col("seq"))).over(so_far)
    followed_from = F.last(F.when(F.col("kind") == CHECKPOINT, F.col("last_acked")), ignorenulls=True).over(so_far)
    cuts = (
        followed.select(*PARTITION, "seq", "time_ms", "kind", "detail", "epoch", "offset")
        .repartition(*TRIAL)
        .withColumns({"highest": highest, "last_acked": last_acked})
        .withColumn("followed", F.coalesce(followed_from, F.lit(0)))
        .where((F.col("kind") == ELECTED) & (F.col("offset") <= F.col("highest")))
    )
    rows = F.array_sort(F.collect_list(F.struct("seq", "time_ms", "epoch", "offset", "followed")))
    return cuts.groupBy(*PARTITION).agg(rows.alias("cuts"))


def disagreements(trace: DataFrame, records: DataFrame) -> DataFrame:
    """One row per trial, with its partition, in which the records that were lost are not those that the simulator
    counted: cell, trial, partition, counted, found. A trial whose records were not followed is left out."""
    counted = (
        trace.where(F.col("kind").isin(LOSS, ACKS_1_LOSS)).groupBy(*PARTITION).agg(F.sum("value").alias("counted"))
    )
    found = records.groupBy(*PARTITION).agg(F.count("lost_ms").alias("found"))
    return (
        found.join(counted, PARTITION, "left")
        .withColumn("counted", F.coalesce("counted", F.lit(0)))
        .where(F.col("counted") != F.col("found"))
        .select(*PARTITION, "counted", "found")
    )
