"""What one trial measured: its exposure, and the value of each metric, from the rows of its trace.

The Spark pipeline (`pipeline/silver.py`, `pipeline/gold.py`) measures the published numbers from the traces on disk;
here a worker measures the trial that it has in memory, by the same rules, for the stopping rule of the sweep and for
tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from experiments.studies.trace.metrics import METRICS, RATES
from experiments.studies.trace.schema import END, STATE, YEAR_MS, TraceRow

HOLDS: Final[dict[str, Callable[[TraceRow], bool]]] = {
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
    """One trial. `exposure`: partition-years, weighted. `values` and `events` by the columns of the metrics: the
    weighted count, total or partition-years, and how many events or episodes it is made of."""

    exposure: float
    values: dict[str, float]
    events: dict[str, int]


def measure(rows: Iterable[TraceRow]) -> Measures:
    """What a trial measured, by the rows of its trace, which keep the rules of `schema.py`."""
    trial = _Trial()
    for row in rows:
        trial.count(row)
        if row.kind == STATE:
            trial.end_interval(row.partition, row)
            trial.states[row.partition] = row
        elif row.kind == END:
            for partition in trial.states:
                trial.end_interval(partition, row)
    return Measures(trial.exposure, trial.values, trial.events)


class _Trial:
    """The measures so far, and the state of each partition with the columns that held in its last interval."""

    def __init__(self) -> None:
        self.exposure = 0.0
        self.values = dict.fromkeys((metric.column for metric in METRICS), 0.0)
        self.events = dict.fromkeys(self.values, 0)
        self.states: dict[int, TraceRow] = {}
        self.held: dict[int, frozenset[str]] = {}

    def count(self, row: TraceRow) -> None:
        """Counts the row for the rates of its kind."""
        for metric in _COUNTED.get(row.kind, ()):
            self.values[metric.column] += math.exp(row.log_weight) * (row.value if metric.sums_values else 1)
            self.events[metric.column] += 1

    def end_interval(self, partition: int, row: TraceRow) -> None:
        """Adds the interval of the partition's state, which `row` ends; one of length 0 is none."""
        state = self.states.get(partition, row)
        if row.time_ms == state.time_ms:
            return
        length = math.exp(row.log_weight) * (row.time_ms - state.time_ms) / YEAR_MS
        self.exposure += length
        before = self.held.get(partition, frozenset())
        self.held[partition] = frozenset(column for column, holds in HOLDS.items() if holds(state))
        for column in self.held[partition]:
            self.values[column] += length
            self.events[column] += column not in before


_COUNTED = {
    kind: [metric for metric in RATES.values() if metric.trace_kind == kind]
    for kind in {metric.trace_kind for metric in RATES.values()}
}
