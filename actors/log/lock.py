"""The lock on a node's directory: two processes must never write the same logs.

It is an exclusive `flock` on the file `.lock`, held until the directory is closed or the process ends in any way. The
file names the holder, for the error message of a process that finds the lock taken; its text is valid only while the
lock is held. The file is never removed: two processes could otherwise lock two files of that name.

A process that received SIGKILL may hold its lock for a moment longer, so the node's next process waits a bounded time.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from actors.log.files import typed_errors
from protocol.errors import DirectoryInUseError

LOCK_FILE = ".lock"
_POLL_S = 0.02
_MAX_OWNER_BYTES = 512


class DirectoryLock:
    """Holds the lock on an existing directory; `holder` is written into the file for error messages.

    DirectoryInUseError, which names the other holder, where another process holds the lock for all of `wait_s`;
    StorageError where the file cannot be opened or written.
    """

    def __init__(self, directory: Path, holder: str, wait_s: float = 0.0) -> None:
        path = directory / LOCK_FILE
        with typed_errors(path):
            self._file = path.open("a+b", buffering=0)
        with typed_errors(path):
            is_ours = _is_taken_within(self._file.fileno(), wait_s)
        if not is_ours:
            owner = os.pread(self._file.fileno(), _MAX_OWNER_BYTES, 0).decode(errors="replace") or "unknown"
            self._file.close()
            raise DirectoryInUseError(f"{directory}: in use by {owner}")
        with typed_errors(path):
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()} ({holder})".encode())

    def release(self) -> None:
        """Releases the lock."""
        self._file.close()


def _is_taken_within(file: int, wait_s: float) -> bool:
    """Tries to lock the file until it succeeds or `wait_s` have passed; returns whether it succeeded."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
        else:
            return True
        time.sleep(_POLL_S)
