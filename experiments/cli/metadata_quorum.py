"""`isray metadata-quorum`: kafka-metadata-quorum.sh. Who replicates the metadata log, who of them votes, and changes of
that (J16, J17, D29-D32).

A controller is known by its id and its directory id, the uuid of its disk. Kafka's tool reads the latter in the
directory of the controller that it runs on; here the quorum is asked: the observer of that id that fetches is added,
the voter of that id is removed, unless `--controller-directory-id` says which.

Times are the leader's, in ms since the cluster was started. What Kafka's table has and this one has not: the time at
which a replica had caught up last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from experiments.cli.target import (
    Bootstrap,
    CommandConfig,
    Json,
    Name,
    Principal,
    administering,
    keep_options,
    one_of,
    only_with,
    print_json,
    target_within,
)
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from experiments.support.record_text import endpoint_text, replica_text
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.messages.quorum import MAX_PORT, DescribeQuorumResponse, Endpoint, ReplicaState

FAILING = "Error while executing metadata quorum command"
Id = Annotated[int, typer.Option("--controller-id", "-i", min=0, max=INT_MAX, help="The controller's node id.")]
Directory = Annotated[
    str | None,
    typer.Option(
        "--controller-directory-id",
        "--directory-id",
        "-d",
        metavar="UUID",
        help="Of its disk; else the quorum is asked.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be asked for, and change nothing.")]

app = typer.Typer(help="The quorum of a running cluster.", callback=keep_options, no_args_is_help=True)


@app.command()
def describe(
    context: typer.Context,
    status: Annotated[bool, typer.Option("--status", help="Leader, epoch, high watermark, members.")] = False,
    replication: Annotated[bool, typer.Option("--replication", help="How far each replica is.")] = False,
    human_readable: Annotated[bool, typer.Option("--human-readable", help="Times as how long ago.")] = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """The replicas of the metadata log, as their leader knows them."""
    what = one_of({"--status": status, "--replication": replication})
    only_with("--replication", what, {"--human-readable": human_readable})
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    with administering(wanted, FAILING) as admin:
        found = admin.describe_quorum()
    if as_json:
        print_json(status_document(found) if status else replication_document(found))
    elif status:
        _print_status(status_document(found))
    else:
        _print_replication(found, human_readable)


@app.command("add-controller")
def add_controller(
    context: typer.Context,
    controller_id: Id,
    directory_id: Directory = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option("--endpoint", metavar="NAME://HOST:PORT", help="Where it listens; several times."),
    ] = None,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Make an observer a voter."""
    endpoints = [_endpoint(text) for text in endpoint or ()]
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    with administering(wanted, FAILING) as admin:
        uuid = directory_id or _observer(admin, controller_id)
        if not dry_run:
            admin.add_voter(controller_id, uuid, endpoints)
    listening = ", ".join(map(endpoint_text, endpoints)) or "none"
    _tell(
        f"{'DRY RUN of adding' if dry_run else 'Added'} controller {controller_id} with directory id {uuid}"
        f" and endpoints: {listening}",
        {"controller_id": controller_id, "directory_id": uuid, "added": not dry_run},
        as_json,
    )


@app.command("remove-controller")
def remove_controller(
    context: typer.Context,
    controller_id: Id,
    directory_id: Directory = None,
    dry_run: DryRun = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Make a voter an observer."""
    wanted = target_within(context, bootstrap_server, name, command_config, principal, as_json)
    with administering(wanted, FAILING) as admin:
        uuid = directory_id or _voter(admin, controller_id)
        if not dry_run:
            admin.remove_voter(controller_id, uuid)
    _tell(
        f"{'DRY RUN of removing' if dry_run else 'Removed'} controller {controller_id} with directory id {uuid}",
        {"controller_id": controller_id, "directory_id": uuid, "removed": not dry_run},
        as_json,
    )


def _tell(text: str, document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        typer.echo(text)


def _endpoint(text: str) -> Endpoint:
    name, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal() and 0 < int(port) <= MAX_PORT):
        raise InputError("--endpoint", "", text, f"NAME://HOST:PORT, a port from 1 to {MAX_PORT}")
    return Endpoint(name=name, host=host, port=int(port))


# -- which disk --------------------------------------------------------------------------------------------------------


def _observer(admin: AdminClient, controller_id: int) -> str:
    """The uuid of the one observer of this id that could become a voter; AdminError where there is none, or several."""
    quorum = admin.describe_quorum()
    found = [state.replica_uuid for state in _of_id(quorum.observers, controller_id) if state.is_promotable]
    if len(found) == 1:
        return found[0]
    if found:
        text = f"several disks of controller {controller_id} fetch: {', '.join(found)}; say which is meant"
        raise AdminError(ErrorCode.INVALID_REQUEST, text)
    for state in _of_id(quorum.voters, controller_id):
        raise AdminError(ErrorCode.DUPLICATE_VOTER, f"{_key(state)} is already a voter")
    observers = _keys(state for state in quorum.observers if state.is_promotable)
    text = f"no controller {controller_id} fetches that could become a voter; those that could: {observers}"
    raise AdminError(ErrorCode.VOTER_NOT_FOUND, text)


def _voter(admin: AdminClient, controller_id: int) -> str:
    """The uuid of the voter of this id; AdminError where there is none."""
    quorum = admin.describe_quorum()
    for state in _of_id(quorum.voters, controller_id):
        return state.replica_uuid
    raise AdminError(ErrorCode.VOTER_NOT_FOUND, f"no voter has id {controller_id}; voters: {_keys(quorum.voters)}")


def _of_id(states: Iterable[ReplicaState], replica_id: int) -> list[ReplicaState]:
    return [state for state in states if state.replica_id == replica_id]


def _key(state: ReplicaState) -> str:
    return replica_text(state.replica_id, state.replica_uuid)


def _keys(states: Iterable[ReplicaState]) -> str:
    return ", ".join(map(_key, states)) or "none"


# -- descriptions ------------------------------------------------------------------------------------------------------


def status_document(quorum: DescribeQuorumResponse) -> dict[str, Any]:
    """What `describe --status` says."""
    followers = [state.lag for state in quorum.voters if state.replica_id != quorum.leader_id]
    return {
        "cluster_id": quorum.cluster_id,
        "leader_id": quorum.leader_id,
        "leader_directory_id": quorum.leader_uuid,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_follower_lag": max(followers, default=0),
        "current_voters": [_member(state) for state in quorum.voters],
        "current_observers": [_member(state) for state in quorum.observers],
    }


def _member(state: ReplicaState) -> dict[str, Any]:
    endpoints = [endpoint_text(endpoint) for endpoint in state.endpoints]
    return {"id": state.replica_id, "directory_id": state.replica_uuid, "endpoints": endpoints}


def replication_document(quorum: DescribeQuorumResponse) -> dict[str, Any]:
    """What `describe --replication` says."""
    roles = [(state, role_of(state, quorum)) for state in (*quorum.voters, *quorum.observers)]
    return {
        "now_ms": quorum.now_ms,
        "replicas": [
            {
                "node_id": state.replica_id,
                "directory_id": state.replica_uuid,
                "log_end_offset": state.log_end_offset,
                "lag": state.lag,
                "last_fetch_ms": state.last_fetch_ms,
                "status": role,
                "promotable": state.is_promotable,
            }
            for state, role in sorted(roles, key=lambda item: ("Leader", "Follower", "Observer").index(item[1]))
        ],
    }


def role_of(state: ReplicaState, quorum: DescribeQuorumResponse) -> str:
    """Leader, Follower or Observer: what a replica of the description is."""
    if (state.replica_id, state.replica_uuid) == (quorum.leader_id, quorum.leader_uuid):
        return "Leader"
    return "Follower" if state in quorum.voters else "Observer"


def _print_status(found: dict[str, Any]) -> None:
    for name, value in found.items():
        text = json.dumps([_as_kafka_has_it(member) for member in value]) if isinstance(value, list) else value
        typer.echo(f"{_title(name)}:".ljust(24) + str(text))


def _title(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _as_kafka_has_it(member: dict[str, Any]) -> dict[str, Any]:
    found = {"id": member["id"], "directoryId": member["directory_id"]}
    return found | {"endpoints": member["endpoints"]} if member["endpoints"] else found


def _print_replication(quorum: DescribeQuorumResponse, human_readable: bool) -> None:
    rows = [["NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "Status", "Promotable"]]
    for found in replication_document(quorum)["replicas"]:
        fetched = found["last_fetch_ms"]
        when = f"{quorum.now_ms - fetched} ms ago" if human_readable and fetched >= 0 else str(fetched)
        numbers = [str(found[name]) for name in ("log_end_offset", "lag")]
        promotable = "yes" if found["promotable"] else "no"
        rows.append([str(found["node_id"]), found["directory_id"] or "-", *numbers, when, found["status"], promotable])
    for line in _columns(rows):
        typer.echo(line)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
