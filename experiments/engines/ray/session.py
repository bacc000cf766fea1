"""A Ray cluster for the time of one command: the one that is named, or a private one that does not outlive the command.

Which one: an address given by option, else `RAY_ADDRESS` (which a Ray job finds set), else a private cluster on this
machine. The private one keeps its files in a folder of its own, listens on 127.0.0.1 only, has no dashboard, sends no
usage statistics and has token authentication off (nothing outside this machine can reach it). It is shut down on
every way out: the end, an error, Ctrl-C, SIGTERM and SIGHUP; Ray's processes are tied to this one by the kernel, so
that even SIGKILL ends them.

Ray takes 127.0.0.1 for a mistake and replaces it by the machine's own address, unless the switch that it has for
systems without clusters says otherwise (`stay_on_loopback`). It reads the switch when it is imported: a process that
has imported ray before it called that gets a Ray that listens on all interfaces. Who connects to a Ray on 127.0.0.1
needs the switch too.

On a named cluster outside a Ray job, the packages travel with the session (`py_modules`); in a job they are its
working directory.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from experiments.support.build import PACKAGES_FOLDER
from experiments.support.errors import InputError

PACKAGES = ("protocol", "actors", "experiments")
OBJECT_STORE_BYTES = 256 * 1024 * 1024
CONNECT_WITHIN_S = 10
PRIVATE_ENVIRONMENT: Mapping[str, str] = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What a Ray that is private to a command finds in its environment: no tokens, no usage statistics, and accelerators
left as they are for actors that ask for none."""
_IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_KILLS = "A worker died or was killed while executing a task|Raylet is terminated|has been marked dead because"


@dataclass(frozen=True, slots=True)
class RaySession:
    """A Ray that this process is connected to: `host:port` of its head's control store, and the folder of a private
    one's files (None for a named one)."""

    address: str
    folder: Path | None


@contextmanager
def ray_session(address: str | None = None, cpus: int | None = None) -> Iterator[RaySession]:
    """Ray, initialised for the block. `address`: a cluster to join; `cpus`: the size of a private one (default: this
    machine's).

    Raises InputError if the named cluster cannot be reached. Call from the main thread.
    """
    named = address or os.environ.get("RAY_ADDRESS")
    with orderly_signals(), tempfile.TemporaryDirectory(prefix="isray-", ignore_cleanup_errors=True) as folder:
        arguments = _named_cluster(named) if named else _private_cluster(Path(folder), cpus)
        import ray

        try:
            with orderly_signals():  # Ray takes SIGTERM for itself; the end of this block takes it back
                _init(arguments)
            found: str = ray.get_runtime_context().gcs_address
            yield RaySession(found, None if named else Path(folder))
        finally:
            ray.shutdown()


def _init(arguments: dict[str, Any]) -> None:
    import ray

    try:
        ray.init(**arguments, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        if arguments["address"] == "local":
            raise
        raise InputError("--address", "", arguments["address"], f"a Ray cluster that answers ({error})") from error


def _require_listener(address: str) -> None:
    """Nobody waits minutes to hear that nothing listens there: `host:port` must accept a connection (`ray://` too)."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return  # "auto", or what Ray itself will judge
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise InputError("--address", "", address, f"host:port of a running Ray head ({error})") from error


def _named_cluster(address: str) -> dict[str, Any]:
    _require_listener(address)
    arguments: dict[str, Any] = {"address": address}
    if _IN_JOB not in os.environ:
        excluded = ["**/__pycache__"]
        arguments["runtime_env"] = {
            "py_modules": [str(PACKAGES_FOLDER / name) for name in PACKAGES],
            "excludes": excluded,
        }
    return arguments


def is_private(address: str | None) -> bool:
    """Whether a session at that address would be a private cluster."""
    return not (address or os.environ.get("RAY_ADDRESS"))


def stay_on_loopback() -> None:
    """Has the ray that this process imports later take 127.0.0.1 as an address of its own."""
    if "ray" not in sys.modules:
        os.environ.setdefault(_LOOPBACK_SWITCH, "0")


def expect_kills() -> None:
    """Has the ray that this process imports later leave out what it prints to standard output when a worker or a raylet
    is killed: here that is what faults are.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _KILLS)


def _private_cluster(folder: Path, cpus: int | None) -> dict[str, Any]:
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


@contextmanager
def orderly_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit for the block, so that `finally` clauses run; then the handlers before come
    back."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
