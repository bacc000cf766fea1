"""Files of a Maven repository, and the jars that one of them needs at run time.

A file is fetched once, and kept under its path in the repository in `$XDG_CACHE_HOME/isray/maven` (else
`~/.cache/isray/maven`). It is there only whole: its content has the checksum that the repository states, the strongest
that it has, before it gets its name. The repository is Maven Central, or the one in `ISRAY_MAVEN_MIRROR`.

Which jars an artifact needs follows from the POMs, by Maven's rules as its documentation states them: a POM inherits
properties, managed versions and dependencies from its parent, managed versions also from a POM of scope `import`; a
dependency of scope `compile` or `runtime` that is not optional is needed; of two versions of one artifact the nearest
to the root is, the first of two as near; an exclusion holds for all that is below it. Profiles and version ranges are
not read: no POM that Kafka needs decides by them.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from xml.etree import ElementTree

from experiments.support.atomic import write_bytes
from experiments.support.cache import cache_folder
from experiments.support.errors import InputError

CENTRAL = "https://repo1.maven.org/maven2"
MIRROR = "ISRAY_MAVEN_MIRROR"
CHECKSUMS = ("sha512", "sha256", "sha1")
"""What a repository may state about a file, the strongest first."""
TIMEOUT_S = 60
_PARALLEL = 8
_COORDINATES = ("groupId", "artifactId", "version")
_PROPERTY = re.compile(r"\$\{([^}]+)\}")


class Artifact(NamedTuple):
    """A file of a Maven repository."""

    group: str
    name: str
    version: str

    def path(self, suffix: str) -> str:
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.name}-{self.version}.{suffix}"


class NotServed(InputError):
    """The repository does not have a file."""


class Dependency(NamedTuple):
    """A dependency as a POM declares it; `version` and `scope` may be those of managed dependencies."""

    group: str
    name: str
    version: str
    scope: str
    classifier: str
    kind: str
    optional: bool
    exclusions: frozenset[tuple[str, str]]

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.name

    @property
    def is_needed(self) -> bool:
        """Whether it is a jar that must be there at run time."""
        is_jar = self.kind in ("jar", "bundle") and not self.classifier
        return is_jar and self.scope in ("compile", "runtime") and not self.optional


@dataclass(frozen=True, slots=True)
class Pom:
    """A POM with what it inherits. `managed` are the dependencies whose version and scope it manages."""

    properties: Mapping[str, str]
    managed: Mapping[tuple[str, str], Dependency]
    dependencies: Sequence[Dependency]


@dataclass(slots=True)
class Repository:
    """A Maven repository at a URL, and the folder in which its files are kept."""

    url: str = field(default_factory=lambda: os.environ.get(MIRROR, "").rstrip("/") or CENTRAL)
    cache: Path = field(default_factory=lambda: cache_folder(os.environ) / "maven")
    _poms: dict[Artifact, Pom] = field(default_factory=dict)
    _locks: dict[str, Lock] = field(default_factory=dict)
    _tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    def file(self, path: str) -> Path:
        """The file in the cache, fetched where it is not there. NotServed where the repository does not have it, else
        InputError: it cannot be reached, or the content does not have its checksum.
        """
        with self._locks.setdefault(path, Lock()):
            return self._kept(path)

    def _kept(self, path: str) -> Path:
        kept = self.cache / path
        if kept.exists():
            return kept
        content = self._read(path)
        name, stated = self._checksum(path)
        found = hashlib.new(name, content).hexdigest()
        if found != stated:
            raise InputError(f"{self.url}/{path}", "", f"{name} {found}", stated)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(kept, content)
        except OSError as error:
            raise InputError(str(kept), "", error.strerror, "a folder with room for the jars") from error
        return kept

    def jars(self, artifacts: Sequence[Artifact]) -> list[Path]:
        """The jars of these artifacts. InputError as `file`."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            return list(pool.map(self.file, [artifact.path("jar") for artifact in artifacts]))

    def versions(self, group: str, name: str) -> list[str]:
        """The versions of an artifact that the repository serves, in its order."""
        listing = self._read(f"{group.replace('.', '/')}/{name}/maven-metadata.xml")
        return [element.text or "" for element in ElementTree.fromstring(listing).iter("version")]

    def needed(self, roots: Sequence[Artifact]) -> list[Artifact]:
        """The artifacts whose jars these need at run time, themselves included, the nearest first."""
        found: dict[tuple[str, str], Artifact] = {}
        level = [(root, frozenset[tuple[str, str]]()) for root in roots]
        with ThreadPoolExecutor(_PARALLEL) as pool:
            while level:
                nearest = {artifact[:2]: (artifact, excluded) for artifact, excluded in reversed(level)}
                reached = [of for key, of in reversed(nearest.items()) if key not in found]
                found |= {artifact[:2]: artifact for artifact, _ in reached}
                poms = pool.map(self.pom, [artifact for artifact, _ in reached])
                level = [
                    (Artifact(*it.key, it.version), excluded | it.exclusions)
                    for (_, excluded), pom in zip(reached, poms, strict=True)
                    for it in pom.dependencies
                    if it.is_needed and not _is_excluded(it.key, excluded)
                ]
        return list(found.values())

    def pom(self, artifact: Artifact) -> Pom:
        """The POM of an artifact, with what it inherits. InputError for one that cannot be read."""
        if artifact not in self._poms:
            path = self.file(artifact.path("pom"))
            try:
                self._poms[artifact] = self._effective(_root(path), artifact)
            except (ElementTree.ParseError, KeyError) as error:
                raise InputError(str(path), "", f"what is no POM: {error}", "a POM") from error
        return self._poms[artifact]

    def _effective(self, root: ElementTree.Element, artifact: Artifact) -> Pom:
        above = root.find("parent")
        inherited = Pom({}, {}, ()) if above is None else self.pom(_artifact(above, {}))
        own = {f"project.{name}": value for name, value in zip(_COORDINATES, artifact, strict=True)}
        if above is not None:
            own |= {f"project.parent.{name}": above.findtext(name, "") for name in _COORDINATES}
        given = {child.tag: (child.text or "").strip() for child in root.find("properties") or ()}
        properties = {**inherited.properties, **given, **own}
        managed = dict(inherited.managed)
        for declared in _dependencies(root.find("dependencyManagement/dependencies"), properties):
            if declared.scope == "import":
                imported = self.pom(Artifact(*declared.key, declared.version)).managed
                managed = {**imported, **managed}
            elif not declared.classifier:
                managed[declared.key] = declared
        declared_here = _dependencies(root.find("dependencies"), properties)
        dependencies = [*inherited.dependencies, *(_with_managed(it, managed) for it in declared_here)]
        return Pom(properties, managed, dependencies)

    def _checksum(self, path: str) -> tuple[str, str]:
        """The strongest checksum that is stated for a file, with its name."""
        for name in CHECKSUMS:
            try:
                return name, self._read(f"{path}.{name}").decode("ascii").split()[0].lower()
            except NotServed:
                continue
        raise InputError(f"{self.url}/{path}", "", "no checksum", f"one of {', '.join(CHECKSUMS)} beside the file")

    def _read(self, path: str) -> bytes:
        url = f"{self.url}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=self._tls) as response:
                return bytes(response.read())
        except HTTPError as error:
            raise NotServed(url, "", f"HTTP status {error.code}", "a served file") from error
        except (URLError, TimeoutError, ValueError) as error:
            reason = getattr(error, "reason", error)
            allowed = f"a Maven repository that can be reached, in {MIRROR} if it is a mirror"
            raise InputError(url, "", reason, allowed) from error


def _root(path: Path) -> ElementTree.Element:
    """The root of a POM, without the namespace in front of the names."""
    root = ElementTree.parse(path).getroot()
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _resolved(text: str, properties: Mapping[str, str]) -> str:
    """A text with its properties in the place of `${NAME}`, those in their values too; unknown ones stay."""
    for _ in range(len(properties)):
        replaced = _PROPERTY.sub(lambda found: properties.get(found[1], found[0]), text)
        if replaced == text:
            break
        text = replaced
    return text.strip()


def _artifact(element: ElementTree.Element, properties: Mapping[str, str]) -> Artifact:
    texts = (element.findtext(name, "") for name in _COORDINATES)
    return Artifact(*(_resolved(text, properties) for text in texts))


def _dependencies(parent: ElementTree.Element | None, properties: Mapping[str, str]) -> Iterator[Dependency]:
    for element in () if parent is None else parent.findall("dependency"):
        excluded = (_artifact(each, properties) for each in element.findall("exclusions/exclusion"))
        yield Dependency(
            *_artifact(element, properties),
            _resolved(element.findtext("scope", ""), properties),
            _resolved(element.findtext("classifier", ""), properties),
            element.findtext("type", "jar"),
            element.findtext("optional", "") == "true",
            frozenset((each.group, each.name) for each in excluded),
        )


def _with_managed(dependency: Dependency, managed: Mapping[tuple[str, str], Dependency]) -> Dependency:
    """The dependency with the version, scope and exclusions that are managed, where it has none of its own."""
    of = managed.get(dependency.key)
    return dependency._replace(
        version=dependency.version or (of.version if of else ""),
        scope=dependency.scope or (of.scope if of else "") or "compile",
        exclusions=dependency.exclusions | (of.exclusions if of else frozenset()),
    )


def _is_excluded(key: tuple[str, str], excluded: frozenset[tuple[str, str]]) -> bool:
    group, name = key
    return not excluded.isdisjoint({key, (group, "*"), ("*", name), ("*", "*")})
