"""The sweep: every cell's trials, spread over Ray tasks, each batch committed to disk as it ends.

Rounds. A study with `trials: N` is one round of N trials per cell. A study with `precision:` grows in rounds (64
trials, then half as many again each time), and a cell stops at the first round whose trials meet the precision. The
decision depends on the first trials by number only, so that neither the number of workers nor an interruption changes
it.

A batch is large enough to last seconds (a Ray task costs milliseconds), and there are at least eight per cell and
round, so that progress is visible and an interruption loses little. Batches on disk are not run again; any gap is
filled. The driver alone writes, so workers on other machines need no shared disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from experiments.engines.ray.session import ray_session
from experiments.studies.design.model import Precision, StudyPlan
from experiments.studies.estimation.statistics import Moments, rate
from experiments.studies.sweeps.output import (
    claim,
    committed_batches,
    exclusive,
    record_versions,
    remove_leftovers,
    write_batch,
)
from experiments.studies.sweeps.progress import SILENT, Progress
from experiments.studies.trace.metrics import RATES
from experiments.studies.trials.batch import Batch, Trial, run_batch
from experiments.support.errors import InputError

FIRST_ROUND_TRIALS = 64
LARGEST_BATCH_TRIALS = 250
BATCHES_PER_ROUND = 8
TASKS_IN_FLIGHT_PER_CPU = 2


def rounds(max_trials: int) -> Iterator[int]:
    """The numbers of trials after which a sequential study checks its precision: 64, 96, 144, ..., `max_trials`."""
    target = min(FIRST_ROUND_TRIALS, max_trials)
    while target < max_trials:
        yield target
        target = min(max_trials, target + (target + 1) // 2)
    yield max_trials


def is_precise(precision: Precision, counts: list[int], partition_years: float) -> bool:
    """Whether these trials' counts meet the precision. A rate of 0 never does."""
    estimate = rate(Moments.of(counts), len(counts) * partition_years)
    return estimate.estimate > 0.0 and estimate.half_width <= precision.relative_error * estimate.estimate


def wanted_trials(study: StudyPlan, cell: int, counts: list[int]) -> int:
    """How many trials the cell needs by the counts of its first trials, in order of their numbers."""
    if study.precision is None:
        return study.max_trials
    years = study.cells[cell].parameters.partition_years
    for target in rounds(study.max_trials):
        if len(counts) < target or is_precise(study.precision, counts[:target], years):
            return target
    return study.max_trials


def leading_counts(study: StudyPlan, cell: int, batches: Mapping[Batch, pa.Table]) -> list[int]:
    """The counts of the cell's trials 0, 1, ... up to the first that is missing: the stopping rule's input."""
    column = RATES[study.precision.metric if study.precision else "loss_rate"].column
    counts: list[int] = []
    for batch in sorted(batches):
        if batch.cell == cell and batch.first == len(counts):
            counts.extend(batches[batch][column].to_pylist())
    return counts


def pending_batches(study: StudyPlan, batches: Mapping[Batch, pa.Table]) -> list[Batch]:
    """The batches that remain in this round, the cells in turn. Empty when the sweep is complete."""
    per_cell = []
    for cell in study.cells:
        target = wanted_trials(study, cell.index, leading_counts(study, cell.index, batches))
        size = max(1, min(LARGEST_BATCH_TRIALS, target // BATCHES_PER_ROUND))
        done = sorted((batch.first, batch.stop) for batch in batches if batch.cell == cell.index)
        per_cell.append([Batch(cell.index, *part) for part in _parts(_gaps(done, target), size)])
    return [batch for turn in itertools.zip_longest(*per_cell) for batch in turn if batch is not None]


def _gaps(done: list[tuple[int, int]], target: int) -> Iterator[tuple[int, int]]:
    covered = 0
    for first, stop in [*done, (target, target)]:
        if covered < min(first, target):
            yield covered, min(first, target)
        covered = max(covered, stop)


def _parts(gaps: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    for first, stop in gaps:
        for start in range(first, stop, size):
            yield start, min(start + size, stop)


def sweep(study: StudyPlan, out: Path, trial: Trial, address: str | None = None, progress: Progress = SILENT) -> int:
    """Runs the missing trials of the study into `out`; returns how many it ran.

    `trial` must be importable by name on the workers. `address`: a Ray cluster (None: `RAY_ADDRESS`, or a private one).
    Raises InputError if `out` holds something else or damaged files, TrialFailed (as Ray's task error) for a failing
    trial.
    """
    progress.show("checking the batches on disk")
    with exclusive(out):
        claim(out, study)
        remove_leftovers(out)
        batches = committed_batches(out, study)
        pending = pending_batches(study, batches)
        if not pending:
            return 0
        record_versions(out)
        before = done = _trials_in(batches)
        progress.show("starting Ray")
        with ray_session(address):
            while pending:
                total = done + _trials_in(pending)
                progress.show("sweep", done, total)
                for batch, trace, trials in _run_on_ray(study, pending, trial):
                    write_batch(out, batch, trace, trials)
                    batches[batch] = trials
                    done += _trials_in([batch])
                    progress.show("sweep", done, total)
                pending = pending_batches(study, batches)
        return done - before


def _trials_in(batches: Iterable[Batch]) -> int:
    return sum(batch.stop - batch.first for batch in batches)


def _run_on_ray(study: StudyPlan, pending: list[Batch], trial: Trial) -> Iterator[tuple[Batch, pa.Table, pa.Table]]:
    """Runs the batches as tasks of one CPU each, a bounded number at a time; yields each as it ends."""
    import ray

    remote: Any = ray.remote(num_cpus=1)(run_batch)
    limit = max(1, int(ray.cluster_resources().get("CPU", 1))) * TASKS_IN_FLIGHT_PER_CPU
    waiting = iter(pending)
    in_flight: dict[ray.ObjectRef[tuple[pa.Table, pa.Table]], Batch] = {}
    while True:
        for batch in itertools.islice(waiting, limit - len(in_flight)):
            in_flight[remote.remote(trial, study.cells[batch.cell].parameters, batch, study.seed, study.pairing)] = (
                batch
            )
        if not in_flight:
            return
        ready, _ = ray.wait(list(in_flight), num_returns=1)
        for reference in ready:
            yield in_flight.pop(reference), *ray.get(reference)


def check_complete(study: StudyPlan, out: Path) -> None:
    """Raises InputError if trials are missing or a file is damaged: an incomplete sweep is not analysed."""
    missing = _trials_in(pending_batches(study, committed_batches(out, study)))
    if missing:
        raise InputError(str(out), "trials", f"{missing} missing", "a complete sweep; run `isray study sweep` again")
