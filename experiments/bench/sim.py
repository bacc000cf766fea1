"""`isray bench sim`: the speed of the simulator in one process, with plans of the default fuzz, the reference study,
and a cell of a shipped study at several lengths; docs/benchmarks.md describes the columns.

`trace_hash` is that of all plans without invariants, equal for every build on every machine. Times are processor time,
also those of SimPy.

A cell's baseline is the minimum of such a simulator: as many events from a heap, each passed to a trivial node that
answers with one message, which goes onto the heap. The time per event must not depend on how long a trial is: what a
restarting broker reads is bounded by snapshots, and everything else by the present state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from heapq import heappop, heappush
from importlib.util import find_spec
from time import process_time

from experiments.bench.report import BenchReport, measure_ms, median_ms, medians_ms
from experiments.engines.sim.memory import rare_collections
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan, simulate_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.studies.design.loader import load_study
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.trials.trial import run_trial
from experiments.support.build import is_compiled
from experiments.support.shipped import STUDIES
from protocol.contract import Effect, Send
from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message, Request

SEEDS = 12
TRIALS = 20
REPEATS = 5
SHIPPED = "last-replica-standing"
LENGTHS_MS = tuple(years * YEAR_MS for years in (1, 2, 4, 8))
_NODES = 5
_RATES = ("us/event", "events/s", "cluster-years/s", "ratio")
COLUMNS = ("cell", "trials", "cluster-years", "events", "time", *_RATES)
REFERENCE: tuple[CellParameters, ...] = tuple(
    CellParameters(min_insync_replicas=min_isr, generation=generation)
    for min_isr in (1, 2)
    for generation in ("kip-497", "kip-966")
)
"""The cells of the reference study; all other parameters are the defaults of a study."""


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
        figures = [f"{self.events:,}", f"{self.elapsed_ms:,.0f} ms", f"{self.elapsed_ms / self.events * 1_000:.1f}"]
        return [self.name, "", "", *figures, f"{self.events_per_second:,.0f}", "", ratio]


def run(
    trials: int = TRIALS,
    repeats: int = REPEATS,
    seeds: int = SEEDS,
    cells: Sequence[CellParameters] = REFERENCE,
    lengths_ms: Sequence[int] = LENGTHS_MS,
) -> BenchReport:
    """Measures the plans of `seeds` fuzz seeds, `trials` trials of every cell, and the shipped study's cell at each
    length, `repeats` times; all are positive.
    """
    run_trial(cells[0], 0)
    names = [f"{cell.generation}, min ISR {cell.min_insync_replicas}" for cell in cells]
    rows = [_measure([(name, cell, trials)], repeats)[0] for name, cell in zip(names, cells, strict=True)]
    rows.append(total(rows))
    lengths = measure_lengths(repeats, lengths_ms)
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
            "cells": [row.document() for row in rows[:-1]],
            "total": rows[-1].document(),
            "lengths": [row.document() for row in lengths],
            "growth": round(growth(lengths), 3),
        },
        columns=COLUMNS,
        rows=[*[row.texts() for row in (*rows, *lengths)], *[speed.texts() for speed in speeds.values()]],
        notes=[
            f"us/event of the longest trial / the shortest: {growth(lengths):.2f}",
            "ratio of the study: time / as many events from a heap to trivial nodes; of plans: events/s / SimPy's",
            f"default fuzz: {seeds / whole.elapsed_ms * 1_000:.2f} seeds/s; trace hash of the plans: {trace_hash}",
        ],
    )


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


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """The figures of one cell or of all: `events` of `trials` trials in total; processor times in milliseconds."""

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

    @property
    def us_per_event(self) -> float:
        return self.elapsed_ms / self.events * 1_000

    def document(self) -> dict[str, object]:
        return asdict(self) | {
            "events_per_second": round(self.events_per_second),
            "us_per_event": round(self.us_per_event, 2),
            "cluster_years_per_second": round(self.years_per_second, 3),
            "ratio": round(self.ratio, 2),
        }

    def texts(self) -> list[str]:
        rates = [f"{self.us_per_event:.1f}", f"{self.events_per_second:,.0f}", f"{self.years_per_second:,.1f}"]
        counts = [f"{self.trials:,}", f"{self.cluster_years:,.2f}", f"{self.events:,}"]
        return [self.name, *counts, f"{self.elapsed_ms:,.0f} ms", *rates, f"{self.ratio:.1f}"]


def simulate(parameters: CellParameters, trials: int) -> int:
    """Runs the trials with the seeds 0, 1, ...; returns the number of events."""
    with rare_collections():
        return sum(run_trial(parameters, seed).events for seed in range(trials))


def measure_lengths(repeats: int, lengths_ms: Sequence[int]) -> list[TrialFigures]:
    """The shipped study's cell with its last generation and min ISR at each length, all for the same number of
    cluster-years; all lengths divide the last.
    """
    cell = load_study(STUDIES / f"{SHIPPED}.yaml").cells[-1].parameters
    runs = [
        (f"{SHIPPED}, {round(length / YEAR_MS, 2):g} y", cell.model_copy(update={"duration_ms": length}), trials)
        for length, trials in ((length, lengths_ms[-1] // length) for length in lengths_ms)
    ]
    return _measure(runs, repeats)


def growth(rows: Sequence[TrialFigures]) -> float:
    """The time per event of the last row, divided by that of the first."""
    return rows[-1].us_per_event / rows[0].us_per_event


def total(rows: Sequence[TrialFigures]) -> TrialFigures:
    return TrialFigures(
        name="all",
        trials=sum(row.trials for row in rows),
        cluster_years=round(sum(row.cluster_years for row in rows), 6),
        events=sum(row.events for row in rows),
        elapsed_ms=round(sum(row.elapsed_ms for row in rows), 3),
        baseline_ms=round(sum(row.baseline_ms for row in rows), 3),
    )


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


def exchange(events: int) -> int:
    """Runs a bare SimPy model for `events` events, rounded down to whole hops; returns their number.

    The nodes form a ring; each waits for a message in its store, waits for a link's latency, and passes the message on.
    A hop counts as two events, a fired timer and a delivered message. For SimPy it is three (timeout, put and get).
    """
    import simpy

    environment = simpy.Environment()
    stores = [simpy.Store(environment) for _ in range(_NODES)]
    hops = 0

    def relay(own: int) -> Generator[simpy.Event, bytes, None]:
        nonlocal hops
        while True:
            message = yield stores[own].get()
            yield environment.timeout(1)
            hops += 1
            yield stores[(own + 1) % _NODES].put(message)

    for number in range(_NODES):
        environment.process(relay(number))
    stores[0].put(b"message")
    while hops < events // 2:
        environment.step()
    return 2 * hops


def _measure(runs: Sequence[tuple[str, CellParameters, int]], repeats: int) -> list[TrialFigures]:
    """One row per (name, cell, trials): medians of the repeats, in each of which all are measured in turn."""
    times_ms: list[list[list[float]]] = [[] for _ in runs]
    events = [0] * len(runs)
    for _ in range(repeats):
        for place, (_, cell, trials) in enumerate(runs):
            elapsed_ms, events[place] = measure_ms(partial(simulate, cell, trials), process_time)
            bare_ms, _ = measure_ms(partial(bare_events, events[place]), process_time)
            times_ms[place].append([elapsed_ms, bare_ms])
    return [
        TrialFigures(name, trials, round(trials * cell.duration_ms / YEAR_MS, 6), count, *medians_ms(measured_ms))
        for (name, cell, trials), count, measured_ms in zip(runs, events, times_ms, strict=True)
    ]
