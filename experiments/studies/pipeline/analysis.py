"""`isray study analyze`: finds the batches, then runs the Spark pipeline in a process of its own.

Spark runs in another process, which ends with this command and keeps its JVM, settings and output apart. It starts
after Ray has ended, since two cores cannot feed both; or beside a sweep that one core completes in seconds. Its reports
come on standard output (`options.py`); its standard error goes to a log, the end of which is shown if it fails. When it
has reported that all is written, the command goes on, and waits at its end for that of the process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

from experiments.studies.design.study import metrics_of
from experiments.studies.estimation.estimates import CellEstimates, read_cells
from experiments.studies.pipeline.failures import MASTERS, PipelineFailed, reason
from experiments.studies.pipeline.java import java_home
from experiments.studies.pipeline.options import LOCAL, SparkOptions, reported
from experiments.studies.sweeps.batches import trace_bytes
from experiments.studies.sweeps.output import StudyRecord, exclusive, read_record
from experiments.studies.sweeps.staging import local_copy
from experiments.studies.sweeps.storage import Folder, Location, store_at
from experiments.studies.sweeps.sweep import complete_batches
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError
from experiments.support.processes import orderly_signals
from experiments.support.progress import SILENT, Progress

SESSION = ("java_home", "master", "settings", "little")
"""What of the work decides on the session."""
EXIT_S = 60
CONNECT_S = 10.0
LITTLE_BYTES = 32 * 2**20
"""Traces that are smaller count as little data (`session.py`): some millions of rows."""


def analyze(
    out: Location, progress: Progress = SILENT, spark: SparkOptions = LOCAL, started: Beside | None = None
) -> list[CellEstimates]:
    """Writes `silver/` and `gold/` of the study in `out`; returns the numbers of its cells.

    A Spark on this machine works on a copy of an object store; one with a master of its own reads and writes there.
    `started`: what started beside the sweep. Of a sweep that was interrupted the complete trials are analysed. Raises
    InputError if `out` holds no sweep or no trial of a cell, there is no Java, or no master answers; PipelineFailed if
    Spark fails, or no trial of a cell can be read.
    """
    if started is None:
        with beside(spark) as begun:
            return analyze(out, progress, spark, begun)
    check_master(spark.master)
    with local_copy(out, progress) if spark.is_local else nullcontext(out) as place:
        record = read_record(place)
        with exclusive(store_at(place)):
            progress.show("finding the batches")
            work = work_of(record, place, spark)
            progress.show("starting Spark")
            run_pipeline(work, spark, progress, started)
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
    batches, targets = complete_batches(record, out, partial=True)
    store = store_at(out)
    little = False
    if isinstance(store, Folder):
        store = Folder(store.root.resolve())
        little = trace_bytes(store, batches) < LITTLE_BYTES
    work = {"out": store.place(), "batches": batches, "targets": targets}
    return session_of(spark, little=little) | work


def session_of(spark: SparkOptions, *, little: bool) -> dict[str, object]:
    """The part of `work_of` that a Spark session needs. Raises InputError if there is no Java."""
    return {
        "java_home": str(java_home()),
        "master": spark.master,
        "settings": dict(spark.settings),
        "little": little,
    }


class SparkProcess:
    """A process with a Spark session, for one analysis. It reads what it is to do from standard input, and ends with
    that."""

    def __init__(self, session: Mapping[str, object]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True)
        self.session, folder, self.is_done = session, Path(self._folder.name), False
        asked, self.log = folder / "session.json", folder / "log"
        asked.write_text(json.dumps(session), encoding="utf-8")
        paths = [str(PACKAGES_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "experiments.studies.pipeline", str(asked)],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                errors="replace",
            )

    def carry_out(self, work: Mapping[str, object], progress: Progress) -> str | None:
        """Has the process do its work, until all is written (`is_done`) or it has ended; returns why it refused, if it
        did."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as asked:  # its log says why it has ended
            asked.write(json.dumps(work) + "\n")
        refusal = self._show(progress)
        if not self.is_done:
            self.process.wait()
        return refusal

    def finish(self, progress: Progress) -> None:
        """Waits for the end of a process whose work is done."""
        self._show(progress)
        self.process.wait()

    def _show(self, progress: Progress) -> str | None:
        with self.log.open("a") as log:
            return show_output(self._reports(), progress, log)

    def _reports(self) -> Iterator[str]:
        """The lines of the process, up to the one that says that its work is done."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if reported(line)[0] == "done":
                self.is_done = True
                return
            yield line

    def end(self) -> None:
        """Terminates the process if it runs, and kills it if it does not end within `EXIT_S`."""
        self.process.terminate()
        try:
            self.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._folder.cleanup()


class Beside:
    """A Spark process that starts beside a little sweep, so that its analysis need not wait for the JVM; and which ends
    beside what the command does with the numbers. Only a Spark on this machine starts early: a master's executors are
    not kept waiting."""

    def __init__(self, spark: SparkOptions) -> None:
        self._spark, self._thread = spark, ThreadPoolExecutor(1)
        self._coming: Future[SparkProcess] | None = None
        self._done: tuple[SparkProcess, Progress] | None = None

    def begin(self) -> None:
        """Starts the process, unless it has been started. Without a Java there is none; the analysis gives the
        reason."""
        if self._spark.is_local and self._coming is None:
            self._coming = self._thread.submit(lambda: SparkProcess(session_of(self._spark, little=True)))

    def take(self, session: Mapping[str, object]) -> SparkProcess:
        """The process if it has such a session, otherwise one that starts now."""
        found = self._begun()
        if found is not None and found.session == session:
            return found
        if found is not None:
            found.end()
        return SparkProcess(session)

    def leave(self, process: SparkProcess, progress: Progress) -> None:
        """Has the end of the block wait for the process, whose work is done."""
        self._done = process, progress

    def end(self) -> None:
        """Ends a process that was not taken, and waits for the one that was. It may write an archive of classes: an
        interrupt ends that, and is no failure."""
        process, done = self._begun(), self._done
        self._thread.shutdown()
        if process is not None:
            process.end()
        if done is not None:
            try:
                done[0].finish(done[1])
            except KeyboardInterrupt:
                done[1].note("interrupted; all results are written")
            finally:
                done[0].end()

    def _begun(self) -> SparkProcess | None:
        coming, self._coming = self._coming, None
        with suppress(InputError):
            return None if coming is None else coming.result()
        return None


@contextmanager
def beside(spark: SparkOptions) -> Iterator[Beside]:
    """For a sweep, its analysis, and what is done with the numbers, within the block."""
    found = Beside(spark)
    with orderly_signals():
        try:
            yield found
        finally:
            found.end()


def run_pipeline(work: Mapping[str, object], spark: SparkOptions, progress: Progress, started: Beside) -> None:
    """Runs the Spark pipeline in a process of its own. Raises PipelineFailed if it refuses its input or fails."""
    with orderly_signals():
        running = started.take({name: work[name] for name in SESSION})
        try:
            refusal = running.carry_out(work, progress)
            shown = running.log.read_text(encoding="utf-8", errors="replace").splitlines()
        finally:
            if running.is_done:
                started.leave(running, progress)
            else:
                running.end()
    if running.process.returncode:
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
