"""What a Ray worker does: it runs one batch, writes its Parquet, commits it, and returns a few numbers.

Running a batch twice writes the same content under the same names, so a task whose worker died can be retried wherever
it stopped; so can one whose first worker goes on, unknown to Ray.

A folder must be the same one on every node. The driver sends the digest of `study.yaml`; a worker that does not find
that file in the folder, once per process, refuses to write.
"""

from __future__ import annotations

import hashlib
import platform
import time
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from experiments.studies.design.model import CellParameters
from experiments.studies.sweeps.batches import commit
from experiments.studies.sweeps.output import RECORD
from experiments.studies.sweeps.schedule import Values
from experiments.studies.sweeps.storage import StorageFailed, Store
from experiments.studies.trace.kinds import CONTROLLED
from experiments.studies.trials.batch import Batch, FunctionFailed, Trial, run_batch


@dataclass(frozen=True, slots=True)
class Job:
    """What all batches of a sweep share. `record_digest`: of `study.yaml`, in hexadecimal digits. `column`: the column
    of `trials/` whose values the stopping rule needs, None without one."""

    store: Store
    trial: Trial
    study_seed: int
    pairing: bool
    record_digest: str
    column: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the driver learns of a batch. `run_s`, `commit_s`: the time of its trials and of writing; `size`: bytes
    written; `values`: a row per trial in the order of their numbers, if the job asks for them."""

    events: int
    rows: int
    size: int
    run_s: float
    commit_s: float
    values: Values | None


def run_and_commit(job: Job, parameters: CellParameters, batch: Batch) -> Summary | FunctionFailed:
    """Runs the trials of `batch` and commits them. A mistake in a function of the script is returned, not raised: Ray
    would print the traceback of each task that raises. Raises TrialFailed, StorageFailed."""
    _require_same_folder(job.store, job.record_digest)
    began_s = time.perf_counter()
    try:
        trace, trials = run_batch(job.trial, parameters, batch, job.study_seed, job.pairing)
    except FunctionFailed as error:
        return error
    ran_s = time.perf_counter()
    size = commit(job.store, batch, trace, trials)
    commit_s = time.perf_counter() - ran_s
    values = None if job.column is None else values_of(trials, job.column)
    events = sum(trials["events"].to_pylist())
    return Summary(events, trace.num_rows, size, ran_s - began_s, commit_s, values)


def values_of(trials: pa.Table, column: str) -> Values:
    """What a table of trials holds for the stopping rule: a row per trial in the order of their numbers, with the value
    in `column`, the exposure, the number of events, and the columns of `controlled.Controls`."""
    names = (column, "exposure", f"{column}_events", "controls", "control_exposure", "control_exposure_mean")
    found = [trials[name].to_numpy().astype(np.float64) for name in names]
    index = CONTROLLED.index(column) if column in CONTROLLED else -1
    for name in ("control", "control_mean"):
        each = (values[index] if values and index >= 0 else 0.0 for values in trials[name].to_pylist())
        found.append(np.fromiter(each, np.float64, len(trials)))
    return np.column_stack(found)


COLUMNS = 8
"""Numbers of a trial that the stopping rule needs."""


@lru_cache(maxsize=8)
def _require_same_folder(store: Store, record_digest: str) -> None:
    content = store.read(RECORD)
    if content is None or hashlib.sha256(content).hexdigest() != record_digest:
        raise StorageFailed(
            f"{store.place()}: node {platform.node()} does not see the driver's study.yaml there; --out must be a "
            "folder that all nodes of the Ray cluster share, or a URL such as s3://bucket/prefix"
        )
