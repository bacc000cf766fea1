"""`isray bench sweep`: what a sweep costs beside its trials, on 1, 2 and 4 Ray nodes of this machine.

Weak scaling: each node gets the same number of trials. `waiting` trials take wall time and no processor time, so that
nodes that share processors do not slow each other down: what is lost is lost by the sweep (submitting, scheduling,
writing, the last batches). `computing` trials are simulated clusters; they cannot be faster than the processors that
the nodes share.

Costs of a task: batches of one trial that does nothing. `driver` is processor time of the driver per batch, for
submitting it and taking its result; `write` is the worker's time for two Parquet files and the mark, each synced;
`round trip` is Ray's scheduling and transport.

`predicted_efficiency` is the share of the processors' time that runs trials, on larger clusters: T / (T + write +
round trip) times min(1, T / (driver * CPUs)) with T = `task_s(CPUs)`, the time of a batch. The second factor is the
driver's, which serves 1 / `driver` batches per second.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from experiments.bench.report import BenchReport
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.sweeps.identity import cell_digests, trial_code_digest
from experiments.studies.sweeps.output import StudyRecord, claim
from experiments.studies.sweeps.schedule import Cost, task_s
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import job_of, needed_batches, run_batches
from experiments.studies.trace.kinds import End, Stamped, State, TrialResult
from experiments.studies.trials.batch import Trial

WAIT_S = 0.05
COMPUTED_S = 0.03
"""About the time of one computing trial, which gives their number."""
SINGLE_TRIALS = 400
PREDICTED = ((100, 16), (1_000, 16))
"""Clusters to predict: nodes, CPUs per node."""


@dataclass(frozen=True, slots=True)
class SweepFigures:
    """One sweep: its size, its wall time, the driver's processor time, and the means over its batches."""

    nodes: int
    trials: int
    batches: int
    elapsed_s: float
    driver_ms: float
    run_s: float
    write_ms: float

    @property
    def rate(self) -> float:
        """Trials per second."""
        return self.trials / self.elapsed_s

    @property
    def round_trip_ms(self) -> float:
        """The time between the batches of one CPU that neither runs trials nor writes, in ms."""
        return 1_000 * (self.elapsed_s * self.nodes / self.batches - self.run_s) - self.write_ms


def nothing(parameters: CellParameters, seed: int) -> TrialResult:
    """A trial that does nothing."""
    state = State(0, leader=0, leader_serves=True, isr_size=3, elr_size=0, min_isr=2)
    rows = [Stamped(0, state), Stamped(parameters.duration_ms, End())]
    return TrialResult(rows, str(seed), len(rows))


def waiting(parameters: CellParameters, seed: int) -> TrialResult:
    """A trial that takes `WAIT_S` of wall time."""
    time.sleep(WAIT_S)
    return nothing(parameters, seed)


def run(nodes: Sequence[int] = (1, 2, 4), seconds: int = 20) -> BenchReport:
    """`nodes`: the numbers of Ray nodes; `seconds`: how long each node has work, about, per kind of trial."""
    from experiments.hunt.soak.ray_nodes import ray_nodes
    from experiments.studies.trials.trial import run_trial

    kinds: dict[str, list[SweepFigures]] = {"waiting": [], "computing": [], "single": []}
    for count in nodes:
        with ray_nodes(count - 1, cpus=1):
            _measure(run_trial, count, count)  # workers start, modules are imported
            kinds["waiting"].append(_measure(waiting, count, round(count * seconds / WAIT_S)))
            kinds["computing"].append(_measure(run_trial, count, round(count * seconds / COMPUTED_S)))
            kinds["single"].append(_measure(nothing, count, SINGLE_TRIALS, one_per_batch=True))
    single = min(kinds["single"], key=lambda measured: measured.nodes)
    larger = [predicted(machines, cpus, single) for machines, cpus in PREDICTED]
    document = {
        "cores": os.cpu_count(),
        "runs": {
            kind: [asdict(each) | {"rate": each.rate, "efficiency": efficiency(each, runs[0])} for each in runs]
            for kind, runs in kinds.items()
        },
        "round_trip_ms": single.round_trip_ms,
        "predicted_efficiency": larger,
    }
    rows = [_row(kind, each, runs[0]) for kind, runs in kinds.items() for each in runs]
    columns = ("trials", "nodes", "number", "batches", "time", "per second", "efficiency", "driver", "write")
    notes = [
        f"{entry['nodes']:,} nodes of {entry['cpus']} CPUs: batches of {entry['task_s']:.0f} s, "
        f"efficiency {entry['efficiency']:.3f}, driver busy {entry['driver_share']:.0%}"
        for entry in larger
    ]
    title = f"weak scaling of a sweep; nodes of one CPU each share {os.cpu_count()} processors"
    notes = [f"round trip of a task: {single.round_trip_ms:.1f} ms", *notes]
    return BenchReport(title, document, columns, rows, notes)


def _measure(trial: Trial, nodes: int, trials: int, one_per_batch: bool = False) -> SweepFigures:
    """Sweeps a study of one cell on the Ray that this process is connected to."""
    study = study_from({"name": "bench", "trials": trials, "duration": "1y"}, "bench")
    with tempfile.TemporaryDirectory(prefix="isray-") as folder:
        store, code = Folder(Path(folder)), trial_code_digest(trial)
        cells = cell_digests(study, code)
        job = job_of(study, store, trial, claim(store, study, cells))
        _, schedule = needed_batches(StudyRecord(study, [], cells), store)
        if one_per_batch:
            schedule.cells[0].cost = Cost(trials=1, seconds=1e9, rows=1)
        began_s, used_s = time.perf_counter(), time.process_time()
        summaries = [summary for _, _, summary in run_batches(study, cells, schedule, job)]
        elapsed_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
    return SweepFigures(
        nodes=nodes,
        trials=study.max_trials,
        batches=len(summaries),
        elapsed_s=elapsed_s,
        driver_ms=1_000 * used_s / len(summaries),
        run_s=mean(summary.run_s for summary in summaries),
        write_ms=1_000 * mean(summary.commit_s for summary in summaries),
    )


def efficiency(measured: SweepFigures, base: SweepFigures) -> float:
    """Trials per second and node, against those of the run `base`."""
    return round(measured.rate / measured.nodes / (base.rate / base.nodes), 3)


def predicted(nodes: int, cpus: int, single: SweepFigures) -> dict[str, float]:
    """The efficiency of a sweep on that many nodes, from the costs of single-trial batches."""
    batch_s = task_s(nodes * cpus)
    lost_s = (single.write_ms + max(0.0, single.round_trip_ms)) / 1_000
    driver_share = single.driver_ms / 1_000 * nodes * cpus / batch_s
    working = batch_s / (batch_s + lost_s) / max(1.0, driver_share)
    costs = {"task_s": batch_s, "driver_share": driver_share, "efficiency": round(working, 4)}
    return {"nodes": nodes, "cpus": cpus, **costs}


def _row(kind: str, measured: SweepFigures, base: SweepFigures) -> list[str]:
    counts = (f"{measured.nodes}", f"{measured.trials:,}", f"{measured.batches}", f"{measured.elapsed_s:.1f} s")
    rates = (f"{measured.rate:,.1f}", f"{efficiency(measured, base):.2f}")
    return [kind, *counts, *rates, f"{measured.driver_ms:.1f} ms", f"{measured.write_ms:.1f} ms"]
