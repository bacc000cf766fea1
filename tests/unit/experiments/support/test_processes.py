"""Pools of processes: they end with the process that began them, however that ends."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Literal

import pytest

from experiments.support.processes import process_pool
from tests.strays import leaves_within


def _begin_and_die(folder: Path, method: Literal["fork", "spawn"]) -> None:
    """Begins two workers, writes their ids, and is killed while one of them has a task and the other one none."""
    with process_pool(2, method) as pool:
        for task in [pool.submit(_sleep, 0.5), pool.submit(_sleep, 0.5)]:
            task.result()
        pids = [str(worker.pid) for worker in active_children()]
        (folder / "pids").write_text(" ".join(pids), encoding="utf-8")
        pool.submit(_sleep, 600.0)
        os.kill(os.getpid(), signal.SIGKILL)


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_end_with_a_killed_parent(tmp_path: Path, method: Literal["fork", "spawn"]) -> None:
    process = get_context("fork").Process(target=_begin_and_die, args=(tmp_path, method))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    pids = {int(pid) for pid in (tmp_path / "pids").read_text(encoding="utf-8").split()}
    assert len(pids) == 2
    assert all(leaves_within(pid, 60) for pid in pids)
