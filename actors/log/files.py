"""File operations of the logs: a bounded cache of open files, atomic replacement of small files, typed errors.

A broker may hold tens of thousands of logs, and a process may open only a limited number of files: `OpenFiles` keeps
the most recently used ones open, as many as half of that number. All writes and syncs of logs go through it, so tests
can make them fail there.

Creating, renaming or removing a file is durable only once its directory has been synced.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import StorageError, StorageFullError

MAX_OPEN_FILES = max(1_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""The other half is for Ray's connections and a broker's listener."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TEMPORARY_SUFFIX = ".tmp"


def storage_error(error: OSError, what: object) -> StorageError:
    """The StorageError for an OSError on `what`; a StorageFullError where there is no space left."""
    kind = StorageFullError if error.errno in _NO_ROOM else StorageError
    return kind(f"{what}: {error.strerror or error}")


@contextmanager
def typed_errors(what: object) -> Iterator[None]:
    """Converts an OSError within the block by `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, what) from error


class OpenFiles:
    """File descriptors by path, at most `limit` of them.

    The files may grow by `room_bytes` in all, None for no limit but that of the disk, and then fail with ENOSPC, as on
    a full disk. A write that does not fit is done as far as there is room, and the next one fails. Overwritten bytes do
    not count, and truncating a file frees no room. Small files that are replaced whole (`replace_file`) are not
    counted, as file systems reserve some space.
    """

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self.room_bytes: int | None = None
        self._limit = limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path, create: bool = False) -> int:
        """The descriptor of a file, valid until the next call of `get`. OSError where there is no file to open."""
        file = self._open.get(path)
        if file is None:
            file = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
            self._open[path] = file
            if len(self._open) > self._limit:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return file

    def forget(self, path: Path) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def write(self, path: Path, parts: Sequence[bytes], position: int, create: bool = False) -> None:
        """Writes all bytes of `parts` at `position`. After an OSError some of them may have been written."""
        file = self.get(path, create)
        written, size = self.write_some(file, parts, position), sum(map(len, parts))
        while written < size:
            written += self.write_some(file, (b"".join(parts)[written:],), position + written)

    def write_some(self, file: int, parts: Sequence[bytes], position: int) -> int:
        """Makes one write call; returns the number of bytes written."""
        if self.room_bytes is None:
            return os.pwritev(file, parts, position)
        size = sum(map(len, parts))
        growth = max(0, position + size - max(position, os.fstat(file).st_size))
        taken = size - max(0, growth - self.room_bytes)
        if size and taken <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.pwritev(file, parts if taken == size else (b"".join(parts)[:taken],), position)
        self.room_bytes -= max(0, min(growth, written - (size - growth)))
        return written

    def sync(self, path: Path) -> None:
        """Makes a file's content durable (fsync)."""
        os.fsync(self.get(path))


def sync_directory(directory: Path) -> None:
    """Makes the creation, renaming and removal of files in a directory durable (fsync)."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Replaces a file atomically; not `durable`: a crash of the machine may leave damaged content."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)
