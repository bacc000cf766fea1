"""Which class archive a JVM uses or writes; no JVM is started."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.studies.pipeline import class_archive as class_archives
from experiments.studies.pipeline.class_archive import OWN_OPTIONS, PLAIN, ClassArchive, class_archive

BASE = "lib/server/classes.jsa"


class Machine(NamedTuple):
    """A Java, the jars of Spark, the folder of a session, and the environment."""

    java_home: Path
    jars: Path
    folder: Path
    environ: dict[str, str]

    def archive(self, **environ: str) -> ClassArchive:
        return class_archive(self.java_home, self.jars, self.folder, self.environ | environ)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(class_archives, "ROOM_BYTES", 0)
    found = Machine(*(tmp_path / name for name in ("java", "jars", "session")), {"XDG_CACHE_HOME": f"{tmp_path}/cache"})
    for folder in found[:3]:
        folder.mkdir()
    (found.java_home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (found.java_home / "lib" / "server").mkdir(parents=True)
    (found.java_home / BASE).write_text("classes")
    (found.jars / "spark-core.jar").write_text("jar")
    return found


def test_the_first_session_writes_what_the_next_ones_use(machine: Machine) -> None:
    first = machine.archive()
    assert first.written is not None
    assert first.kept is not None
    assert first.written.parent == machine.folder
    assert f'"-XX:ArchiveClassesAtExit={first.written}"' in first.options
    first.keep()  # the JVM has written nothing
    assert machine.archive() == first
    first.written.write_bytes(b"classes")
    first.keep()
    assert first.kept.read_bytes() == b"classes"
    second = machine.archive()
    assert (second.written, second.kept) == (None, None)
    assert f'"-XX:SharedArchiveFile={first.kept}" -Xshare:auto' in second.options


@pytest.mark.parametrize("changed", ["java", "jar", "more jars"])
def test_another_java_or_spark_has_an_archive_of_its_own(machine: Machine, changed: str) -> None:
    before = machine.archive()
    if changed == "java":
        (machine.java_home / "release").write_text('JAVA_VERSION="17.0.2"\n')
    else:
        (machine.jars / {"jar": "spark-core.jar", "more jars": "other.jar"}[changed]).write_text("another jar")
    assert machine.archive().kept != before.kept


@pytest.mark.parametrize("name", OWN_OPTIONS)
def test_options_of_ones_own_for_the_jvm_exclude_an_archive(machine: Machine, name: str) -> None:
    assert machine.archive(**{name: "-XX:+UseZGC"}) == PLAIN


@pytest.mark.parametrize("missing", ["release", BASE])
def test_a_java_without_a_release_file_or_an_archive_of_its_own_has_none(machine: Machine, missing: str) -> None:
    (machine.java_home / missing).unlink()
    assert machine.archive() == PLAIN


def test_a_cache_that_is_no_folder_is_not_used(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert machine.archive() == PLAIN


def test_a_disk_with_little_room_has_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archives, "ROOM_BYTES", 2**80)
    assert machine.archive() == PLAIN
