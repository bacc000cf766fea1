"""`isray study analyze`: checks the traces, then runs the Spark pipeline in a process of its own.

Spark starts after Ray has ended, since two cores cannot feed both, and in another process, which ends with this command
and keeps its JVM, settings and output apart. The process reports its stages on standard output (`pipeline/stages.py`);
its standard error goes to a log, the end of which is shown if it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from experiments.engines.ray.session import orderly_signals
from experiments.studies.design.functions import metrics_of
from experiments.studies.estimation.estimates import CellEstimates, read_cells
from experiments.studies.pipeline.java import java_home
from experiments.studies.pipeline.stages import stage_of
from experiments.studies.sweeps.output import exclusive, read_record
from experiments.studies.sweeps.storage import Folder
from experiments.studies.sweeps.sweep import check_complete
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.progress import SILENT, Progress

EXIT_S = 60
SHOWN_LINES = 100


class PipelineFailed(RuntimeError):
    """The Spark process failed; the message ends with the last lines of its output."""


def analyze(out: Path, progress: Progress = SILENT) -> list[CellEstimates]:
    """Writes `silver/` and `gold/` of the study in `out`; returns the numbers of its cells.

    Raises InputError if `out` holds no complete sweep, a damaged file, or there is no Java; PipelineFailed if Spark
    fails.
    """
    record = read_record(out)
    with exclusive(Folder(out)):
        progress.show("checking the batches")
        check_complete(record, out)
        progress.show("starting Spark")
        _run_pipeline(out.resolve(), java_home(), progress)
    return read_cells(out, record.study.cells, metrics_of(record.study.functions))


def _run_pipeline(out: Path, java: Path, progress: Progress) -> None:
    paths = [str(PACKAGES_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "experiments.studies.pipeline", str(out), str(java)]
    with orderly_signals(), tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, errors="replace"
            )
            assert process.stdout is not None
            try:
                with process.stdout as lines:
                    show_stages(lines, progress, stream)
                process.wait()
            finally:
                _end(process)
        if process.returncode:
            shown = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
            raise PipelineFailed("the Spark process failed:\n" + "\n".join(shown))


def show_stages(lines: Iterable[str], progress: Progress, log: TextIO) -> None:
    """Shows the stages among the lines that the Spark process writes, and logs the other lines."""
    for line in lines:
        stage = stage_of(line)
        if stage is None:
            log.write(line)
        else:
            progress.show(stage)


def _end(process: subprocess.Popen[str]) -> None:
    """Terminates the process if it runs, and kills it if it does not end within `EXIT_S`."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
