"""The state files of running clusters: a JSON file per cluster and user, which says how to reach it and how to end it.

They lie in `$XDG_RUNTIME_DIR/isray`, else in `isray-UID` below the folder for temporary files; only the user can look
into that folder, and one that somebody else owns is not used. A file is written whole and put in its place in one step,
so that readers see a complete one; a name is claimed by creating its file, which only one process can do.

A process is known by its id together with the time at which the kernel started it, since ids are used again. A state
file whose process is gone is stale: the supervisor was killed before it could clean up.
"""

from __future__ import annotations

import os
import re
import tempfile
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from experiments.support.errors import InputError
from protocol.config import Generation

DEFAULT_NAME = "default"
MAX_EVENTS = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Plan(BaseModel):
    """The cluster that was asked for. `config` are overrides of static configs; `racks` has one rack per broker, or
    none; `address` is the Ray to use, None for a private one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = DEFAULT_NAME
    brokers: int = 3
    controllers: int = 1
    generation: Generation = Generation.KIP_966
    config: dict[str, str] = {}
    racks: tuple[str, ...] = ()
    address: str | None = None


class Status(StrEnum):
    """A cluster is `ready` once all its brokers have been unfenced."""

    STARTING = "starting"
    READY = "ready"


class ClusterState(BaseModel):
    """What a state file says. `address` (host:port of the Ray head, the bootstrap address) and `namespace` (where the
    nodes' actors have their names) are None until they are known; `pids` are the nodes' processes, `dead` the nodes
    whose process has ended; `folders`
    go when the cluster does; `events` are the last things that happened, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    pid: int
    started_ticks: int
    status: Status = Status.STARTING
    address: str | None = None
    namespace: str | None = None
    nodes: tuple[str, ...] = ()
    pids: dict[str, int] = {}
    dead: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    events: tuple[str, ...] = ()

    @property
    def is_running(self) -> bool:
        """Whether the supervisor's process lives."""
        return start_ticks(self.pid) == self.started_ticks

    @property
    def is_private(self) -> bool:
        """Whether the cluster has a Ray of its own."""
        return self.plan.address is None

    def with_event(self, text: str) -> ClusterState:
        return self.model_copy(update={"events": (*self.events, text)[-MAX_EVENTS:]})


def start_ticks(pid: int) -> int | None:
    """When the kernel started a process, in clock ticks since the machine's start; None where it runs no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def runtime_folder() -> Path:
    """The folder of this user's state files; made if need be. InputError where it belongs to somebody else."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given) / "isray" if given else Path(tempfile.gettempdir()) / f"isray-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise InputError(str(folder), "", f"owner {found.st_uid}, mode {found.st_mode:o}", "a folder of this user only")
    return folder


def state_path(name: str) -> Path:
    """The file of the cluster of that name; InputError for a name that is none."""
    if not _NAME.fullmatch(name):
        raise InputError("--name", "", name, "letters, digits, '.', '_' and '-', at most 64 of them")
    return runtime_folder() / f"{name}.json"


def log_path(name: str) -> Path:
    """Where a cluster in the background writes what it has to say; it stays until `isray down` or the next start."""
    return state_path(name).with_suffix(".log")


def read_state(name: str) -> ClusterState | None:
    """The state of the cluster of that name, None where there is no file; InputError where the file is damaged."""
    path = state_path(name)
    try:
        return ClusterState.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(str(path), "", "no state of a cluster", "the file as isray wrote it, or none") from error


def states() -> list[ClusterState]:
    """The states of all of this user's clusters, stale ones too, by name."""
    found = (read_state(path.stem) for path in sorted(runtime_folder().glob("*.json")))
    return [state for state in found if state is not None]


def claim(plan: Plan) -> ClusterState:
    """Makes this process the supervisor of a cluster: creates its state file. InputError where a cluster of that name
    runs already; a stale file is replaced.
    """
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    state = ClusterState(plan=plan, pid=os.getpid(), started_ticks=ticks)
    path = state_path(plan.name)
    draft = _draft(path, state)
    try:
        while True:
            try:
                os.link(draft, path)
                return state
            except FileExistsError:
                require_free(plan.name)
                path.unlink(missing_ok=True)
    finally:
        draft.unlink()


def require_free(name: str) -> None:
    """InputError where a cluster of that name runs."""
    found = read_state(name)
    if found is not None and found.is_running:
        raise InputError("--name", "", f"{name}, which process {found.pid} runs", "a name that is not in use")


def write_state(state: ClusterState) -> None:
    """Replaces the cluster's state file."""
    path = state_path(state.plan.name)
    _draft(path, state).replace(path)


def remove_state(name: str) -> None:
    """Removes the state file, if it is there."""
    state_path(name).unlink(missing_ok=True)


def _draft(path: Path, state: ClusterState) -> Path:
    """The state in a file of its own beside `path`, which only the user can read."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(state.model_dump_json())
    return Path(name)
