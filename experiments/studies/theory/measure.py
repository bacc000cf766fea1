"""What one trial contributes to a comparison with the theory: per metric its value and the number of events behind it.

A rate's value is its number of events, and a share of time is the partition-time that fulfils the metric's condition,
in milliseconds; its events are the beginnings of that condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from experiments.studies.trace.metrics import RATES
from experiments.studies.trace.schema import END, STATE, TraceRow
from protocol.ids import NO_LEADER


class Observed(NamedTuple):
    """Of one trial, or of several: events counted, or milliseconds; and the number of events."""

    value: float
    events: int


def _conditions(row: TraceRow) -> tuple[bool, bool, bool]:
    """Of a `state` row: no leader, fewer than min ISR in sync, a leader that does not answer."""
    has_leader = row.leader != NO_LEADER
    return not has_leader, row.isr_size < row.min_isr, has_leader and not row.leader_serves


FRACTIONS = ("offline_fraction", "reject_fraction", "stall_fraction")
COUNTED = ("loss_rate", "unclean_recoveries_per_year")


def observe(rows: Iterable[TraceRow]) -> Mapping[str, Observed]:
    """The metrics of `FRACTIONS` and `COUNTED` in the trace of a trial."""
    rows = list(rows)
    times, begins = [0, 0, 0], [0, 0, 0]
    present: dict[int, tuple[int, tuple[bool, bool, bool]]] = {}
    for row in rows:
        if row.kind == STATE:
            before_ms, before = present.get(row.partition, (row.time_ms, (False, False, False)))
            after = _conditions(row)
            for index in range(3):
                times[index] += before[index] * (row.time_ms - before_ms)
                begins[index] += after[index] and not before[index]
            present[row.partition] = row.time_ms, after
        elif row.kind == END:
            for before_ms, before in present.values():
                for index in range(3):
                    times[index] += before[index] * (row.time_ms - before_ms)
    found = {name: Observed(times[index], begins[index]) for index, name in enumerate(FRACTIONS)}
    counts = {name: RATES[name].count(rows) for name in COUNTED}
    return found | {name: Observed(count, count) for name, count in counts.items()}
