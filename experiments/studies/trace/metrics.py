"""The metrics of a study, each declared once, in `metrics.yaml`: name, words, how it is measured and estimated.

Rates are per partition-year (a year is 365 days). The definitions of the fractions of time in terms of a partition's
state are in `pipeline/rows.py`; the formulas of the intervals in `estimation/`.

The pipeline measures the published numbers from the traces on disk; with `measure` a worker measures the trial that it
has in memory, by the same rules, for the stopping rule of the sweep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from pydantic import BeforeValidator

from experiments.studies.trace.kinds import KINDS, End, Observation, Stamped, State
from experiments.studies.trace.schema import YEAR_MS
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
CLUSTER_RATE = Estimator("per cluster-year", RATE.interval)
PROBABILITY = Estimator("of a year", "Clopper-Pearson on the effective number of trials (Korn-Graubard)")
MEAN = Estimator("partitions", "Student's t over the incidents")
ESTIMATORS = {
    **{"rate": RATE, "fraction": FRACTION, "cluster_rate": CLUSTER_RATE},
    **{"probability": PROBABILITY, "mean": MEAN},
}


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
CLUSTER_METRICS = declared(tuple[Metric, ...], __file__, "clusters.yaml")
"""Those of whole clusters alone."""
BY_NAME = {metric.name: metric for metric in (*METRICS, *CLUSTER_METRICS)}
INCIDENTS, SOME_UNWRITABLE = "incidents_per_year", "some_unwritable_fraction"


def of_topic(topic: str) -> str:
    """The name of the metric of a topic: the share of time in which it cannot be written."""
    return f"{UNWRITABLE}_of_{topic}"


def topic_metric(topic: str) -> Metric:
    """The share of time in which any partition of the topic cannot be written."""
    words = (
        f"share of time in which writes to at least one partition of {topic} have failed for longer than the delivery"
    )
    name = of_topic(topic)
    return Metric(name, BY_NAME[SOME_UNWRITABLE].column, FRACTION, f"{topic} not writable", f"{words} delivery timeout")


CAUSES = tuple(metric for metric in METRICS if metric.name.startswith("unwritable_") and metric.name != UNWRITABLE)
"""The parts of `unwritable_fraction`, which add up to it."""
RATES = {metric.name: metric for metric in METRICS if metric.estimator is RATE}
FRACTIONS = {metric.name: metric for metric in METRICS if metric.estimator is FRACTION}

HOLDS: Final[dict[str, Callable[[State], bool]]] = {
    "offline": lambda state: state.leader < 0,
    "refuses": lambda state: state.isr_size < state.min_isr,
    "stalled": lambda state: state.leader >= 0 and (state.stalls or not state.leader_serves),
    "unwritable": lambda state: state.expired,
    "unwritable_offline": lambda state: state.expired and state.leader < 0,
    "unwritable_leader": lambda state: state.expired and state.leader >= 0 and not state.leader_serves,
    "unwritable_isr": lambda state: state.expired and state.leader >= 0 and state.leader_serves and state.stalls,
    "unwritable_refused": lambda state: (
        state.expired and state.leader >= 0 and state.leader_serves and not state.stalls
    ),
}
"""Whether a share of time counts this state of a partition; by the columns of the shares."""


class Measures(NamedTuple):
    """One trial. `exposure`: partition-years, weighted. `values` and `events` by the columns of `METRICS`, in their
    order: the weighted count, total or partition-years, and how many events or episodes it is made of."""

    exposure: float
    values: dict[str, float]
    events: dict[str, int]


_COUNTED = {
    kind: [metric for metric in RATES.values() if metric.counts is kind]
    for kind in {metric.counts for metric in RATES.values()}
}


def measure(rows: Iterable[Stamped], counts: Sequence[int] | None = None) -> Measures:
    """What a trial measured, by the rows of its trace, which keep the rules of `kinds.py`. `counts`: how many
    partitions each partition of the trace stands for, 1 by default; it multiplies values, not events."""
    exposure, values = 0.0, dict.fromkeys((metric.column for metric in METRICS), 0.0)
    events = dict.fromkeys(values, 0)
    states: dict[int, tuple[int, State]] = {}
    held: dict[int, frozenset[str]] = {}
    for row in rows:
        what, weight = row.what, math.exp(row.log_weight)
        for metric in _COUNTED.get(type(what), ()):
            found = row.row()
            copies = counts[found.partition] if counts is not None else 1
            values[metric.column] += weight * copies * (found.value if metric.sums_values else 1)
            events[metric.column] += 1
        for partition in (what.partition,) if isinstance(what, State) else states if isinstance(what, End) else ():
            since_ms, state = states.get(partition, (row.time_ms, None))
            if state is None or row.time_ms == since_ms:
                continue
            length = weight * (row.time_ms - since_ms) / YEAR_MS * (1 if counts is None else counts[partition])
            exposure += length
            before = held.get(partition, frozenset())
            held[partition] = frozenset(column for column, holds in HOLDS.items() if holds(state))
            for column in held[partition]:
                values[column] += length
                events[column] += column not in before
        if isinstance(what, State):
            states[what.partition] = row.time_ms, what
    return Measures(exposure, values, events)
