"""Processes: those of a pool end with the process that began them, however that ends; those of a folder are found."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import active_children, get_context
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Literal

import pytest

from experiments.support.processes import process_pool, processes_naming
from tests.strays import leaves_within


def _begin_and_die(folder: Path, method: Literal["fork", "spawn"]) -> None:
    """Begins three workers, writes their ids, and is killed while two of them have a task and one has none."""
    with process_pool(3, method) as pool:
        pool.submit(signal.pause)
        pool.submit(signal.pause)
        pool.submit(os.getpid).result()
        pids = [str(worker.pid) for worker in active_children()]
        (folder / "pids").write_text(" ".join(pids), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_end_with_a_killed_parent(tmp_path: Path, method: Literal["fork", "spawn"]) -> None:
    process = get_context("fork").Process(target=_begin_and_die, args=(tmp_path, method))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    pids = {int(pid) for pid in (tmp_path / "pids").read_text(encoding="utf-8").split()}
    assert len(pids) == 3
    assert all(leaves_within(pid, 60) for pid in pids)


@pytest.mark.parametrize("named_by", ["argument", "environment", "output", "error"])
def test_processes_of_a_folder_are_found(tmp_path: Path, named_by: str) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    with (folder / "log").open("w", encoding="utf-8") as log:
        with Popen(
            [sys.executable, "-c", "input()", *([str(folder)] if named_by == "argument" else [])],
            env={"PATH": os.environ["PATH"]} | ({"TMPDIR": str(folder)} if named_by == "environment" else {}),
            stdin=PIPE,
            stdout=log if named_by == "output" else None,
            stderr=log if named_by == "error" else None,
        ) as process:
            assert processes_naming([folder]) == [process.pid]
            assert process.stdin is not None
            process.stdin.write(b"\n")
        assert processes_naming([folder]) == []
