"""The JDK on this machine: Kafka 4 runs on 17 and newer (its brokers and tools)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from experiments.support.errors import InputError

MINIMUM_JDK = 17
PROBE_TIMEOUT_S = 60
_VERSION = re.compile(r'(?:javac|version) "?(?:1\.)?(\d+)')


def jdk(environ: Mapping[str, str], program: str = "java") -> Path:
    """The folder of `program` (`java`, or `javac` of a JDK): that of `JAVA_HOME`, else that of the `PATH`. InputError
    without one of 17 or newer.
    """
    candidates: dict[str, Path] = {}
    if environ.get("JAVA_HOME"):
        candidates[f"JAVA_HOME={environ['JAVA_HOME']}"] = Path(environ["JAVA_HOME"]) / "bin"
    if on_path := shutil.which(program, path=environ.get("PATH", os.defpath)):
        candidates[on_path] = Path(on_path).parent
    found = []
    for name, folder in candidates.items():
        version = _version(folder / program)
        if version is not None and version >= MINIMUM_JDK:
            return folder
        found.append(f"{name} ({f'no {program} that starts' if version is None else f'JDK {version}'})")
    package = f"openjdk-{MINIMUM_JDK}-{'jre' if program == 'java' else 'jdk'}-headless"
    allowed = f"a JDK {MINIMUM_JDK} or newer; install it with: sudo apt-get install {package}"
    raise InputError("JDK", "", ", ".join(found) or f"no {program} in JAVA_HOME or on the PATH", allowed)


def _version(program: Path) -> int | None:
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stdout + done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None
