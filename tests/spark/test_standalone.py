"""The pipeline on a standalone master of Spark with two workers, one of which is killed while it works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pyspark
import pytest

from experiments.bench.pipeline_data import write_study
from experiments.studies.pipeline.analysis import analyze
from experiments.studies.pipeline.java import java_home
from experiments.studies.pipeline.options import SILVER_STAGE, SparkOptions
from experiments.support.progress import Progress
from tests.spark.gold_helpers import assert_gold_equals_that_of_duckdb

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
POLL_S = 0.05
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
"""The analysis begins when both workers have an executor."""


@contextmanager
def daemon(folder: Path, ready: str, *command: str) -> Iterator[tuple[int, str]]:
    """A daemon of Spark in a process group of its own, with its executors, for the block: its pid, and what the group
    of the pattern `ready` found in its log."""
    environment = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
    }
    process = subprocess.Popen(
        [str(SPARK_CLASS), *command, "--host", "127.0.0.1", "--webui-port", "0"],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        found = next(filter(None, (re.search(ready, line) for line in process.stderr)))
        yield process.pid, found[1]
    finally:
        with process:
            os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Standalone:
    """A master by its URL, and the process groups of its workers."""

    url: str
    workers: list[int]


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    """A master with two workers of one core each."""
    with ExitStack() as stack:
        master = "org.apache.spark.deploy.master.Master", "--port", "0"
        _, port = stack.enter_context(daemon(tmp_path, r"'sparkMaster' on port (\d+)", *master))
        url, workers = f"spark://127.0.0.1:{port}", []
        for name in ("worker0", "worker1"):
            worker = "org.apache.spark.deploy.worker.Worker", url, "--cores", "1", "--memory", "700m"
            folder = "--work-dir", str(tmp_path / name)
            pid, _ = stack.enter_context(daemon(tmp_path, "(Successfully registered)", *worker, *folder))
            workers.append(pid)
        yield Standalone(url, workers)


class KillInSilver(Progress):
    """Kills a process group when a task of silver has written its first file, the others not yet."""

    def __init__(self, group: int, out: Path) -> None:
        self._group, self._out, self.killed = group, out, False

    def show(
        self, stage: str, done: int = 0, total: int | None = None, at: str = "", left_s: float | None = None
    ) -> None:
        if stage == SILVER_STAGE and not self.killed:
            while not any(self._out.glob("silver/*/run=0/*.parquet")):
                Event().wait(POLL_S)
            os.killpg(self._group, signal.SIGKILL)
            self.killed = True


def executors_of(events: list[dict[str, Any]]) -> set[str]:
    """The executors in which tasks ended, by the events of Spark's log."""
    return {event["Task Info"]["Executor ID"] for event in events if event["Event"] == "SparkListenerTaskEnd"}


@pytest.mark.timeout(900)
def test_killed_worker_costs_its_tasks_and_changes_no_number(
    standalone: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    out, log, duckdb = tmp_path / "study", tmp_path / "events", tmp_path / "duckdb"
    log.mkdir()
    duckdb.mkdir()
    write_study(out, 20_000)
    settings = {"spark.eventLog.dir": str(log), **SETTINGS}
    kill = KillInSilver(standalone.workers[0], out)
    analyze("study", kill, SparkOptions(standalone.url, settings))
    assert kill.killed
    (path,) = log.iterdir()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    at, removed = next(found for found in enumerate(events) if found[1]["Event"] == "SparkListenerExecutorRemoved")
    before, after = executors_of(events[:at]), executors_of(events[at:])
    assert before == {"0", "1"}
    assert after - {removed["Executor ID"]} == before - {removed["Executor ID"]}
    assert_gold_equals_that_of_duckdb(out, duckdb)
