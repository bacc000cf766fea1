"""The jars of a Kafka release that its controller's code needs: of Maven Central, or of an unpacked Kafka's `libs`.

A jar is fetched once, and kept under its path in the repository in `$XDG_CACHE_HOME/isray/maven` (else
`~/.cache/isray/maven`). It is there only whole: its content has the checksum that the repository states, the strongest
that it has, before it gets its name. The versions of the two libraries of others are those that the release's own
`kafka-metadata` names; logging has no backend, so that the recorder alone writes to standard output.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from xml.etree import ElementTree

from experiments.support.atomic import write_bytes
from experiments.support.cache import cache_folder
from experiments.support.errors import InputError
from protocol.kafka_release import KafkaRelease, kafka_release

CENTRAL = "https://repo1.maven.org/maven2"
KAFKA = "org.apache.kafka"
KAFKA_JARS = ("kafka-metadata", "kafka-server-common", "kafka-clients", "kafka-raft")
OTHER_JARS = ("slf4j-api", "metrics-core")
CHECKSUMS = ("sha512", "sha256", "sha1")
"""What a repository may state about a file, the strongest first."""
TIMEOUT_S = 60
_EXACT = re.compile(r"\d+\.\d+\.\d+")
_POM = "{http://maven.apache.org/POM/4.0.0}"


class Artifact(NamedTuple):
    """A file of a Maven repository."""

    group: str
    name: str
    version: str

    def path(self, suffix: str) -> str:
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.name}-{self.version}.{suffix}"


def exact_release(text: str, option: str) -> KafkaRelease:
    """The behaviour of the exact release `text` (`4.2.0`). InputError for a name of several, or one of no rules."""
    try:
        found = kafka_release(text)
    except ValueError:
        found = None
    if found is None or _EXACT.fullmatch(text) is None:
        raise InputError(option, "", repr(text), "an exact release from 4.0.0 to 4.4.x, such as 4.4.0")
    return found


def jars_in(folder: Path, release: str) -> list[Path]:
    """The jars of the release in a folder. InputError where one is missing."""
    wanted = [*(f"{name}-{release}.jar" for name in KAFKA_JARS), *(f"{name}-*.jar" for name in OTHER_JARS)]
    found = {name: sorted(folder.glob(name)) for name in wanted}
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        raise InputError("--jars", "", f"{folder} without {missing[0]}", f"the folder libs of Kafka {release}")
    return [paths[-1] for paths in found.values()]


def fetched_jars(release: str, repository: str = CENTRAL, cache: Path | None = None) -> list[Path]:
    """The jars of the release from a Maven repository. InputError for a release that it does not serve, and where it
    cannot be reached or a file does not have its checksum."""
    cache = cache_folder(os.environ) / "maven" if cache is None else cache
    root = Artifact(KAFKA, KAFKA_JARS[0], release)
    try:
        pom = _fetched(repository, root.path("pom"), cache)
    except HTTPError as error:
        served = [version for version in _served(repository) if _is_known(version)]
        raise InputError("--kafka", "", f"{release}, which {repository} does not serve", ", ".join(served)) from error
    artifacts = [Artifact(KAFKA, name, release) for name in KAFKA_JARS]
    artifacts += (named for named in _dependencies(pom) if named.name in OTHER_JARS)
    try:
        return [_fetched(repository, artifact.path("jar"), cache) for artifact in artifacts]
    except HTTPError as error:
        raise InputError(error.url or repository, "", f"HTTP status {error.code}", "a served file") from error


def _is_known(version: str) -> bool:
    try:
        return bool(exact_release(version, ""))
    except InputError:
        return False


def _served(repository: str) -> list[str]:
    """The releases of Kafka that a repository serves."""
    listing = _read(f"{repository}/{KAFKA.replace('.', '/')}/{KAFKA_JARS[0]}/maven-metadata.xml")
    return [element.text or "" for element in ElementTree.fromstring(listing).iter("version")]


def _dependencies(pom: Path) -> Iterator[Artifact]:
    for dependency in ElementTree.parse(pom).iter(f"{_POM}dependency"):
        parts = {child.tag.removeprefix(_POM): child.text or "" for child in dependency}
        yield Artifact(parts["groupId"], parts["artifactId"], parts["version"])


def _fetched(repository: str, path: str, cache: Path) -> Path:
    """The file of the cache, fetched where it is not there. Raises HTTPError where the repository does not have it."""
    kept = cache / path
    if kept.exists():
        return kept
    content = _read(f"{repository}/{path}")
    name, stated = _checksum(f"{repository}/{path}")
    found = hashlib.new(name, content).hexdigest()
    if found != stated:
        raise InputError(f"{repository}/{path}", "", f"{name} {found}", stated)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(kept, content)
    return kept


def _checksum(url: str) -> tuple[str, str]:
    """The strongest checksum that is stated for a file, with its name."""
    for name in CHECKSUMS:
        try:
            return name, _read(f"{url}.{name}").decode("ascii").split()[0].lower()
        except HTTPError:
            continue
    raise InputError(url, "", "no checksum", f"one of {', '.join(CHECKSUMS)} beside the file")


def _read(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return bytes(response.read())
    except HTTPError:
        raise
    except (URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(url, "", reason, "a Maven repository that can be reached, or --jars DIR") from error
