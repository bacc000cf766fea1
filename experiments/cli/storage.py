"""`isray storage`: kafka-storage.sh. Format a node's directory before its first start, and describe one (D31, J15).

A controller's directory is formatted with exactly one of `--standalone`, `--initial-controllers` and
`--no-initial-controllers`, a broker's with none of them. A directory is not formatted twice, and never if it belongs to
another node or cluster: exit code 2, and nothing in it changes. `info` ends with exit code 1 if the directory is not
formatted, or something in it is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from secrets import randbits
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.cli.help import App
from experiments.cli.output import Json, fail_if, flag, option, print_json, print_result
from experiments.cli.parse import DIRECTORY_ID, directory_id, one_of, readable
from experiments.support.errors import InputError
from experiments.support.record_text import replica_text
from protocol.ids import (
    FIRST_CONTROLLER,
    RECOVERY_MANAGER,
    UUID_BITS,
    NodeId,
    is_broker,
    is_controller,
    node_name,
    uuid_text,
)
from protocol.quorum.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from experiments.engines.ray.directories import Document

_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")
NodeDirectory = Annotated[Path, option("DIR", "The node's directory.", "--directory")]
Controllers = Annotated[
    str | None, option("ID@UUID,...", "The first voters; this node is one of them.", "--initial-controllers")
]

app = App("Directories of nodes.")


@app.register("random-uuid", "isray storage random-uuid")
def random_uuid(as_json: Json = False) -> None:
    """A fresh uuid, for a cluster or a disk."""
    uuid = uuid_text(randbits(UUID_BITS))
    print_result(as_json, {"uuid": uuid}, typer.echo, uuid)


@app.register("format", "isray storage format --cluster-id c --node-id 1000 --directory DIR --standalone")
def format_(
    cluster_id: Annotated[str, option("ID", "The id of the cluster.", "--cluster-id", "-t")],
    node_id: Annotated[int, option("N", "Brokers from 0, controllers from 1000.")],
    directory: NodeDirectory,
    standalone: Annotated[bool, flag("--standalone", "The one first voter.")] = False,
    initial_controllers: Controllers = None,
    no_initial_controllers: Annotated[
        bool, flag("--no-initial-controllers", "Joins a quorum, or is a static voter.")
    ] = False,
    ignore_formatted: Annotated[
        bool, flag("--ignore-formatted", "Succeed where the directory already is this node's.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Format a directory for a node that has never run."""
    if not _ID.fullmatch(cluster_id):
        allowed = "letters, digits, '.', '_' and '-', at most 100 of them"
        raise InputError("--cluster-id", "", repr(cluster_id), allowed)
    ways = {
        "--standalone": standalone,
        "--initial-controllers": initial_controllers is not None,
        "--no-initial-controllers": no_initial_controllers,
    }
    me, voters = _first_voters(node_id, ways, initial_controllers)
    from experiments.engines.ray.directories import describe_directory, format_directory, owner_of

    with readable("--directory", "an empty directory, or the node's own"):
        owner = owner_of(directory)
        if owner not in (None, (cluster_id, node_id)):
            raise InputError(str(directory), "owner", _owner(*owner), _owner(cluster_id, node_id))
        is_new = format_directory(directory, cluster_id, node_id, me, voters)
        found = describe_directory(directory) or {}
    if not is_new and not ignore_formatted:
        raise InputError("--directory", "", f"{directory}, which is formatted already", "one that is not")
    if as_json:
        print_json(found | {"formatted": is_new})
    elif is_new:
        disk = f", directory id {found['directory_id']}" if me is not None else ""
        typer.echo(f"Formatting {directory} for {node_name(node_id)} of cluster {cluster_id}{disk}.")
    else:
        typer.echo(f"{directory} is formatted already.")


def _owner(cluster_id: str, node_id: NodeId) -> str:
    return f"{node_name(node_id)} of cluster {cluster_id}"


def _first_voters(node_id: NodeId, ways: Mapping[str, bool], listed: str | None) -> tuple[ReplicaKey | None, VoterSet]:
    """The key of a controller, None for a broker, and the first voters to write to its log."""
    if is_broker(node_id):
        given = [way for way, is_given in ways.items() if is_given]
        if given:
            raise InputError(given[0], "", f"{given[0]} for {node_name(node_id)}", f"{given[0]} for a controller")
        return None, VoterSet()
    if not is_controller(node_id):
        allowed = f"a broker's id below {FIRST_CONTROLLER}, or a controller's below {RECOVERY_MANAGER}"
        raise InputError("--node-id", "", node_id, allowed)
    way = one_of(ways)
    if listed is not None:
        voters = _listed(listed)
        own = voters.key_of(node_id)
        if own is None:
            raise InputError("--initial-controllers", "", listed, f"a list with this node, {node_id}")
        return own, voters
    me = ReplicaKey(node_id, uuid_text(randbits(UUID_BITS)))
    return me, VoterSet.of([me] if way == "--standalone" else [])


def _listed(text: str) -> VoterSet:
    form = f"ID@UUID, several separated by commas: a controller's id from {FIRST_CONTROLLER}, and {DIRECTORY_ID}"
    keys = []
    for item in text.split(","):
        node, _, uuid = item.strip().partition("@")
        if not node.isdecimal() or not is_controller(int(node)):
            raise InputError("--initial-controllers", "", repr(item), form)
        keys.append(ReplicaKey(int(node), directory_id("--initial-controllers", uuid, form)))
    if any(len(set(values)) < len(keys) for values in zip(*keys, strict=True)):
        raise InputError("--initial-controllers", "", text, "each id and each uuid once")
    return VoterSet.of(keys)


@app.register("info", "isray storage info --directory DIR")
def info(directory: NodeDirectory, as_json: Json = False) -> None:
    """The owner of a directory, and its content."""
    from experiments.engines.ray.directories import describe_directory

    with readable("--directory", "a node's directory"):
        found = describe_directory(directory)
    faults = [f"{directory} is not formatted."] if found is None else found["faults"]
    if as_json:
        print_json(found or {"directory": str(directory), "faults": faults})
    elif found is not None:
        typer.echo("\n".join(_info_lines(found)))
    for fault in faults:
        typer.echo(f"isray: {fault}", err=True)
    fail_if(faults)


def _info_lines(found: Document) -> Iterator[str]:
    yield f"{found['directory']}: {_owner(found['cluster_id'], found['node_id'])}"
    yield f"format version: {found['format_version']}"
    if "directory_id" in found:
        yield f"directory id: {found['directory_id']}"
        voted = "no candidate" if found["voted"] is None else _voter(found["voted"])
        leader = "no leader" if found["leader_id"] < 0 else f"leader {found['leader_id']}"
        yield f"quorum: epoch {found['leader_epoch']}, {leader}, voted for {voted}"
    if found.get("voters"):
        yield f"voters: {', '.join(map(_voter, found['voters']))}"
    for log in found["logs"]:
        yield f"log {log['log']}: from {log['start_offset']}, flushed to {log['flushed_offset']}, {log['size']} bytes"


def _voter(found: Document) -> str:
    return replica_text(found["voter_id"], found["voter_uuid"])
