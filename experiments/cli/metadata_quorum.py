"""`isray metadata-quorum`: kafka-metadata-quorum.sh. Describe the replicas of the metadata log, add and remove voters
(J16, J17, D29-D32).

A controller is identified by its id and its directory id, the uuid of its disk. Kafka's tool reads the latter in the
directory of the controller that it runs on. This one asks the quorum unless `--controller-directory-id` is given. To
add the controller whose properties `--command-config` names, its `node.id` is enough, as in Kafka's tool.

Both descriptions have the format of Kafka 4.1.0. Times are Unix times in milliseconds by the leader's clock, -1 where
the leader does not know them. A replica without a directory id, such as every broker, has the zero uuid in the table.
`--json` also says which replicas can become voters (`promotable`); of the voters it is those that are not down.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.cluster_access import Target, administering, keep_options, on_cluster
from experiments.cli.help import App
from experiments.cli.output import flag, option, print_json, print_result
from experiments.cli.parse import directory_id, listener, one_of, only_with, whole_numbers
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import MissingInput
from experiments.support.properties import read_properties
from experiments.support.record_text import endpoint_text, replica_text
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.ids import uuid_text
from protocol.messages.quorum import DescribeQuorumResponse, ReplicaState

FAILING = "Error while executing metadata quorum command"
Id = Annotated[int, typer.Option("--controller-id", "-i", min=0, max=INT_MAX, help="The controller's node id.")]
AddedId = Annotated[
    int | None,
    typer.Option("--controller-id", "-i", min=0, max=INT_MAX, help="Default: node.id of the --command-config."),
]
_DISK = ("--controller-directory-id", "--directory-id", "-d")
Directory = Annotated[str | None, option("UUID", "The uuid of its disk. Default: as the quorum knows it.", *_DISK)]
Unregister = Annotated[bool, flag("--unregister", "Then remove its registration, too; it must not run any more.")]
DryRun = Annotated[bool, flag("--dry-run", "Print what would be requested, and change nothing.")]

_TITLES: tuple[str, ...] = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)

app = App("The controller quorum of a running cluster.", callback=keep_options)


@app.register("describe", "isray metadata-quorum describe --status")
@on_cluster()
def describe(
    target: Target,
    status: Annotated[bool, flag("--status", "Leader, epoch, high watermark, members.")] = False,
    replication: Annotated[bool, flag("--replication", "The log end and lag of each replica.")] = False,
    human_readable: Annotated[bool, flag("--human-readable", "Print times as how long ago.")] = False,
) -> None:
    """The replicas of the metadata log, as their leader knows them."""
    what = one_of({"--status": status, "--replication": replication})
    only_with("--replication", what, {"--human-readable": human_readable})
    with administering(target, FAILING) as admin:
        found = admin.describe_quorum()
    if target.as_json:
        print_json(status_document(found) if status else replication_document(found))
    elif status:
        _print_status(found)
    else:
        _print_replication(found, human_readable)


@app.register("add-controller", "isray metadata-quorum add-controller --controller-id 1002")
@on_cluster()
def add_controller(
    target: Target,
    controller_id: AddedId = None,
    disk: Directory = None,
    endpoint: Annotated[list[str] | None, option("NAME://HOST:PORT", "Where it listens; may be repeated.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Make an observer a voter."""
    endpoints = [listener("--endpoint", text) for text in endpoint or ()]
    if controller_id is None:
        controller_id = _described_id(target.config)
    given = _given(disk)
    with administering(target, FAILING) as admin:
        uuid = given or _observer(admin, controller_id)
        if not dry_run:
            admin.add_voter(controller_id, uuid, endpoints)
    found = {"controller_id": controller_id, "directory_id": uuid, "added": not dry_run}
    done = f"{'DRY RUN of adding' if dry_run else 'Added'} controller {controller_id} with directory id {uuid}"
    listening = ", ".join(map(endpoint_text, endpoints)) or "none"
    print_result(target.as_json, found, typer.echo, f"{done} and endpoints: {listening}")


@app.register("remove-controller", "isray metadata-quorum remove-controller --controller-id 1002")
@on_cluster()
def remove_controller(
    target: Target,
    controller_id: Id,
    disk: Directory = None,
    unregister: Unregister = False,
    dry_run: DryRun = False,
) -> None:
    """Make a voter an observer."""
    given = _given(disk)
    with administering(target, FAILING) as admin:
        uuid = given or _voter(admin, controller_id)
        if not dry_run:
            admin.remove_voter(controller_id, uuid)
        if unregister and not dry_run:
            _unregister(admin, controller_id)
    found = {"controller_id": controller_id, "directory_id": uuid, "removed": not dry_run}
    done = f"{'DRY RUN of removing' if dry_run else 'Removed'} controller {controller_id} with directory id {uuid}"
    if unregister:
        found["unregistered"] = not dry_run
        done += f"\n{'DRY RUN of unregistering' if dry_run else 'Unregistered'} KRaft controller {controller_id}"
    print_result(target.as_json, found, typer.echo, done)


def _unregister(admin: AdminClient, controller_id: int) -> None:
    """Removes the registration of a controller that has just been removed from the voters."""
    try:
        admin.unregister_controller(controller_id)
    except AdminError as error:
        again = f"isray cluster unregister-controller --id {controller_id}"
        text = f"controller {controller_id} is no voter any more, but was not unregistered: {error.message}; {again}"
        raise AdminError(error.error, text) from error


def _described_id(config: Path | None) -> int:
    """The id of the controller whose properties these are."""
    allowed = "--controller-id, or --command-config with the controller's properties"
    if config is None:
        raise MissingInput("--controller-id", allowed)
    number = read_properties(config).get("node.id", "")
    if not number:
        raise MissingInput(str(config), allowed, "node.id")
    return whole_numbers(f"{config}: node.id", number, "the id of a controller")[0]


def _given(disk: str | None) -> str | None:
    return None if disk is None else directory_id("--controller-directory-id", disk)


def _observer(admin: AdminClient, controller_id: int) -> str:
    """The uuid of the observer of this id that can become a voter; AdminError where there is none, or several."""
    quorum = admin.describe_quorum()
    found = [state.replica_uuid for state in _of_id(quorum.observers, controller_id) if state.is_promotable]
    if len(found) == 1:
        return found[0]
    if found:
        text = f"several disks of controller {controller_id} fetch: {', '.join(found)}; give its directory id"
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


def status_document(quorum: DescribeQuorumResponse) -> dict[str, object]:
    """The members of the quorum, and how far its log is. The lag time is -1 where the follower with the largest lag
    never had all records of this epoch.
    """
    followers = [state for state in quorum.voters if state.replica_id != quorum.leader_id]
    last = max(followers, key=lambda state: state.lag, default=None)
    lag_time_ms = 0
    if last is not None and last.lag:
        lag_time_ms = -1 if last.last_caught_up_ms < 0 else quorum.now_ms - last.last_caught_up_ms
    return {
        "cluster_id": quorum.cluster_id,
        "leader_id": quorum.leader_id,
        "leader_directory_id": quorum.leader_uuid,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_follower_lag": 0 if last is None else last.lag,
        "max_follower_lag_time_ms": lag_time_ms,
        "current_voters": [_member(state, "directory_id") for state in quorum.voters],
        "current_observers": [_member(state, "directory_id") for state in quorum.observers],
    }


def _member(state: ReplicaState, directory_key: str) -> dict[str, object]:
    endpoints = [endpoint_text(endpoint) for endpoint in state.endpoints]
    return {"id": state.replica_id, directory_key: state.replica_uuid, "endpoints": endpoints}


def replication_document(quorum: DescribeQuorumResponse) -> dict[str, object]:
    same = ("log_end_offset", "lag", "last_fetch_ms", "last_caught_up_ms")
    rows = [
        {"node_id": state.replica_id, "directory_id": state.replica_uuid}
        | {name: getattr(state, name) for name in same}
        | {"status": role_of(state, quorum), "promotable": state.is_promotable}
        for state in _ordered(quorum)
    ]
    return {"now_ms": quorum.now_ms, "replicas": rows}


def _ordered(quorum: DescribeQuorumResponse) -> list[ReplicaState]:
    """The replicas, the leader first, then followers, then observers."""
    roles = ("Leader", "Follower", "Observer")
    return sorted((*quorum.voters, *quorum.observers), key=lambda state: roles.index(role_of(state, quorum)))


def role_of(state: ReplicaState, quorum: DescribeQuorumResponse) -> str:
    """The role of a replica of the description: Leader, Follower or Observer."""
    if (state.replica_id, state.replica_uuid) == (quorum.leader_id, quorum.leader_uuid):
        return "Leader"
    return "Follower" if state in quorum.voters else "Observer"


def _print_status(quorum: DescribeQuorumResponse) -> None:
    members = {"current_voters": quorum.voters, "current_observers": quorum.observers}
    document = status_document(quorum)
    del document["leader_directory_id"]  # not in Kafka's text
    for name, value in document.items():
        title = "".join(word.capitalize() for word in name.split("_"))
        found = [_member(state, "directoryId") for state in members.get(name, ())]
        kept = [{key: item for key, item in member.items() if item not in ("", [])} for member in found]
        typer.echo(f"{title}:".ljust(24) + (json.dumps(kept) if name in members else str(value)))


def _print_replication(quorum: DescribeQuorumResponse, human_readable: bool) -> None:
    """Prints the table as Kafka's tool does: a field is as wide as the widest of its column, and a tab follows it."""

    def when(time_ms: int) -> str:
        return f"{quorum.now_ms - time_ms} ms ago" if human_readable and time_ms >= 0 else str(time_ms)

    rows = [_TITLES]
    for state in _ordered(quorum):
        numbers = map(str, (state.log_end_offset, state.lag))
        times = map(when, (state.last_fetch_ms, state.last_caught_up_ms))
        disk = state.replica_uuid or uuid_text(0)
        rows.append((str(state.replica_id), disk, *numbers, *times, role_of(state, quorum)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("".join(text.ljust(width) + "\t" for text, width in zip(row, widths, strict=True)))
