"""Installed releases of Kafka: the jars of a Maven repository with their closure, `KAFKA_HOME`, the JDK, wrong input.

A folder is served as a Maven repository; a script stands for `java` and `javac`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from experiments.support.errors import InputError
from experiments.support.releases.installed import (
    KAFKA_JARS,
    ROOTS,
    Installed,
    install,
    installed,
    installed_release,
    recorder_jars,
)
from experiments.support.releases.jdk import jdk
from experiments.support.releases.maven import Artifact, Repository

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><dependencies>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-api</artifactId><version>1.7.36</version></dependency>
<dependency><groupId>com.yammer.metrics</groupId><artifactId>metrics-core</artifactId><version>2.2.0</version></dependency>
<dependency><groupId>org.junit.jupiter</groupId><artifactId>junit-jupiter</artifactId><version>5</version>
<scope>test</scope></dependency></dependencies></project>"""
EMPTY = "<project/>"


def serve(folder: Path, path: str, content: bytes, checksum: str | None = None) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.with_name(f"{file.name}.sha1").write_text(checksum or hashlib.sha1(content).hexdigest())


def serve_artifact(folder: Path, artifact: Artifact, pom: str = EMPTY) -> None:
    """Serves a POM, and a jar with the artifact's name as its content."""
    serve(folder, artifact.path("pom"), pom.encode())
    serve(folder, artifact.path("jar"), artifact.name.encode())


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a mirror with the parts of one release; the cache is empty."""
    folder = tmp_path / "repository"
    for name in {*KAFKA_JARS, *ROOTS}:
        serve_artifact(folder, Artifact("org.apache.kafka", name, "4.4.0"), POM)
    serve_artifact(folder, Artifact("org.slf4j", "slf4j-api", "1.7.36"))
    serve_artifact(folder, Artifact("com.yammer.metrics", "metrics-core", "2.2.0"))
    versions = "".join(f"<version>{version}</version>" for version in ("3.9.0", "4.3.0", "4.4.0"))
    serve(folder, "org/apache/kafka/kafka-metadata/maven-metadata.xml", f"<m>{versions}</m>".encode())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))))
        thread = Thread(target=partial(server.serve_forever, 0.01))
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        monkeypatch.setenv("ISRAY_MAVEN_MIRROR", f"http://127.0.0.1:{server.server_port}/")
        yield folder


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def test_the_recorders_jars_are_fetched_once_with_the_libraries_that_the_release_names(repository: Path) -> None:
    found = recorder_jars("4.4.0")
    assert [path.read_bytes().decode() for path in found] == [*KAFKA_JARS, "slf4j-api", "metrics-core"]
    for path in repository.rglob("*.jar"):
        path.unlink()
    assert recorder_jars("4.4.0") == found


def test_an_installed_release_has_the_jars_of_its_closure_and_is_listed(repository: Path, tmp_path: Path) -> None:
    """kafka_2.13 and kafka-tools name slf4j-api and metrics-core; junit-jupiter, of scope test, is not served."""
    assert installed(environ(tmp_path)) == []
    found = install("4.4.0", environ(tmp_path), "VERSION")
    names = sorted(path.name for path in found.libs.iterdir())
    assert names == ["kafka-tools-4.4.0.jar", "kafka_2.13-4.4.0.jar", "metrics-core-2.2.0.jar", "slf4j-api-1.7.36.jar"]
    assert installed(environ(tmp_path)) == [found] == [Installed("4.4.0", tmp_path / "cache/isray/kafka/4.4.0/libs")]
    for path in repository.rglob("*"):
        path.unlink() if path.is_file() else None
    assert install("4.4.0", environ(tmp_path), "VERSION") == found


def test_the_unpacked_release_of_kafka_home_comes_first(repository: Path, tmp_path: Path) -> None:
    install("4.4.0", environ(tmp_path), "VERSION")
    libs = tmp_path / "home" / "libs"
    libs.mkdir(parents=True)
    home = environ(tmp_path, KAFKA_HOME=str(libs.parent))
    with pytest.raises(InputError, match=r"KAFKA_HOME: found \S+ without libs/kafka_2.13-VERSION.jar; allowed: an"):
        installed(home)
    (libs / "kafka_2.13-4.3.1.jar").touch()
    assert [it.release for it in installed(home)] == ["4.3.1", "4.4.0"]
    assert installed_release(None, home, "--kafka").libs == libs
    assert installed_release("4.4.0", home, "--kafka").release == "4.4.0"
    with pytest.raises(InputError, match=r"--kafka: found 4.1.2, which is not installed; allowed: one of 4.3.1, 4.4.0"):
        installed_release("4.1.2", home, "--kafka")


def dependency(name: str, *parts: str) -> str:
    return f"<dependency><groupId>g</groupId><artifactId>{name}</artifactId>{''.join(parts)}</dependency>"


def version(text: str) -> str:
    return f"<version>{text}</version>"


def in_management(dependencies: str) -> str:
    return f"<dependencyManagement><dependencies>{dependencies}</dependencies></dependencyManagement>"


def test_the_closure_follows_mavens_rules(repository: Path) -> None:
    """By hand: `root` needs `near` 1 (managed by the parent, whose property is the version) and `far` 1. `near` needs
    `far` 2, which is farther than the root's, `left-out`, which root excludes below it, and `imported` in the version
    of the POM that it imports. Test, provided and optional dependencies, and one of a classifier, are not needed.
    """
    managed = dependency("near", version("${near.version}"))
    properties = "<properties><near.version>1</near.version></properties>"
    serve_artifact(
        repository,
        Artifact("g", "parent", "1"),
        f"<project>{properties}{in_management(managed)}</project>",
    )
    parent = "<parent><groupId>g</groupId><artifactId>parent</artifactId><version>1</version></parent>"
    excluded = "<exclusions><exclusion><groupId>g</groupId><artifactId>left-out</artifactId></exclusion></exclusions>"
    unneeded = [
        dependency("a", version("1"), "<scope>test</scope>"),
        dependency("b", version("1"), "<scope>provided</scope>"),
        dependency("c", version("1"), "<optional>true</optional>"),
        dependency("d", version("1"), "<classifier>natives</classifier>"),
    ]
    own = "".join([dependency("near", excluded), dependency("far", version("${project.version}")), *unneeded])
    root = f"<project>{parent}<version>1</version><dependencies>{own}</dependencies></project>"
    serve_artifact(repository, Artifact("g", "root", "1"), root)
    bom = dependency("bom", version("1"), "<type>pom</type>", "<scope>import</scope>")
    below = dependency("far", version("2")) + dependency("left-out", version("1")) + dependency("imported")
    near = f"<project>{in_management(bom)}<dependencies>{below}</dependencies></project>"
    serve_artifact(repository, Artifact("g", "near", "1"), near)
    bom_pom = f"<project>{in_management(dependency('imported', version('3')))}</project>"
    serve_artifact(repository, Artifact("g", "bom", "1"), bom_pom)
    serve_artifact(repository, Artifact("g", "far", "1"))
    serve_artifact(repository, Artifact("g", "imported", "3"))
    found = [f"{it.name} {it.version}" for it in Repository().needed([Artifact("g", "root", "1")])]
    assert found == ["root 1", "near 1", "far 1", "imported 3"]


@pytest.mark.parametrize("fetch", [recorder_jars, lambda release: install(release, {}, "--kafka")])
def test_a_release_that_is_not_served_is_refused_with_those_that_are(
    repository: Path, fetch: Callable[[str], object]
) -> None:
    with pytest.raises(InputError, match=r"--kafka: found 4.3.7, which http\S+ does not serve; allowed: 4.3.0, 4.4.0$"):
        fetch("4.3.7")


def test_a_jar_with_another_checksum_is_not_kept(repository: Path, tmp_path: Path) -> None:
    path = Artifact("org.apache.kafka", "kafka-tools", "4.4.0").path("jar")
    serve(repository, path, b"damaged", checksum="0" * 40)
    with pytest.raises(InputError, match=rf"{path}: found sha1 \w{{40}}; allowed: 0{{40}}$"):
        install("4.4.0", environ(tmp_path), "VERSION")
    assert installed(environ(tmp_path)) == []
    assert not (tmp_path / "cache/isray/maven" / path).exists()


def test_a_repository_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a Maven repository that can be reached, in ISRAY_MAVEN_MIRROR if it is a mi"):
        recorder_jars("4.4.0", Repository("http://127.0.0.1:9", tmp_path))


@pytest.mark.parametrize("text", ["3.9.0", "4.4", "four"])
def test_a_name_that_is_no_exact_release_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"VERSION: found '{text}'; allowed: an exact release from"):
        install(text, {}, "VERSION")


def program(folder: Path, name: str, printed: str) -> None:
    """A script that prints what `java -version` or `javac -version` does."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\necho '{printed}'\n")
    (folder / "bin" / name).chmod(0o700)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("javac", "javac 11.0.2", "javac 17.0.1"), ("java", 'openjdk version "1.8.0_352"', 'openjdk version "21" 2023')],
)
def test_an_old_or_missing_jdk_is_named(tmp_path: Path, name: str, old: str, new: str) -> None:
    home, older = tmp_path / "jdk", {"javac": 11, "java": 8}[name]
    program(home, name, old)
    with pytest.raises(InputError, match=re.escape(f"found JAVA_HOME={home} (JDK {older}); allowed: a JDK 17 or newe")):
        jdk({"JAVA_HOME": str(home), "PATH": str(tmp_path)}, name)
    with pytest.raises(InputError, match=rf"JAVA_HOME=.*\(no {name} that starts\)"):
        jdk({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}, name)
    with pytest.raises(InputError, match=f"found no {name} in JAVA_HOME or on the PATH"):
        jdk({"PATH": str(tmp_path)}, name)
    program(home, name, new)
    assert jdk({"PATH": str(home / "bin")}, name) == home / "bin"
