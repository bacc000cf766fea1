"""The recorder's Python side: wrong input, and the file that comes out of it.

A folder of empty jars stands for Kafka's, a script for `javac` and `java`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments.cli.main import application
from experiments.conformance.recorder.record import SOURCES, line_of
from experiments.support.errors import InputError
from experiments.support.releases.installed import KAFKA_JARS, OTHER_JARS

ROW = {"what": "a row"}
JAVAC = '#!/bin/sh\n[ "$1" = -version ] && { echo "javac 17.0.1"; exit; }\nexit 0\n'
JAVA = "#!/bin/sh\necho '" + json.dumps(ROW) + "'\n"


@pytest.fixture
def libs(tmp_path: Path) -> Path:
    folder = tmp_path / "libs"
    folder.mkdir()
    for name in (*(f"{name}-4.4.0" for name in KAFKA_JARS), *(f"{name}-1.7" for name in OTHER_JARS), "junit-5"):
        (folder / f"{name}.jar").touch()
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder `bin` with `javac` and `java`, and gives the one above it."""

    def make(javac: str = JAVAC, java: str = JAVA) -> Path:
        folder = tmp_path / "jdk" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name, script in (("javac", javac), ("java", java)):
            (folder / name).write_text(script)
            (folder / name).chmod(0o700)
        return folder.parent

    return make


def record(libs: Path, java_home: Path, *arguments: str) -> Result:
    line = ["conformance", "record", "--kafka", "4.4.0", "--seed", "1", "--rows", "1", "--jars", str(libs)]
    return CliRunner(env={"JAVA_HOME": str(java_home)}).invoke(application(), [*line, *arguments])


def test_a_file_begins_with_the_release_and_has_no_time_in_it(
    tmp_path: Path, libs: Path, tools: Callable[..., Path]
) -> None:
    plain = record(libs, tools())
    assert [json.loads(line) for line in plain.stdout.splitlines()] == [{"kafka_release": "4.4.0"}, ROW]
    out = tmp_path / "rows.jsonl.gz"
    assert record(libs, tools(), "--out", str(out)).stdout == f"1 rows of Kafka 4.4.0 in {out}\n"
    assert gzip.decompress(out.read_bytes()) == plain.stdout_bytes
    assert out.read_bytes()[4:8] == bytes(4)


def test_events_of_the_quorum_are_recorded_by_a_program_of_their_own(libs: Path, tools: Callable[..., Path]) -> None:
    java = tools(java='#!/bin/sh\necho "$*"\n')
    said = record(libs, java, "--traces", "--events", "raft-join").stdout.splitlines()
    assert said[1].endswith(" org.apache.kafka.raft.RaftRecorder raft-join 1 1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kafka", "3.9.0"], "--kafka: found '3.9.0'; allowed: an exact release from 4.0.0 to 4.4.x, such as 4.4.0"),
        (["--kafka", "4.4"], "--kafka: found '4.4'; allowed: an exact release from 4.0.0 to 4.4.x, such as 4.4.0"),
        (["--kafka", "4.3.0"], "--jars: found .* without kafka-metadata-4.3.0.jar; allowed: the folder libs of Kafka"),
        (["--events", "cluster"], "--events: found cluster; allowed: only with --traces"),
        (
            ["--kafka", "4.0.1", "--traces", "--events", "raft"],
            "--kafka: found 4.0.1; allowed: 4.1.0 or newer with --events raft",
        ),
        (
            ["--kafka", "4.1.2", "--traces", "--events", "raft-join"],
            "--kafka: found 4.1.2; allowed: 4.2.0 or newer with --events raft-join",
        ),
        (["--out", "/nowhere/rows"], "--out: found /nowhere/rows: No such file or directory; allowed: a file in"),
    ],
)
def test_wrong_input_is_one_line(libs: Path, tools: Callable[..., Path], arguments: list[str], message: str) -> None:
    result = record(libs, tools(), *arguments)
    assert isinstance(result.exception, InputError)
    assert re.match(message, str(result.exception))
    assert result.stdout == ""


def test_a_recorder_that_fails_says_why_and_leaves_no_file(
    tmp_path: Path, libs: Path, tools: Callable[..., Path]
) -> None:
    failing = tools(java="#!/bin/sh\necho 'SLF4J: noise' >&2\necho 'Exception: no class' >&2\nexit 1\n")
    result = record(libs, failing, "--out", str(tmp_path / "rows"))
    assert (result.exit_code, result.stderr) == (1, "isray: the recorder of 4.4.0 failed: Exception: no class\n")
    assert not (tmp_path / "rows").exists()


def test_every_release_has_the_newest_line_that_is_not_newer() -> None:
    lines = {"4.0.2": "4.0", "4.1.0": "4.1", "4.2.2": "4.1", "4.3.1": "4.3", "4.4.0": "4.4"}
    assert {release: line_of(release) for release in lines} == lines
    assert {path.parent.name for path in SOURCES.glob("*/Line.java")} == set(lines.values())
