"""What one trial measured: its exposure, and the value of each metric, from the rows of its trace.

The pipeline (`pipeline/silver.py`, `pipeline/trials.py`) measures the published numbers from the traces on disk; here a
worker measures the trial that it has in memory, by the same rules, for the stopping rule of the sweep.
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
    """One trial. `exposure`: partition-years, weighted. `values` and `events` by the columns of `METRICS`, in their
    order: the weighted count, total or partition-years, and how many events or episodes it is made of."""

    exposure: float
    values: dict[str, float]
    events: dict[str, int]


_COUNTED = {
    kind: [metric for metric in RATES.values() if metric.counts is kind]
    for kind in {metric.counts for metric in RATES.values()}
}


def measure(rows: Iterable[Stamped]) -> Measures:
    """What a trial measured, by the rows of its trace, which keep the rules of `kinds.py`."""
    exposure, values = 0.0, dict.fromkeys((metric.column for metric in METRICS), 0.0)
    events = dict.fromkeys(values, 0)
    states: dict[int, tuple[int, State]] = {}
    held: dict[int, frozenset[str]] = {}
    for row in rows:
        what, weight = row.what, math.exp(row.log_weight)
        for metric in _COUNTED.get(type(what), ()):
            values[metric.column] += weight * (row.row().value if metric.sums_values else 1)
            events[metric.column] += 1
        for partition in (what.partition,) if isinstance(what, State) else states if isinstance(what, End) else ():
            since_ms, state = states.get(partition, (row.time_ms, None))
            if state is None or row.time_ms == since_ms:
                continue
            length = weight * (row.time_ms - since_ms) / YEAR_MS
            exposure += length
            before = held.get(partition, frozenset())
            held[partition] = frozenset(column for column, holds in HOLDS.items() if holds(state))
            for column in held[partition]:
                values[column] += length
                events[column] += column not in before
        if isinstance(what, State):
            states[what.partition] = row.time_ms, what
    return Measures(exposure, values, events)
