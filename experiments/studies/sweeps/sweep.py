"""The sweep: every cell's trials, spread over Ray tasks, each batch written and committed by the worker that ran it.

The driver keeps, per cell, which parts are complete (`schedule.py`), submits a bounded number of tasks, and receives a
few numbers per batch: its memory does not grow with the number of trials, except for three numbers per trial in a cell
with `precision`.

A cell of a study with `trials: N` needs N trials. A cell of a study with `precision:` grows in rounds until its trials
meet the precision (`estimation/stopping.py`). The decision depends on the first trials by number only, so that neither
the number of workers nor the sizes of batches nor an interruption changes it.

A task whose worker or node died is retried elsewhere. A trial that raises, storage that refuses a write, a task that
lost its worker too often, or the loss of the whole cluster ends the sweep; what is committed is kept, and the same
command resumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from experiments.engines.ray.session import is_named, ray_session
from experiments.studies.design.estimator import choose, fallbacks
from experiments.studies.design.study import Cell, StudyPlan
from experiments.studies.estimation.controlled import Controls
from experiments.studies.estimation.intervals import assumed_sizes
from experiments.studies.estimation.stopping import LeadingTrials, wanted_trials
from experiments.studies.sweeps.batches import committed, disjoint, read_trials, remove_leftovers
from experiments.studies.sweeps.identity import cell_digests, trial_code_digest
from experiments.studies.sweeps.local import record, run_here
from experiments.studies.sweeps.nodes import LOOK_S, Nodes, WorkersLost, cluster_cpus
from experiments.studies.sweeps.output import StudyRecord, claim, current_versions, exclusive, record_versions
from experiments.studies.sweeps.remaining import remaining
from experiments.studies.sweeps.schedule import FIRST_BATCH_TRIALS, CellWork, Schedule, Values
from experiments.studies.sweeps.storage import Folder, Location, StorageFailed, Store, store_at
from experiments.studies.sweeps.worker import COLUMNS, Job, Summary, run_and_commit, values_of
from experiments.studies.trace.metrics import BY_NAME
from experiments.studies.trials.batch import Batch, FunctionFailed, Trial, TrialFailed
from experiments.support.errors import InputError
from experiments.support.progress import SILENT, Progress

if TYPE_CHECKING:
    import ray

Reference: TypeAlias = "ray.ObjectRef[Summary | FunctionFailed]"
"""The task of a batch."""

MAX_RETRIES = 8
"""How often a batch is run again because its worker or its node died."""
READERS = 16


def trials_needed(study: StudyPlan, cell: Cell, values: Values) -> int:
    """How many trials the cell needs, by the values of its first trials in order of their numbers."""
    if study.precision is None:
        return study.max_trials
    value, exposure, events, *controls = values.reshape(-1, COLUMNS).T
    size = assumed_sizes(cell.parameters)[BY_NAME[study.precision.metric].column]
    choice = choose(cell.parameters, study.functions is not None)
    found = Controls(*controls) if choice.estimator == "multifidelity" else None
    return wanted_trials(study.precision, LeadingTrials(value, exposure, events, size, choice.is_weighted, found))


def sweep(
    study: StudyPlan,
    out: Location,
    trial: Trial,
    address: str | None = None,
    progress: Progress = SILENT,
    when_little: Callable[[], object] = lambda: None,
) -> int:
    """Runs the missing trials of the study into `out`, a folder or an fsspec URL; returns how many it ran.

    `trial` must be importable by name on the workers. `address`: a Ray cluster (None: `RAY_ADDRESS`, or a private one
    if one core would take long). `when_little`: called when the sweep is about to end within seconds (`local.py`).
    Raises InputError if `out` cannot be written, holds something else or damaged files, TrialFailed (as Ray's task
    error) for a failing trial, StorageFailed if a worker cannot write, WorkersLost.
    """
    for line in fallbacks(study):
        progress.note(line)
    progress.show("reading the batches in the output directory")
    store = store_at(out)
    with exclusive(store):
        code = trial_code_digest(trial)
        cells = cell_digests(study, code)
        try:
            claim(store, study, cells)
            remove_leftovers(store)
            unused = sum(batch.stop - batch.first for batch in committed(store) if batch.cell not in cells)
            if unused:
                cause = "are of cells, a seed or code that this study does not have"
                progress.note(f"{unused} trials in the output directory {cause}; they are kept and not used")
            _, schedule = needed_batches(StudyRecord(study, [], cells), store)
            if schedule.finished:
                return 0
            content = record_versions(store, current_versions(code))
        except StorageFailed as error:
            allowed = "a folder or URL that can be read and written"
            raise InputError("--out", "", str(error), allowed) from error
        job = job_of(study, store, trial, content)
        before = schedule.trials
        if not is_named(address):
            _show(study, schedule, progress)
            for _ in run_here(study, cells, schedule, job, when_little):
                _show(study, schedule, progress)
        if not schedule.finished:
            progress.show("starting Ray")
            with ray_session(address):
                workers = cluster_cpus()
                _show(study, schedule, progress, workers)
                for _ in run_batches(study, cells, schedule, job, progress):
                    _show(study, schedule, progress, workers)
        return schedule.trials - before


def _show(study: StudyPlan, schedule: Schedule, progress: Progress, workers: int = 1) -> None:
    """Shows how far the sweep is, what is left of it, and the cell that needs most of that."""
    cells = [(cell.name, work.trials, work.target) for cell, work in zip(study.cells, schedule.cells, strict=True)]
    left = remaining(cells, schedule.left_s(), workers)
    progress.show("sweep", schedule.trials, schedule.target, left.slowest, left.left_s)


def job_of(study: StudyPlan, store: Store, trial: Trial, record: bytes) -> Job:
    """What workers need; `record`: the content of `study.yaml`. A folder goes to them by its absolute path."""
    if isinstance(store, Folder):
        store = Folder(store.root.absolute())
    digest = hashlib.sha256(record).hexdigest()
    return Job(store, trial, study.seed, study.pairing, digest, _column(study))


def _stored_values(store: Store, batches: Sequence[Batch], column: str | None) -> list[tuple[int, Values]]:
    """The stopping rule's values of committed batches, each with its first trial."""
    if column is None:
        return []
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(lambda batch: values_of(read_trials(store, batch), column), batches)
        return [(batch.first, values) for batch, values in zip(batches, found, strict=True)]


def _column(study: StudyPlan) -> str | None:
    return None if study.precision is None else BY_NAME[study.precision.metric].column


@dataclass(frozen=True, slots=True)
class Tasks:
    """How trials become Ray tasks: reserved CPUs, submitted tasks per CPU, and trials of a cell's first batches."""

    cpus: float
    in_flight_per_cpu: float
    first_batch: int


TASKS: Mapping[str, Tasks] = {"sim": Tasks(1.0, 2.0, FIRST_BATCH_TRIALS), "ray": Tasks(0.9, 1.0, 1)}
"""A task of a trial on processes leaves a share of its CPU to the actors of its cluster, which reserve a thousandth
each. Ray lends the CPU of a task that waits for actors to the next task; so no more clusters are submitted than may
run."""


def task_name(study: StudyPlan, cell: Cell, batch: Batch) -> str:
    """How Ray's dashboard and `ray list tasks` name the task of a batch."""
    swept = f" ({cell.name})" if cell.name else ""
    return f"{study.name} seed {study.seed} cell {cell.index}{swept} trials {batch.first} to {batch.stop - 1}"


def run_batches(
    study: StudyPlan, cells: Sequence[str], schedule: Schedule, job: Job, progress: Progress = SILENT
) -> Iterator[tuple[int, Batch, Summary]]:
    """Runs what is scheduled, on the Ray that this process is connected to: the cells of one engine after those of the
    other, since processes are measured in real time. Yields each batch when it is complete, after the index of its
    cell. `progress` receives a line for each node that is lost."""
    import ray

    shared, nodes = ray.put(job), Nodes(progress)
    for engine, tasks in TASKS.items():
        among = {cell.index for cell in study.cells if cell.parameters.engine == engine}
        remote = ray.remote(num_cpus=tasks.cpus, max_retries=MAX_RETRIES)(run_and_commit)
        in_flight: dict[Reference, tuple[int, Batch]] = {}
        while True:
            limit = max(1.0, nodes.cpus() * tasks.in_flight_per_cpu)
            while len(in_flight) < limit and (part := schedule.take(nodes.cpus(), among)):
                index, batch = part[0], Batch(cells[part[0]], *part[1:])
                named = remote.options(name=task_name(study, study.cells[index], batch))
                in_flight[named.remote(shared, study.cells[index].parameters, batch)] = index, batch
            if not in_flight:
                break
            while not ray.wait([*in_flight], num_returns=1, timeout=LOOK_S)[0]:
                nodes.look()
            for reference in ray.wait([*in_flight], num_returns=len(in_flight), timeout=0)[0]:
                index, batch = in_flight.pop(reference)
                summary = _summary(reference, batch)
                record(schedule, index, batch, summary)
                yield index, batch, summary
    nodes.count()


def _summary(reference: Reference, batch: Batch) -> Summary:
    import ray

    try:
        found: Summary | FunctionFailed = ray.get(reference)
    except TrialFailed:
        raise
    except StorageFailed as error:
        raise StorageFailed(str(getattr(error, "cause", error))) from error
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkersLost(f"trials {batch.first} to {batch.stop - 1} of cell {batch.cell}: {lines[0]}") from error
    if isinstance(found, FunctionFailed):
        raise found
    return found


def needed_batches(record: StudyRecord, store: Store) -> tuple[list[Batch], Schedule]:
    """The committed batches of a study's cells, each trial once, and what remains to be run; the target of a cell is
    the number of trials that its numbers rest on, also where more are stored. Reads the batches only if the study has a
    stopping rule. Raises InputError for a damaged file, StorageFailed."""
    study, column = record.study, _column(record.study)
    batches = list(disjoint(committed(store), set(record.cells)))
    parts = {digest: list(group) for digest, group in groupby(batches, attrgetter("cell"))}
    works = []
    for cell, digest in zip(study.cells, record.cells, strict=True):
        done = parts.get(digest, [])
        first_batch = TASKS[cell.parameters.engine].first_batch
        work = CellWork(partial(trials_needed, study, cell), column is not None, first_batch)
        work.begin([(batch.first, batch.stop) for batch in done], _stored_values(store, done, column))
        works.append(work)
    return batches, Schedule(works)


def complete_batches(record: StudyRecord, out: Location, *, partial: bool = False) -> tuple[list[Batch], list[int]]:
    """The batches of a sweep, each trial once, and the trials that each cell needs. Contents are not checked. Raises
    InputError if trials are missing, with `partial` only if a cell has none; StorageFailed."""
    store = store_at(out)
    batches, schedule = needed_batches(record, store)
    missing = schedule.target - schedule.trials
    for cell, work in zip(record.study.cells, schedule.cells, strict=True):
        if partial and not work.trials:
            allowed = "at least one complete trial in each cell; run `isray study sweep` again"
            raise InputError(store.place(), f"cell {cell.index} ({cell.name})", "no complete trial", allowed)
    if missing and not partial:
        allowed = "a complete sweep; run `isray study sweep` again"
        raise InputError(store.place(), "trials", f"{missing} missing", allowed)
    return batches, [work.target for work in schedule.cells]
