"""Silver: what each trial measured, one row per trial. Pure functions from DataFrame to DataFrame.

Everything is weighted: an event with the likelihood ratio of its row, time with that of the row that ends its interval
(`trace/schema.py`). Rows of one trial with equal weights are added up first, as whole numbers (milliseconds, events,
records): these sums are exact, in whatever order Spark adds. Then the weights of the trial, of which plain sampling has
one, are gone through in ascending order. So a trial has the same values, to the last bit, however its rows were
distributed, and whether it was analysed alone or with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from experiments.studies.design.functions import MetricDeclaration
from experiments.studies.pipeline.schemas import conform, trial_columns
from experiments.studies.trace.metrics import FRACTIONS, METRICS, RATES, Metric
from experiments.studies.trace.schema import STATE, YEAR_MS

TRIAL = ["cell", "trial"]
_WEIGHTED = [*TRIAL, "weight"]


def per_trial(
    trace: DataFrame, trials: DataFrame, intervals: DataFrame, custom: Sequence[MetricDeclaration] = ()
) -> DataFrame:
    """One row per trial with the columns of `schemas.trial_columns`: partition_years, exposure, the number of `state`
    rows, and for each metric its value (weighted; a share of time is measured in partition-years), the number of events
    or episodes, and the sums and maxima of their weights and sizes."""
    by_weight = _times(intervals).unionByName(_counts(trace), allowMissingColumns=True).na.fill(0)
    measured = by_weight.groupBy(*TRIAL).agg(
        F.array_sort(F.collect_list(F.struct("weight", *_SUMMED))).alias("parts"), F.sum("states").alias("states")
    )
    years = F.col("partitions") * F.col("duration_ms") / YEAR_MS
    joined = trials.join(measured, TRIAL).withColumn("partition_years", years)
    columns = {"exposure": _ordered_sum(lambda part: part["weight"] * part["length_ms"]) / YEAR_MS}
    columns |= {metric.name: _metric(metric) for metric in METRICS}
    found = joined.withColumns(columns).withColumns(_custom(custom))
    return conform(found, trial_columns((*(metric.name for metric in METRICS), *(metric.name for metric in custom))))


def _times(intervals: DataFrame) -> DataFrame:
    """Sums over the intervals of a trial of one weight: their length, and that of each share with its episodes."""
    shares = [metric.column for metric in FRACTIONS.values()]
    return intervals.groupBy(*_WEIGHTED).agg(
        F.sum("length_ms").alias("length_ms"),
        *(F.sum(F.when(F.col(name), F.col("length_ms")).otherwise(0)).alias(name) for name in shares),
        *(F.sum(F.col(f"{name}_begins").cast("int")).alias(f"{name}_events") for name in shares),
    )


def _counts(trace: DataFrame) -> DataFrame:
    """Sums over the events of a trial of one weight: for each rate their number, and the sums and the largest of their
    sizes; a size is 1, or the row's value where the rate adds up values."""
    aggregates = [F.sum((F.col("kind") == STATE).cast("int")).alias("states")]
    for metric in RATES.values():
        size = F.col("value") if metric.sums_values else F.lit(1).cast("bigint")
        counted = F.when(F.col("kind") == metric.trace_kind, size).otherwise(0)
        aggregates += [
            F.sum(counted).alias(metric.column),
            F.sum((F.col("kind") == metric.trace_kind).cast("int")).alias(f"{metric.column}_events"),
            F.sum(counted * counted).alias(f"{metric.column}_squares"),
            F.max(counted).alias(f"{metric.column}_largest"),
        ]
    kinds = {STATE, *(metric.trace_kind for metric in RATES.values())}
    return (
        trace.where(F.col("kind").isin(*sorted(kinds)))
        .withColumn("weight", F.when(F.col("kind") == STATE, 1.0).otherwise(F.exp("log_weight")))
        .groupBy(*_WEIGHTED)
        .agg(*aggregates)
    )


_SUMMED = (
    "length_ms",
    *(f"{metric.column}{suffix}" for metric in METRICS for suffix in ("", "_events")),
    *(f"{metric.column}{suffix}" for metric in RATES.values() for suffix in ("_squares", "_largest")),
)


def _ordered_sum(term: Callable[[Column], Column]) -> Column:
    """The sum of a term over the parts of a trial, in the order of their weights."""
    return F.aggregate("parts", F.lit(0.0), lambda total, part: total + term(part))


def _largest(term: Callable[[Column], Column]) -> Column:
    return F.aggregate("parts", F.lit(0.0), lambda most, part: F.greatest(most, term(part)))


def _metric(metric: Metric) -> Column:
    """The struct of a built-in metric of one trial."""
    value, events = metric.column, f"{metric.column}_events"
    is_rate = metric.name in RATES
    total = _ordered_sum(lambda part: part["weight"] * part[value])
    zero = F.lit(0.0)
    return F.struct(
        (total if is_rate else total / YEAR_MS).alias("value"),
        F.aggregate("parts", F.lit(0).cast("bigint"), lambda count, part: count + part[events]).alias("events"),
        _ordered_sum(lambda part: part["weight"] * part[events]).alias("weight"),
        _ordered_sum(lambda part: part["weight"] * part["weight"] * part[events]).alias("weight_squares"),
        _largest(lambda part: F.when(part[events] > 0, part["weight"]).otherwise(0.0)).alias("largest_weight"),
        (
            _ordered_sum(lambda part: part["weight"] * part["weight"] * part[f"{value}_squares"]) if is_rate else zero
        ).alias("size_squares"),
        (_largest(lambda part: part["weight"] * part[f"{value}_largest"]) if is_rate else zero).alias("largest_size"),
    )


def _custom(metrics: Sequence[MetricDeclaration]) -> dict[str, Column]:
    """The metrics of a script, from the values in `trials/`, in the form of the built-in ones.

    A rate's value is a count: so many events. A share of the trial, measured in partition-years as the built-in shares
    of time are, is one episode. Trials with functions are plain ones, of weight 1.
    """
    found = {}
    for index, metric in enumerate(metrics):
        raw, share = F.element_at("custom", index + 1), F.lit(metric.unit == "fraction")
        events = F.when(share, (raw > 0).cast("bigint")).otherwise(F.ceil(raw))
        some = F.when(events > 0, 1.0).otherwise(0.0)
        found[metric.name] = F.struct(
            F.when(share, raw * F.col("exposure")).otherwise(raw).alias("value"),
            events.alias("events"),
            events.cast("double").alias("weight"),
            events.cast("double").alias("weight_squares"),
            some.alias("largest_weight"),
            F.when(share, 0.0).otherwise(raw).alias("size_squares"),
            F.when(share, 0.0).otherwise(some).alias("largest_size"),
        )
    return found
