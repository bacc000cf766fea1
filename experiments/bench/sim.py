"""`isray bench sim`: the speed of the simulator in one process, with plans of the default fuzz and the reference study;
docs/benchmarks.md describes the columns.

The plans of the fuzz seeds 1, 2, ... are measured without invariants, with them, and as whole fuzz runs; `trace_hash`
is that of all plans without invariants, equal for every build on every machine. The study's cells are run by
`run_trial`, as a worker of the sweep does. Times of plans and of SimPy (`simpy_model.py`) are processor time.

The baseline of the study is the minimum of such a simulator: as many events from a heap, each passed to a trivial node
that answers with one message, which goes onto the heap. `ratio` is the time divided by the baseline's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heappop, heappush
from importlib.util import find_spec
from time import process_time

from experiments.bench.report import BenchReport, measure_ms, median_ms
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan, simulate_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.trials.trial import run_trial
from experiments.support.build import is_compiled
from protocol.contract import Effect, Send
from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message, Request

SEEDS = 12
TRIALS = 20
REPEATS = 5
REFERENCE: tuple[CellParameters, ...] = tuple(
    CellParameters(min_insync_replicas=min_isr, generation=generation)
    for min_isr in (1, 2)
    for generation in ("kip-497", "kip-966")
)
"""The cells of the reference study; all other parameters are the defaults of a study."""

_NODES = 5


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one cell or of all: `events` of `trials` trials in total; times in milliseconds of wall time."""

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
        return asdict(self) | {
            "events_per_second": round(self.events_per_second),
            "cluster_years_per_second": round(self.years_per_second, 3),
            "ratio": round(self.ratio, 2),
        }


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of one way to run the plans: events, processor time in milliseconds, and events per second divided by
    SimPy's (None without SimPy).
    """

    name: str
    events: int
    elapsed_ms: float
    ratio: float | None = None

    @property
    def events_per_second(self) -> float:
        return self.events / self.elapsed_ms * 1_000

    def document(self) -> dict[str, object]:
        return {
            "events": self.events,
            "elapsed_ms": self.elapsed_ms,
            "events_per_second": round(self.events_per_second),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
        }

    def texts(self) -> list[str]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        figures = [f"{self.events:,}", f"{self.elapsed_ms:,.0f} ms", f"{self.events_per_second:,.0f}"]
        return [self.name, "", "", *figures, "", ratio]


def run(
    trials: int = TRIALS, repeats: int = REPEATS, seeds: int = SEEDS, cells: Sequence[CellParameters] = REFERENCE
) -> BenchReport:
    """Measures the plans of `seeds` fuzz seeds, and `trials` trials of every cell, `repeats` times; all are
    positive.
    """
    run_trial(cells[0], 0)
    rows = [_measure(cell, trials, repeats) for cell in cells]
    total = _total(rows)
    speeds, trace_hash = measure_plans([draw(seed) for seed in range(1, seeds + 1)], repeats)
    whole = speeds["fuzz"]
    return BenchReport(
        title="Simulation, one process",
        document={
            "repeats": repeats,
            "build": "compiled" if is_compiled() else "sources",
            "plans": {
                "seeds": seeds,
                "trace_hash": trace_hash,
                "seeds_per_second": round(seeds / whole.elapsed_ms * 1_000, 3),
                **{name: speed.document() for name, speed in speeds.items()},
            },
            "cells": [row.document() for row in rows],
            "total": total.document(),
        },
        columns=("cell", "trials", "cluster-years", "events", "time", "events/s", "cluster-years/s", "ratio"),
        rows=[*[_texts(row) for row in (*rows, total)], *[speed.texts() for speed in speeds.values()]],
        notes=[
            "ratio of the study: time / as many events from a heap to trivial nodes; of plans: events/s / SimPy's",
            f"default fuzz: {seeds / whole.elapsed_ms * 1_000:.2f} seeds/s; trace hash of the plans: {trace_hash}",
        ],
    )


def simulate(parameters: CellParameters, trials: int) -> int:
    """Runs the trials with the seeds 0, 1, ...; returns the number of events."""
    return sum(run_trial(parameters, seed).events for seed in range(trials))


def measure_plans(plans: Sequence[Plan], repeats: int) -> tuple[dict[str, Speed], str]:
    """Measures the plans without and with invariants, as whole fuzz runs, and SimPy where it is installed, alternately;
    returns the medians of `repeats` times by name, and the trace hash over all plans.
    """
    hashes: list[str] = []

    def count_events(invariants: bool) -> int:
        results = [simulate_plan(plan, invariants=invariants) for plan in plans]
        if not invariants:
            hashes[:] = [trace_hash for _, trace_hash in results]
        return sum(events for events, _ in results)

    kinds: dict[str, Callable[[], int]] = {
        "invariants_off": lambda: count_events(False),
        "invariants_on": lambda: count_events(True),
        "fuzz": lambda: sum(run_plan(plan).events for plan in plans),
    }
    events = {name: work() for name, work in kinds.items()}
    if find_spec("simpy") is not None:
        from experiments.bench.simpy_model import exchange

        kinds["simpy"] = lambda: exchange(events["invariants_off"])
        events["simpy"] = kinds["simpy"]()
    times_ms: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, work in kinds.items():
            times_ms[name].append(measure_ms(work, process_time)[0])
    speeds = {name: Speed(name, events[name], median_ms(times)) for name, times in times_ms.items()}
    if "simpy" in speeds:
        bare = speeds["simpy"].events_per_second
        speeds = {name: replace(speed, ratio=speed.events_per_second / bare) for name, speed in speeds.items()}
    return speeds, hashlib.blake2b("".join(hashes).encode(), digest_size=16).hexdigest()


class _Relay:
    """A node that answers every message with one to its neighbour."""

    def __init__(self, neighbour: NodeId) -> None:
        self._neighbour = neighbour

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        return [Send(self._neighbour, message)]


def bare_events(count: int) -> TimeMs:
    """Dispatches `count` events; returns the virtual time of the last one."""
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


def _measure(cell: CellParameters, trials: int, repeats: int) -> Row:
    times_ms, baselines_ms, events = [], [], 0
    for _ in range(repeats):
        elapsed_ms, events = measure_ms(lambda: simulate(cell, trials))
        times_ms.append(elapsed_ms)
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
    return measure_ms(lambda: bare_events(events))[0]


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
    counts = [f"{row.trials:,}", f"{row.cluster_years:,.2f}", f"{row.events:,}"]
    return [row.name, *counts, f"{row.elapsed_ms:,.0f} ms", *rates]
