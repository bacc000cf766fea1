"""`isray bench sim`: how fast one process simulates the reference study.

The reference study is that of the project's interfaces, section 2: three brokers, one partition on all of them,
acks=all, brokers that fail every 130 days and come back after 15 minutes, swept over min ISR 1 and 2 and the
generations `kip-497` and `kip-966`. Measured is `run_trial`, trial after trial in this process as a worker of the
sweep runs them, set-up of the cluster included; invariants are not checked. Each cell is measured several times, and
the median counts.

An event is a message that is delivered, a timer that fires, or an action of the experiment. A cluster-year is a year
of virtual time of one cluster. A quiet cluster costs no events (`experiments/sim/timers.py`), so years per second
depend on how often brokers fail, and events per second hardly do.

The baseline is what no simulator of this kind can leave out: as many events, from a heap, each handed to a trivial
node that answers with one message, which goes onto the heap. `ratio` is time over that of the baseline.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from experiments.bench.report import BenchReport, median_ms, timed
from experiments.studies.model import YEAR_MS, CellParameters
from experiments.trial import run_trial
from protocol.contract import Effect, Send
from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message, Request

TRIALS = 20
REPEATS = 5
REFERENCE: tuple[CellParameters, ...] = tuple(
    CellParameters(min_insync_replicas=min_isr, generation=generation)
    for min_isr in (1, 2)
    for generation in ("kip-497", "kip-966")
)
"""The cells of the reference study; what is not swept are the defaults of a study."""

_NODES = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One cell, or all of them: `trials` trials, with `events` in all. Times in milliseconds of wall time."""

    name: str
    trials: int
    cluster_years: float
    events: int
    elapsed_ms: float
    baseline_ms: float

    @property
    def events_per_second(self) -> float:
        return self.events / self.elapsed_ms * 1_000

    @property
    def years_per_second(self) -> float:
        return self.cluster_years / self.elapsed_ms * 1_000

    @property
    def ratio(self) -> float:
        return self.elapsed_ms / self.baseline_ms

    def document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "trials": self.trials,
            "cluster_years": self.cluster_years,
            "events": self.events,
            "elapsed_ms": self.elapsed_ms,
            "events_per_second": round(self.events_per_second),
            "cluster_years_per_second": round(self.years_per_second, 3),
            "baseline_ms": self.baseline_ms,
            "ratio": round(self.ratio, 2),
        }


def run(trials: int = TRIALS, repeats: int = REPEATS, cells: Sequence[CellParameters] = REFERENCE) -> BenchReport:
    """Measures `trials` trials of every cell, `repeats` times; both are positive."""
    run_trial(cells[0], 0)
    rows = [_measure(cell, trials, repeats) for cell in cells]
    total = _total(rows)
    return BenchReport(
        title="The reference study, one process",
        document={
            "repeats": repeats,
            "cells": [row.document() for row in rows],
            "total": total.document(),
        },
        columns=("cell", "trials", "cluster-years", "events", "time", "events/s", "cluster-years/s", "ratio"),
        rows=[_texts(row) for row in (*rows, total)],
        notes=["ratio: time / as many events from a heap to trivial nodes"],
    )


def simulate(parameters: CellParameters, trials: int) -> int:
    """Runs the trials with the seeds 0, 1, ...; how many events they had."""
    return sum(run_trial(parameters, seed).events for seed in range(trials))


# -- the baseline ------------------------------------------------------------------------------------------------------


class _Relay:
    """A node that answers every message with one to its neighbour."""

    def __init__(self, neighbour: NodeId) -> None:
        self._neighbour = neighbour

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        return [Send(self._neighbour, message)]


def bare_events(count: int) -> TimeMs:
    """Dispatches `count` events; the virtual time at which the last one was due."""
    nodes = {node: _Relay((node + 1) % _NODES) for node in range(_NODES)}
    message, sequence, now_ms = Request(correlation_id=0), _NODES, 0
    heap = [(node, node, node, message) for node in nodes]
    for _ in range(count):
        now_ms, _, target, received = heappop(heap)
        for effect in nodes[target].receive(now_ms, target, received):
            if type(effect) is Send:
                sequence += 1
                heappush(heap, (now_ms + 1 + effect.to, sequence, effect.to, received))
    return now_ms


# -- what is measured --------------------------------------------------------------------------------------------------


def _measure(cell: CellParameters, trials: int, repeats: int) -> Row:
    times_ms, baselines_ms, events = [], [], 0
    for _ in range(repeats):
        gc.collect()
        elapsed_ms, events = timed(lambda: simulate(cell, trials))
        times_ms.append(elapsed_ms)
        gc.collect()
        baselines_ms.append(_time_bare(events))
    return Row(
        name=f"{cell.generation}, min ISR {cell.min_insync_replicas}",
        trials=trials,
        cluster_years=round(trials * cell.duration_ms / YEAR_MS, 6),
        events=events,
        elapsed_ms=median_ms(times_ms),
        baseline_ms=median_ms(baselines_ms),
    )


def _time_bare(events: int) -> float:
    return timed(lambda: bare_events(events))[0]


def _total(rows: Sequence[Row]) -> Row:
    return Row(
        name="all",
        trials=sum(row.trials for row in rows),
        cluster_years=round(sum(row.cluster_years for row in rows), 6),
        events=sum(row.events for row in rows),
        elapsed_ms=round(sum(row.elapsed_ms for row in rows), 3),
        baseline_ms=round(sum(row.baseline_ms for row in rows), 3),
    )


def _texts(row: Row) -> list[str]:
    rates = [f"{row.events_per_second:,.0f}", f"{row.years_per_second:,.1f}", f"{row.ratio:.1f}"]
    return [
        row.name,
        f"{row.trials:,}",
        f"{row.cluster_years:,.2f}",
        f"{row.events:,}",
        f"{row.elapsed_ms:,.0f} ms",
        *rates,
    ]
