"""Processes on this machine: a pool whose processes end with the block that uses it, and those that name a folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Thread
from typing import Literal

PARENT_LOOK_S = 0.2


@contextmanager
def process_pool(jobs: int, method: Literal["fork", "spawn"] = "fork") -> Iterator[ProcessPoolExecutor]:
    """A pool of `jobs` processes, which are forked or begin with a new interpreter. An exception that leaves the block
    ends them at once; if this process is killed, they end within `PARENT_LOOK_S`.
    """
    others = set(active_children())
    context = get_context(method)
    with ProcessPoolExecutor(jobs, context, initializer=_begin_worker, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def _begin_worker(parent: int) -> None:
    """Ignores SIGINT, which a terminal sends to all processes of a command: the parent ends the workers. A worker ends
    with its parent, too: otherwise it would wait for tasks, and keep the files that it inherited, locked ones too.
    """

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_LOOK_S)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=end_with_parent, daemon=True).start()


@contextmanager
def signals_handled(numbers: Iterable[int], handle: Callable[[int], object]) -> Iterator[None]:
    """Has these signals call `handle` with their number within the block. Call from the main thread."""
    before = {number: signal.signal(number, lambda number, _: handle(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def orderly_signals() -> AbstractContextManager[None]:
    """Has SIGTERM and SIGHUP raise SystemExit within the block, so that `finally` clauses run."""
    return signals_handled((signal.SIGTERM, signal.SIGHUP), lambda number: sys.exit(128 + number))


def processes_naming(folders: Iterable[Path]) -> list[int]:
    """The ids of the other processes whose command line or environment, as they began, names one of the folders, or
    whose standard output or error is a file there: those of a private Ray. Ray's agents overwrite the first two with
    their title, in part. Processes of other users are left out, as their environment cannot be read.
    """
    names = [str(folder).encode() for folder in folders]
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            outputs = [os.fsencode(os.readlink(output)) for output in path.glob("fd/[12]")]
            text = b"\0".join([(path / "cmdline").read_bytes(), (path / "environ").read_bytes(), *outputs])
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if any(name in text for name in names) and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def kill(pid: int) -> None:
    """Sends SIGKILL to a process, which may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
