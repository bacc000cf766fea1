"""What a process of this machine uses, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def usage_of(pid: int) -> tuple[float, int] | None:
    """(processor time in seconds, user and system; resident bytes) of a process; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES


def cpu_s(pids: Iterable[int]) -> float:
    """The processor time of processes so far, in seconds; one that has ended counts nothing."""
    return sum(usage[0] for pid in pids if (usage := usage_of(pid)) is not None)
