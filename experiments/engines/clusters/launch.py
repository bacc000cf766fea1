"""Starts a cluster in the background (`launch`) and ends it (`stop`).

The background process leads a session of its own, so it receives neither Ctrl-C nor the hang-up of the terminal, and
writes to a log beside the state file. `stop` sends it SIGTERM, and SIGKILL if it does not end in time. The kernel then
ends a private Ray; `stop` waits for its processes and removes the folders, as it does for a stale state file.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from experiments.engines.clusters.cluster_state import (
    ClusterOptions,
    ClusterState,
    Status,
    log_path,
    read_state,
    remove_state,
    require_free,
    socket_path,
)
from experiments.support.errors import InputError
from experiments.support.processes import processes_naming
from protocol.config import (
    CONFIGS,
    CONTROLLER_QUORUM_BOOTSTRAP_SERVERS,
    CONTROLLER_QUORUM_VOTERS,
    ClusterConfig,
    ConfigError,
    node_ids,
)
from protocol.ids import FIRST_CONTROLLER
from protocol.kafka.addresses import listener_address

STOP_WITHIN_S = 30.0
RECORDED_WITHIN_S = 600.0
"""How long a cluster may take to end that is recorded: it reads all its logs."""
KILLED_WITHIN_S = 15.0
_CHECK_EVERY_S = 0.1


class NotReadyError(RuntimeError):
    """The cluster did not become ready in time, or a node ended before."""


class LaunchFailed(RuntimeError):
    """The background process ended before the cluster was ready, with the last line of its log as the reason."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.is_input_wrong = exit_code == 2


def config_of(options: ClusterOptions) -> ClusterConfig:
    """The static config of the nodes. InputError where it is wrong, or names controllers that there are not."""
    try:
        config = ClusterConfig.of(options.generation, options.config, kafka_release=options.kafka_release)
        listener_address(config)
    except ConfigError as error:
        raise InputError("--config", error.name, f"{error.found}{error.hint}", error.allowed) from error
    if options.generation.features.metadata_in_store:
        for name, value in options.config.items():
            if options.generation not in CONFIGS[name].generations:
                raise InputError("--config", name, value, f"a config that {options.generation.value} has")
        return config
    controllers = range(FIRST_CONTROLLER, FIRST_CONTROLLER + options.controllers)
    for name in (CONTROLLER_QUORUM_VOTERS, CONTROLLER_QUORUM_BOOTSTRAP_SERVERS):
        nodes = node_ids(config.values[name])
        if not set(nodes) <= set(controllers) or len(set(nodes)) != len(nodes):
            allowed = f"controllers {controllers[0]} to {controllers[-1]}, each once"
            raise InputError("--config", name, list(nodes), allowed)
    return config


def launch(options: ClusterOptions, module: str) -> ClusterState:
    """Starts a cluster in the background, waits until it is ready, and returns its state. `python -m module OPTIONS`
    runs it.

    InputError where the name is taken or the options are wrong, LaunchFailed where the cluster does not become ready.
    """
    require_free(options.name)
    log = log_path(options.name)
    with log.open("w", encoding="utf-8") as file:
        log.chmod(0o600)
        command = [sys.executable, "-m", module, options.model_dump_json()]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    try:
        return _await_ready(options, process, log)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _await_ready(options: ClusterOptions, process: subprocess.Popen[bytes], log: Path) -> ClusterState:
    while True:
        ended = process.poll()
        if ended is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
            reason = lines[-1].removeprefix("isray: ") if lines else f"it ended with exit code {ended}"
            raise LaunchFailed(f"{reason} (log: {log})", ended)
        state = read_state(options.name)
        if state is not None and state.pid == process.pid and state.status is Status.READY:
            return state
        time.sleep(_CHECK_EVERY_S)


class Stopped(NamedTuple):
    """`how`: `stopped`, `killed`, `had ended already`; `log`: the last log of the supervisor."""

    how: str
    log: str


def stop(state: ClusterState, *, keeps_disks: bool = False) -> Stopped:
    """Ends a cluster, and removes its folders, state file and log; with `keeps_disks` not the folder with the disks."""
    outcome = _end_supervisor(state)
    for pid in processes_naming(Path(folder) for folder in state.folders):
        with suppress(ProcessLookupError), _handle_of(pid) as handle:
            select.select([handle], [], [], KILLED_WITHIN_S)
    for folder in state.folders if not keeps_disks else set(state.folders) - {state.disks}:
        shutil.rmtree(folder, ignore_errors=True)
    remove_state(state.options.name)
    socket_path(state.options.name).unlink(missing_ok=True)
    log, text = log_path(state.options.name), ""
    if log.exists():
        text = log.read_text(encoding="utf-8", errors="replace")
        log.unlink()
    return Stopped(outcome, text)


def _end_supervisor(state: ClusterState) -> str:
    with suppress(ProcessLookupError), _handle_of(state.pid) as handle:
        if state.is_running:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            within_s = STOP_WITHIN_S if state.options.trace is None else RECORDED_WITHIN_S
            if select.select([handle], [], [], within_s)[0]:
                return "stopped"
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], KILLED_WITHIN_S)
            return "killed"
    return "had ended already"


@contextmanager
def _handle_of(pid: int) -> Iterator[int]:
    """A file descriptor of a process, which is readable once it has ended. ProcessLookupError where it has."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
