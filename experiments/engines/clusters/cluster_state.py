"""The state files of running clusters: one JSON file per cluster and user, with how to reach the cluster and how to end
it.

They are in `$XDG_RUNTIME_DIR/isray`, else in `isray-UID` below the folder for temporary files. A file is written under
another name and renamed, so readers see a complete one; a process claims a name by creating its file, which fails for
all others. A state file whose process is gone is stale: the supervisor was killed before it could remove the file.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from actors.processes import start_ticks
from experiments.support.atomic import write_text
from experiments.support.errors import InputError
from protocol.config import LISTENERS
from protocol.features import Generation
from protocol.kafka_release import NEWEST, KafkaRelease

DEFAULT_NAME = "default"
MAX_EVENTS = 100
NOT_RECORDED = "the recording is not complete"
"""How a line of a supervisor's log begins that says why."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ClusterOptions(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a cluster. `kafka_release` matters in the generations that releases have; `config` overrides
    static configs; `racks` has one rack per broker, or none; `address` is the Ray to run on, None for a private one;
    `trace` the folder of a recording, None for none; `disks` that of kept disks, None for new ones. With the engine
    `kafka` the nodes are processes of Apache Kafka, of the installed release `installed`.
    """

    name: str = DEFAULT_NAME
    engine: Literal["ray", "kafka"] = "ray"
    installed: str = ""
    brokers: int = 3
    controllers: int = 1
    generation: Generation = Generation.KIP_966
    kafka_release: KafkaRelease = NEWEST
    config: dict[str, str] = {}
    racks: tuple[str, ...] = ()
    address: str | None = None
    trace: str | None = None
    disks: str | None = None


class Status(StrEnum):
    """A cluster is `ready` once all its brokers have been unfenced."""

    STARTING = "starting"
    READY = "ready"


class ClusterState(BaseModel, frozen=True, extra="forbid"):
    """The content of a state file.

    `pid` and `started_ticks` identify the supervisor's process. `address` (host:port of the Ray head, or of brokers
    of Apache Kafka separated by commas: the bootstrap address) and `namespace` (of the nodes' actor names) are None
    until they are known. `metrics` are the metrics ports (host:port) of the Ray nodes. `pids` are the processes of
    the nodes that run, by name, `listeners` the addresses (host:port) at which brokers listen for Kafka's clients.
    `folders` are removed with the cluster. `events` are the last `MAX_EVENTS` events as lines of text. `end_reason`
    says why a supervisor that has lost its Ray has ended.
    """

    options: ClusterOptions
    pid: int
    started_ticks: int
    status: Status = Status.STARTING
    address: str | None = None
    namespace: str | None = None
    nodes: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    pids: dict[str, int] = {}
    listeners: dict[str, str] = {}
    folders: tuple[str, ...] = ()
    disks: str | None = None
    events: tuple[str, ...] = ()
    end_reason: str = ""

    @property
    def is_running(self) -> bool:
        """Whether the supervisor's process exists."""
        return start_ticks(self.pid) == self.started_ticks

    @property
    def end(self) -> str:
        """Why a cluster that does not run has ended."""
        return self.end_reason or f"its supervisor, process {self.pid}, is gone, and its nodes with it"

    @property
    def is_private(self) -> bool:
        """Whether the cluster runs on a private Ray."""
        return self.options.address is None

    def with_event(self, what: str, text: str) -> ClusterState:
        """With a line that begins with the time of this machine, and with what or which node it is about."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}: {text}"
        return self.model_copy(update={"events": (*self.events, line)[-MAX_EVENTS:]})


def runtime_folder() -> Path:
    """The folder of this user's state files, created if missing. InputError where another user can access it."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given) / "isray" if given else Path(tempfile.gettempdir()) / f"isray-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise InputError(str(folder), "", f"owner {found.st_uid}, mode {found.st_mode:o}", "a folder of this user only")
    return folder


def state_path(name: str) -> Path:
    """The state file of the cluster of that name; InputError for a malformed name."""
    if not _NAME.fullmatch(name):
        raise InputError("--name", "", name, "letters, digits, '.', '_' and '-', at most 64 of them")
    return runtime_folder() / f"{name}.json"


def log_path(name: str) -> Path:
    """The log of a cluster in the background; `isray down` removes it, and the next start overwrites it."""
    return state_path(name).with_suffix(".log")


def socket_path(name: str) -> Path:
    """The socket of a cluster's supervisor (`node_commands.py`)."""
    return state_path(name).with_suffix(".sock")


def read_state(name: str) -> ClusterState | None:
    """The state of the cluster of that name, None where there is no file; InputError for a damaged file."""
    path = state_path(name)
    try:
        return ClusterState.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(str(path), "", "a damaged state file", "the file as isray wrote it, or no file") from error


def states() -> list[ClusterState]:
    """The states of all clusters of this user in the order of their names, stale ones included."""
    found = (read_state(path.stem) for path in sorted(runtime_folder().glob("*.json")))
    return [state for state in found if state is not None]


def claim(options: ClusterOptions) -> ClusterState:
    """Claims the name for this process by creating its state file. InputError where a cluster of that name runs."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    state = ClusterState(options=options, pid=os.getpid(), started_ticks=ticks)
    path = state_path(options.name)
    draft = _draft(path, state)
    try:
        while True:
            try:
                os.link(draft, path)
                return state
            except FileExistsError:
                require_free(options.name)
                path.unlink(missing_ok=True)
    finally:
        draft.unlink()


def require_free(name: str) -> None:
    """InputError where a cluster of that name runs."""
    found = read_state(name)
    if found is not None and found.is_running:
        raise InputError("--name", "", f"{name}, which process {found.pid} runs", "a name that is not in use")


def write_state(state: ClusterState) -> None:
    path = state_path(state.options.name)
    _draft(path, state).replace(path)


def remove_state(name: str) -> None:
    state_path(name).unlink(missing_ok=True)
    properties_path(name).unlink(missing_ok=True)


def properties_path(name: str) -> Path:
    """The `client.properties` of a cluster with listeners, for Kafka's clients; it is removed with the state file."""
    return state_path(name).with_suffix(".client.properties")


def write_properties(state: ClusterState) -> None:
    """Writes `properties_path`."""
    servers = ",".join(state.listeners.values())
    protocol = state.options.config.get(LISTENERS, "PLAINTEXT").partition("://")[0]
    path = properties_path(state.options.name)
    write_text(path, f"bootstrap.servers={servers}\nsecurity.protocol={protocol}\n")


def _draft(path: Path, state: ClusterState) -> Path:
    """Writes the state to a new file beside `path` that only the user can read."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(state.model_dump_json())
    return Path(name)
