"""`isray leader-election`: kafka-leader-election.sh with the election types of KIP-966 (J1-J11).

DESIGNATION names the leader to be in the JSON file, so it takes nothing else (J7, J9). Partitions that could not be
given a leader are exit code 1; those that needed none are not (J10).

A file that is not of the shape is exit code 2, and nothing is done. What is wrong with one of its partitions fails that
partition and no other: one that is named twice, or that has no `desiredLeader` where one is needed, is INVALID_REQUEST,
as the controller would answer, and is not asked for; what else is wrong the controller finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.target import (
    Bootstrap,
    Json,
    Name,
    Principal,
    administering,
    one_of,
    print_json,
    read_json,
    target,
)
from experiments.support.errors import InputError
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
from protocol.messages.partitions import ElectionType, PartitionResult

TYPES = {kind.name.lower(): kind for kind in ElectionType}
EXAMPLE = '{"partitions": [{"topic": "t", "partition": 0, "desiredLeader": 1}]}'
Wanted = dict[TopicPartition, int | None]
"""Partitions, each with the leader to be for DESIGNATION, None otherwise."""
Results = dict[TopicPartition, PartitionResult]


def leader_election(
    election_type: Annotated[str, typer.Option("--election-type", metavar="TYPE", help=" | ".join(TYPES))],
    topic: Annotated[str | None, typer.Option(help="A topic; with --partition.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, max=INT_MAX, help="A partition of --topic.")] = None,
    path_to_json_file: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Partitions: {EXAMPLE}")] = None,
    all_topic_partitions: Annotated[bool, typer.Option(help="All that the type is for.")] = False,
    bootstrap_server: Bootstrap = None,
    name: Name = None,
    command_config: Annotated[
        Path | None, typer.Option("--admin.config", "--command-config", metavar="FILE", help="principal=User:NAME")
    ] = None,
    principal: Principal = None,
    as_json: Json = False,
) -> None:
    """Elect leaders for partitions: of a topic, of a file, or for all."""
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
        raise InputError("--partition", "", "it without --topic" if topic is None else "none", "both or neither")
    if kind is ElectionType.DESIGNATION and path_to_json_file is None:
        raise InputError("--election-type", "", f"designation with {source}", "designation with --path-to-json-file")
    partitions: Wanted | None = None
    refused: Results = {}
    if path_to_json_file is not None:
        partitions, refused = read_partitions(path_to_json_file, kind)
    elif topic is not None and partition is not None:
        partitions = {TopicPartition(topic, partition): None}
    wanted = target(bootstrap_server, name, command_config, principal, as_json)
    with administering(wanted, "Error completing leader election") as admin:
        _tell(kind, refused | admin.elect_leaders(kind, partitions), as_json)


def read_partitions(path: Path, kind: ElectionType) -> tuple[Wanted, Results]:
    """The partitions of a JSON file that can be asked for, each with its `desiredLeader` where the type is DESIGNATION,
    and the failures of the others; InputError where the file is not of that shape.
    """
    source = str(path)
    content = read_json(path, EXAMPLE)
    items = content.get("partitions") if isinstance(content, dict) else None
    if not isinstance(items, list) or not items:
        raise InputError(source, "partitions", items, EXAMPLE)
    wanted: Wanted = {}
    refused: Results = {}
    for number, item in enumerate(items):
        place = f"partitions[{number}]"
        if not isinstance(item, dict):
            raise InputError(source, place, item, EXAMPLE)
        if not isinstance(item.get("topic"), str):
            raise InputError(source, f"{place}.topic", item.get("topic"), "the name of a topic")
        found = TopicPartition(item["topic"], _whole(source, f"{place}.partition", item.get("partition")))
        leader = None
        if kind is ElectionType.DESIGNATION and item.get("desiredLeader") is not None:
            leader = _whole(source, f"{place}.desiredLeader", item["desiredLeader"])
        if found in wanted or found in refused:
            wanted.pop(found, None)
            refused[found] = _refused(found, f"partition {found} is named twice")
        elif kind is ElectionType.DESIGNATION and leader is None:
            refused[found] = _refused(found, "no desiredLeader")
        else:
            wanted[found] = leader
    return wanted, refused


def _refused(partition: TopicPartition, message: str) -> PartitionResult:
    topic, index = partition
    return PartitionResult(topic=topic, partition_index=index, error=ErrorCode.INVALID_REQUEST, message=message)


def _whole(source: str, place: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT_MAX:
        raise InputError(source, place, value, f"a whole number from 0 to {INT_MAX}")
    return value


def _tell(kind: ElectionType, results: Results, as_json: bool) -> None:
    ordered = dict(sorted(results.items()))
    succeeded = [key for key, result in ordered.items() if result.error is ErrorCode.NONE]
    not_needed = [key for key, result in ordered.items() if result.error is ErrorCode.ELECTION_NOT_NEEDED]
    failed = {key: result for key, result in ordered.items() if key not in {*succeeded, *not_needed}}
    if as_json:
        print_json(
            {
                "election_type": kind.name.lower(),
                "succeeded": [key._asdict() for key in succeeded],
                "not_needed": [key._asdict() for key in not_needed],
                "failed": [
                    key._asdict() | {"error": result.error.name, "message": result.message}
                    for key, result in failed.items()
                ],
            }
        )
    else:
        if succeeded:
            names = ", ".join(map(str, succeeded))
            typer.echo(f"Successfully completed leader election ({kind.name}) for partitions {names}")
        if not_needed:
            typer.echo(f"Valid replica already elected for partitions {', '.join(map(str, not_needed))}")
    for key, result in failed.items():
        why = f"{result.error.name}: {result.message}"
        typer.echo(f"Error completing leader election ({kind.name}) for partition: {key}: {why}", err=True)
    if failed:
        typer.echo(f"{len(failed)} replica(s) could not be elected", err=True)
        raise typer.Exit(1)
