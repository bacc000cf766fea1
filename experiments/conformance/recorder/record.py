"""Recording: the recorder's Java is compiled against a release's jars, and prints rows for a seed.

Releases whose methods have the same signatures are a line, named by its first release: `java/LINE/Line.java` holds what
differs between the lines, the files in `java/` everything else. `java/raft` records KafkaRaftClient; it finds what
differs between releases by reflection. A release belongs to the newest line that is not newer
than it. The rows follow from kind, seed and number alone: the same for every run and machine.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.support.atomic import write_bytes
from experiments.support.errors import InputError

SOURCES = Path(__file__).with_name("java")
PROGRAM = "org.apache.kafka.controller.Recorder"
RAFT_PROGRAM = "org.apache.kafka.raft.RaftRecorder"
RAFT_SINCE: Mapping[str, str] = {"raft": "4.1.0", "raft-join": "4.2.0"}
"""The kinds of a row of events of one KafkaRaftClient, a replica of the metadata log, and the first release of each:
4.1.0 is the first whose client the recorder compiles against, 4.2.0 the first whose client makes itself a voter. All
other kinds are in `KINDS`."""
KINDS: Mapping[str, str] = {
    "decisions": "changes of single partitions",
    "partition": "event sequences of one partition",
    "reassignments": "event sequences of one partition with many reassignments",
    "cluster": "event sequences of several topics: configs, feature levels, deletion, brokers that are unregistered",
}
"""What a row of the controller's may be."""


class RecorderError(Exception):
    """The recorder does not compile against the jars, or ended before its last row; the text is its last line."""


def line_of(release: str) -> str:
    """The line of an exact release."""
    wanted = _numbers(release)
    lines = sorted((path.parent.name for path in SOURCES.glob("*/Line.java")), key=_numbers)
    return [line for line in lines if _numbers(line) <= wanted][-1]


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def require_recordable(release: str, kind: str) -> None:
    """InputError for an exact release of which this kind cannot be recorded."""
    since = RAFT_SINCE.get(kind)
    if since is not None and _numbers(release) < _numbers(since):
        raise InputError("--kafka", "", release, f"{since} or newer with --events {kind}")


def recorded(release: str, kind: str, seed: int, rows: int, jars: Sequence[Path], tools: Path) -> bytes:
    """The content of a file of vectors: the release, then the rows. `tools` is the folder of `javac` and `java`.
    RecorderError where it fails."""
    sources = [*SOURCES.glob("*.java"), *(SOURCES / line_of(release)).glob("*.java")]
    program = PROGRAM
    if kind in RAFT_SINCE:
        sources = [SOURCES / "Json.java", *(SOURCES / "raft").glob("*.java")]
        program = RAFT_PROGRAM
    path = os.pathsep.join(map(str, jars))
    with tempfile.TemporaryDirectory(prefix="isray-recorder-") as classes:
        _run(tools / "javac", "-nowarn", "-cp", path, "-d", classes, *map(str, sources))
        path = os.pathsep.join((classes, path))
        content = _run(tools / "java", "-XX:+UseSerialGC", "-cp", path, program, kind, str(seed), str(rows))
    return json.dumps({"kafka_release": release}).encode() + b"\n" + content


def _run(program: Path, *arguments: str) -> bytes:
    done = subprocess.run([program, *arguments], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").splitlines()
        errors = [line for line in said if "error:" in line or "Exception" in line or "Error" in line]
        raise RecorderError((errors or said or [f"exit status {done.returncode}"])[0])
    return done.stdout


def write(path: Path, content: bytes) -> None:
    """Writes vectors, compressed where the name ends in `.gz`. InputError where the file cannot be written."""
    try:
        write_bytes(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    except OSError as error:
        raise InputError("--out", "", f"{path}: {error.strerror}", "a file in a folder that exists") from error
