"""The speed of a study's trials, simulated in one process as by a worker of a sweep (`isray bench sim`).

A cell's baseline is the minimum of such a simulator: as many events from a heap, each passed to a trivial node that
answers with one message, which goes onto the heap. `ratio` is the time divided by the baseline's.

The time per event must not depend on how long a trial is: what a restarting broker reads is bounded by snapshots, and
everything else by the present state. `measure_lengths` runs one cell of a shipped study at several lengths, each for
the same number of cluster-years, in turn within every repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from heapq import heappop, heappush
from time import process_time

from experiments.bench.report import measure_ms, median_ms
from experiments.engines.sim.memory import rare_collections
from experiments.studies.design.loader import load_study
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.trials.trial import run_trial
from experiments.support.shipped import STUDIES
from protocol.contract import Effect, Send
from protocol.ids import NodeId, TimeMs
from protocol.messages.base import Message, Request

SHIPPED = "last-replica-standing"
LENGTHS_MS = tuple(years * YEAR_MS for years in (1, 2, 4, 8))
_NODES = 5


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


def measure_cell(cell: CellParameters, trials: int, repeats: int) -> TrialFigures:
    """The medians of `repeats` runs of the cell's trials."""
    return _measure([(name_of(cell), cell, trials)], repeats)[0]


def measure_lengths(repeats: int, lengths_ms: Sequence[int] = LENGTHS_MS) -> list[TrialFigures]:
    """The shipped study's cell with its last generation and min ISR at each length; all lengths divide the last."""
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
    """The sums of the rows."""
    return TrialFigures(
        name="all",
        trials=sum(row.trials for row in rows),
        cluster_years=round(sum(row.cluster_years for row in rows), 6),
        events=sum(row.events for row in rows),
        elapsed_ms=round(sum(row.elapsed_ms for row in rows), 3),
        baseline_ms=round(sum(row.baseline_ms for row in rows), 3),
    )


def name_of(cell: CellParameters) -> str:
    """What the reference study's cells differ in."""
    return f"{cell.generation}, min ISR {cell.min_insync_replicas}"


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


def _measure(runs: Sequence[tuple[str, CellParameters, int]], repeats: int) -> list[TrialFigures]:
    """One row per (name, cell, trials): medians of the repeats, in each of which all are measured in turn."""
    times_ms: list[list[float]] = [[] for _ in runs]
    baselines_ms: list[list[float]] = [[] for _ in runs]
    events = [0] * len(runs)
    for _ in range(repeats):
        for place, (_, cell, trials) in enumerate(runs):
            elapsed_ms, events[place] = measure_ms(partial(simulate, cell, trials), process_time)
            times_ms[place].append(elapsed_ms)
            baselines_ms[place].append(measure_ms(partial(bare_events, events[place]), process_time)[0])
    return [
        TrialFigures(
            name=name,
            trials=trials,
            cluster_years=round(trials * cell.duration_ms / YEAR_MS, 6),
            events=count,
            elapsed_ms=median_ms(elapsed_ms),
            baseline_ms=median_ms(baseline_ms),
        )
        for (name, cell, trials), count, elapsed_ms, baseline_ms in zip(
            runs, events, times_ms, baselines_ms, strict=True
        )
    ]
