"""Why the Spark process failed: one line, by what is in its log.

Spark's own messages are Java exceptions of a hundred lines. `reason` knows the failures that a user can do something
about: what was named does not exist or is too small (an InputError, as for other wrong input), or a disk or the memory
is full. Of any other failure the exception comes first, and then the end of the log.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.studies.pipeline.options import SparkOptions
from experiments.support.declared import declared
from experiments.support.errors import InputError

SHOWN_LINES = 100
_EXCEPTION = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): .+|^\w+Error: .+")
KEPT = "what was there before is kept, and the same command goes on"


class _Input(NamedTuple):
    """A pattern of a log, and the InputError that it means."""

    pattern: str
    source: str
    found: str
    allowed: str


@dataclass(frozen=True, slots=True)
class _Known:
    """The content of `failures.yaml`. `masters`: what is allowed as a master."""

    masters: str
    inputs: list[_Input]


_KNOWN = declared(_Known, __file__, "failures.yaml")
MASTERS = _KNOWN.masters


class PipelineFailed(RuntimeError):
    """The Spark process failed; one line where the reason is known, otherwise the last lines of its output."""


def reason(log: Sequence[str], out: str, spark: SparkOptions) -> InputError | PipelineFailed:
    """The error that a failed process means, by the lines of its log. `out`: the study's directory or URL."""
    text = "\n".join(log)
    if re.search(r"No space left on device|Disk quota exceeded|File too large", text):
        return PipelineFailed(f"{_disks(out, spark)}; {KEPT} when there is room")
    if "java.lang.OutOfMemoryError" in text:
        name = "spark.driver.memory" if spark.is_local else "spark.executor.memory"
        memory = f"{name}={spark.settings.get(name, '1g')}"
        return PipelineFailed(f"Spark had too little memory, {memory}; {KEPT} with more (--spark-conf {name}=...)")
    for pattern, source, found, allowed in _KNOWN.inputs:
        if match := re.search(pattern, text):
            groups = [group for group in match.groups() if group]
            return InputError(source, "", found.format(*groups, master=spark.master, out=out), allowed)
    lines = ["no output", *(line.removeprefix("Caused by: ").removeprefix(": ") for line in log)]
    exception = next(filter(_EXCEPTION.match, reversed(lines)), lines[-1])
    return PipelineFailed(f"the Spark process failed: {exception}\n" + "\n".join(log[-SHOWN_LINES:]))


def _disks(out: str, spark: SparkOptions) -> str:
    """What may be full: the disks that the analysis writes to, with their free space."""
    temporary = tempfile.gettempdir()
    places = [out] if Path(out).exists() else []
    if not places or os.stat(out).st_dev != os.stat(temporary).st_dev:
        places.append(temporary)
    free = [f"{place} ({shutil.disk_usage(place).free / 1e6:,.1f} MB free now)" for place in places]
    free += [] if spark.is_local else ["a worker's spark.local.dir"]
    return f"a disk is full, that of {' or of '.join(free)}"
