"""`isray reassign-partitions`: kafka-reassign-partitions.sh. Move partitions to other replicas (J18).

Files and output are Kafka's. There are no throttles and one log directory per broker (`log_dirs` may say `any` only).
`--generate` proposes what the controller's own placement gives for new topics of that size, with the racks of the
brokers unless `--disable-rack-aware`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from experiments.cli.target import (
    Bootstrap,
    CommandConfig,
    Json,
    Name,
    Principal,
    administering,
    document,
    numbers,
    one_of,
    only_with,
    print_json,
    read_json,
    target,
)
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.config import INT_MAX
from protocol.controller.placement import UsableBroker, place
from protocol.errors import ErrorCode, Refused
from protocol.ids import TopicPartition
from protocol.messages.partitions import OngoingPartitionReassignment, PartitionResult

VERSION = 1
ANY_LOG_DIR = "any"
EXISTING = "there is an existing reassignment; --additional overrides it"
Assignment = dict[TopicPartition, tuple[int, ...]]
FileOption = Annotated[Path | None, typer.Option(metavar="FILE")]
Flag = Annotated[bool, typer.Option()]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the options say, files read: the assignment of a reassignment file, the topics and brokers of --generate."""

    assignment: Assignment
    topics: Sequence[str]
    brokers: Sequence[int]
    additional: bool
    by_racks: bool
    as_json: bool


def reassign_partitions(
    execute: Flag = False,
    verify: Flag = False,
    cancel: Flag = False,
    list_: Annotated[bool, typer.Option("--list")] = False,
    generate: Flag = False,
    reassignment_json_file: FileOption = None,
    topics_to_move_json_file: FileOption = None,
    broker_list: Annotated[str | None, typer.Option(metavar="0,1,2")] = None,
    additional: Flag = False,
    disable_rack_aware: Flag = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: CommandConfig = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Move partitions: start, look, take back, list; or propose where to."""
    wanted = target(bootstrap_server, name, command_config, principal, as_json)
    action = one_of(
        {"--execute": execute, "--verify": verify, "--cancel": cancel, "--list": list_, "--generate": generate}
    )
    only_with("--execute|--verify|--cancel", action, {"--reassignment-json-file": reassignment_json_file})
    only_with("--execute", action, {"--additional": additional})
    only_with(
        "--generate",
        action,
        {
            "--topics-to-move-json-file": topics_to_move_json_file,
            "--broker-list": broker_list,
            "--disable-rack-aware": disable_rack_aware,
        },
    )
    ask = Ask(
        assignment={} if action in ("--list", "--generate") else read_assignment(_needed(reassignment_json_file)),
        topics=read_topics(_needed(topics_to_move_json_file, "--topics-to-move-json-file")) if generate else (),
        brokers=_brokers(broker_list) if generate else (),
        additional=additional,
        by_racks=not disable_rack_aware,
        as_json=as_json,
    )
    with administering(wanted, "Error") as admin:
        _ACTIONS[action](admin, ask)


def _needed(path: Path | None, option: str = "--reassignment-json-file") -> Path:
    if path is None:
        raise InputError(option, "", "none", "a JSON file")
    return path


# -- files -------------------------------------------------------------------------------------------------------------


def read_assignment(path: Path) -> Assignment:
    """Partitions with the replicas that they shall have; InputError where the file is not of Kafka's shape, names a
    partition twice, or a broker twice for one partition.
    """
    assignment: Assignment = {}
    for number, item in enumerate(_items(path, "partitions")):
        place_name = f"partitions[{number}]"
        key = TopicPartition(_topic(path, place_name, item), _whole(path, f"{place_name}.partition", item, "partition"))
        replicas = item.get("replicas")
        allowed = "a list of different broker ids, at least one"
        if not isinstance(replicas, list) or not replicas or not all(_is_whole(broker) for broker in replicas):
            raise InputError(str(path), f"{place_name}.replicas", replicas, allowed)
        if len(set(replicas)) != len(replicas):
            raise InputError(str(path), f"{place_name}.replicas", replicas, allowed)
        folders = item.get("log_dirs", [ANY_LOG_DIR] * len(replicas))
        if folders != [ANY_LOG_DIR] * len(replicas):
            raise InputError(str(path), f"{place_name}.log_dirs", folders, f'"{ANY_LOG_DIR}" for each replica')
        if key in assignment:
            raise InputError(str(path), place_name, key, "each partition once")
        assignment[key] = tuple(replicas)
    return assignment


def read_topics(path: Path) -> list[str]:
    """The names in a file of topics to move."""
    names = [_topic(path, f"topics[{number}]", item) for number, item in enumerate(_items(path, "topics"))]
    if len(set(names)) != len(names):
        raise InputError(str(path), "topics", names, "each topic once")
    return names


def _items(path: Path, field: str) -> list[dict[str, Any]]:
    content = read_json(path, "JSON")
    if not isinstance(content, dict):
        raise InputError(str(path), "", type(content).__name__, f'an object with "version" and "{field}"')
    if content.get("version", VERSION) != VERSION:
        raise InputError(str(path), "version", content["version"], str(VERSION))
    items = content.get(field)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise InputError(str(path), field, items, "a list of objects, at least one")
    return items


def _topic(path: Path, place_name: str, item: dict[str, Any]) -> str:
    topic = item.get("topic")
    if not isinstance(topic, str) or not topic:
        raise InputError(str(path), f"{place_name}.topic", topic, "the name of a topic")
    return topic


def _whole(path: Path, place_name: str, item: dict[str, Any], field: str) -> int:
    value = item.get(field)
    if not _is_whole(value):
        raise InputError(str(path), place_name, value, f"a whole number from 0 to {INT_MAX}")
    return int(str(value))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT_MAX


def _brokers(option: str | None) -> list[int]:
    texts = [] if option is None else [text.strip() for text in option.split(",")]
    if not texts or not all(text.isdecimal() and int(text) <= INT_MAX for text in texts):
        raise InputError("--broker-list", "", option or "none", "broker ids by commas")
    brokers = [int(text) for text in texts]
    if len(set(brokers)) != len(brokers):
        raise InputError("--broker-list", "", option, "each broker once")
    return brokers


def reassignment_document(assignment: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """An assignment as the file that `--reassignment-json-file` reads."""
    partitions = [
        {
            "topic": key.topic,
            "partition": key.partition,
            "replicas": list(replicas),
            "log_dirs": [ANY_LOG_DIR] * len(replicas),
        }
        for key, replicas in sorted(assignment.items())
    ]
    return {"version": VERSION, "partitions": partitions}


# -- actions -----------------------------------------------------------------------------------------------------------


def _present(admin: AdminClient, topics: Sequence[str]) -> Assignment:
    """The replicas of all partitions of topics, without those of a topic that does not exist."""
    found: Assignment = {}
    for topic in admin.describe_topics(topics):
        if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise AdminError(topic.error, topic.message or topic.name)
        found |= {TopicPartition(topic.name, item.partition_index): item.replica_nodes for item in topic.partitions}
    return found


def _execute(admin: AdminClient, ask: Ask) -> None:
    if admin.list_reassignments() and not ask.additional:
        raise AdminError(ErrorCode.INVALID_REQUEST, EXISTING)
    known = {broker.broker_id for broker in admin.describe_cluster().brokers}
    unknown = sorted({broker for replicas in ask.assignment.values() for broker in replicas} - known)
    if unknown:
        raise AdminError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Unknown broker id {numbers(unknown)}")
    present = _present(admin, _topics_of(ask.assignment))
    missing = [str(key) for key in sorted(ask.assignment) if key not in present]
    if missing:
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition: {', '.join(missing)}")
    before = reassignment_document({key: present[key] for key in ask.assignment})
    if not ask.as_json:
        typer.echo(f"Current partition replica assignment\n\n{json.dumps(before, separators=(',', ':'))}\n")
        typer.echo("Save this to use as the --reassignment-json-file option during rollback")
    results = admin.alter_reassignments(ask.assignment)
    done = _finish(results, "Error reassigning partition(s):", ask, {"before": before})
    if not ask.as_json:
        plural = "" if len(done) == 1 else "s"
        typer.echo(f"Successfully started partition reassignment{plural} for {','.join(map(str, done))}")


def _cancel(admin: AdminClient, ask: Ask) -> None:
    ongoing = admin.list_reassignments(list(ask.assignment))
    results = admin.alter_reassignments(dict.fromkeys(sorted(ongoing))) if ongoing else {}
    done = _finish(results, "Error cancelling partition reassignment(s):", ask, {})
    if ask.as_json:
        return
    if done:
        plural = "" if len(done) == 1 else "s"
        typer.echo(f"Successfully cancelled partition reassignment{plural} for: {','.join(map(str, done))}")
    else:
        typer.echo("None of the specified partition reassignments are active.")


def _finish(
    results: Mapping[TopicPartition, PartitionResult], failing: str, ask: Ask, more: Mapping[str, Any]
) -> list[TopicPartition]:
    """The partitions that went well; where one did not, says which and why, and ends with exit code 1."""
    ordered = dict(sorted(results.items()))
    failed = {key: result for key, result in ordered.items() if result.error is not ErrorCode.NONE}
    if ask.as_json:
        print_json({**more, "partitions": [document(result) for result in ordered.values()]})
    if failed:
        typer.echo(failing, err=True)
        for key, result in failed.items():
            typer.echo(f"{key}: {AdminError(result.error, result.message)}", err=True)
        raise typer.Exit(1)
    return list(ordered)


def _verify(admin: AdminClient, ask: Ask) -> None:
    ongoing = admin.list_reassignments()
    present = _present(admin, _topics_of(ask.assignment))
    states = {key: _state(key, replicas, ongoing, present) for key, replicas in sorted(ask.assignment.items())}
    if ask.as_json:
        print_json([key._asdict() | {"state": state} for key, (state, _) in states.items()])
        return
    typer.echo("Status of partition reassignment:")
    for _, text in states.values():
        typer.echo(text)


def _state(
    key: TopicPartition,
    replicas: tuple[int, ...],
    ongoing: Mapping[TopicPartition, OngoingPartitionReassignment],
    present: Assignment,
) -> tuple[str, str]:
    """How far a move is, in a word and in Kafka's words."""
    found = present.get(key, ())
    if key in ongoing:
        return "in_progress", f"Reassignment of partition {key} is still in progress."
    if found == replicas:
        return "completed", f"Reassignment of partition {key} is completed."
    text = f"but replica set is {numbers(found)} rather than {numbers(replicas)}."
    return "not_active", f"There is no active reassignment of partition {key}, {text}"


def _topics_of(assignment: Assignment) -> list[str]:
    return sorted({key.topic for key in assignment})


def _list(admin: AdminClient, ask: Ask) -> None:
    ongoing = dict(sorted(admin.list_reassignments().items()))
    if ask.as_json:
        print_json([document(move) for move in ongoing.values()])
        return
    typer.echo("Current partition reassignments:" if ongoing else "No partition reassignments found.")
    for key, move in ongoing.items():
        adding = f" adding: {numbers(move.adding_replicas)}." if move.adding_replicas else ""
        removing = f" removing: {numbers(move.removing_replicas)}." if move.removing_replicas else ""
        typer.echo(f"{key}: replicas: {numbers(move.replicas)}.{adding}{removing}")


def _generate(admin: AdminClient, ask: Ask) -> None:
    present = _present(admin, ask.topics)
    missing = [topic for topic in ask.topics if topic not in _topics_of(present)]
    if missing:
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {', '.join(missing)} not found.")
    registered = {broker.broker_id: broker for broker in admin.describe_cluster().brokers}
    unknown = [broker for broker in ask.brokers if broker not in registered]
    if unknown:
        raise AdminError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker id {numbers(unknown)}")
    racks = {broker: registered[broker].rack if ask.by_racks else None for broker in ask.brokers}
    if None in racks.values() and set(racks.values()) != {None}:
        text = "Not all brokers have rack information. Add --disable-rack-aware to do without it."
        raise AdminError(ErrorCode.INVALID_REQUEST, text)
    proposed = propose(present, racks, Random())
    before, after = reassignment_document(present), reassignment_document(proposed)
    if ask.as_json:
        print_json({"current": before, "proposed": after})
        return
    typer.echo(f"Current partition replica assignment\n{json.dumps(before, separators=(',', ':'))}\n")
    typer.echo(f"Proposed partition reassignment configuration\n{json.dumps(after, separators=(',', ':'))}")


def propose(present: Assignment, racks: Mapping[int, str | None], rng: Random) -> Assignment:
    """New replicas for all partitions, topic by topic with the replication factor of its first partition, on the
    brokers of `racks`; AdminError where they are too few.
    """
    brokers = [UsableBroker(broker, rack) for broker, rack in sorted(racks.items())]
    proposed: Assignment = {}
    for topic in _topics_of(present):
        keys = sorted(key for key in present if key.topic == topic)
        try:
            placed = place(brokers, len(keys), len(present[keys[0]]), rng)
        except Refused as refused:
            raise AdminError(refused.error, f"{topic}: {refused.message}") from refused
        proposed |= dict(zip(keys, placed, strict=True))
    return proposed


_ACTIONS: Mapping[str, Callable[[AdminClient, Ask], None]] = {
    "--execute": _execute,
    "--verify": _verify,
    "--cancel": _cancel,
    "--list": _list,
    "--generate": _generate,
}
