"""A pool of processes on this machine, all of which end with the block that uses it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context


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
