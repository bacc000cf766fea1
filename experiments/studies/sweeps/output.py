"""The output directory of a study, in which no reader ever takes a partly written file for a complete one.

- `study.yaml` records the newest study, the digests of its cells (`identity.py`), and the versions and git revisions
  that ran trials of it. A directory belongs to the studies of one name: a changed file of that name extends it.
- Workers write `trace/` and `trials/` themselves; the pipeline checks every file before it reads them (`batches.py`).
- `silver/` grows by a run of each analysis, which its manifest lists last (`pipeline/manifest.py`); `gold/` is written
  to a temporary folder, which then replaces the old one.

A directory on a file system is locked against a second command on the same machine. An object store has no locks and
needs none for sweeps: two sweeps of the same study write the same trials, at worst twice, and readers take each once.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import yaml

from experiments.studies.design.document import record_text, split_record
from experiments.studies.design.loader import parse_study, study_from
from experiments.studies.design.study import StudyPlan
from experiments.studies.sweeps.storage import Folder, Location, StorageFailed, Store, store_at
from experiments.support.atomic import TEMPORARY
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.declared import declared
from experiments.support.errors import InputError

LAYOUT = declared(dict[str, str], __file__, "layout.yaml")
"""The files of an output directory, and what they hold."""
RECORD, README = "study.yaml", "README.md"
_LOCK = ".lock"

Versions = dict[str, str | None]


class StudyRecord(NamedTuple):
    """The content of `study.yaml`: the study, the distinct versions that ran it, the digests of its cells."""

    study: StudyPlan
    versions: list[Versions]
    cells: tuple[str, ...] = ()


@contextmanager
def exclusive(store: Store) -> Iterator[None]:
    """Locks a directory against commands that write to it. InputError if it is locked or cannot be written."""
    if not isinstance(store, Folder):
        yield
        return
    root = store.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        stream = (root / _LOCK).open("w")
    except OSError as error:
        found = "a file" if root.is_file() else error.strerror
        raise InputError(str(root), "", found, "a directory that can be written") from error
    with stream as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(str(root), "", "another command writing to it", "one command at a time") from error
        yield


def claim(store: Store, study: StudyPlan, cells: tuple[str, ...]) -> bytes:
    """Makes `store` the directory of `study`, whose cells have these digests; returns the content of its record. Raises
    InputError if it holds a study of another name, or something else; StorageFailed if it cannot be written."""
    present = store.read(RECORD)
    if present is not None:
        record = _record(present, store.place(RECORD))
        if record.study.name != study.name:
            allowed = f"a study of the name {record.study.name}, or another --out directory"
            raise InputError(store.place(RECORD), "study.name", study.name, allowed)
        if record.study.text == study.text and record.cells == cells:
            return present
        return _write_record(store, StudyRecord(study, record.versions, cells))
    unknown = [name for name in store.names() if name != _LOCK and not name.startswith(TEMPORARY)]
    if unknown:
        found = f"files but no study.yaml ({unknown[0]})"
        raise InputError(store.place(), "", found, "an empty or a study's directory")
    return _write_record(store, StudyRecord(study, [], cells))


def record_versions(store: Store, versions: Versions) -> bytes:
    """Adds the versions in use to the record, unless they are there; returns its content."""
    content = store.read(RECORD) or b""
    record = _record(content, store.place(RECORD))
    known = versions in record.versions
    return content if known else _write_record(store, record._replace(versions=[*record.versions, versions]))


def read_record(out: Location) -> StudyRecord:
    """The study in `out`, a folder or URL. Raises InputError if there is none, or its record is damaged."""
    store = store_at(out)
    place, allowed = store.place(RECORD), "the directory of a study that was swept"
    try:
        content = store.read(RECORD)
    except StorageFailed as error:
        raise InputError(place, "", str(error), allowed) from error
    if content is None:
        raise InputError(place, "", "no such file", allowed)
    return _record(content, place)


def _record(content: bytes, place: str) -> StudyRecord:
    allowed = "study.yaml as `isray study sweep` wrote it"
    try:
        study, rest = split_record(content.decode())
        raw = yaml.safe_load(rest)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(place, "", "a damaged file", allowed) from error
    if not isinstance(raw, dict) or not all(isinstance(raw.get(name), list) for name in ("runs", "cells")):
        raise InputError(place, "", "no study", allowed)
    return StudyRecord(study_from(parse_study(study, place), place, study), raw["runs"], tuple(raw["cells"]))


def _write_record(store: Store, record: StudyRecord) -> bytes:
    content = record_text(record.study.text, record.versions, record.cells).encode()
    store.write(RECORD, content)
    return content


def current_versions(trial_code: str) -> Versions:
    """Versions of everything that a trial depends on, and the git revision of the program (None outside a checkout)."""
    found: Versions = {}
    for package in ("isray", "ray", "pyspark"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found | {
        "python": sys.version.split()[0],
        "git_revision": git_revision(PACKAGES_FOLDER),
        "trial_code": trial_code,
    }


def git_revision(folder: Path) -> str | None:
    """The commit that `folder` is checked out at, `-dirty` if files differ from it; None outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
