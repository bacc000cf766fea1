"""`isray leader-election` and `isray reassign-partitions`: kafka-leader-election.sh with the election types of KIP-966
(J1-J11), and kafka-reassign-partitions.sh (J18).

DESIGNATION takes the desired leader of each partition from the JSON file, so it needs one (J7, J9). A partition for
which no leader was elected is exit code 1; one that needed no election is not (J10). A mistake in one partition of the
file fails that partition only, as INVALID_REQUEST.

There are no throttles of reassignments, and a broker has one log directory (`log_dirs` may contain `any` only).
`--generate` proposes the placement that the controller would choose for new topics of that size, with the racks of the
brokers unless `--disable-rack-aware` is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import typer
from pydantic import Field

from experiments.cli.cluster_access import (
    BootstrapServer,
    OwnCluster,
    Principal,
    Target,
    administering,
    exit_if_failed,
    numbers,
    on_cluster,
    target_of,
)
from experiments.cli.output import Json, fail, flag, option, print_json, print_result
from experiments.cli.parse import one_of, only_with, read_json, whole_numbers
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.explorer.values import message_fields
from experiments.support.errors import InputError, MissingInput
from experiments.support.fields import JsonShape
from experiments.support.reassignment import ANY_LOG_DIR, Assignment, Int32, Reassignment, assignment_of
from protocol.config import INT_MAX
from protocol.controller.placement import UsableBroker, place
from protocol.errors import ErrorCode, Refused
from protocol.ids import TopicPartition
from protocol.messages.partitions import ElectionType, OngoingPartitionReassignment, PartitionResult

TYPES = {kind.name.lower(): kind for kind in ElectionType}
LEADERS_EXAMPLE = '{"partitions": [{"topic": "t", "partition": 0, "desiredLeader": 1}]}'
Leaders = dict[TopicPartition, int | None]
"""Partitions, each with the desired leader for DESIGNATION, None otherwise."""
Results = dict[TopicPartition, PartitionResult]
AdminConfig = Annotated[
    Path | None, option("FILE", "Properties: principal=User:NAME.", "--admin.config", "--command-config")
]


class _Partition(JsonShape):
    topic: str
    partition: Int32
    desired_leader: Int32 | None = Field(None, alias="desiredLeader")


class _Partitions(JsonShape):
    partitions: Annotated[list[_Partition], Field(min_length=1)]


def leader_election(
    election_type: Annotated[str, option("TYPE", " | ".join(TYPES))],
    topic: Annotated[str | None, option("TOPIC", "A topic; with --partition.")] = None,
    partition: Annotated[int | None, option("N", "A partition of --topic.", min=0, max=INT_MAX)] = None,
    path_to_json_file: Annotated[Path | None, option("FILE", f"Partitions: {LEADERS_EXAMPLE}")] = None,
    all_topic_partitions: Annotated[
        bool, flag("--all-topic-partitions", "All partitions that the type applies to.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    name: OwnCluster = None,
    principal: Principal = None,
    as_json: Json = False,
    command_config: AdminConfig = None,
) -> None:
    """Elect leaders for a partition, for those listed in a file, or for all."""
    target = target_of(bootstrap_server, name, as_json, command_config, principal)
    kind = TYPES.get(election_type.lower())
    if kind is None:
        raise InputError("--election-type", "", election_type, " | ".join(TYPES))
    given = {
        "--topic": topic is not None,
        "--all-topic-partitions": all_topic_partitions,
        "--path-to-json-file": path_to_json_file is not None,
    }
    source = one_of(given)
    if (topic is None) != (partition is None):
        found = "--partition without --topic" if topic is None else "--topic without --partition"
        raise InputError("--partition", "", found, "--topic and --partition together, or neither of them")
    if kind is ElectionType.DESIGNATION and path_to_json_file is None:
        raise InputError("--election-type", "", f"designation with {source}", "designation with --path-to-json-file")
    partitions: Leaders | None = None
    refused: Results = {}
    if path_to_json_file is not None:
        partitions, refused = read_partitions(path_to_json_file, kind)
    elif topic is not None and partition is not None:
        partitions = {TopicPartition(topic, partition): None}
    with administering(target, "Error completing leader election") as admin:
        _report(kind, refused | admin.elect_leaders(kind, partitions), target.as_json)


def read_partitions(path: Path, kind: ElectionType) -> tuple[Leaders, Results]:
    """The partitions of a JSON file that can be requested, each with its desired leader if the type is DESIGNATION, and
    the failures of the others; InputError where the file has another shape.
    """
    wanted: Leaders = {}
    refused: Results = {}
    for item in read_json(path, _Partitions, LEADERS_EXAMPLE).partitions:
        found = TopicPartition(item.topic, item.partition)
        if found in wanted or found in refused:
            wanted.pop(found, None)
            refused[found] = _refused(found, f"partition {found} is named twice")
        elif kind is ElectionType.DESIGNATION and item.desired_leader is None:
            refused[found] = _refused(found, "no desiredLeader")
        else:
            wanted[found] = item.desired_leader if kind is ElectionType.DESIGNATION else None
    return wanted, refused


def _refused(partition: TopicPartition, message: str) -> PartitionResult:
    topic, index = partition
    return PartitionResult(topic=topic, partition_index=index, error=ErrorCode.INVALID_REQUEST, message=message)


def _report(kind: ElectionType, results: Results, as_json: bool) -> None:
    ordered = dict(sorted(results.items()))
    succeeded = [key for key, result in ordered.items() if result.error is ErrorCode.NONE]
    not_needed = [key for key, result in ordered.items() if result.error is ErrorCode.ELECTION_NOT_NEEDED]
    failed = {key: result for key, result in ordered.items() if key not in {*succeeded, *not_needed}}
    if as_json:
        errors = [key._asdict() | {"error": it.error.name, "message": it.message} for key, it in failed.items()]
        sorts = {"succeeded": succeeded, "not_needed": not_needed}
        found = {name: [key._asdict() for key in keys] for name, keys in sorts.items()}
        print_json({"election_type": kind.name.lower(), **found, "failed": errors})
    for done, keys in (
        (f"Successfully completed leader election ({kind.name})", succeeded),
        ("Valid replica already elected", not_needed),
    ):
        if keys and not as_json:
            typer.echo(f"{done} for partitions {', '.join(map(str, keys))}")
    for key, result in failed.items():
        why = f"{result.error.name}: {result.message}"
        typer.echo(f"Error completing leader election ({kind.name}) for partition: {key}: {why}", err=True)
    if failed:
        fail(f"{len(failed)} replica(s) could not be elected")


MOVES_EXAMPLE = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [3, 1, 2]}]}'
TOPICS_EXAMPLE = '{"version": 1, "topics": [{"topic": "t"}]}'
Name = Annotated[str, Field(min_length=1)]


class _Topic(JsonShape):
    topic: Name


class _Topics(JsonShape):
    version: Literal[1] = 1
    topics: Annotated[list[_Topic], Field(min_length=1)]


@on_cluster()
def reassign_partitions(
    target: Target,
    execute: Annotated[bool, flag("--execute", "Start the reassignment of the file.")] = False,
    verify: Annotated[bool, flag("--verify", "Print how far the reassignment of the file is.")] = False,
    cancel: Annotated[bool, flag("--cancel", "Cancel the reassignments of the file.")] = False,
    list_: Annotated[bool, flag("--list", "List all reassignments in progress.")] = False,
    generate: Annotated[bool, flag("--generate", "Propose a reassignment; change nothing.")] = False,
    reassignment_json_file: Annotated[Path | None, option("FILE", f"Replicas of partitions: {MOVES_EXAMPLE}")] = None,
    topics_to_move_json_file: Annotated[Path | None, option("FILE", f"With --generate: {TOPICS_EXAMPLE}")] = None,
    broker_list: Annotated[str | None, option("0,1,2", "With --generate: the brokers to use.")] = None,
    additional: Annotated[bool, flag("--additional", "With --execute: although others are in progress.")] = False,
    disallow_replication_factor_change: Annotated[
        bool, flag("--disallow-replication-factor-change", "With --execute: refuse another number of replicas.")
    ] = False,
    disable_rack_aware: Annotated[bool, flag("--disable-rack-aware", "With --generate: ignore racks.")] = False,
) -> None:
    """Move partitions to other brokers: start, verify, cancel, list; or propose where to."""
    action = one_of(
        {"--execute": execute, "--verify": verify, "--cancel": cancel, "--list": list_, "--generate": generate}
    )
    only_with("--execute|--verify|--cancel", action, {"--reassignment-json-file": reassignment_json_file})
    factor_option = {"--disallow-replication-factor-change": disallow_replication_factor_change}
    only_with("--execute", action, {"--additional": additional, **factor_option})
    only_with("--generate", action, {"--topics-to-move-json-file": topics_to_move_json_file})
    only_with("--generate", action, {"--broker-list": broker_list, "--disable-rack-aware": disable_rack_aware})
    takes_file = action not in ("--list", "--generate")
    assignment = read_assignment(_given("--reassignment-json-file", reassignment_json_file)) if takes_file else {}
    topics = read_topics(_given("--topics-to-move-json-file", topics_to_move_json_file)) if generate else []
    brokers = _brokers(broker_list) if generate else []
    with administering(target, "Error") as admin:
        if execute:
            _execute(admin, assignment, additional, not disallow_replication_factor_change, target.as_json)
        elif verify:
            _verify(admin, assignment, target.as_json)
        elif cancel:
            _cancel(admin, assignment, target.as_json)
        elif list_:
            _list(admin, target.as_json)
        else:
            _generate(admin, topics, brokers, not disable_rack_aware, target.as_json)


def _given(option: str, path: Path | None) -> Path:
    if path is None:
        raise MissingInput(option, "a JSON file")
    return path


def read_assignment(path: Path) -> Assignment:
    """The partitions of a reassignment file with their new replicas; InputError where the file is wrong."""
    found = read_json(path, Reassignment, MOVES_EXAMPLE)
    for number, item in enumerate(found.partitions):
        if {*(item.log_dirs or ())} - {ANY_LOG_DIR}:
            place = f"partitions[{number}].log_dirs"
            raise InputError(str(path), place, item.log_dirs, f'"{ANY_LOG_DIR}" for each replica')
    return assignment_of(found, str(path))


def read_topics(path: Path) -> list[str]:
    names = [item.topic for item in read_json(path, _Topics, TOPICS_EXAMPLE).topics]
    if len(set(names)) != len(names):
        raise InputError(str(path), "topics", names, "each topic once")
    return names


def _brokers(option: str | None) -> list[int]:
    allowed = "broker ids separated by commas"
    if option is None:
        raise MissingInput("--broker-list", allowed)
    brokers = whole_numbers("--broker-list", option, allowed)
    if len(set(brokers)) != len(brokers):
        raise InputError("--broker-list", "", option, "each broker once")
    return brokers


def reassignment_document(assignment: Mapping[TopicPartition, Sequence[int]]) -> dict[str, object]:
    """An assignment as the file that `--reassignment-json-file` reads."""
    partitions = [
        key._asdict() | {"replicas": list(replicas), "log_dirs": [ANY_LOG_DIR] * len(replicas)}
        for key, replicas in sorted(assignment.items())
    ]
    return {"version": 1, "partitions": partitions}


def _present(admin: AdminClient, topics: Sequence[str]) -> Assignment:
    """The replicas of all partitions of topics; a topic that does not exist has none."""
    found: Assignment = {}
    for topic in admin.describe_topics(topics):
        if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise AdminError(topic.error, topic.message or topic.name)
        found |= {TopicPartition(topic.name, item.partition_index): item.replica_nodes for item in topic.partitions}
    return found


def _execute(
    admin: AdminClient, assignment: Assignment, additional: bool, may_change_factor: bool, as_json: bool
) -> None:
    if admin.list_reassignments() and not additional:
        raise AdminError(ErrorCode.INVALID_REQUEST, "there is an existing reassignment; --additional overrides it")
    known = {broker.broker_id for broker in admin.describe_cluster().brokers}
    unknown = sorted({broker for replicas in assignment.values() for broker in replicas} - known)
    if unknown:
        raise AdminError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Unknown broker id {numbers(unknown)}")
    present = _present(admin, _topics_of(assignment))
    missing = [str(key) for key in sorted(assignment) if key not in present]
    if missing:
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition: {', '.join(missing)}")
    before = reassignment_document({key: present[key] for key in assignment})
    if not as_json:
        typer.echo(f"Current partition replica assignment\n\n{json.dumps(before, separators=(',', ':'))}\n")
        typer.echo("Save this to use as the --reassignment-json-file option during rollback")
    results = admin.alter_reassignments(assignment, may_change_factor)
    done = _finish(results, "Error reassigning partition(s):", {"before": before}, as_json)
    if not as_json:
        typer.echo(f"Successfully started {_reassignments(done)} for {','.join(map(str, done))}")


def _cancel(admin: AdminClient, assignment: Assignment, as_json: bool) -> None:
    ongoing = admin.list_reassignments(list(assignment))
    results = admin.alter_reassignments(dict.fromkeys(sorted(ongoing))) if ongoing else {}
    done = _finish(results, "Error cancelling partition reassignment(s):", {}, as_json)
    if done and not as_json:
        typer.echo(f"Successfully cancelled {_reassignments(done)} for: {','.join(map(str, done))}")
    elif not as_json:
        typer.echo("None of the specified partition reassignments are active.")


def _reassignments(done: Sequence[TopicPartition]) -> str:
    return f"partition reassignment{'' if len(done) == 1 else 's'}"


def _finish(
    results: Mapping[TopicPartition, PartitionResult], failing: str, more: Mapping[str, object], as_json: bool
) -> list[TopicPartition]:
    """The partitions, if all of them succeeded; otherwise reports those that failed, with exit code 1."""
    if as_json:
        print_json({**more, "partitions": [message_fields(result) for _, result in sorted(results.items())]})
    if any(result.error is not ErrorCode.NONE for result in results.values()):
        typer.echo(failing, err=True)
    exit_if_failed((str(key), result) for key, result in sorted(results.items()))
    return sorted(results)


def _verify(admin: AdminClient, assignment: Assignment, as_json: bool) -> None:
    ongoing = admin.list_reassignments()
    present = _present(admin, _topics_of(assignment))
    states = {key: _state(key, replicas, ongoing, present) for key, replicas in sorted(assignment.items())}
    found = [key._asdict() | {"state": state} for key, (state, _) in states.items()]
    lines = ["Status of partition reassignment:", *(line for _, line in states.values())]
    print_result(as_json, found, typer.echo, "\n".join(lines))


def _state(
    key: TopicPartition,
    replicas: tuple[int, ...],
    ongoing: Mapping[TopicPartition, OngoingPartitionReassignment],
    present: Assignment,
) -> tuple[str, str]:
    """How far a reassignment is: a word for JSON, and the line that Kafka's tool prints."""
    found = present.get(key, ())
    if key in ongoing:
        return "in_progress", f"Reassignment of partition {key} is still in progress."
    if found == replicas:
        return "completed", f"Reassignment of partition {key} is completed."
    text = f"but replica set is {numbers(found)} rather than {numbers(replicas)}."
    return "not_active", f"There is no active reassignment of partition {key}, {text}"


def _topics_of(assignment: Assignment) -> list[str]:
    return sorted({key.topic for key in assignment})


def _list(admin: AdminClient, as_json: bool) -> None:
    ongoing = dict(sorted(admin.list_reassignments().items()))
    lines = ["Current partition reassignments:" if ongoing else "No partition reassignments found."]
    for key, move in ongoing.items():
        adding = f" adding: {numbers(move.adding_replicas)}." if move.adding_replicas else ""
        removing = f" removing: {numbers(move.removing_replicas)}." if move.removing_replicas else ""
        lines.append(f"{key}: replicas: {numbers(move.replicas)}.{adding}{removing}")
    print_result(as_json, [message_fields(move) for move in ongoing.values()], typer.echo, "\n".join(lines))


def _generate(admin: AdminClient, topics: Sequence[str], brokers: Sequence[int], by_racks: bool, as_json: bool) -> None:
    present = _present(admin, topics)
    missing = [topic for topic in topics if topic not in _topics_of(present)]
    if missing:
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {', '.join(missing)} not found.")
    registered = {broker.broker_id: broker for broker in admin.describe_cluster().brokers}
    unknown = [broker for broker in brokers if broker not in registered]
    if unknown:
        raise AdminError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker id {numbers(unknown)}")
    racks = {broker: registered[broker].rack if by_racks else None for broker in brokers}
    if None in racks.values() and set(racks.values()) != {None}:
        text = "Not all brokers have rack information. Add --disable-rack-aware to ignore racks."
        raise AdminError(ErrorCode.INVALID_REQUEST, text)
    before, after = reassignment_document(present), reassignment_document(propose(present, racks))
    current, proposal = (json.dumps(found, separators=(",", ":")) for found in (before, after))
    text = (
        f"Current partition replica assignment\n{current}\n\nProposed partition reassignment configuration\n{proposal}"
    )
    print_result(as_json, {"current": before, "proposed": after}, typer.echo, text)


def propose(present: Assignment, racks: Mapping[int, str | None]) -> Assignment:
    """New replicas for all partitions, topic by topic with the replication factor of its first partition, on the
    brokers of `racks`; AdminError where they are too few.
    """
    brokers, rng = [UsableBroker(broker, rack) for broker, rack in sorted(racks.items())], Random()
    proposed: Assignment = {}
    for topic in _topics_of(present):
        keys = sorted(key for key in present if key.topic == topic)
        try:
            placed = place(brokers, len(keys), len(present[keys[0]]), rng)
        except Refused as refused:
            raise AdminError(refused.error, f"{topic}: {refused.message}") from refused
        proposed |= dict(zip(keys, placed, strict=True))
    return proposed
