"""A signal goes to exactly the process that is meant; on this machine it and damage to a disk need no Ray task, for
which Ray would have to start a process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from actors import members
from actors.machines import UnreachableError, damage_remotely
from actors.processes import ProcessId, machine_id, own_process, signal_process, start_ticks


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return ProcessId("host", machine_id(), process.pid, ticks, "ray-node")


def test_the_process_receives_the_signal(child: subprocess.Popen[bytes]) -> None:
    signal_process(identity(child), signal.SIGTERM)
    assert child.wait(30) == -signal.SIGTERM


def test_another_process_with_the_same_id_receives_nothing(child: subprocess.Popen[bytes]) -> None:
    meant = identity(child)
    for other in (replace(meant, ticks=meant.ticks - 1), replace(meant, machine="another boot/pid:[1]")):
        with pytest.raises(ProcessLookupError):
            signal_process(other, signal.SIGTERM)
    signal_process(meant, signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL


def test_a_process_that_has_ended_is_not_found(child: subprocess.Popen[bytes]) -> None:
    meant = identity(child)
    child.kill()
    child.wait(30)
    with pytest.raises(ProcessLookupError):
        signal_process(meant, signal.SIGTERM)


def test_a_process_knows_itself() -> None:
    own = own_process("ray-node")
    assert (own.machine, own.ray_node) == (machine_id(), "ray-node")
    assert start_ticks(own.pid) == own.ticks


def test_a_disk_of_this_machine_is_damaged_here_once_its_process_has_ended(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """This process is not connected to a Ray. A disk without logs has no log to damage."""
    process = identity(child)
    with pytest.raises(UnreachableError, match=f"process {child.pid} on host does not end"):
        damage_remotely(process, tmp_path, "torn", "seed", 0.0)
    child.kill()
    child.wait()
    assert damage_remotely(process, tmp_path, "torn", "seed", 0.0) == 0


def test_an_actor_is_gone_when_its_process_has_ended_too(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray forgets the actor before its process has ended; the first pause of the wait ends that."""
    process = identity(child)

    def forgotten(name: str, run: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr(members.ray, "get_actor", forgotten)
    monkeypatch.setattr(members.time, "sleep", lambda _: child.communicate(b"\n"))
    members.await_gone("broker-0", "run", process, 60.0)
    assert child.returncode == 0
    members.await_gone("broker-0", "run", replace(process, machine="another boot/pid:[1]"), 60.0)
