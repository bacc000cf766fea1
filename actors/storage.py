"""The storage port on a directory: one per node, with logs (`actors.log`) and small files (docs/log-format.md).

    .lock               held by the process that has the directory open (`actors.log.lock`)
    meta.json           whose directory this is, and the version of its format
    NAME                a small file, replaced whole (temporary file, fsync, rename, fsync of the directory)
    logs/TOPIC/N/       the log `TOPIC/N`
    logs/TOPIC/N.deleted    a log whose deletion has begun; swept at the next start

The directory of another cluster, of another node, or of a format that this program does not know is refused before
anything in it is touched.

SIGKILL ends a process and keeps the page cache. An experiment that wants the machine to have died takes away what was
never fsynced before the node starts again: `apply_loss`.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard, get_args

from pydantic import ValidationError

from actors.log.disk_log import DiskLog
from actors.log.files import TEMPORARY_SUFFIX, OpenFiles, replace_file, sync_directory, typed_errors
from actors.log.lock import LOCK_FILE, DirectoryLock
from actors.log.recent import RecentPool
from protocol.config import CONFIGS, INDEX_INTERVAL_BYTES
from protocol.errors import ForeignDirectoryError, StorageError
from protocol.ids import NO_LEADER, NodeId
from protocol.log.tail import Dropped
from protocol.messages.base import Frozen

DiskLossKind = Literal["none", "unflushed", "records", "all"]
"""What a crash takes from a real disk (`apply_loss`)."""

FORMAT_VERSION = 1
META_FILE = "meta.json"
_LOGS = "logs"
_DELETED_SUFFIX = ".deleted"
_INDEX_INTERVAL = int(CONFIGS[INDEX_INTERVAL_BYTES].default)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose directory it is."""

    cluster_id: str
    node_id: NodeId


class DirectoryMeta(Frozen):
    """What `meta.json` says."""

    format_version: int
    cluster_id: str
    node_id: int


class DiskStorage:
    """A node's directory (`contract.Storage`), created where there is none. It is locked until it is closed.

    `owner` None takes the directory whoever's it is. ForeignDirectoryError where it is not the owner's, or not one of
    this format; DirectoryInUseError where another has had it open for all of `wait_s`. `dropped` lists what recovery
    dropped from the logs that were opened so far.
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
                    _found(directory, owner or Owner("", NO_LEADER))
                self._names = self._sweep()
        except StorageError:
            self._lock.release()
            raise

    def open_log(self, name: str) -> DiskLog:
        """CorruptLogError where durable data is damaged, ValueError for a name that is no `TOPIC/N`."""
        log = self._logs.get(name)
        if log is None:
            path = self._log_path(name)
            with typed_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            is_new = name not in self._names
            self._names.add(name)
            log = self._logs[name] = DiskLog(path, self._files, self._pool, self._index_interval_bytes, is_new)
            for dropped in log.dropped:
                _LOG.warning(
                    "%s: dropped %d bytes at byte %d: %s; the log ends at offset %d",
                    dropped.path,
                    dropped.size,
                    dropped.position,
                    dropped.why,
                    dropped.end_offset,
                )
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
                doomed = path.with_name(path.name + _DELETED_SUFFIX)
                path.rename(doomed)
                sync_directory(path.parent)
                _remove_log(doomed)
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
        """Closes all logs; others may have the directory."""
        self._logs.clear()
        self._files.close()
        self._lock.release()

    def _sweep(self) -> set[str]:
        """Finishes deletions that were begun; the names of the logs that are left."""
        names = set()
        for path in sorted((self._directory / _LOGS).glob("*/*")):
            if path.name.endswith(_DELETED_SUFFIX):
                _remove_log(path)
            elif path.name.isdecimal():
                names.add(f"{path.parent.name}/{path.name}")
        return names

    def _file_path(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or name.endswith(TEMPORARY_SUFFIX):
            raise ValueError(f"{name!r} names no file")
        if name in (_LOGS, META_FILE):
            raise ValueError(f"{name!r} names no file of a node")
        return self._directory / name

    def _log_path(self, name: str) -> Path:
        topic, _, partition = name.partition("/")
        if not topic or topic.startswith(".") or not partition.isdecimal():
            raise ValueError(f"{name!r} names no log")
        return self._directory / _LOGS / topic / partition


def check_owner(directory: Path, owner: Owner | None) -> bool:
    """Whether the directory has been founded; False where there is nothing in it yet. Touches nothing.

    ForeignDirectoryError where it is another's than `owner`'s, or of another format, or no directory.
    """
    with typed_errors(directory):
        return _is_founded(directory, owner)


def read_meta(directory: Path) -> DirectoryMeta | None:
    """Whose directory it is, None where it has not been founded; touches nothing. ForeignDirectoryError where it is of
    another format, holds other things, or is no directory.
    """
    with typed_errors(directory):
        return _meta(directory)


def _is_founded(directory: Path, owner: Owner | None) -> bool:
    meta = _meta(directory)
    if meta is not None and owner is not None and (meta.cluster_id, meta.node_id) != (owner.cluster_id, owner.node_id):
        raise ForeignDirectoryError(
            f"{directory / META_FILE}: found cluster {meta.cluster_id!r}, node {meta.node_id}; "
            f"allowed: cluster {owner.cluster_id!r}, node {owner.node_id}"
        )
    return meta is not None


def _meta(directory: Path) -> DirectoryMeta | None:
    path = directory / META_FILE
    if not path.exists():
        if directory.exists() and not directory.is_dir():
            raise ForeignDirectoryError(f"{directory}: is no directory")
        found_names = {found.name for found in directory.iterdir()} if directory.exists() else set()
        others = sorted(found_names - {LOCK_FILE, META_FILE + TEMPORARY_SUFFIX})
        if others:
            raise ForeignDirectoryError(f"{directory}: holds {', '.join(others[:5])} and no {META_FILE}")
        return None
    try:
        found = json.loads(path.read_bytes())
        version = found["format_version"]
        if version != FORMAT_VERSION:
            raise ForeignDirectoryError(f"{path}: format version: found {version!r}; allowed: {FORMAT_VERSION}")
        return DirectoryMeta.model_validate(found)
    except (ValueError, ValidationError, TypeError, KeyError) as error:
        raise ForeignDirectoryError(f"{path}: does not say whose directory this is: {error}") from error


def _lock(directory: Path, owner: Owner | None, wait_s: float) -> DirectoryLock:
    """Locks a directory, which is made where there is none. That of another is not touched, not even to lock it."""
    check_owner(directory, owner)
    with typed_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    whose = "no node" if owner is None else f"node {owner.node_id} of cluster {owner.cluster_id}"
    return DirectoryLock(directory, whose, wait_s)


def _found(directory: Path, owner: Owner) -> None:
    """Makes an empty directory one of this format."""
    meta = DirectoryMeta(format_version=FORMAT_VERSION, cluster_id=owner.cluster_id, node_id=owner.node_id)
    replace_file(directory / META_FILE, meta.model_dump_json().encode())
    (directory / _LOGS).mkdir(exist_ok=True)
    sync_directory(directory)


def _remove_log(path: Path) -> None:
    """Removes a log's directory, and its topic's where that was the last."""
    shutil.rmtree(path)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def is_disk_loss(kind: str) -> TypeGuard[DiskLossKind]:
    """Whether `apply_loss` knows this kind of loss."""
    return kind in get_args(DiskLossKind)


def apply_loss(
    directory: Path, kind: DiskLossKind, count: int = 0, owner: Owner | None = None, wait_s: float = 0.0
) -> None:
    """Takes from a dead node's directory what a crash takes: nothing (`none`), every log's unflushed suffix
    (`unflushed`), the last `count` records of every log as far as unflushed (`records`), or everything but the lock
    (`all`). A batch goes as a whole. ForeignDirectoryError and DirectoryInUseError as for `DiskStorage`.
    """
    if kind == "none" or not check_owner(directory, owner):
        return
    if kind == "all":
        _empty(directory, owner, wait_s)
        return
    storage = DiskStorage(directory, owner, wait_s=wait_s)
    try:
        for name in storage.log_names():
            log = storage.open_log(name)
            keep = log.flushed_offset if kind == "unflushed" else log.end_offset - count
            log.truncate(max(keep, log.flushed_offset))
    finally:
        storage.close()


def _empty(directory: Path, owner: Owner | None, wait_s: float) -> None:
    """Removes all that a directory holds, the sign of its owner last."""
    lock = _lock(directory, owner, wait_s)
    try:
        with typed_errors(directory):
            for path in sorted(directory.iterdir(), key=lambda path: path.name == META_FILE):
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != LOCK_FILE:
                    path.unlink()
    finally:
        lock.release()
