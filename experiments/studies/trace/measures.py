"""What one trial measured: its exposure, and the value of each metric, from the rows of its trace.

The pipeline (`pipeline/silver.py`, `pipeline/trials.py`) measures the published numbers from the traces on disk;
here a worker measures the trial that it has in memory, by the same rules, for the stopping rule of the sweep and for
tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from experiments.studies.trace.kinds import End, Stamped, State
from experiments.studies.trace.metrics import METRICS, RATES
from experiments.studies.trace.schema import YEAR_MS

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
    """One trial. `exposure`: partition-years, weighted. `values` and `events` by the columns of the metrics: the
    weighted count, total or partition-years, and how many events or episodes it is made of."""

    exposure: float
    values: dict[str, float]
    events: dict[str, int]


def measure(rows: Iterable[Stamped]) -> Measures:
    """What a trial measured, by the rows of its trace, which keep the rules of `kinds.py`."""
    trial = _Trial()
    for row in rows:
        what = row.what
        trial.count(row)
        if isinstance(what, State):
            trial.end_interval(what.partition, row)
            trial.states[what.partition] = row.time_ms, what
        elif isinstance(what, End):
            for partition in trial.states:
                trial.end_interval(partition, row)
    return Measures(trial.exposure, trial.values, trial.events)


class _Trial:
    """The measures so far, and the state of each partition with the columns that held in its last interval."""

    def __init__(self) -> None:
        self.exposure = 0.0
        self.values = dict.fromkeys((metric.column for metric in METRICS), 0.0)
        self.events = dict.fromkeys(self.values, 0)
        self.states: dict[int, tuple[int, State]] = {}
        self.held: dict[int, frozenset[str]] = {}

    def count(self, row: Stamped) -> None:
        """Counts the row for the rates of its kind."""
        for metric in _COUNTED.get(type(row.what), ()):
            self.values[metric.column] += math.exp(row.log_weight) * (row.row().value if metric.sums_values else 1)
            self.events[metric.column] += 1

    def end_interval(self, partition: int, row: Stamped) -> None:
        """Adds the interval of the partition's state, which `row` ends; one of length 0 is none."""
        if partition not in self.states or row.time_ms == self.states[partition][0]:
            return
        since_ms, state = self.states[partition]
        length = math.exp(row.log_weight) * (row.time_ms - since_ms) / YEAR_MS
        self.exposure += length
        before = self.held.get(partition, frozenset())
        self.held[partition] = frozenset(column for column, holds in HOLDS.items() if holds(state))
        for column in self.held[partition]:
            self.values[column] += length
            self.events[column] += column not in before


_COUNTED = {
    kind: [metric for metric in RATES.values() if metric.counts is kind]
    for kind in {metric.counts for metric in RATES.values()}
}
