"""The identity of a process on some machine of a Ray cluster, and signals to exactly that process: since process ids
are reused, its start time is compared, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process: the name of its host, its machine (`machine_id`), its id there, its start time (`start_ticks`), and
    the id of the Ray node that started it."""

    host: str
    machine: str
    pid: int
    ticks: int
    ray_node: str


def machine_id() -> str:
    """The boot of this machine and the namespace of this process's ids: what a process id is valid in."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"


def own_process(ray_node: str) -> ProcessId:
    """The identity of this process, which the Ray node with this id has started."""
    pid = os.getpid()
    ticks = start_ticks(pid)
    assert ticks is not None, "this process runs"
    return ProcessId(socket.gethostname(), machine_id(), pid, ticks, ray_node)


def start_ticks(pid: int) -> int | None:
    """The start time of a process in clock ticks since boot; None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def runs_here(process: ProcessId) -> bool:
    """Whether this process runs, and on this machine."""
    return process.machine == machine_id() and start_ticks(process.pid) == process.ticks


def signal_process(process: ProcessId, number: int) -> None:
    """Sends a signal to this process. ProcessLookupError where it has ended or is another machine's."""
    if process.machine != machine_id():
        raise ProcessLookupError(f"process {process.pid} is not one of this machine")
    handle = os.pidfd_open(process.pid)
    try:
        if start_ticks(process.pid) != process.ticks:
            raise ProcessLookupError(f"process {process.pid} has ended")
        signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def set_signal_of_parents_end(number: int) -> None:
    """Has the kernel send this signal to this process when its parent ends; 0: none. OSError where it refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
