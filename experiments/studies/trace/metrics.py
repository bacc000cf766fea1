"""The metrics of a study, each declared once, in `metrics.yaml`: name, words, how it is measured and estimated.

Rates are per partition-year (a year is 365 days). The definitions of the fractions of time in terms of a partition's
state are in `pipeline/silver.py`; the formulas of the intervals in `estimation/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from experiments.studies.trace.kinds import KINDS, Observation
from experiments.support.declared import declared


@dataclass(frozen=True, slots=True)
class Estimator:
    """How the values of a cell's trials become one number: its unit, and the method of its interval, in words."""

    unit: str
    interval: str


RATE = Estimator(
    "per partition-year",
    "exact Poisson (Garwood), for weighted or clustered events gamma limits (Fay and Feuer) with the variance "
    "over trials",
)
FRACTION = Estimator(
    "share of time", "Clopper-Pearson on the effective sample size (Korn-Graubard) with t, widened for few episodes"
)
ESTIMATORS = {"rate": RATE, "fraction": FRACTION}


@dataclass(frozen=True, slots=True)
class Metric:
    """A published number.

    `name`: its key in `gold/cells.json`. `column`: where `trials/` holds its value. `title` and `meaning`: its words in
    tables and in the report. A rate counts the rows of the kind `counts` in a trial's trace, or adds up their `value`
    if `sums_values`; a fraction is the share of partition-time in which the boolean `column` of `silver/intervals` is
    true. Rows and times count with their weights. `best`: what the setting with the lowest value does; `noun`: what is
    counted; `more` and `less`: what a setting with a higher or lower value does; empty for a metric of a script.
    """

    name: str
    column: str
    estimator: Annotated[Estimator, BeforeValidator(ESTIMATORS.__getitem__)]
    title: str
    meaning: str
    counts: Annotated[type[Observation], BeforeValidator(KINDS.__getitem__)] = Observation
    sums_values: bool = False
    best: str = ""
    noun: str = ""
    more: str = ""
    less: str = ""


UNWRITABLE = "unwritable_fraction"
WRITABLE = "writable_fraction"
"""The rest of the time, in `gold/cells.json` and tables: 1 - `unwritable_fraction`."""
ACKNOWLEDGED_LOSS_RATE = "acknowledged_loss_rate"
"""The rate of losses that compares cells of different acks."""
METRICS = declared(tuple[Metric, ...], __file__, "metrics.yaml")
BY_NAME = {metric.name: metric for metric in METRICS}
CAUSES = tuple(metric for metric in METRICS if metric.name.startswith("unwritable_") and metric.name != UNWRITABLE)
"""The parts of `unwritable_fraction`, which add up to it."""
RATES = {metric.name: metric for metric in METRICS if metric.estimator is RATE}
FRACTIONS = {metric.name: metric for metric in METRICS if metric.estimator is FRACTION}
