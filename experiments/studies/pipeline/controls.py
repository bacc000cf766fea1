"""Trials with controls: their sums by fold, and the values that the controls have corrected, in Spark.

`estimation/controlled.py` has the estimator. The corrected value x' takes the place of x in `silver/trials` as gold
reads it, so that sums and products of pairs are those of x'. Cells without controls keep their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from experiments.studies.estimation.controlled import FOLDS, Coefficient, ControlSums, coefficients
from experiments.studies.pipeline.gold import Term, ordered_sums
from experiments.studies.trace.kinds import CONTROLLED
from experiments.studies.trace.metrics import BY_NAME

CONTROLS = {name: CONTROLLED.index(metric.column) for name, metric in BY_NAME.items() if metric.column in CONTROLLED}
"""The metrics that have a control, and its place in the lists of `silver/trials`."""
Folds = Mapping[tuple[int, str], Sequence[ControlSums]]
"""The sums of each fold, by cell and metric."""


def control_sums(trials: DataFrame) -> Folds:
    """The sums of the cells whose trials have controls; `trials` is `silver/trials` with the indexes of cells."""
    metrics = [metric for metric in CONTROLS if metric in trials.columns]
    structs = (
        f"struct(`{metric}`.value, `{metric}`.events, control[{place}] AS control, control_mean[{place}] AS mean)"
        for metric, place in CONTROLS.items()
        if metric in metrics
    )
    fold, shared = f"cell * {FOLDS} + trial % {FOLDS} AS cell", ("exposure", "control_exposure_mean")
    columns = (*shared, "controls", "control_exposure", f"array({', '.join(structs)}) AS metrics")
    rows = ordered_sums(
        trials.where("controls > 0").selectExpr(fold, "trial", *columns), metrics, _terms(), {}
    ).collect()
    names = [field.name for field in fields(ControlSums)]
    none = ControlSums(*(0.0,) * len(names))
    found: dict[tuple[int, str], list[ControlSums]] = {}
    for row in sorted(rows, key=lambda each: (each["cell"], metrics.index(each["metric"]))):
        cell, number = divmod(row["cell"], FOLDS)
        folds = found.setdefault((cell, row["metric"]), [none] * FOLDS)
        folds[number] = ControlSums(*(row[f"sum_{name}"] for name in names))
    return found


def _terms() -> dict[str, Term]:
    """The fields of `ControlSums` of one trial and metric."""
    value, exposure, control, length = (
        "row.metrics[k].value",
        "row.exposure",
        "row.metrics[k].control",
        "row.control_exposure",
    )
    away = f"({value} - {control})"
    terms = {
        "trials": "1",
        "runs": "row.controls",
        "events": "row.metrics[k].events",
        "value": value,
        "exposure": exposure,
        "control": control,
        "length": length,
        "control_mean": "row.metrics[k].mean",
        "exposure_mean": "row.control_exposure_mean",
        "value_value": f"{value} * {value}",
        "value_exposure": f"{value} * {exposure}",
        "exposure_exposure": f"{exposure} * {exposure}",
        "value_control": f"{value} * {control}",
        "value_length": f"{value} * {length}",
        "exposure_control": f"{exposure} * {control}",
        "exposure_length": f"{exposure} * {length}",
        "control_control": f"{control} * {control}",
        "control_length": f"{control} * {length}",
        "length_length": f"{length} * {length}",
        "apart": f"{away} * {away}",
    }
    return {f"sum_{name}": term for name, term in terms.items()}


def controlled_trials(trials: DataFrame, folds: Folds) -> DataFrame:
    """The trials with x' as the values of the metrics that have a control."""
    found: dict[str, dict[int, Coefficient]] = {}
    for (cell, metric), sums in folds.items():
        places = found.setdefault(metric, {})
        places |= {cell * FOLDS + number: each for number, each in enumerate(coefficients(sums)) if each.beta != 0.0}
    for metric, places in found.items():
        if places:
            trials = trials.withColumn(metric, F.col(metric).withField("value", F.expr(_corrected(metric, places))))
    return trials


def _corrected(metric: str, places: Mapping[int, Coefficient]) -> str:
    index = CONTROLS[metric]
    key, gap = f"cell * {FOLDS} + trial % {FOLDS}", "(control_exposure - control_exposure_mean)"
    beta, rate = (
        f"try_element_at(map({', '.join(f'{place}, {number!r}D' for place, number in numbers.items())}), {key})"
        for numbers in (
            {place: each.beta for place, each in places.items()},
            {place: each.rate for place, each in places.items()},
        )
    )
    return (
        f"coalesce(`{metric}`.value - {beta} * (control[{index}] - control_mean[{index}] - {rate} * {gap}), "
        f"`{metric}`.value)"
    )
