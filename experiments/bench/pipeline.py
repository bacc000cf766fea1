"""`isray bench pipeline`: the pipeline from traces to gold on this machine, and DuckDB on the same files.

The studies are drawn without a simulator (`pipeline_data.py`). Times are of the processor, user and system, over all
processes of a run, as they do not depend on what else the machine does: of Spark from the end of its start on, which is
reported apart (`start`). DuckDB writes the same tables of silver and the same sums (`pipeline_duckdb.py`).

The kernel adds the time of a process to its parent only if the parent waits for it, and a JVM does not wait for Spark's
Python workers. So each process is sampled (Linux only, `/proc`), and the last sample of a process counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from experiments.bench.pipeline_data import write_study
from experiments.bench.process_usage import usage_of
from experiments.bench.report import BenchReport, growth
from experiments.studies.pipeline.analysis import work_of
from experiments.studies.pipeline.options import SparkOptions, reported
from experiments.studies.sweeps.output import read_record
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError

INSTALL = "DuckDB, which pip install 'isray[bench]' brings"
COLUMNS = (
    ("events", "{events:,.0f}"),
    ("events/s", "{events_per_s:,.0f}"),
    ("Spark", "{spark_cpu_s:.1f} s"),
    ("its start", "{start_cpu_s:.1f} s"),
    ("peak", "{spark_peak_mb:,.0f} MB"),
    ("spilled", "{spilled_mb:,.0f} MB"),
    ("DuckDB", "{duckdb_cpu_s:.1f} s"),
    ("peak", "{duckdb_peak_mb:,.0f} MB"),
    ("Spark / DuckDB", "{ratio:.2f}"),
)
"""Headings, and how each shows a row of the document."""


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process with its descendants: processor time, that of its start, elapsed time, and peak memory."""

    cpu_s: float
    start_s: float
    elapsed_s: float
    peak_mb: float


def run(events: Sequence[int] = (1_000_000, 10_000_000, 50_000_000), memory: str = "1g") -> BenchReport:
    """Measures studies of these sizes one after the other. `memory`: the heap of Spark's JVM, and what DuckDB may
    use. InputError where DuckDB is not installed."""
    if find_spec("duckdb") is None:
        raise InputError("isray bench pipeline", "", "no module duckdb", INSTALL)
    rows = [_measure(size, memory) for size in events]
    sizes = [int(row["events"]) for row in rows]
    exponents = {name: growth(sizes, [row[f"{name}_cpu_s"] for row in rows]) for name in ("spark", "duckdb")}
    columns = [name for name, _ in COLUMNS]
    table = [[text.format(**row) for _, text in COLUMNS] for row in rows]
    notes = [f"growth: Spark {exponents['spark']}, DuckDB {exponents['duckdb']} (1 is linear)"]
    document = {"sizes": rows, "growth": exponents}
    return BenchReport("processor time from traces to gold", document, columns, table, notes)


def _measure(events: int, memory: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="isray-bench-") as temporary:
        folder = Path(temporary)
        out, log, target = folder / "study", folder / "events", folder / "duckdb"
        log.mkdir()
        target.mkdir()
        written = write_study(out, events)
        settings = {"spark.driver.memory": memory, "spark.eventLog.enabled": "true", "spark.eventLog.dir": str(log)}
        settings |= {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
        asked = folder / "work.json"
        asked.write_text(json.dumps(work_of(read_record(out), out, SparkOptions(settings=settings))))
        spark = _run("experiments.studies.pipeline", str(asked), asked=asked)
        duckdb = _run("experiments.bench.pipeline_duckdb", str(out), str(target), memory.upper() + "B")
        return {
            "events": written,
            "events_per_s": written / spark.elapsed_s,
            "spark_cpu_s": spark.cpu_s - spark.start_s,
            "start_cpu_s": spark.start_s,
            "spark_peak_mb": spark.peak_mb,
            "spilled_mb": _spilled(log) / 1e6,
            "duckdb_cpu_s": duckdb.cpu_s,
            "duckdb_peak_mb": duckdb.peak_mb,
            "ratio": (spark.cpu_s - spark.start_s) / duckdb.cpu_s,
        }


def _run(*command: str, asked: Path | None = None) -> ProcessFigures:
    """Runs a module in a process of its own, with a file as standard input; its start ends with its first stage."""
    environment = os.environ | {"PYTHONPATH": str(PACKAGES_FOLDER)}
    began_s, start_s = time.perf_counter(), 0.0
    with (asked or Path(os.devnull)).open() as given:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], stdin=given, stdout=subprocess.PIPE, text=True, env=environment
        )
    assert process.stdout is not None
    with sampled(process.pid) as usage:
        for line in process.stdout:
            if not start_s and reported(line)[0] == "stage":
                start_s, began_s = usage.cpu_s, time.perf_counter()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")
    return ProcessFigures(usage.cpu_s, start_s, time.perf_counter() - began_s, usage.peak_mb)


def _spilled(log: Path) -> int:
    """The bytes that tasks spilled to disk, by Spark's event log."""
    lines = (line for path in log.rglob("[!.]*") if path.is_file() for line in path.read_text().splitlines())
    ends = (json.loads(line) for line in lines if '"Event":"SparkListenerTaskEnd"' in line)
    return sum(end.get("Task Metrics", {}).get("Disk Bytes Spilled", 0) for end in ends)


PERIOD_S = 0.2


class Usage:
    """What a process and its descendants have used so far. `peak_mb`: the most memory that they had at the same time;
    pages that several processes share count in each of them."""

    def __init__(self, pid: int) -> None:
        self.peak_mb = 0.0
        self._pid = pid
        self._cpu_s: dict[int, float] = {}

    @property
    def cpu_s(self) -> float:
        """Processor time, user and system."""
        return sum(self._cpu_s.values())

    def look(self) -> None:
        resident = 0
        for pid in _family(self._pid):
            if (found := usage_of(pid)) is not None:
                self._cpu_s[pid] = found[0]
                resident += found[1]
        self.peak_mb = max(self.peak_mb, resident / 1e6)


@contextmanager
def sampled(pid: int) -> Iterator[Usage]:
    """Looks at the process and its descendants by a thread, for the block."""
    usage, ended = Usage(pid), threading.Event()

    def look() -> None:
        while not ended.wait(PERIOD_S):
            usage.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        ended.set()
        thread.join()


def _family(pid: int) -> list[int]:
    """The process and its descendants; each thread of a process has children of its own."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return [pid]  # it has ended since its parent was read
    return [pid, *(each for children in threads for child in children.split() for each in _family(int(child)))]
