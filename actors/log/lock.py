"""The lock on a node's directory: two processes must never write the same logs.

A lock of the system (`flock`) on the file `.lock`, exclusive, held until the directory is closed or the process ends,
however it ends. The file says whose the lock is, for whoever finds it taken; what it says counts only while the lock is
held. The file itself is never removed: two processes could otherwise hold locks on two files of that name.

A process that was sent SIGKILL may hold its lock for a moment longer, so a new life of its node waits a bounded time.
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
    """Holds the lock on an existing directory. DirectoryInUseError, which names the owner, where another holds it for
    all of `wait_s`; StorageError where the file cannot be had. `whose` says for whom the lock is taken.
    """

    def __init__(self, directory: Path, whose: str, wait_s: float = 0.0) -> None:
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
            self._file.write(f"process {os.getpid()} on {socket.gethostname()} ({whose})".encode())

    def release(self) -> None:
        """Lets others have the directory."""
        self._file.close()


def _is_taken_within(file: int, wait_s: float) -> bool:
    """Whether the lock could be had."""
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
