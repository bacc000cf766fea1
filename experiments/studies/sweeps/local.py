"""Trials of a sweep in this process: the first ones, and all of a sweep that one core completes in seconds.

A private Ray takes some seconds to start and to end, and its workers as long again to import the simulator. So a sweep
begins here, and goes to Ray when its first trials show that it would take one core longer than `LITTLE_S`. The decision
is about time alone: a trial has the same rows wherever it runs.

A cluster that the user names (an address, `RAY_ADDRESS`, a Ray job, a connected script) runs everything, and so does
Ray where trials need it: those on processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout

from experiments.engines.ray.session import is_named
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.schedule import Schedule
from experiments.studies.sweeps.worker import Job, Summary, run_and_commit
from experiments.studies.trace.schema import YEAR_MS
from experiments.studies.trials.batch import Batch, FunctionFailed
from experiments.support.processes import orderly_signals

LITTLE_S = 10.0
"""A sweep that takes one core no longer stays in this process."""
TRY_S = 1.5
"""The first trials of a process are slower than the others, so that no sweep goes to Ray earlier than this."""
PROMISING_YEARS = 20.0
"""Partition-years of trials that are simulated, at about 0.3 s each for a partition with failures every day."""


def is_promising(study: StudyPlan, address: str | None = None) -> bool:
    """Whether a sweep is so small, by the virtual time of its trials, that it is little before any has run: it takes
    one core 10 s where failures come daily, and less where they are rarer. `address`: as `sweep` has it."""
    parameters = [cell.parameters for cell in study.cells]
    years = sum(study.max_trials * len(each.counts) * each.duration_ms / YEAR_MS for each in parameters)
    return not is_named(address) and all(each.engine == "sim" for each in parameters) and years <= PROMISING_YEARS


def is_little(elapsed_s: float, left_s: Sequence[float | None]) -> bool:
    """Whether a sweep that has run in this process for some time stays in it. `left_s`: what is left of each cell
    (`Schedule.left_s`)."""
    return elapsed_s + sum(left or 0.0 for left in left_s) <= LITTLE_S


def record(schedule: Schedule, index: int, batch: Batch, summary: Summary) -> None:
    """The schedule learns that a batch of the cell is complete, and what it cost."""
    work = schedule.cells[index]
    work.cost.add(batch.stop - batch.first, summary.run_s + summary.commit_s, summary.rows)
    work.complete(batch.first, batch.stop, summary.values)


def run_here(
    study: StudyPlan,
    cells: Sequence[str],
    schedule: Schedule,
    job: Job,
    when_little: Callable[[], object],
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[int, Batch, Summary]]:
    """Runs the trials of the simulator's cells until all are complete or Ray is worth its start; yields each batch as
    `run_batches` does. `when_little` is called once, as soon as trials show that the sweep is little. What trials print
    goes to standard error. Raises TrialFailed, StorageFailed."""
    among = {cell.index for cell in study.cells if cell.parameters.engine == "sim"}
    began_s, was_little = now_s(), False
    with orderly_signals():
        while part := schedule.take(1, among):
            index, batch = part[0], Batch(cells[part[0]], *part[1:])
            with redirect_stdout(sys.stderr):
                summary = run_and_commit(job, study.cells[index].parameters, batch)
            if isinstance(summary, FunctionFailed):
                raise summary
            record(schedule, index, batch, summary)
            yield index, batch, summary
            elapsed_s = now_s() - began_s
            little = len(among) == len(study.cells) and is_little(elapsed_s, schedule.left_s())
            if little and not was_little:
                was_little = True
                when_little()
            if not little and elapsed_s > TRY_S:
                return
