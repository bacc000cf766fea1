"""Java classes of Apache Kafka's brokers and tools, from the jars of a release that is installed once per machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from experiments.support.releases.installed import install

RELEASE = "4.4.0"
WITHIN_S = 90


@pytest.fixture(scope="session")
def jars() -> Path:
    """All jars of a broker and of the tools."""
    return install(RELEASE, os.environ, "RELEASE").libs


def run_class(jars: Path, name: str, *arguments: str) -> str:
    line = ["java", "-Xmx128m", "-cp", f"{jars}/*", name, *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=WITHIN_S).stdout
