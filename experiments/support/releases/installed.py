"""Installed releases of Apache Kafka: all jars of a broker and of the tools, of Maven Central or of `KAFKA_HOME`.

`install` makes `~/.cache/isray/kafka/VERSION/libs`, links to the jars in the cache of the repository, all or none.
`KAFKA_HOME` is the folder of an unpacked release; where its `libs` has the jars of the release that is asked for, these
are used. The recorder of decisions needs a few jars only (`recorder_jars`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from experiments.support.atomic import replaced_folder
from experiments.support.cache import cache_folder
from experiments.support.errors import InputError
from experiments.support.releases.maven import Artifact, NotServed, Repository
from protocol.kafka_release import KafkaRelease, kafka_release

KAFKA = "org.apache.kafka"
SERVER = "kafka_2.13"
ROOTS = (SERVER, "kafka-tools")
"""The broker with its controller, and the tools."""
KAFKA_JARS = ("kafka-metadata", "kafka-server-common", "kafka-clients", "kafka-raft")
OTHER_JARS = ("slf4j-api", "metrics-core")
"""What the recorder needs. Logging has no backend, so that the recorder alone writes to standard output."""
HOME = "KAFKA_HOME"
LOGGING = "logging"
"""The folder of the backend, apart from the others: without one Kafka's tools print nothing but their results."""
ARCHIVE = "classes.jsa"
_BACKEND = ("org.apache.logging.log4j", "log4j-slf4j-impl")
_EXACT = re.compile(r"\d+\.\d+\.\d+")
_SERVER_JAR = re.compile(rf"{re.escape(SERVER)}-(\d+\.\d+\.\d+)\.jar")


class Installed(NamedTuple):
    """An installed release and the folder of its jars."""

    release: str
    libs: Path

    @property
    def classpath(self) -> str:
        """The class path of its programs, with the backend of logging: a release that was unpacked has it in `libs`."""
        return os.pathsep.join((f"{self.libs}/*", f"{self.libs.parent / LOGGING}/*"))

    @property
    def archive(self) -> Path:
        """Where the archive of its classes is, if there is one (`experiments/engines/kafka/classes.py`)."""
        return self.libs.parent / ARCHIVE


def exact_release(text: str, option: str) -> KafkaRelease:
    """The behaviour of the exact release `text` (`4.2.0`). InputError for a name of several, or one of no rules."""
    try:
        found = kafka_release(text)
    except ValueError:
        found = None
    if found is None or _EXACT.fullmatch(text) is None:
        raise InputError(option, "", repr(text), "an exact release from 4.0.0 to 4.4.x, such as 4.4.0")
    return found


def installed(environ: Mapping[str, str]) -> list[Installed]:
    """The releases on this machine, that of `KAFKA_HOME` first. InputError where `KAFKA_HOME` has none."""
    found = []
    if environ.get(HOME):
        libs = Path(environ[HOME]) / "libs"
        names = [
            match[1] for path in sorted(libs.glob(f"{SERVER}-*.jar")) if (match := _SERVER_JAR.fullmatch(path.name))
        ]
        if not names:
            raise InputError(HOME, "", f"{environ[HOME]} without libs/{SERVER}-VERSION.jar", "an unpacked Kafka")
        found.append(Installed(names[-1], libs))
    folders = (cache_folder(environ) / "kafka").glob("*/libs")
    kept = [Installed(libs.parent.name, libs) for libs in folders if _EXACT.fullmatch(libs.parent.name)]
    return found + sorted(kept, key=lambda it: [int(part) for part in it.release.split(".")])


def installed_release(release: str | None, environ: Mapping[str, str], option: str) -> Installed:
    """The installed release of this name, without one the newest. InputError where it is not installed."""
    found = installed(environ)
    if release is not None:
        exact_release(release, option)
    wanted = [it for it in found if release in (None, it.release)]
    if not wanted:
        names = ", ".join(it.release for it in found)
        allowed = f"{f'one of {names}, or ' if names else ''}isray kafka install {release or 'VERSION'} before"
        raise InputError(option, "", "no release" if release is None else f"{release}, which is not installed", allowed)
    return wanted[0] if release is not None or environ.get(HOME) else wanted[-1]


def install(release: str, environ: Mapping[str, str], option: str) -> Installed:
    """The release with all jars, fetched where they are not there. InputError for a release that the repository does
    not serve, and as `Repository.file`.
    """
    exact_release(release, option)
    for it in installed(environ):
        if it.release == release:
            return it
    repository = Repository(cache=cache_folder(environ) / "maven")
    _require_served(repository, release, option)
    roots = [Artifact(KAFKA, name, release) for name in ROOTS]
    needed = repository.needed(roots)
    version = next((it.version for it in needed if it.name == "log4j-core"), "")
    parts = {
        "libs": repository.jars(needed),
        LOGGING: repository.jars([Artifact(*_BACKEND, version)] if version else []),
    }
    folder = cache_folder(environ) / "kafka" / release
    with replaced_folder(folder) as fresh:
        for name, jars in parts.items():
            (fresh / name).mkdir()
            for jar in jars:
                (fresh / name / jar.name).hardlink_to(jar)
    return Installed(release, folder / "libs")


def jars_in(folder: Path, release: str) -> list[Path]:
    """The jars that the recorder needs, in the folder of a release. InputError where one is missing."""
    wanted = [*(f"{name}-{release}.jar" for name in KAFKA_JARS), *(f"{name}-*.jar" for name in OTHER_JARS)]
    found = {name: sorted(folder.glob(name)) for name in wanted}
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        raise InputError("--jars", "", f"{folder} without {missing[0]}", f"the folder libs of Kafka {release}")
    return [paths[-1] for paths in found.values()]


def recorder_jars(release: str, repository: Repository | None = None) -> list[Path]:
    """The jars that the recorder needs, from a Maven repository. InputError for a release that it does not serve, and
    as `Repository.file`. The versions of the two libraries of others are those of the release's `kafka-metadata`.
    """
    repository = Repository() if repository is None else repository
    _require_served(repository, release, "--kafka")
    pom = repository.pom(Artifact(KAFKA, KAFKA_JARS[0], release))
    others = [Artifact(*it.key, it.version) for it in pom.dependencies if it.name in OTHER_JARS]
    return repository.jars([*(Artifact(KAFKA, name, release) for name in KAFKA_JARS), *others])


def _require_served(repository: Repository, release: str, option: str) -> None:
    """InputError for a release of which the repository has no broker, with those that it has."""
    try:
        repository.pom(Artifact(KAFKA, KAFKA_JARS[0], release))
    except NotServed as error:
        served = [version for version in repository.versions(KAFKA, KAFKA_JARS[0]) if _is_known(version)]
        found = f"{release}, which {repository.url} does not serve"
        raise InputError(option, "", found, ", ".join(served)) from error


def _is_known(version: str) -> bool:
    try:
        return bool(exact_release(version, ""))
    except InputError:
        return False
