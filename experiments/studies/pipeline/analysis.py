"""`isray study analyze`: finds the batches, then runs the Spark pipeline in a process of its own.

Spark starts after Ray has ended, since two cores cannot feed both, and in another process, which ends with this command
and keeps its JVM, settings and output apart. Its reports come on standard output (`options.py`); its standard error
goes to a log, the end of which is shown if it fails.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

from experiments.engines.ray.session import orderly_signals
from experiments.studies.design.study import metrics_of
from experiments.studies.estimation.estimates import CellEstimates, read_cells
from experiments.studies.pipeline.failures import MASTERS, PipelineFailed, reason
from experiments.studies.pipeline.java import java_home
from experiments.studies.pipeline.options import LOCAL, SparkOptions, reported
from experiments.studies.sweeps.batches import file_names
from experiments.studies.sweeps.output import StudyRecord, exclusive, read_record
from experiments.studies.sweeps.staging import local_copy
from experiments.studies.sweeps.storage import Folder, Location, store_at
from experiments.studies.sweeps.sweep import complete_batches
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError
from experiments.support.progress import SILENT, Progress

EXIT_S = 60
CONNECT_S = 10.0
LITTLE_BYTES = 32 * 2**20
"""Traces that are smaller count as little data (`session.py`): some millions of rows."""


def analyze(out: Location, progress: Progress = SILENT, spark: SparkOptions = LOCAL) -> list[CellEstimates]:
    """Writes `silver/` and `gold/` of the study in `out`; returns the numbers of its cells.

    A Spark on this machine works on a copy of an object store; one with a master of its own reads and writes there.
    Raises InputError if `out` holds no complete sweep, there is no Java, or no master answers; PipelineFailed if Spark
    fails, or no trial of a cell can be read.
    """
    check_master(spark.master)
    with local_copy(out, progress) if spark.is_local else nullcontext(out) as place:
        record = read_record(place)
        with exclusive(store_at(place)):
            progress.show("finding the batches")
            work = work_of(record, place, spark)
            progress.show("starting Spark")
            run_pipeline(work, spark, progress)
        with local_copy(place, traces=False) as folder:
            return read_cells(folder, record.study.cells, metrics_of(record.study))


def check_master(master: str) -> None:
    """Raises InputError unless a standalone master (`spark://HOST:PORT,...`) accepts connections; Spark itself would
    try for a minute. Masters of other kinds are Spark's to check."""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), CONNECT_S):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{address} ({error})")
    raise InputError("--spark-master", "", f"no answer from {', '.join(reasons)}", MASTERS)


def work_of(record: StudyRecord, out: Location, spark: SparkOptions) -> dict[str, object]:
    """What the Spark process is to do: the directory or URL `out`, Java, Spark's master and settings, whether there is
    little data, the batches, and the trials that each cell needs."""
    batches, targets = complete_batches(record, out)
    store = store_at(out)
    little = False
    if isinstance(store, Folder):
        out = store.root.resolve()
        traces = (out / file_names(batch)[0] for batch in batches)
        little = sum(path.stat().st_size for path in traces if path.exists()) < LITTLE_BYTES
    return {
        "out": str(out),
        "java_home": str(java_home()),
        "master": spark.master,
        "settings": dict(spark.settings),
        "little": little,
        "batches": batches,
        "targets": targets,
    }


def run_pipeline(work: Mapping[str, object], spark: SparkOptions, progress: Progress) -> None:
    """Runs the Spark pipeline in a process of its own. Raises PipelineFailed if it refuses its input or fails."""
    paths = [str(PACKAGES_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with orderly_signals(), tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as folder:
        asked, log = Path(folder) / "work.json", Path(folder) / "log"
        asked.write_text(json.dumps(work), encoding="utf-8")
        command = [sys.executable, "-m", "experiments.studies.pipeline", str(asked)]
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stream, text=True, errors="replace"
            )
            assert process.stdout is not None
            try:
                with process.stdout as lines:
                    refusal = show_output(lines, progress, stream)
                process.wait()
            finally:
                _end(process)
        if process.returncode:
            shown = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise PipelineFailed(refusal) if refusal else reason(shown, str(work["out"]), spark)


def show_output(lines: Iterable[str], progress: Progress, log: TextIO) -> str | None:
    """Shows the process's stages and notes, logs its other lines; returns why it refused the input, if it did."""
    refusal = None
    for line in lines:
        kind, text = reported(line)
        if kind == "stage":
            progress.show(text)
        elif kind == "note":
            progress.note(text)
        else:
            refusal = text if kind == "refused" else refusal
            log.write(line)
    return refusal


def _end(process: subprocess.Popen[str]) -> None:
    """Terminates the process if it runs, and kills it if it does not end within `EXIT_S`."""
    process.terminate()
    try:
        process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
