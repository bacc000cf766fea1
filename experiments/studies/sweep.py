"""The sweep: every cell's trials, spread over Ray tasks, each batch committed to disk as it ends.

Rounds. A study with `trials: N` is one round of N trials per cell. A study with `precision:` grows in rounds (64
trials, then half as many again each time) and a cell stops at the first round whose trials meet the precision; the
decision looks at the first trials by number and at nothing else, so that neither the number of workers nor an
interruption changes it.

A batch is large enough to last seconds (a Ray task costs milliseconds) and there are at least eight per cell and
round, so that the progress bar moves and an interruption costs little. Batches on disk are not run again; a gap is
filled wherever it lies. The driver alone writes, so workers on other machines need no shared disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.engines.ray.session import ray_session
from experiments.studies.batch import Batch, Trial, run_batch
from experiments.studies.model import Precision, Study
from experiments.studies.output import claim, committed_batches, exclusive, note_run, sweep_leftovers, write_batch
from experiments.studies.statistics import Moments, rate
from experiments.support.errors import InputError

FIRST_ROUND_TRIALS = 64
LARGEST_BATCH_TRIALS = 250
BATCHES_PER_ROUND = 8
TASKS_IN_FLIGHT_PER_CPU = 2

_COUNTED_BY = {
    "loss_rate": "losses",
    "lost_records_per_year": "lost_records",
    "unclean_recoveries_per_year": "unclean_recoveries",
    "high_watermark_regressions_per_year": "hw_regressions",
}


def rounds(max_trials: int) -> Iterator[int]:
    """The numbers of trials at which a sequential study stops to look: 64, 96, 144, ... up to `max_trials`."""
    target = min(FIRST_ROUND_TRIALS, max_trials)
    while target < max_trials:
        yield target
        target = min(max_trials, target + (target + 1) // 2)
    yield max_trials


def is_precise(precision: Precision, counts: list[int], partition_years: float) -> bool:
    """Whether these trials' counts meet the precision asked for. Nothing seen is never precise."""
    estimate = rate(Moments.of(counts), len(counts) * partition_years)
    return estimate.estimate > 0.0 and estimate.half_width <= precision.relative_error * estimate.estimate


def wanted_trials(study: Study, cell: int, counts: list[int]) -> int:
    """How many trials the cell should have, judged by the counts of its first trials (in order of their numbers)."""
    if study.precision is None:
        return study.max_trials
    years = study.cells[cell].parameters.partition_years
    for target in rounds(study.max_trials):
        if len(counts) < target or is_precise(study.precision, counts[:target], years):
            return target
    return study.max_trials


def leading_counts(study: Study, cell: int, batches: Mapping[Batch, pa.Table]) -> list[int]:
    """What the stopping rule looks at: the counts of the cell's trials 0, 1, ... up to the first that is missing."""
    column = _COUNTED_BY[study.precision.metric if study.precision else "loss_rate"]
    counts: list[int] = []
    for batch, trials in sorted(batches.items(), key=lambda item: item[0]):
        if batch.cell == cell and batch.first == len(counts):
            counts.extend(trials[column].to_pylist())
    return counts


def pending_batches(study: Study, batches: Mapping[Batch, pa.Table]) -> list[Batch]:
    """The batches still to run in this round, the cells in turn. Empty when the sweep is complete."""
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


def sweep(study: Study, out: Path, trial: Trial, address: str | None = None, quiet: bool = False) -> int:
    """Runs what is missing of the study into `out`; answers how many trials it ran.

    `trial` must be importable by name on the workers. `address`: a Ray cluster (see `ray_session.py`). Raises
    InputError if `out` holds something else or damaged files, TrialFailed (as Ray's task error) if a trial fails.
    """
    with exclusive(out):
        claim(out, study)
        sweep_leftovers(out)
        batches = committed_batches(out, study)
        pending = pending_batches(study, batches)
        if not pending:
            return 0
        note_run(out)
        ran = 0
        with ray_session(address), _progress(quiet) as progress:
            task = progress.add_task(study.name, total=None)
            while pending:
                done = sum(batch.stop - batch.first for batch in batches)
                todo = sum(batch.stop - batch.first for batch in pending)
                progress.update(task, completed=done, total=done + todo)
                for batch, trace, trials in _run_on_ray(study, pending, trial):
                    write_batch(out, batch, trace, trials)
                    batches[batch] = trials
                    ran += batch.stop - batch.first
                    progress.advance(task, batch.stop - batch.first)
                pending = pending_batches(study, batches)
        return ran


def _run_on_ray(study: Study, pending: list[Batch], trial: Trial) -> Iterator[tuple[Batch, pa.Table, pa.Table]]:
    """Runs the batches as tasks of one CPU each, a bounded number at a time; yields each as it ends."""
    import ray

    remote: Any = ray.remote(num_cpus=1)(run_batch)
    limit = max(1, int(ray.cluster_resources().get("CPU", 1))) * TASKS_IN_FLIGHT_PER_CPU
    waiting, flying = iter(pending), {}
    for batch in itertools.islice(waiting, limit):
        flying[remote.remote(trial, study.cells[batch.cell].parameters, batch, study.seed)] = batch
    while flying:
        ready, _ = ray.wait(list(flying), num_returns=1)
        for reference in ready:
            batch = flying.pop(reference)
            trace, trials = ray.get(reference)
            yield batch, trace, trials
        for batch in itertools.islice(waiting, limit - len(flying)):
            flying[remote.remote(trial, study.cells[batch.cell].parameters, batch, study.seed)] = batch


def _progress(quiet: bool) -> AbstractContextManager[Progress]:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("trials"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )


def check_complete(study: Study, out: Path) -> None:
    """Raises InputError if trials are missing or a file is damaged: an incomplete sweep is not analysed."""
    missing = pending_batches(study, committed_batches(out, study))
    if missing:
        trials = sum(batch.stop - batch.first for batch in missing)
        raise InputError(str(out), "trials", f"{trials} missing", "a complete sweep; run `isray study sweep` again")
