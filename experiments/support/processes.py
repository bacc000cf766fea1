"""Processes on this machine: a pool whose processes end with the block that uses it, and those that name a folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children, get_context
from pathlib import Path


@contextmanager
def process_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` forked processes; an exception that leaves the block ends them at once."""
    others = set(active_children())
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=_ignore_interrupts) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def _ignore_interrupts() -> None:
    """Ignores SIGINT, which a terminal sends to all processes of a command: the parent ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def processes_naming(folders: Iterable[Path]) -> list[int]:
    """The ids of the processes whose command line names one of the folders, as those of a private Ray do."""
    names = [str(folder).encode() for folder in folders]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(name in line for name in names):
            found.append(int(path.parent.name))
    return found


def kill(pid: int) -> None:
    """Sends SIGKILL to a process, which may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
