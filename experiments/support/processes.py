"""Work spread over processes of this machine, none of which outlives the block that it is done in."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context


@contextmanager
def process_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of so many forked processes. What leaves the block early, such as an interrupt, ends them at once."""
    others = set(active_children())
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=_leave_interrupts_to_the_caller) as pool:
        try:
            yield pool
        except BaseException:
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def _leave_interrupts_to_the_caller() -> None:
    """A terminal sends an interrupt to all; who began the work ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
