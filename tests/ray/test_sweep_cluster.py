"""Sweeps on a Ray cluster of three nodes: killed nodes and drivers, an object store that goes away, a submitted job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import pyarrow as pa
import pytest
import ray
from moto.server import ThreadedMotoServer
from ray.cluster_utils import Cluster

from experiments.hunt.soak.ray_nodes import HEALTH_CHECKS
from experiments.studies.design.loader import study_from
from experiments.studies.design.model import CellParameters
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.batches import read_trials
from experiments.studies.sweeps.output import read_record
from experiments.studies.sweeps.storage import Location, StorageFailed, store_at
from experiments.studies.sweeps.sweep import complete_batches, needed_batches, sweep
from experiments.studies.trace.kinds import TrialResult
from experiments.support.errors import InputError
from experiments.support.progress import Progress
from tests.ray.command_helpers import free_port
from tests.ray.test_sweep import INTERRUPTED, RAW, ROOT
from tests.spark.trial_helpers import fake_trial

STUDY = """
name: submitted
trials: 4
duration: 5d
sweep: {min_insync_replicas: [1, 2]}
"""


LOST_WITHIN_S = 120.0
"""How long Ray may take to notice that a node is lost."""


class S3:
    """A local S3 server, whose objects outlive its stops."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """The server that the environment of this process, and of all processes that it starts, names."""
    server = S3()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", server.url)
        environment.setenv("AWS_ACCESS_KEY_ID", "key")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_MAX_ATTEMPTS", "1")
        fsspec.filesystem("s3").mkdir("bucket")
        yield server
    server.stop()


@pytest.fixture(scope="module")
def nodes(s3: S3) -> Iterator[Cluster]:
    """A head with a dashboard, and two nodes, of one CPU each."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "disabled")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
        environment.setenv("RAY_TMPDIR", str(folder))
        (folder / "ray").mkdir()
        cluster = Cluster()
        shared = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024}
        try:
            head = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": free_port()}
            head["dashboard_agent_listen_port"] = free_port()  # not the default one, which every head wants
            cluster.add_node(**shared, **head, _system_config=HEALTH_CHECKS)
            for _ in range(2):
                cluster.add_node(**shared)
            yield cluster
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


class Hook(Progress):
    """Calls a function once, when the first batch of a sweep is complete."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self.called = call, False
        self.notes: list[str] = []

    def show(
        self, stage: str, done: int = 0, total: int | None = None, at: str = "", left_s: float | None = None
    ) -> None:
        if done and not self.called:
            self.called = True
            self._call()

    def note(self, text: str) -> None:
        self.notes.append(text)


def study(**changes: object) -> StudyPlan:
    return study_from({**RAW, **changes}, "s.yaml")


def stuck_on(node: str, parameters: CellParameters, seed: int) -> TrialResult:
    """A trial that never ends on one node."""
    if ray.get_runtime_context().get_node_id() == node:
        Event().wait()
    return fake_trial(parameters, seed)


def trials_of(out: Location) -> list[dict[str, Any]]:
    """The rows of `trials/` of the study in `out`, without the digest of the cell, by cell and trial."""
    record = read_record(out)
    complete_batches(record, out)
    batches, _ = needed_batches(record, store_at(out))
    table = pa.concat_tables([read_trials(store_at(out), batch) for batch in batches])
    rows = [row | {"cell": record.cells.index(row["cell"])} for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["cell"], row["trial"]))


@pytest.fixture(scope="module")
def expected(nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The trials of an undisturbed sweep."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert sweep(study(), out, fake_trial, nodes.address) == 32
    return trials_of(out)


def test_killed_driver_resumes_and_extends(nodes: Cluster, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(int(signal.SIGKILL)), nodes.address]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(InputError, match="missing"):
        complete_batches(read_record(tmp_path), tmp_path)
    assert 0 < sweep(study(), tmp_path, fake_trial, nodes.address) < 32
    assert trials_of(tmp_path) == expected
    larger = study(trials=20, sweep={"min_insync_replicas": [2, 1, 3]})
    assert sweep(larger, tmp_path, fake_trial, nodes.address) == 4 + 4 + 20


def test_bucket_that_goes_away_ends_the_sweep_and_what_was_written_is_kept(
    nodes: Cluster, s3: S3, expected: list[dict[str, Any]]
) -> None:
    url = "s3://bucket/studies/s"
    try:
        with pytest.raises(StorageFailed) as caught:
            sweep(study(), url, fake_trial, nodes.address, Hook(s3.stop))
        assert str(caught.value).startswith(f"{url}/"), "the object that could not be read or written"
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match=f"--out: found {url}/study.yaml: Could not connect"):
            sweep(study(), url, fake_trial, nodes.address)
    finally:
        s3.start()
    assert 0 < sweep(study(), url, fake_trial, nodes.address) < 32
    assert trials_of(url) == expected


def _submitted(command: list[str]) -> subprocess.CompletedProcess[str]:
    """The end of a submitted job. The dashboard refuses jobs until it has started and an agent has registered with it;
    a job that it has accepted is not submitted again."""
    until_s = time.monotonic() + 120
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        if "submitted successfully" in done.stdout or time.monotonic() > until_s:
            return done


def test_job_is_listed_by_the_dashboard_and_its_log_shows_progress(nodes: Cluster, tmp_path: Path) -> None:
    file, out = tmp_path / "submitted.yaml", tmp_path / "out"
    file.write_text(STUDY)
    dashboard = f"http://{nodes.head_node.webui_url}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", dashboard]
    command += ["--working-dir", str(ROOT), "--", "isray", "study", "sweep", str(file), "--out", str(out)]
    done = _submitted(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "isray study: sweep, 0 of 8 trials" in done.stdout
    assert f"8 trials run; traces: {out}/trace" in done.stdout
    assert len(trials_of(out)) == 8
    with urllib.request.urlopen(f"{dashboard}/api/jobs/", timeout=30) as answer:
        listed = answer.read().decode()
    assert str(file) in listed
    assert '"SUCCEEDED"' in listed
    with urllib.request.urlopen(dashboard, timeout=30) as answer:
        assert b"<title>Ray Dashboard</title>" in answer.read()


def test_trials_of_a_killed_node_run_elsewhere(nodes: Cluster, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    victim = list(nodes.worker_nodes)[-1]
    [raylet] = victim.all_processes["raylet"]
    pid = raylet.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def kill_raylet() -> None:
        """Returns when Ray knows of the loss. The rest of the sweep would end before, as it takes a second."""
        os.kill(pid, signal.SIGKILL)
        raylet.process.wait()  # its workers notice that it is gone when it is no zombie
        until_s = time.monotonic() + LOST_WITHIN_S
        while any(node["Alive"] for node in ray.nodes() if node["NodeID"] == victim.node_id):
            assert time.monotonic() < until_s, ray.nodes()

    kill = Hook(kill_raylet)
    assert sweep(study(), tmp_path, partial(stuck_on, victim.node_id), nodes.address, kill) == 32
    for child in map(int, children):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert kill.called
    (line,) = kill.notes
    assert line.startswith(f"Ray has lost node {victim.node_id[:8]} (")
    assert line.endswith("; the tasks that ran there, at most 1, are run again on the others, 2 now")
    assert trials_of(tmp_path) == expected
