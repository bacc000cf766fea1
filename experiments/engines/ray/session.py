"""The Ray of one command: a named cluster, or a private one that ends with the command.

The address is the command's option, else `RAY_ADDRESS` (which is set in a Ray job); without either, the Ray is private
to this machine. A script that is connected to Ray already, and names no other address, keeps its connection. A private
Ray keeps its files in a folder of its own, listens on 127.0.0.1 only, has no dashboard, sends no usage statistics and
has no token authentication (it cannot be reached from another machine). It is shut down at the end, after an error,
Ctrl-C, SIGTERM and SIGHUP; the kernel ties Ray's processes to this one, so SIGKILL ends them too.

Ray replaces 127.0.0.1 by the machine's own address unless an environment variable is set when ray is imported
(`stay_on_loopback`), also in a process that connects to a Ray on 127.0.0.1.

On a named cluster outside a Ray job, the packages are uploaded with the session (`py_modules`); in a job they are its
working directory.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from itertools import islice, takewhile
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TextIO, TypeVar, cast

from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError
from experiments.support.processes import kill, orderly_signals, processes_naming

PACKAGES = ("protocol", "actors", "experiments")
OBJECT_STORE_BYTES = 256 * 1024 * 1024
CONNECT_WITHIN_S = 10
PRIVATE_ENVIRONMENT: Mapping[str, str] = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
"""The environment of a private Ray: no tokens, no usage statistics, accelerators as for actors that request none. Nodes
have the priority of the command that starts them, as servers have; Ray's default is 15, with which they starve beside
other work: sessions end and elections fail.
"""
Handle = Any
"""A Ray object that Ray does not type: an actor handle, an object reference, a node of a test cluster."""
RayArguments = dict[str, Any]
"""Keyword arguments of `ray.init` and `Cluster.add_node`."""
MAX_WORDS = 2
"""The words of a command in the name of its job, behind `isray`."""
_STARTS = 2
"""How often a private Ray is started before the command fails."""


class RayStartError(RuntimeError):
    """A private Ray did not start, with Ray's reason as one line."""


class RaySession(NamedTuple):
    """`host:port` of the control store of a connected Ray, and the folder of a private one (None for a named one)."""

    address: str
    folder: Path | None


@contextmanager
def ray_session(address: str | None = None, cpus: int | None = None) -> Iterator[RaySession]:
    """Connects this process to Ray for the block, unless it is connected; what Ray prints meanwhile goes to standard
    error. `address`: the cluster to join; `cpus`: the number of CPUs of a private one (default: this machine's).

    InputError where the named cluster cannot be reached, RayStartError where the private one does not start. Call from
    the main thread.
    """
    if address is None and (connected := _connected()) is not None:
        with ray_output_to_stderr():
            yield RaySession(connected, None)
        return
    named = address or os.environ.get("RAY_ADDRESS")
    with (
        orderly_signals(),
        ray_output_to_stderr(),
        tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as folder,
    ):
        arguments = _named_cluster(named) if named else _private_cluster(Path(folder), cpus)
        import ray

        try:
            with orderly_signals():  # Ray sets a SIGTERM handler of its own; leaving this block restores ours
                if not named:
                    _start(arguments, Path(folder))
                else:
                    try:
                        _init(arguments)
                    except (ConnectionError, ValueError) as error:
                        allowed = f"a Ray cluster that answers ({error})"
                        raise InputError("--address", "", arguments["address"], allowed) from error
            found: str = ray.get_runtime_context().gcs_address
            yield RaySession(found, None if named else Path(folder))
        finally:
            ray.shutdown()


def is_named(address: str | None) -> bool:
    """Whether a session with this address option would use a Ray that runs already."""
    return _connected() is not None or not is_private(address)


def _connected() -> str | None:
    """The address of the Ray that this process is connected to, None without one."""
    if "ray" not in sys.modules:
        return None
    import ray

    return str(ray.get_runtime_context().gcs_address) if ray.is_initialized() else None


def _init(arguments: RayArguments) -> None:
    import ray

    ray.init(**arguments, logging_level=logging.ERROR, log_to_driver=False)


def _start(arguments: RayArguments, folder: Path) -> None:
    """Starts a private Ray with its files in `folder`; if that fails once more, in an empty folder, since on a busy
    machine Ray gives up after 30 s. Ray has no class for this error.
    """
    import ray

    for last in range(1, _STARTS + 1):
        try:
            return _init(arguments)
        except Exception as error:
            ray.shutdown()
            for pid in processes_naming([folder]):
                kill(pid)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
            if last == _STARTS:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise RayStartError(f"Ray did not start, tried {_STARTS} times: {reason}") from error


def _named_cluster(address: str) -> RayArguments:
    """InputError unless `host:port` (or `ray://host:port`) accepts a connection: Ray itself would try for minutes. Ray
    checks other addresses itself.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():
            require_ray(host, int(port), CONNECT_WITHIN_S)
    except (OSError, OverflowError) as error:
        raise InputError("--address", "", address, f"host:port of a running Ray head ({error})") from error
    return {"address": address} | uploaded_packages() | named_job()


_HTTP2_BEGINS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The preface of a client and an empty SETTINGS frame (RFC 9113, 3.4 and 6.5)."""
_FRAME_TYPE, _SETTINGS, _FRAME_HEAD = 3, 4, 9


def require_ray(host: str, port: int, within_s: float) -> None:
    """OSError unless what listens there begins as an HTTP/2 server does, on which Ray's control store is built. Ray
    itself would try for minutes, with lines of its own.
    """
    with socket.create_connection((host, port), timeout=within_s) as connected:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connected.sendall(_HTTP2_BEGINS)
        try:
            head = connected.recv(_FRAME_HEAD, socket.MSG_WAITALL)
        except TimeoutError as error:
            raise TimeoutError(f"what listens there does not answer within {within_s:g} s") from error
    if len(head) < _FRAME_HEAD or head[_FRAME_TYPE] != _SETTINGS:
        raise ConnectionError("what listens there is no Ray")


def job_name(arguments: Sequence[str]) -> str:
    """The name under which Ray lists the job of a process with this command line: the command without its options, or
    the script. The supervisor of a cluster in the background is `isray up`.
    """
    if Path(arguments[0]).stem == "background":
        return "isray up"
    program, words = Path(arguments[0]), takewhile(lambda word: re.fullmatch(r"\w[\w.-]*", word), arguments[1:])
    is_command = program.stem in ("isray", "__main__")
    return " ".join(["isray", *islice(words, MAX_WORDS)]) if is_command else program.stem


def named_job() -> RayArguments:
    """The argument of `ray.init` that names the job of this process; one that was submitted keeps its own name."""
    from ray.job_config import JobConfig

    return {"job_config": JobConfig(metadata={"job_name": job_name(sys.argv)})}


def uploaded_packages() -> RayArguments:
    """The arguments of `ray.init` by which the machines of a named cluster get the packages; none in a Ray job, which
    has them.
    """
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return {}
    modules = [str(PACKAGES_FOLDER / name) for name in PACKAGES]
    return {"runtime_env": {"py_modules": modules, "excludes": ["**/__pycache__"]}}


def is_private(address: str | None) -> bool:
    """Whether a session with this address option would start a private Ray."""
    return not (address or os.environ.get("RAY_ADDRESS"))


def stay_on_loopback() -> None:
    """Has Ray accept 127.0.0.1 as a node's address; call before ray is imported."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def expect_kills() -> None:
    """Suppresses Ray's lines about killed workers and raylets, which faults kill; call before ray is imported."""
    kills = "A worker died or was killed while executing a task|Raylet is terminated|has been marked dead because"
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", kills)


def _private_cluster(folder: Path, cpus: int | None) -> RayArguments:
    stay_on_loopback()
    for name, value in PRIVATE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return {
        "address": "local",
        "num_cpus": cpus or os.cpu_count() or 1,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(folder),
        "_node_ip_address": "127.0.0.1",
    }


Result = TypeVar("Result")
LOST_AFTER_S = 3.0
_CONNECT_WITHIN_S = 2.0
_TRY_AGAIN_S = 0.5
_LOOK_AFTER_S = 1.0


class ControlStoreLostError(RuntimeError):
    """Ray's control store cannot be reached any more."""


def require_control_store(address: str) -> None:
    """ControlStoreLostError where nothing accepts connections at `address` (host:port) for `LOST_AFTER_S`."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + LOST_AFTER_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_WITHIN_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise ControlStoreLostError(f"the control store of Ray at {address} is lost ({error})") from error
        time.sleep(_TRY_AGAIN_S)


def ask_control_store(call: Callable[[], Result], address: str) -> Result:
    """The result of a call to Ray's control store at `address`; ControlStoreLostError where that is lost."""
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except (ValueError, RuntimeError) as error:
            result.set_exception(error)
        finally:
            result.cancel()  # after any other error, which is a defect

    Thread(target=run, daemon=True).start()
    while not wait([result], _LOOK_AFTER_S).done:
        require_control_store(address)
    return result.result()


class _ByThread:
    """A text stream that is `main` for the main thread and `others` for all other ones."""

    def __init__(self, main: TextIO, others: TextIO) -> None:
        self._main, self._others = main, others

    def __getattr__(self, name: str) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return getattr(self._main if is_main else self._others, name)


def ray_output_to_stderr() -> AbstractContextManager[object]:
    """Has everything that other threads than the main one print go to standard error during the block."""
    return redirect_stdout(cast(TextIO, _ByThread(sys.stdout, sys.stderr)))
