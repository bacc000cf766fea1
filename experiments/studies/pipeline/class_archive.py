"""Class data of Spark's JVM in an archive, which a JVM maps instead of reading and verifying ten thousand classes.

A small analysis is mostly that: the start of the session and the first query. HotSpot writes such an archive of the
classes that it has loaded when it ends (dynamic class-data sharing, JEP 350), and uses it for a JVM of the same build
with the same class path. It checks that by the build and by the names, sizes and times of the jars, and starts plainly
where they differ or the file's checksums are wrong; the file's name has a digest of the same, so that several
installations keep an archive each.

The first analysis of little data writes the archive at its end, in its own folder, and puts it into the cache whole
(`~/.cache/isray`, or `isray` in `XDG_CACHE_HOME`). There is none, and every JVM starts plainly, where the environment
has options for JVMs, which may change what an archive holds; where the Java is not known by a `release` file, or has no
archive of its own classes, on which this one builds (a runtime made by jlink has none); and where the cache cannot be
written or has little room.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.support.atomic import write_bytes
from experiments.support.cache import cache_folder

OWN_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables of the environment that give every JVM options."""
ROOM_BYTES = 2 * 2**30
"""Free space that the disks need before an archive of about 200 MB is written."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """`options` of the JVM. `written`: the file that this JVM writes when it ends, None if it writes none; `kept`: its
    place in the cache."""

    options: str
    written: Path | None = None
    kept: Path | None = None

    def keep(self) -> None:
        """Puts what the JVM has written into the cache, once it has ended in order; a disk that is full keeps it
        out."""
        if self.written is not None and self.kept is not None and self.written.is_file():
            with suppress(OSError):
                write_bytes(self.kept, self.written.read_bytes())


PLAIN = ClassArchive("")


def class_archive(java_home: Path, jars: Path, folder: Path, environ: Mapping[str, str] | None = None) -> ClassArchive:
    """The archive of this Java with Spark's `jars`, a folder: the one in the cache, otherwise one that the JVM writes
    into `folder`; PLAIN where there can be none."""
    environ = os.environ if environ is None else environ
    release = java_home / "release"
    has_base = any(java_home.glob("lib/server/classes*.jsa"))
    if any(environ.get(name) for name in OWN_OPTIONS) or not has_base or not release.is_file():
        return PLAIN
    kept = cache_folder(environ) / f"spark-{digest_of(release.read_bytes(), jars.glob('*.jar'))}.jsa"
    if kept.is_file():
        return ClassArchive(f'"-XX:SharedArchiveFile={kept}" -Xshare:auto -XX:+VerifySharedSpaces {QUIET}')
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        room = min(shutil.disk_usage(place).free for place in (kept.parent, folder))
    except OSError:
        return PLAIN
    if room < ROOM_BYTES or not os.access(kept.parent, os.W_OK):
        return PLAIN
    written = folder / kept.name
    return ClassArchive(f'"-XX:ArchiveClassesAtExit={written}" {QUIET}', written, kept)


def digest_of(release: bytes, jars: Iterable[Path]) -> str:
    """Of what an archive belongs to: the Java, by the content of its `release` file, and the jars."""
    found = hashlib.sha256(release)
    for jar in sorted(jars):
        status = jar.stat()
        found.update(f"{jar} {status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]
