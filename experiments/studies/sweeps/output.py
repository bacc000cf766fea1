"""The output directory of a study, in which no reader ever takes a partly written file for a complete one.

- `study.yaml` records the study, and the versions and git revisions that ran it. A directory that holds another study
  is refused, and so is one whose trials were run by other code: a trial is a function of its parameters, its seed and
  `trial_code_digest`, and the trials of two versions of the code are not one sample.
- A batch is a pair of Parquet files of the same name, `cell-C-trials-A-B` (trials A up to B, not including B), in
  `trace/` and in `trials/`. Each is written under a name that starts with a dot, synced, and renamed. The batch is
  committed by its mark, a file in `trials/` with the digests of both (`sha256sum -c` reads it from the directory). The
  next sweep removes files without a mark.
- Before the pipeline reads batches, every file is checked: digest, schema, trials and row counts.
- `silver/` and `gold/` are written to a temporary folder, which then replaces the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from experiments.studies.design.loader import study_from
from experiments.studies.design.model import StudyPlan
from experiments.studies.trace.schema import TRACE_SCHEMA
from experiments.studies.trials.batch import TRIALS_SCHEMA, Batch
from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError

LAYOUT = {
    "study.yaml": "the study as run, and each version of the program that ran trials of it, with its git revision",
    "trace/": "Parquet, one file per batch: the traces of the trials",
    "trials/": "Parquet, one file per batch: one row per trial; and one file of digests per committed batch",
    "silver/intervals, silver/outages, silver/losses": "Parquet: the traces as intervals, outages and loss events",
    "gold/trials, gold/cells": "Parquet: sums per trial and per cell",
    "gold/cells.json": "the numbers of each cell with their intervals",
    "report.html": "the report, one file that loads nothing",
}
"""The files of an output directory, and what they hold."""
_BATCH_MARK = re.compile(r"_cell-(\d{4,})-trials-(\d{7,})-(\d{7,})\.sha256")


Versions = dict[str, str | None]


class StudyRecord(NamedTuple):
    """The content of `study.yaml`: the study, and the distinct versions that have run its trials (key `runs`)."""

    study: StudyPlan
    versions: list[Versions]


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Locks the directory against other commands that write to it. Raises InputError if another one holds the lock."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(str(out), "", "another command writing to it", "one command at a time") from error
        yield


def claim(out: Path, study: StudyPlan) -> None:
    """Makes `out` the directory of `study`. Raises InputError if it holds something else, or trials of other code."""
    if out.exists() and not out.is_dir():
        raise InputError(str(out), "", "a file", "a directory")
    record_path = out / "study.yaml"
    if record_path.exists():
        record = read_record(out)
        if record.study.source != study.source:
            raise InputError(str(record_path), "study", "another study", "the same study, or another --out directory")
        codes = {entry.get("trial_code") for entry in record.versions}
        if codes - {trial_code_digest()}:
            found = "trials run by another version of the protocol or the simulator"
            raise InputError(str(record_path), "runs.trial_code", found, "the same version, or another --out directory")
        return
    unknown = [path.name for path in out.iterdir() if path.name != ".lock" and not path.name.startswith(".study")]
    if unknown:
        raise InputError(str(out), "", f"files but no study.yaml ({unknown[0]})", "an empty or a study's directory")
    _write_record(out, StudyRecord(study, []))


def record_versions(out: Path) -> None:
    """Adds the versions in use to `study.yaml`, unless they are there."""
    record, present = read_record(out), current_versions()
    if present not in record.versions:
        _write_record(out, record._replace(versions=[*record.versions, present]))


def read_record(out: Path) -> StudyRecord:
    """The study in `out`. Raises InputError if there is none, or its record is damaged."""
    path = out / "study.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(str(path), "", error.strerror, "the directory of a study that was swept") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(str(path), "", "a damaged file", "study.yaml as `isray study sweep` wrote it") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("study"), dict) or not isinstance(raw.get("runs"), list):
        raise InputError(str(path), "", "no study", "study.yaml as `isray study sweep` wrote it")
    return StudyRecord(study_from(raw["study"], str(path)), raw["runs"])


def _write_record(out: Path, record: StudyRecord) -> None:
    text = yaml.safe_dump({"study": record.study.source, "runs": record.versions}, sort_keys=False, allow_unicode=True)
    write_text(out / "study.yaml", text)


def current_versions() -> Versions:
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
        "trial_code": trial_code_digest(),
    }


_TRIAL_FOLDERS = ("protocol", "experiments/engines/sim")
_TRIAL_FILES = (
    "experiments/check/regressions.py",
    "experiments/engines/admin_requests.py",
    "experiments/engines/port.py",
    "experiments/studies/design/distribution.py",
    "experiments/studies/failures/sources.py",
    "experiments/studies/failures/timeline.py",
    "experiments/studies/design/model.py",
    "experiments/studies/trace/schema.py",
    "experiments/studies/trials/observer.py",
    "experiments/studies/trials/states.py",
    "experiments/studies/trials/trial.py",
)


def trial_code_digest() -> str:
    """Digest of all source that a trial's result depends on."""
    sources = [path for folder in _TRIAL_FOLDERS for path in (PACKAGES_FOLDER / folder).rglob("*.py")]
    sources += [PACKAGES_FOLDER / name for name in _TRIAL_FILES]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(sources):
        digest.update(path.relative_to(PACKAGES_FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def git_revision(folder: Path) -> str | None:
    """The commit that `folder` is checked out at, `-dirty` if files differ from it; None outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def write_batch(out: Path, batch: Batch, trace: pa.Table, trials: pa.Table) -> None:
    """Commits one batch: its trace, its trials, then their digests."""
    digests = []
    for name, table in zip(_batch_files(batch), (trace, trials), strict=True):
        path = out / name
        path.parent.mkdir(exist_ok=True)
        with _renamed_into_place(path) as temporary:
            pq.write_table(table, temporary, compression="zstd")
            digests.append(f"{_digest(temporary)}  {name}\n")
    write_text(out / "trials" / f"_{batch_name(batch)}.sha256", "".join(digests))


def batch_name(batch: Batch) -> str:
    """The name of a batch's files, without folder and ending."""
    return f"cell-{batch.cell:04d}-trials-{batch.first:07d}-{batch.stop:07d}"


def _batch_files(batch: Batch) -> tuple[str, str]:
    return f"trace/{batch_name(batch)}.parquet", f"trials/{batch_name(batch)}.parquet"


def remove_leftovers(out: Path) -> None:
    """Removes the files of an interrupted command: temporary files, and batches that were not committed."""
    for leftover in [*out.glob(".tmp-*"), *out.glob("trace/.tmp-*"), *out.glob("trials/.tmp-*")]:
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    for path in [*out.glob("trace/cell-*.parquet"), *out.glob("trials/cell-*.parquet")]:
        if not (out / "trials" / f"_{path.stem}.sha256").exists():
            path.unlink()


def batches_on_disk(out: Path) -> list[Batch]:
    """The committed batches by name, in the order of cells and trials; their content is not checked."""
    found = (_BATCH_MARK.fullmatch(path.name) for path in (out / "trials").glob("_*.sha256"))
    return sorted(Batch(int(match[1]), int(match[2]), int(match[3])) for match in found if match)


def batch_paths(out: Path) -> tuple[list[str], list[str]]:
    """The files of the committed batches: those in `trace/`, those in `trials/`."""
    files = [_batch_files(batch) for batch in batches_on_disk(out)]
    return [str(out / trace) for trace, _ in files], [str(out / trials) for _, trials in files]


def committed_batches(out: Path, study: StudyPlan) -> dict[Batch, pa.Table]:
    """Every committed batch with its `trials/` table, checked.

    Raises InputError naming the first file that is damaged, missing, overlapping another or not of this study.
    """
    found: dict[Batch, pa.Table] = {}
    for batch in batches_on_disk(out):
        mark = str(out / "trials" / f"_{batch_name(batch)}.sha256")
        if batch.cell >= len(study.cells) or batch.stop > study.max_trials:
            raise InputError(mark, "", "trials outside the study", f"{len(study.cells)} cells of {study.max_trials}")
        if any(batch.cell == other.cell and batch.first < other.stop and other.first < batch.stop for other in found):
            raise InputError(mark, "", "trials that another file holds", "each trial once")
        found[batch] = _checked_batch(out, batch, Path(mark))
    return found


def _checked_batch(out: Path, batch: Batch, mark: Path) -> pa.Table:
    names = _batch_files(batch)
    digests = re.fullmatch("".join(f"(.*?)  {re.escape(name)}\n" for name in names), mark.read_text("utf-8", "replace"))
    if digests is None:
        raise InputError(str(mark), "", "a damaged file", "the digests of two files; delete it and sweep again")
    trace_path, trials_path = (out / name for name in names)
    whole = "a whole file; delete its .sha256 in trials/ and sweep again"
    for digest, path in zip(digests.groups(), (trace_path, trials_path), strict=True):
        if not path.is_file():
            raise InputError(str(path), "", "no such file", whole)
        if _digest(path) != digest:
            raise InputError(str(path), "", "a damaged Parquet file", whole)
    trials, trace = pq.read_table(trials_path), pq.ParquetFile(trace_path)
    schemas = ((trials_path, trials.schema, TRIALS_SCHEMA), (trace_path, trace.schema_arrow, TRACE_SCHEMA))
    for path, schema, expected in schemas:
        if not schema.equals(expected):
            raise InputError(str(path), "", f"columns {schema.names}", f"{expected.names} of this version")
    if trials["trial"].to_pylist() != list(range(batch.first, batch.stop)):
        allowed = f"{batch.first} to {batch.stop - 1}"
        raise InputError(str(trials_path), "trial", "trials that differ from its name", allowed)
    rows = sum(trials["trace_rows"].to_pylist())
    if trace.metadata.num_rows != rows:
        raise InputError(str(trace_path), "", f"{trace.metadata.num_rows} rows", f"{rows}, as its trials count them")
    return trials


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    with _renamed_into_place(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def _renamed_into_place(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        yield temporary
        _sync(temporary)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to fill; it replaces `folder` if the block succeeds, and is removed if it raises."""
    fresh, old = folder.with_name(f".tmp-{folder.name}"), folder.with_name(f".tmp-old-{folder.name}")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
