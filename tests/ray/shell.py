"""Runs `isray` commands as a user does, each in a process of its own, with folders of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
LONG_S = 240
PROGRAM = (sys.executable, "-c", "from experiments.cli.__main__ import run; run()")


class Shell:
    """Runs the command with folders of its own for temporary files and state files."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="u", dir="/tmp"))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        places = {"TMPDIR": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder), "PYTHONPATH": str(ROOT)}
        self.environment = inherited | places | {"TERM": "dumb", "COLUMNS": "120"} | dict(environment or {})

    def run(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG_S,
            cwd="/",
        )
        return done.returncode, done.stdout, done.stderr

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that runs on, with a pipe as its standard input."""
        return subprocess.Popen([*PROGRAM, *arguments], env=self.environment, stdin=subprocess.PIPE, text=True, cwd="/")

    def ok(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert code == 0, (arguments, out, err)
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        found, out, err = self.run(*arguments, "--json")
        assert found == code, (arguments, out, err)
        return json.loads(out)

    def processes(self) -> list[tuple[int, str]]:
        """(pid, command line) of the cluster's processes, supervisor included: their environment names the folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.folder).encode() in (path / "environ").read_bytes() and path.name != str(os.getpid()):
                    found.append((int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found
