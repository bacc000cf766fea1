"""Why the Spark process failed: one line, by what is in its log.

A JVM that ends leaves no more than its log, and Spark's own messages are Java exceptions of a hundred lines. `reason`
knows the failures that a user can do something about: what was named does not exist or is too small (an InputError, as
for other wrong input), or a disk or the memory is full. Of any other failure the exception comes first, and then the
end of the log.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.studies.pipeline.options import SparkOptions
from experiments.support.errors import InputError

SHOWN_LINES = 100
MEGABYTE = 1_000_000
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_NO_MEMORY = re.compile(r"java\.lang\.OutOfMemoryError")
_EXCEPTION = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): .+|^\w+Error: .+")
KEPT = "what was there before is kept, and the same command goes on"
MASTERS = "the URL of a Spark master that runs: spark://HOST:PORT, k8s://https://HOST:PORT, or local[N]"
_INPUTS: Mapping[str, tuple[str, str, str]] = {
    r"All masters are unresponsive|KubernetesClientException(?s:.*)(?:Connection refused|UnknownHost|[Tt]imed? ?out)": (
        "--spark-master",
        "no answer from {master}",
        MASTERS,
    ),
    r"Master must either be|Could not parse Master URL|HADOOP_CONF_DIR or YARN_CONF_DIR": (
        "--spark-master",
        "{master}",
        MASTERS,
    ),
    r"Invalid (?:initial|maximum) heap size: -Xm[sx](.*)": (
        "--spark-conf",
        "spark.driver.memory={0}",
        "a size such as 2g",
    ),
    r"\[INVALID_(?:DRIVER|EXECUTOR)_MEMORY\S* (.*)": ("--spark-conf", "{0}", "at least 512m"),
    r"Class org\.apache\.hadoop\.fs\.(\S+) not found|No FileSystem for scheme \"(\S+)\"": (
        "--spark-master",
        "{out}, for which Spark has no file system ({0})",
        "a Spark with it, for S3 by --spark-conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION; or no "
        "--spark-master, for an analysis of a copy on this machine",
    ),
    r"ModuleNotFoundError: No module named '(experiments|protocol|pyarrow)'": (
        "--spark-master",
        "executors whose Python has no module {0}",
        "isray installed on every worker, under the interpreter of --spark-conf spark.pyspark.python=PATH",
    ),
}
"""Patterns of a log, and the InputError that each means: source, found, allowed."""


class PipelineFailed(RuntimeError):
    """The Spark process failed; one line where the reason is known, otherwise the last lines of its output."""


def reason(log: Sequence[str], out: str, spark: SparkOptions) -> InputError | PipelineFailed:
    """The error that a failed process means, by the lines of its log. `out`: the study's directory or URL."""
    text = "\n".join(log)
    if _FULL.search(text):
        return PipelineFailed(f"{_disks(out, spark)}; {KEPT} when there is room")
    if _NO_MEMORY.search(text):
        name = "spark.driver.memory" if spark.is_local else "spark.executor.memory"
        found = spark.settings.get(name, "1g")
        return PipelineFailed(
            f"Spark had too little memory, {name}={found}; {KEPT} with more (--spark-conf {name}=...)"
        )
    for pattern, (source, found, allowed) in _INPUTS.items():
        if match := re.search(pattern, text):
            groups = [group for group in match.groups() if group]
            return InputError(source, "", found.format(*groups, master=spark.master, out=out), allowed)
    return PipelineFailed(f"the Spark process failed: {_exception(log)}\n" + "\n".join(log[-SHOWN_LINES:]))


def _exception(log: Sequence[str]) -> str:
    """The last exception of the log, or its last line."""
    lines = [line.removeprefix("Caused by: ").removeprefix(": ") for line in log]
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), lines[-1] if lines else "no output")


def _disks(out: str, spark: SparkOptions) -> str:
    """What may be full: the disks that the analysis writes to, with their free space."""
    temporary = tempfile.gettempdir()
    places = [out] if Path(out).exists() else []
    if not places or os.stat(out).st_dev != os.stat(temporary).st_dev:
        places.append(temporary)
    free = [f"{place} ({shutil.disk_usage(place).free / MEGABYTE:,.1f} MB free now)" for place in places]
    free += [] if spark.is_local else ["a worker's spark.local.dir"]
    return f"a disk is full, that of {' or of '.join(free)}"
