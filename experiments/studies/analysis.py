"""`isray study analyze`: checks the traces, then runs the Spark pipeline in a process of its own.

Spark starts when Ray is down (a small machine cannot feed both) and in another process, so that its JVM, its
settings and its output never mix with the command's. Whatever ends this command ends that process, and with it the JVM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.engines.ray.session import orderly_signals
from experiments.studies.output import exclusive, read_record
from experiments.studies.pipeline.java import java_home
from experiments.studies.sweep import check_complete
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError

EXIT_S = 60
SHOWN_LINES = 100


class PipelineFailed(RuntimeError):
    """The Spark process failed; the message ends with the last lines it wrote."""


def analyze(out: Path) -> list[dict[str, Any]]:
    """Writes `silver/` and `gold/` of the study in `out`; answers the cells of `gold/cells.json`.

    Raises InputError if `out` holds no complete sweep, a damaged file, or there is no Java; PipelineFailed if Spark
    fails.
    """
    study = read_record(out).study
    with exclusive(out):
        check_complete(study, out)
        _run_pipeline(out.resolve(), java_home())
    return read_cells(out)


def _run_pipeline(out: Path, java: Path) -> None:
    paths = [str(PACKAGES_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "experiments.studies.pipeline", str(out), str(java)]
    with orderly_signals(), tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream)
            try:
                process.wait()
            finally:
                _end(process)
        if process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
            raise PipelineFailed("the Spark process failed:\n" + "\n".join(lines))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leaves no process behind: asks it to end if it runs, and makes it if it does not listen."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_cells(out: Path) -> list[dict[str, Any]]:
    """The cells of `gold/cells.json`. Raises InputError if it is missing or damaged."""
    path = out / "gold" / "cells.json"
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(str(path), "", error.strerror, "a study that was analysed (`isray study analyze`)") from error
    except ValueError as error:
        raise InputError(str(path), "", "a damaged file", "what `isray study analyze` writes; run it again") from error
    if not isinstance(cells, list) or not cells:
        raise InputError(str(path), "", "no cells", "what `isray study analyze` writes; run it again")
    return cells
