"""Processor time and memory of a process and all its descendants, sampled while they run. Linux only (`/proc`).

The kernel adds the time of a process to its parent only if the parent waits for it, and a JVM does not wait for Spark's
Python workers. So each process is sampled every `PERIOD_S`, and its last sample counts; what a process does after
its last sample is missing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_S = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """What a process and its descendants have used so far. `peak_mb`: the most memory that they had at the same time;
    pages that several processes share count in each of them."""

    def __init__(self, pid: int) -> None:
        self.peak_mb = 0.0
        self._pid = pid
        self._cpu_s: dict[int, float] = {}

    @property
    def cpu_s(self) -> float:
        """Processor time, user and system."""
        return sum(self._cpu_s.values())

    def look(self) -> None:
        """Reads the figures of all processes that run now."""
        resident = 0
        for pid in _family(self._pid):
            if (found := _figures(pid)) is not None:
                self._cpu_s[pid] = found[0]
                resident += found[1]
        self.peak_mb = max(self.peak_mb, resident / 1e6)


@contextmanager
def sampled(pid: int) -> Iterator[Usage]:
    """Looks at the process and its descendants by a thread, for the block."""
    usage, ended = Usage(pid), threading.Event()

    def look() -> None:
        while not ended.wait(PERIOD_S):
            usage.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        ended.set()
        thread.join()


def _family(pid: int) -> list[int]:
    """The process and its descendants; each thread of a process has children of its own."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return [pid]  # it has ended since its parent was read
    return [pid, *(each for children in threads for child in children.split() for each in _family(int(child)))]


def _figures(pid: int) -> tuple[float, int] | None:
    """Processor time in seconds and resident bytes; None for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES
