"""Runs a study of a script: its trials on Ray, and the analysis by Spark, as `isray study` does."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from experiments.studies.failures.words import remarks
from experiments.studies.pipeline.analysis import analyze
from experiments.studies.scripting.results import Results, Trials
from experiments.studies.scripting.study import Study
from experiments.studies.sweeps import sweep as sweeping
from experiments.support.progress import SILENT, Progress
from experiments.support.progress import progress as shown_progress

Out = Path | str | None


def sweep(study: Study, *, out: Out = None, address: str | None = None, progress: bool = False) -> Trials:
    """Runs the missing trials of the study; returns what they recorded. Spark is not needed.

    `out`: the output directory, or a URL such as `s3://bucket/name`; trials that it holds are not run again. None: a
    temporary folder, which lasts as long as the result. `address`: a Ray cluster; None: the one that this process is
    connected to, or `RAY_ADDRESS`, or a private one that ends with the call. With a cluster of several machines `out`
    must be reachable from all. `progress`: shown on standard error. Call from the main thread.

    Raises InputError for wrong arguments, FunctionFailed (a TrialFailed) with one line if a function of the script
    raises or returns what it must not, TrialFailed if a trial fails, StorageFailed, WorkersLost.
    """
    temporary = tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) if out is None else None
    place = Path(temporary.name) if temporary is not None else out
    assert place is not None
    plan = study.plan()
    with _progress(progress) as shown:
        for line in remarks(cell.parameters for cell in plan.cells):
            shown.note(line)
        sweeping.sweep(plan, place, study.trial(), address, shown)
    return Trials(plan, place, temporary)


def run(study: Study, *, out: Out = None, address: str | None = None, progress: bool = False) -> Results:
    """Runs the study, or what is missing of it in `out`, and analyses it with Spark in a process of its own.

    Arguments and errors are those of :func:`sweep`; also PipelineFailed, and InputError where no Java is found.
    """
    trials = sweep(study, out=out, address=address, progress=progress)
    with _progress(progress) as shown:
        analyze(trials.out, shown)
    return Results(trials)


def _progress(wanted: bool) -> AbstractContextManager[Progress]:
    return shown_progress("isray study") if wanted else nullcontext(SILENT)
