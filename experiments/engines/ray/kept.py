"""Disks that outlive their cluster: what `isray down --keep` leaves, and `isray up --from` starts on.

The folder of a cluster holds the directories of its nodes. `cluster.json` beside them says what the cluster was: it is
written when the cluster is ready and when it ends, so the disks of a cluster whose supervisor was killed can be kept,
too. A cluster on kept disks has the same cluster id, node ids, topics and records. Other static configs are possible,
as for nodes that are started again with another file. The number of nodes, the generation and the racks are those of
the disks.

Whoever runs a cluster holds the lock of its folder. The disks must be on this machine, since the nodes of a new cluster
may be placed on other machines than those of the last one.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ValidationError

from actors.kept_disks import KeptDisks
from actors.storage import DirectoryLock, DiskLossKind
from experiments.engines.clusters.cluster_state import ClusterOptions, ClusterState, state_path
from experiments.support.atomic import write_text
from experiments.support.errors import InputError
from protocol.errors import DirectoryInUseError
from protocol.ids import NodeId

if TYPE_CHECKING:
    from actors.cluster import ActorCluster

FILE, KEEP = "cluster.json", "keep"
"""What the cluster was; the mark by which `isray down --keep` has the supervisor leave the disks."""
ALLOWED = "a folder or the name of a cluster that isray down --keep has left"


class KeptCluster(BaseModel, frozen=True, extra="forbid"):
    """The content of `cluster.json`: the options of the cluster, its id, and of each node how often it was started, the
    number of its present disk, and what the disk loses at the next start.
    """

    format: Literal["isray-cluster"] = "isray-cluster"
    version: Literal[1] = 1
    options: ClusterOptions
    run: str
    incarnations: dict[NodeId, int]
    disks: dict[NodeId, int]
    losses: dict[NodeId, tuple[DiskLossKind, int]]

    def disks_in(self, folder: Path) -> KeptDisks:
        return KeptDisks(self.run, folder, self.incarnations, self.disks, self.losses)


def write_kept(cluster: ActorCluster, options: ClusterOptions) -> None:
    """Writes `cluster.json`."""
    known = cluster.kept_disks()
    kept = KeptCluster(
        options=options.model_copy(update={"address": None, "trace": None, "disks": None}),
        run=known.run,
        incarnations=dict(known.incarnations),
        disks=dict(known.disks),
        losses=dict(known.losses),
    )
    write_text(cluster.folder / FILE, kept.model_dump_json(indent=1) + "\n")


def read_kept(folder: Path) -> KeptCluster:
    """What a folder of kept disks holds. InputError where it is none."""
    path = folder / FILE
    try:
        return KeptCluster.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("--from", "", f"{folder}, without a {FILE}", ALLOWED) from error
    except ValidationError as error:
        raise InputError("--from", "", f"{path}, a damaged file", ALLOWED) from error


def find_kept(text: str) -> Path:
    """The folder that `--from` names: a folder, or the last one that a cluster of this name has left. InputError for
    none.
    """
    folder = Path(text)
    if not folder.is_dir() and "/" not in text and (pointer := _pointer(text)).exists():
        folder = Path(pointer.read_text(encoding="utf-8"))
    if not folder.is_dir():
        raise InputError("--from", "", text, ALLOWED)
    return folder.absolute()


def kept_options(
    kept: KeptCluster, folder: Path, asked: Mapping[str, object], config: Mapping[str, str]
) -> ClusterOptions:
    """The options of a cluster on kept disks. `asked` are those that the user has given; all but the name, the Ray and
    the trace must be those of the disks. InputError for another one.
    """
    for name in ("brokers", "controllers", "generation", "kafka_release", "racks"):
        found, has = asked.get(name), getattr(kept.options, name)
        if found is not None and found != has:
            allowed = f"{_words(has)}, as the disks in {folder} have"
            raise InputError(f"--{name.replace('_', '-')}", "", _words(found), allowed)
    free = {name: value for name in ("name", "address", "trace") if (value := asked.get(name)) is not None}
    merged = {**kept.options.config, **config}
    return kept.options.model_copy(update={**free, "config": merged, "disks": str(folder)})


def _words(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(getattr(value, "value", value))


def lock_disks(folder: Path, name: str) -> DirectoryLock:
    """The lock of a cluster's folder. InputError where another cluster runs on it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = DirectoryLock(folder, f"cluster {name}")
    except DirectoryInUseError as error:
        raise InputError("--from", "", str(error), "disks on which no cluster runs") from error
    (folder / KEEP).unlink(missing_ok=True)
    return lock


def mark_to_keep(state: ClusterState, hosts: Mapping[str, str | None]) -> Path:
    """Has the supervisor of a cluster leave its disks; returns their folder. `hosts`: where its nodes run. InputError
    where the disks are not on this machine, or there is no cluster on them yet.
    """
    elsewhere = sorted(f"{node} on {host}" for node, host in hosts.items() if host not in (None, socket.gethostname()))
    if elsewhere:
        raise InputError("--keep", "", elsewhere[0], "a cluster whose nodes run on this machine")
    if state.disks is None or not (Path(state.disks) / FILE).exists():
        raise InputError("--keep", "", f"{state.options.name}, which has no disks", "a cluster that was ready once")
    (Path(state.disks) / KEEP).touch()
    _pointer(state.options.name).write_text(state.disks, encoding="utf-8")
    return Path(state.disks)


def is_kept(folder: Path) -> bool:
    """Whether the disks in a folder outlive the cluster that runs on them now."""
    return (folder / KEEP).exists()


def _pointer(name: str) -> Path:
    """The file that says where the kept disks of a cluster are."""
    return state_path(name).with_suffix(".kept")
