"""A private Ray ends with the process whose engine started it, however that ends; at SIGINT by `test_sweep.py`."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from experiments.support.processes import processes_naming
from tests.ray.cluster_helpers import FAST
from tests.ray.command_helpers import command_environment

PRIVATE = f"""
import os, signal, sys
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine
from protocol.config import ClusterConfig, Generation
engine = RayEngine(ClusterSpec(1, 1, ClusterConfig.of(Generation.KIP_966, {FAST!r})))
for node in (1000, 0):
    engine.start(node)
assert engine.run_until(lambda: (view := engine.view()) is not None and 0 in view.brokers, 60_000)
print("up", flush=True)
if sys.argv[1] != "0":
    os.kill(os.getpid(), int(sys.argv[1]))
raise RuntimeError("a defect")
"""


@pytest.mark.parametrize("number", [0, signal.SIGTERM], ids=["exception", "SIGTERM"])
def test_private_ray_ends_with_its_process(number: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    environment = command_environment() | {"TMPDIR": str(folder)}
    command = [sys.executable, "-c", PRIVATE, str(int(number))]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert ended.stdout == "up\n", ended.stderr
    assert ended.returncode == 128 + number if number == signal.SIGTERM else ended.returncode != 0
    assert not processes_naming([folder])
    assert not list(folder.iterdir())
    folder.rmdir()
