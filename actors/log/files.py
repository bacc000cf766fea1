"""Files as the log needs them: open ones within bounds, small ones replaced whole, errors with a type.

A broker may hold tens of thousands of logs, and a process may open only so many files: `OpenFiles` keeps those that
were used last. It is also where the system is asked to write and to sync, and so where a test can let it refuse.

A file that is created, renamed or removed is so durably only once its directory has been synced.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import StorageError, StorageFullError

MAX_OPEN_FILES = 1_000
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TEMPORARY_SUFFIX = ".tmp"


def storage_error(error: OSError, what: object) -> StorageError:
    """StorageFullError where there is no room, StorageError else; `what` it happened to is named."""
    kind = StorageFullError if error.errno in _NO_ROOM else StorageError
    return kind(f"{what}: {error.strerror or error}")


@contextmanager
def typed_errors(what: object) -> Iterator[None]:
    """An OSError within comes out as `storage_error` has it."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, what) from error


class OpenFiles:
    """File descriptors by path, at most `limit` of them."""

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self._limit = limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path, create: bool = False) -> int:
        """The descriptor of a file, open for reading and writing; good until the next call of `get`. OSError where it
        does not exist and is not to be created.
        """
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
        """Closes a file that is about to go, if it is open."""
        file = self._open.pop(path, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Closes all."""
        while self._open:
            os.close(self._open.popitem()[1])

    def write(self, path: Path, parts: Sequence[bytes], position: int, create: bool = False) -> None:
        """Writes all the bytes of `parts`, at `position`. OSError; some of them may then have been written, or, where
        the file does not exist and is not to be created, none.
        """
        file = self.get(path, create)
        written, size = self.write_some(file, parts, position), sum(map(len, parts))
        while written < size:
            written += self.write_some(file, (b"".join(parts)[written:],), position + written)

    def write_some(self, file: int, parts: Sequence[bytes], position: int) -> int:
        """One write; the number of bytes that the system took."""
        return os.pwritev(file, parts, position)

    def sync(self, path: Path) -> None:
        """Makes a file's content durable."""
        os.fsync(self.get(path))


def sync_directory(directory: Path) -> None:
    """Makes durable which files a directory holds."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, data: bytes, durable: bool = True) -> None:
    """Replaces a file whole: who looks later finds the old one or the new one. If it is not `durable`, that holds as
    long as the machine lives; afterwards there may be either, or a damaged one.
    """
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
