"""The recorder's Python side: the jars of a release, the JDK, wrong input, and the file that comes out of it.

A folder of empty jars stands for Kafka's, a script for `javac` and `java`; a folder is served as a Maven repository.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner, Result

from experiments.cli.main import application
from experiments.conformance.recorder.jars import KAFKA_JARS, OTHER_JARS, Artifact, fetched_jars
from experiments.conformance.recorder.record import SOURCES, jdk, line_of
from experiments.support.errors import InputError

ROW = {"what": "a row"}
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><dependencies>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-api</artifactId><version>1.7.36</version></dependency>
<dependency><groupId>com.yammer.metrics</groupId><artifactId>metrics-core</artifactId><version>2.2.0</version></dependency>
<dependency><groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter</artifactId><version>5</version></dependency>
</dependencies></project>"""
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


def test_an_old_or_missing_jdk_is_named(tools: Callable[..., Path], tmp_path: Path) -> None:
    old = tools(javac="#!/bin/sh\necho 'javac 11.0.2'\n")
    with pytest.raises(InputError, match=re.escape(f"found JAVA_HOME={old} (JDK 11); allowed: a JDK 17 or newer")):
        jdk({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    with pytest.raises(InputError, match=r"JAVA_HOME=.*\(no javac that starts\)"):
        jdk({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    with pytest.raises(InputError, match="found no javac in JAVA_HOME or on the PATH"):
        jdk({"PATH": str(tmp_path)})
    assert jdk({"PATH": str(tools() / "bin")}) == old / "bin"


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


def serve(folder: Path, path: str, content: bytes, checksum: str | None = None) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.with_name(f"{file.name}.sha1").write_text(checksum or hashlib.sha1(content).hexdigest())


@pytest.fixture
def http_folder() -> Iterator[Callable[[Path], str]]:
    """Serves a folder, and gives its URL."""
    with ExitStack() as stack:

        def serve_folder(folder: Path) -> str:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))))
            thread = Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield serve_folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    for name in KAFKA_JARS:
        artifact = Artifact("org.apache.kafka", name, "4.4.0")
        serve(folder, artifact.path("jar"), name.encode())
        serve(folder, artifact.path("pom"), POM.encode())
    serve(folder, Artifact("org.slf4j", "slf4j-api", "1.7.36").path("jar"), b"slf4j")
    serve(folder, Artifact("com.yammer.metrics", "metrics-core", "2.2.0").path("jar"), b"metrics")
    versions = "".join(f"<version>{version}</version>" for version in ("3.9.0", "4.3.0", "4.4.0"))
    serve(folder, "org/apache/kafka/kafka-metadata/maven-metadata.xml", f"<m>{versions}</m>".encode())
    return folder


def test_jars_are_fetched_once_with_the_libraries_that_the_release_names(
    repository: Path, http_folder: Callable[[Path], str], tmp_path: Path
) -> None:
    url, cache = http_folder(repository), tmp_path / "cache"
    found = fetched_jars("4.4.0", url, cache)
    assert [path.read_bytes().decode() for path in found] == [*KAFKA_JARS, "slf4j", "metrics"]
    for path in repository.rglob("*.jar"):
        path.unlink()
    assert fetched_jars("4.4.0", url, cache) == found


def test_a_release_that_is_not_served_is_refused_with_those_that_are(
    repository: Path, http_folder: Callable[[Path], str], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"--kafka: found 4.3.7, which http\S+ does not serve; allowed: 4.3.0, 4.4.0$"):
        fetched_jars("4.3.7", http_folder(repository), tmp_path)


def test_a_jar_with_another_checksum_is_not_kept(
    repository: Path, http_folder: Callable[[Path], str], tmp_path: Path
) -> None:
    path = Artifact("org.apache.kafka", "kafka-clients", "4.4.0").path("jar")
    serve(repository, path, b"damaged", checksum="0" * 40)
    with pytest.raises(InputError, match=rf"{path}: found sha1 \w{{40}}; allowed: 0{{40}}$"):
        fetched_jars("4.4.0", http_folder(repository), tmp_path / "cache")
    assert not (tmp_path / "cache" / path).exists()


def test_a_repository_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a Maven repository that can be reached, or --jars DIR"):
        fetched_jars("4.4.0", "http://127.0.0.1:9", tmp_path)
