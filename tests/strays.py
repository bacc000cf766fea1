"""No process outlives a test run: every process that the run starts carries a mark in its environment.

The mark is inherited by whatever a test starts and whatever that starts (raylets, actors, JVMs), also when a process in
between has died. When the run ends, marked processes get a grace period to leave; those that stay are killed, and the
run fails and names them. Linux only, as the mark is read from `/proc`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import uuid
from pathlib import Path

import pytest

MARK = "ISRAY_TEST_RUN"
GRACE_S = 60.0
EXEC_LOOKS = 1_000


def marked(mark: str, variable: str = MARK) -> dict[int, str]:
    """Process id -> command line of every other process, zombies excepted, whose environment holds `variable=mark`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = _environment(folder)
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if f"{variable}={mark}".encode() in environment.split(b"\0") and int(folder.name) != os.getpid():
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _environment(folder: Path) -> bytes:
    """The environment of a process. In the middle of an exec it is empty for a moment, though there is a program."""
    for _ in range(EXEC_LOOKS):
        environment = (folder / "environ").read_bytes()
        if environment or not _has_program(folder):
            return environment
    return b""


def _has_program(folder: Path) -> bool:
    """Whether the process runs a program; kernel threads and zombies do not."""
    try:
        return bool(os.readlink(folder / "exe"))
    except OSError:
        return False


def leaves_within(pid: int, grace_s: float) -> bool:
    """Waits, at most `grace_s`, until the process is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        exits = select.poll()
        exits.register(handle, select.POLLIN)
        return bool(exits.poll(grace_s * 1_000))
    finally:
        os.close(handle)


def end_strays(mark: str, grace_s: float) -> list[str]:
    """Kills what does not leave within `grace_s` each, and returns one line per killed process."""
    strays = {pid: command for pid, command in marked(mark).items() if not leaves_within(pid, grace_s)}
    for pid in strays:
        with contextlib.suppress(ProcessLookupError):  # gone at last
            os.kill(pid, signal.SIGKILL)
    return [f"{pid}: {command}" for pid, command in strays.items()]


class StrayGuard:
    """The pytest plugin; `pytest_sessionfinish` runs after the last fixture has been torn down."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.killed: list[str] = []
        os.environ[MARK] = self.mark

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.killed = end_strays(self.mark, GRACE_S)
        if self.killed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.killed:
            terminalreporter.section("processes that outlived the tests", red=True)
            for line in self.killed:
                terminalreporter.line(line)
