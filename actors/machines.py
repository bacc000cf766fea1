"""The machines of a Ray cluster, and small tasks that run on a chosen one of them."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

Strategy = PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy


def machines() -> list[dict[str, Any]]:
    """Ray's descriptions of its live nodes."""
    nodes: list[dict[str, Any]] = ray.nodes()
    return [node for node in nodes if node["Alive"]]


def pin(home: str) -> NodeAffinitySchedulingStrategy:
    """Schedules on the Ray node with this id, or not at all."""
    return NodeAffinitySchedulingStrategy(home, soft=False)


def send_signal(strategy: Strategy, pid: int, number: int, within_s: float) -> None:
    """Sends a signal to a process on the machine that `strategy` names. ProcessLookupError where it has ended,
    GetTimeoutError where the task does not run in time.
    """
    ray.get(_kill.options(scheduling_strategy=strategy).remote(pid, number), timeout=within_s)


def remove_remotely(folder: Path, within_s: float) -> None:
    """Removes the folder of this path on all machines but this one."""
    here = socket.gethostname()
    pins = [pin(host["NodeID"]) for host in machines() if host["NodeManagerHostname"] != here]
    removed = [_remove_directory.options(scheduling_strategy=other).remote(folder) for other in pins]
    if removed:
        ray.wait(removed, num_returns=len(removed), timeout=within_s)


@ray.remote(num_cpus=0)
def _kill(pid: int, number: int) -> None:
    os.kill(pid, number)


@ray.remote(num_cpus=0)
def _remove_directory(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
