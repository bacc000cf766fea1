"""The storage port on a directory: one per node, with logs (`actors.log`) and small files (docs/log-format.md).

    .lock               locked by the process that has the directory open
    meta.json           the owner of the directory (cluster and node), and the version of its format
    NAME                a small file, replaced whole (temporary file, fsync, rename, fsync of the directory)
    logs/TOPIC/N/       the log `TOPIC/N`
    logs/TOPIC/N.deleted    a log whose deletion has begun; removed at the next start

SIGKILL ends a process and keeps the page cache. To simulate the crash of a machine, an experiment removes what was not
fsynced before the node starts again (`apply_loss`), or damages it (`damage_tails`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal, TypeGuard, get_args

from pydantic import ValidationError

from actors.log.checkpoints import read_mark
from actors.log.disk_log import DiskLog, RecentPool
from actors.log.files import TEMPORARY_SUFFIX, OpenFiles, replace_file, sync_directory, typed_errors
from actors.log.segment import LOG_SUFFIX
from protocol.config import CONFIGS, INDEX_INTERVAL_BYTES
from protocol.errors import DirectoryInUseError, ForeignDirectoryError, StorageError
from protocol.ids import NO_LEADER, NodeId, Offset, TimeMs
from protocol.log.tail import Dropped
from protocol.messages.base import Frozen

DiskLossKind = Literal["none", "recent", "records", "unflushed", "all"]
"""What a crash takes from a real disk (`apply_loss`), from the least to the most."""
_SCAN_BYTES = 8 * 1_048_576
DISK_LOSSES: Final[tuple[DiskLossKind, ...]] = get_args(DiskLossKind)

FORMAT_VERSION = 1
META_FILE = "meta.json"
LOCK_FILE = ".lock"
DamageKind = Literal["torn", "flipped", "zeroed"]
MAX_DAMAGE_BYTES = 4_096
_LOGS = "logs"
_DELETED_SUFFIX = ".deleted"
_INDEX_INTERVAL = int(CONFIGS[INDEX_INTERVAL_BYTES].default)
_POLL_S = 0.02
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """The cluster and the node to which a directory belongs."""

    cluster_id: str
    node_id: NodeId


class DirectoryMeta(Frozen):
    """The content of `meta.json`."""

    format_version: int
    cluster_id: str
    node_id: int


class DirectoryLock:
    """An exclusive `flock` on the file `.lock` of an existing directory, held until `close` or the process ends: two
    processes must never write the same logs. The file is never removed, or two processes could lock two files of that
    name. `holder` is written into it for error messages, which are valid while the lock is held.

    A process that received SIGKILL may hold its lock for a moment longer: DirectoryInUseError, which names the holder,
    where another process holds it for all of `wait_s`; StorageError where the file cannot be opened or written.
    """

    def __init__(self, directory: Path, holder: str, wait_s: float = 0.0) -> None:
        path = directory / LOCK_FILE
        with typed_errors(path):
            self._file = path.open("a+b", buffering=0)
            deadline_s = time.monotonic() + wait_s
            while not self._take():
                if time.monotonic() >= deadline_s:
                    owner = os.pread(self._file.fileno(), 512, 0).decode(errors="replace") or "unknown"
                    self._file.close()
                    raise DirectoryInUseError(f"{directory}: in use by {owner}")
                time.sleep(_POLL_S)
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()} ({holder})".encode())

    def _take(self) -> bool:
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def close(self) -> None:
        self._file.close()


class DiskStorage:
    """A node's directory (`contract.Storage`), created if missing and locked until `close`; `owner` None: of any owner.
    ForeignDirectoryError as for `check_owner`, DirectoryInUseError as for `DirectoryLock`. `dropped` lists what
    recovery has dropped from the logs that were opened so far.
    """

    def __init__(
        self,
        directory: Path,
        owner: Owner | None = None,
        index_interval_bytes: int = _INDEX_INTERVAL,
        files: OpenFiles | None = None,
        wait_s: float = 0.0,
    ) -> None:
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._files = files or OpenFiles()
        self._pool = RecentPool()
        self._logs: dict[str, DiskLog] = {}
        self.dropped: list[Dropped] = []
        self._lock = _lock(directory, owner, wait_s)
        try:
            with typed_errors(directory):
                if not check_owner(directory, owner):
                    cluster_id, node_id = ("", NO_LEADER) if owner is None else (owner.cluster_id, owner.node_id)
                    meta = DirectoryMeta(format_version=FORMAT_VERSION, cluster_id=cluster_id, node_id=node_id)
                    replace_file(directory / META_FILE, meta.model_dump_json().encode())
                    (directory / _LOGS).mkdir(exist_ok=True)
                    sync_directory(directory)
                self._names = self._sweep()
        except StorageError:
            self._lock.close()
            raise

    def open_log(self, name: str) -> DiskLog:
        """Opens or creates a log. CorruptLogError where its flushed part is damaged, ValueError for a wrong name."""
        log = self._logs.get(name)
        if log is None:
            path = self._log_path(name)
            is_new = name not in self._names
            if is_new:
                with typed_errors(path):
                    path.mkdir(parents=True, exist_ok=True)
                self._names.add(name)
            log = self._logs[name] = DiskLog(path, self._files, self._pool, self._index_interval_bytes, is_new)
            for found in log.dropped:
                what = f"dropped {found.size} bytes at byte {found.position}: {found.why}"
                _LOG.warning("%s: %s; the log ends at offset %d", found.path, what, found.end_offset)
            self.dropped += log.dropped
        return log

    def log_names(self) -> Sequence[str]:
        return sorted(self._names)

    def delete_log(self, name: str) -> None:
        log = self._logs.pop(name, None)
        if log is not None:
            log.close()
        path = self._log_path(name)
        with typed_errors(path):
            if path.exists():
                renamed = path.with_name(path.name + _DELETED_SUFFIX)
                path.rename(renamed)
                sync_directory(path.parent)
                _remove_log(renamed)
        self._names.discard(name)

    def read_file(self, name: str) -> bytes | None:
        path = self._file_path(name)
        with typed_errors(path):
            return path.read_bytes() if path.exists() else None

    def write_file(self, name: str, data: bytes) -> None:
        path = self._file_path(name)
        with typed_errors(path):
            replace_file(path, data)

    def delete_file(self, name: str) -> None:
        path = self._file_path(name)
        with typed_errors(path):
            if path.exists():
                path.unlink()
                sync_directory(self._directory)

    def close(self) -> None:
        self._logs.clear()
        self._files.close()
        self._lock.close()

    def _sweep(self) -> set[str]:
        """Finishes deletions that were begun; returns the names of the remaining logs."""
        names = set()
        for path in sorted((self._directory / _LOGS).glob("*/*")):
            if path.name.endswith(_DELETED_SUFFIX):
                _remove_log(path)
            elif path.name.isdecimal():
                names.add(f"{path.parent.name}/{path.name}")
        return names

    def _file_path(self, name: str) -> Path:
        is_reserved = name in ("", _LOGS, META_FILE) or name.startswith(".") or name.endswith(TEMPORARY_SUFFIX)
        if is_reserved or "/" in name:
            raise ValueError(f"{name!r} names no file of a node")
        return self._directory / name

    def _log_path(self, name: str) -> Path:
        topic, _, partition = name.partition("/")
        if not topic or topic.startswith(".") or not partition.isdecimal():
            raise ValueError(f"{name!r} names no log")
        return self._directory / _LOGS / topic / partition


def check_owner(directory: Path, owner: Owner | None) -> bool:
    """As `read_meta`: whether there is one; ForeignDirectoryError if its owner is not `owner` (None: any)."""
    meta = read_meta(directory)
    if meta is not None and owner not in (None, Owner(meta.cluster_id, meta.node_id)):
        raise ForeignDirectoryError(
            f"{directory / META_FILE}: found cluster {meta.cluster_id!r}, node {meta.node_id}; "
            f"allowed: cluster {owner.cluster_id!r}, node {owner.node_id}"
        )
    return meta is not None


def read_meta(directory: Path) -> DirectoryMeta | None:
    """The `meta.json` of a directory, None where it is empty or missing; changes nothing. ForeignDirectoryError where
    it has another format, holds other files, or is no directory.
    """
    path = directory / META_FILE
    with typed_errors(directory):
        if not path.exists():
            if directory.exists() and not directory.is_dir():
                raise ForeignDirectoryError(f"{directory}: is no directory")
            found_names = {found.name for found in directory.iterdir()} if directory.exists() else set()
            others = sorted(found_names - {LOCK_FILE, META_FILE + TEMPORARY_SUFFIX})
            if others:
                raise ForeignDirectoryError(f"{directory}: holds {', '.join(others[:5])} and no {META_FILE}")
            return None
        data = path.read_bytes()
    try:
        found = json.loads(data)
        version = found["format_version"]
        if version != FORMAT_VERSION:
            raise ForeignDirectoryError(f"{path}: format version: found {version!r}; allowed: {FORMAT_VERSION}")
        return DirectoryMeta.model_validate(found)
    except (ValueError, ValidationError, TypeError, KeyError) as error:
        raise ForeignDirectoryError(f"{path}: does not name the directory's owner: {error}") from error


def _lock(directory: Path, owner: Owner | None, wait_s: float) -> DirectoryLock:
    """Locks a directory, created if missing. A directory of another owner is not changed, not even to lock it."""
    check_owner(directory, owner)
    with typed_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    holder = "no node" if owner is None else f"node {owner.node_id} of cluster {owner.cluster_id}"
    return DirectoryLock(directory, holder, wait_s)


def _remove_log(path: Path) -> None:
    """Removes a log's directory, and its topic's directory if that is empty then."""
    shutil.rmtree(path)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def is_disk_loss(kind: str) -> TypeGuard[DiskLossKind]:
    return kind in DISK_LOSSES


def apply_loss(
    directory: Path, kind: DiskLossKind, count: int = 0, owner: Owner | None = None, wait_s: float = 0.0
) -> None:
    """Removes from a dead node's directory what a crash loses: nothing (`none`), the unflushed suffix of every log
    (`unflushed`), that suffix from the first batch on with a timestamp after `count` (Unix time in ms: what the kernel
    had not written back, `recent`), the last `count` records of every log as far as they are unflushed (`records`), or
    everything but the lock (`all`). Batches are removed whole. ForeignDirectoryError and DirectoryInUseError as for
    `DiskStorage`.
    """
    if kind == "none" or not check_owner(directory, owner):
        return
    if kind == "all":
        with closing(_lock(directory, owner, wait_s)), typed_errors(directory):
            for path in sorted(directory.iterdir(), key=lambda path: path.name == META_FILE):
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != LOCK_FILE:
                    path.unlink()
        return
    with closing(DiskStorage(directory, owner, wait_s=wait_s)) as storage:
        for log in map(storage.open_log, storage.log_names()):
            end_offset = log.flushed_offset
            if kind == "recent":
                end_offset = _written_back_end(log, count)
            elif kind == "records":
                end_offset = max(end_offset, log.end_offset - count)
            log.truncate(end_offset)


def _written_back_end(log: DiskLog, until_ms: TimeMs) -> Offset:
    """Where the unflushed batches end that are not younger than `until_ms`, up to the first one that is."""
    end_offset = log.flushed_offset
    while end_offset < log.end_offset:
        for batch in log.read(end_offset, _SCAN_BYTES):
            if batch.timestamp_ms > until_ms:
                return end_offset
            end_offset = batch.next_offset
    return end_offset


def damage_tails(directory: Path, kind: DamageKind, rng: Random) -> int:
    """Damages the newest segment of every log that has unflushed bytes, in the directory of a node that does not run,
    as a failing disk does: a torn write, flipped bits, a hole of zeros. Only bytes above the log's mark are damaged,
    which recovery has to detect, drop and report. Returns the number of damaged logs.
    """
    logs = sorted({path.parent for path in directory.glob(f"logs/*/*/*{LOG_SUFFIX}")})
    return sum(_damage(log, kind, rng) for log in logs)


def _damage(log: Path, kind: DamageKind, rng: Random) -> bool:
    newest = max(log.glob(f"*{LOG_SUFFIX}"), key=lambda path: int(path.stem))
    mark = read_mark(log)
    base, end = int(newest.stem), newest.stat().st_size
    sound = mark.position if base == mark.segment_base else 0
    if base < mark.segment_base or end <= sound:
        return False
    begin = rng.randrange(max(sound, end - MAX_DAMAGE_BYTES), end)
    with newest.open("r+b") as file:
        if kind == "torn":
            file.truncate(begin)
            file.seek(0, os.SEEK_END)
            file.write(b"\xff")  # one byte of the torn batch
            return True
        file.seek(begin)
        data = file.read()
        file.seek(begin)
        file.write(bytes(len(data)) if kind == "zeroed" else bytes(byte ^ rng.randrange(1, 256) for byte in data))
    return True
