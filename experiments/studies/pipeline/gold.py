"""Gold: sums per cell and metric, and products of paired trials. Pure functions from DataFrame to DataFrame.

The estimates need sums only (`estimation/moments.py`): Spark's part ends with them. They are added up in a fixed order,
that of the trials' numbers, in blocks of `BLOCK` trials and then over the blocks, so that the same trials give the same
sums to the last bit, on any number of machines and also where a study was extended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from experiments.studies.pipeline.schemas import GOLD, conform

BLOCK = 4096
"""Trials that one task holds at a time."""

Term = Callable[[Column], Column]
"""A number of one trial, from its row as a struct."""


def ordered_sums(trials: DataFrame, terms: Mapping[str, Term], largest: Mapping[str, Term]) -> DataFrame:
    """One row per cell: the sums of `terms` over its trials in the order of their numbers, the largest of `largest`,
    and the number of trials. `trials` has the columns `cell` and `trial`, each trial once."""
    rows = F.array_sort(F.collect_list(F.struct("trial", *(name for name in trials.columns if name not in _KEYS))))
    blocks = trials.groupBy("cell", (F.col("trial") / BLOCK).cast("int").alias("block")).agg(rows.alias("rows"))
    sums = [_total("rows", term).alias(name) for name, term in terms.items()]
    sums += [_most("rows", term).alias(name) for name, term in largest.items()]
    per_block = blocks.select("cell", "block", F.size("rows").cast("bigint").alias("trials"), *sums)
    ordered = F.array_sort(F.collect_list(F.struct("block", "trials", *terms, *largest))).alias("blocks")
    per_cell = per_block.groupBy("cell").agg(ordered, F.sum("trials").alias("trials"))
    totals = [_total("blocks", lambda block, name=name: block[name]).alias(name) for name in terms]  # type: ignore[misc]
    totals += [_most("blocks", lambda block, name=name: block[name]).alias(name) for name in largest]  # type: ignore[misc]
    return per_cell.select("cell", "trials", *totals)


_KEYS = ("cell", "trial")


def _total(rows: str, term: Term) -> Column:
    return F.aggregate(rows, F.lit(0.0), lambda total, row: total + term(row).cast("double"))


def _most(rows: str, term: Term) -> Column:
    return F.aggregate(rows, F.lit(0.0), lambda most, row: F.greatest(most, term(row)))


def per_cell(trials: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """One row per cell and metric: the fields of `estimation.moments.Sums`, and `states`, the rows of state of all
    trials."""
    terms: dict[str, Term] = {
        "exposure": lambda row: row["exposure"],
        "exposure_squares": lambda row: row["exposure"] * row["exposure"],
        "years": lambda row: row["partition_years"],
        "states": lambda row: row["states"],
        "partitions": lambda row: row["partitions"],
    }
    shared, largest = list(terms), dict[str, Term]()
    for metric in metrics:
        terms |= {f"{metric}__{name}": term for name, term in _sums_of(metric).items()}
        largest |= {f"{metric}__{name}": _field(metric, name) for name in ("largest_weight", "largest_size")}
    sums = ordered_sums(trials, terms, largest)
    names = [*_sums_of(""), "largest_weight", "largest_size"]
    each = [
        F.struct(F.lit(metric).alias("metric"), *(F.col(f"{metric}__{name}").alias(name) for name in names))
        for metric in metrics
    ]
    rows = sums.select("cell", "trials", *shared, F.inline(F.array(*each)))
    return conform(rows, GOLD["cells"]).orderBy("cell", "metric")


def _field(metric: str, name: str) -> Term:
    return lambda row: row[metric][name]


def _sums_of(metric: str) -> dict[str, Term]:
    """The sums of one metric over trials, by the fields of `estimation.moments.Sums`."""
    return {
        "value": _field(metric, "value"),
        "value_squares": lambda row: row[metric]["value"] * row[metric]["value"],
        "value_exposure": lambda row: row[metric]["value"] * row["exposure"],
        **{name: _field(metric, name) for name in ("events", "weight", "weight_squares", "size_squares")},
    }


def products(trials: DataFrame, reference: int, metrics: Sequence[str]) -> DataFrame:
    """One row per cell and metric: the fields of `estimation.pairs.Products` with the cell `reference`, whose trial k
    is paired with trial k of the other cell."""
    values = [F.col(metric)["value"].alias(metric) for metric in metrics]
    columns = ["exposure", *metrics]
    mine = trials.select("cell", "trial", "exposure", *values).where(F.col("cell") != reference)
    its = trials.select("cell", "trial", "exposure", *values).where(F.col("cell") == reference)
    renamed = its.select("trial", F.struct(*columns).alias("its"))
    pairs = mine.join(renamed, "trial")

    def product(mine: str, its: str) -> Term:
        return lambda row: row[mine] * row["its"][its]

    terms = {"exposure_exposure": product("exposure", "exposure")}
    for metric in metrics:
        terms[f"{metric}__value_value"] = product(metric, metric)
        terms[f"{metric}__value_exposure"] = product(metric, "exposure")
        terms[f"{metric}__exposure_value"] = product("exposure", metric)
    sums = ordered_sums(pairs, terms, {})
    names = ("value_value", "value_exposure", "exposure_value")
    each = [
        F.struct(F.lit(metric).alias("metric"), *(F.col(f"{metric}__{name}").alias(name) for name in names))
        for metric in metrics
    ]
    found = sums.select("cell", F.col("trials").alias("pairs"), "exposure_exposure", F.inline(F.array(*each)))
    return conform(found, GOLD["pairs"])
