"""`isray leader-election`: kafka-leader-election.sh with the election types of KIP-966 (J1-J11).

DESIGNATION takes the desired leader of each partition from the JSON file, so it needs one (J7, J9). A partition for
which no leader was elected is exit code 1; one that needed no election is not (J10).

A file of another shape is exit code 2, and nothing is done. A mistake in one partition of the file fails that partition
only: one that is listed twice, or lacks the `desiredLeader` that DESIGNATION needs, is reported as INVALID_REQUEST and
is not requested; the controller finds any other mistake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from experiments.cli.cluster_access import BootstrapServer, OwnCluster, Principal, administering, target_of
from experiments.cli.output import Json, fail, flag, option, print_json
from experiments.cli.parse import Int32, JsonShape, one_of, read_json
from experiments.support.errors import InputError
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
from protocol.messages.partitions import ElectionType, PartitionResult

TYPES = {kind.name.lower(): kind for kind in ElectionType}
EXAMPLE = '{"partitions": [{"topic": "t", "partition": 0, "desiredLeader": 1}]}'
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
    path_to_json_file: Annotated[Path | None, option("FILE", f"Partitions: {EXAMPLE}")] = None,
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
    for item in read_json(path, _Partitions, EXAMPLE).partitions:
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
