"""`isray bench sim`: the speed of the simulator in one process, with plans of the default fuzz, the reference study,
and a cell of a shipped study at several lengths (`sim_trials.py`); docs/benchmarks.md describes the columns.

The plans of the fuzz seeds 1, 2, ... are measured without invariants, with them, and as whole fuzz runs; `trace_hash`
is that of all plans without invariants, equal for every build on every machine. Times are processor time, also those of
SimPy (`simpy_model.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from time import process_time

from experiments.bench.report import BenchReport, measure_ms, median_ms
from experiments.bench.sim_trials import LENGTHS_MS, growth, measure_cell, measure_lengths, total
from experiments.hunt.fuzz.plan import Plan
from experiments.hunt.fuzz.run import run_plan, simulate_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.studies.design.model import CellParameters
from experiments.studies.trials.trial import run_trial
from experiments.support.build import is_compiled

SEEDS = 12
TRIALS = 20
REPEATS = 5
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
        us_per_event = self.elapsed_ms / self.events * 1_000
        figures = [
            f"{self.events:,}",
            f"{self.elapsed_ms:,.0f} ms",
            f"{us_per_event:.1f}",
            f"{self.events_per_second:,.0f}",
        ]
        return [self.name, "", "", *figures, "", ratio]


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
    rows = [measure_cell(cell, trials, repeats) for cell in cells]
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
        columns=(
            "cell",
            "trials",
            "cluster-years",
            "events",
            "time",
            "us/event",
            "events/s",
            "cluster-years/s",
            "ratio",
        ),
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
