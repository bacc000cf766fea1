"""The tables of silver: their columns, and the functions that make them of the trace of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from experiments.studies.design.functions import metrics_of
from experiments.studies.design.study import StudyPlan
from experiments.studies.pipeline import changes, reads, records, silver
from experiments.studies.pipeline.rows import Trace
from experiments.studies.pipeline.schemas import READS, SILVER, Columns, trial_columns
from experiments.studies.pipeline.trials import per_trial


class Table(NamedTuple):
    """A table's columns, and its rows of one batch, a pure function."""

    columns: Columns
    rows: Callable[[Trace], pa.Table]


_ROWS: Mapping[str, Callable[[Trace], pa.Table]] = {
    "intervals": silver.intervals,
    "outages": silver.outages,
    "elections": changes.elections,
    "isr_changes": changes.isr_changes,
    "recoveries": changes.recoveries,
    "catch_ups": changes.catch_ups,
    "regressions": changes.regressions,
    "records": records.records,
    "cuts": records.cuts,
    "counts": records.counts,
    "losses": silver.losses,
    "measured": silver.measured,
}
NAMES = (*_ROWS, "reads", "trials")
"""Of all tables that a study may have."""


def tables_of(study: StudyPlan) -> dict[str, Table]:
    """The tables of a study, by their names."""
    custom = () if study.functions is None else study.functions.metrics
    names = tuple(metric.name for metric in metrics_of(study.functions))
    found = {name: Table(SILVER[name], rows) for name, rows in _ROWS.items()}
    if study.has_consumer:
        found["reads"] = Table(READS, reads.reads)
    measure = partial(per_trial, custom=tuple((metric.name, metric.unit) for metric in custom))
    return found | {"trials": Table(trial_columns(names), measure)}
