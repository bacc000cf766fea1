"""Runs the `isray` command in a process of its own, without the RAY_ variables of these tests; processes and ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WITHIN_S = 280


def isray(*arguments: str, folder: Path, within_s: float = WITHIN_S) -> tuple[int, str, str]:
    """Runs `isray` with the arguments in a folder. Returns exit code, standard output and standard error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", "from experiments.cli.__main__ import run; run()", *arguments]
    environment = inherited | {"PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": "120"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=within_s, cwd=folder
    )
    return done.returncode, done.stdout, done.stderr


def command_lines() -> Iterator[bytes]:
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
