"""Runs `isray` commands as a user does, each in a process of its own, but without the time that the imports take.

A server that has made the imports forks for every command. It has one thread and has imported neither Ray nor Spark:
they start threads, which a fork would lose, and read the environment when they are imported. `/proc/PID` of a command
shows the server's command line, and its environment, which has the mark of `tests/strays.py`; all else is as in a new
interpreter. Commands that run beside the test have an interpreter of their own.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile, mkdtemp
from typing import Any

from experiments.cli.main import application

ROOT = Path(__file__).parent.parent.parent
WITHIN_S = 280
LOOKS = 40
RUN = "from experiments.cli.__main__ import run; run()"
SERVER = f"""
import asyncio, jsonschema, requests  # which Ray imports
from tests.ray.command_helpers import serve
serve()
{RUN}
"""
NOT_IN_SERVER = {"ray", "pyspark", "grpc", "pyarrow", "numpy"}
MAX_REQUEST_BYTES = 1 << 17


def command_environment() -> dict[str, str]:
    """The environment of a command: that of this process without the RAY_ variables of these tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return inherited | {"PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": "120"}


def isray(
    *arguments: str,
    folder: Path,
    within_s: float = WITHIN_S,
    environment: Mapping[str, str] | None = None,
    text: str = "",
    joined: bool = False,
) -> tuple[int, str, str]:
    """Runs `isray` with the arguments in a folder and `text` as its standard input. Returns exit code, standard output
    and standard error; with `joined`, both as the former. TimeoutExpired, after a SIGKILL, for one that takes longer
    than `within_s`.
    """
    _, server = _server()
    with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        given.write(text)
        given.seek(0)
        request = json.dumps([arguments, dict(environment or command_environment()), str(folder)]).encode()
        socket.send_fds(server, [request], [given.fileno(), out.fileno(), (out if joined else err).fileno()])
        pid = int(server.recv(MAX_REQUEST_BYTES))
        try:
            if not select.select([server], [], [], within_s)[0]:
                raise TimeoutExpired(arguments, within_s)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            status = int(server.recv(MAX_REQUEST_BYTES))
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


@cache
def _server() -> tuple[Popen[bytes], socket.socket]:
    """The server of this process. Its standard input and output are the other end of the socket; it ends with ours."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command, end = [sys.executable, "-c", SERVER], its.fileno()
        return Popen(command, env=command_environment(), cwd="/", stdin=end, stdout=end), ours


def end_server() -> None:
    """Ends the server, if there is one, before `tests/strays.py` looks for what was left behind."""
    if _server.cache_info().currsize:
        process, ours = _server()
        _server.cache_clear()
        with ours:
            ours.shutdown(socket.SHUT_RDWR)
            process.wait()


def serve() -> None:
    """Runs one command after another, and reports the pid and the status of each; returns in their processes."""
    application()
    assert not NOT_IN_SERVER & sys.modules.keys()
    assert len(os.listdir("/proc/self/task")) == 1
    gc.freeze()  # the collection at the end of a command would take 0.2 s
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # that of a terminal is for the tests and the commands
    control = socket.socket(fileno=os.dup(0))
    while True:
        request, files, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 3)
        if not request:
            os._exit(0)
        if not (pid := os.fork()):
            break
        for file in files:
            os.close(file)
        control.send(b"%d" % pid)
        control.send(b"%d" % os.waitpid(pid, 0)[1])
    for number, file in enumerate(files):
        os.dup2(file, number)
    control.detach()
    os.closerange(3, max(files) + 1)
    sys.argv[1:], environment, folder = json.loads(request)
    # What `actors` sets when it is imported; the server begins without such variables.
    set_by_imports = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    os.environ.clear()
    os.environ.update(set_by_imports | environment)
    os.chdir(folder)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


class Shell:
    """Runs the command with folders of its own for temporary files and state files."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="u", dir="/tmp"))
        places = {"TMPDIR": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        self.environment = command_environment() | places

    def run(self, *arguments: str, text: str = "") -> tuple[int, str, str]:
        return isray(*arguments, folder=Path("/"), environment=self.environment, text=text)

    def begin(self, *arguments: str, output: int | None = None) -> Popen[str]:
        """A command that runs on, with a pipe as its standard input. `output`: of `subprocess`, for both outputs."""
        command, environment = [sys.executable, "-c", RUN, *arguments], self.environment
        return Popen(command, env=environment, cwd="/", stdin=PIPE, stdout=output, stderr=output, text=True)

    def ok(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert code == 0, (arguments, out, err)
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        found, out, err = self.run(*arguments, "--json")
        assert found == code, (arguments, out, err)
        return json.loads(out)

    def is_healthy(self) -> bool:
        """Whether all nodes run and all brokers are unfenced, after `LOOKS` looks at most."""
        return any(self.run("status")[0] == 0 for _ in range(LOOKS))


@contextmanager
def begun_shell() -> Iterator[Shell]:
    """A shell whose cluster, if it has one, ends with the block."""
    made = Shell()
    try:
        yield made
    finally:
        made.run("down")
        shutil.rmtree(made.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
