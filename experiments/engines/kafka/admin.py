"""Administration requests of this project as those of Kafka's protocol, and the answers back.

They go to the active controller's listener, which answers all of them, so they need no broker. Requests that no release
of Kafka has (removal of partitions, elections by the longest log, levels of this project's features) are refused before
a scenario runs (`experiments/scenarios/on_kafka.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from protocol.errors import ErrorCode
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.configs import IncrementalAlterConfigsRequest
from protocol.messages.partitions import AlterPartitionReassignmentsRequest, ElectionType, ElectLeadersRequest
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

ELECTIONS: Mapping[ElectionType, int] = {ElectionType.PREFERRED: 0, ElectionType.UNCLEAN: 1}
"""Types of elections that Kafka has, by their numbers."""
Values = Mapping[str, Any]
Failure = tuple[ErrorCode, str]


class Call(NamedTuple):
    """A request of Kafka's protocol: its API, version and fields."""

    api_key: int
    version: int
    values: Values


def _create_topics(request: CreateTopicsRequest, timeout_ms: int) -> Call:
    topics = [
        {
            "name": topic.name,
            "num_partitions": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "assignments": [
                {"partition_index": it.partition_index, "broker_ids": it.broker_ids} for it in topic.assignments
            ],
            "configs": [{"name": it.name, "value": it.value} for it in topic.configs],
        }
        for topic in request.topics
    ]
    for topic in topics:
        if topic["assignments"]:
            topic |= {"num_partitions": -1, "replication_factor": -1}
    return Call(19, 7, {"topics": topics, "timeout": timeout_ms, "validate_only": request.validate_only})


def _delete_topics(request: DeleteTopicsRequest, timeout_ms: int) -> Call:
    topics = [{"name": topic.name, "topic_id": None} for topic in request.topics]
    return Call(20, 6, {"topics": topics, "timeout": timeout_ms})


def _create_partitions(request: CreatePartitionsRequest, timeout_ms: int) -> Call:
    topics = [
        {
            "name": topic.name,
            "count": topic.count,
            "assignments": None
            if topic.assignments is None
            else [{"broker_ids": replicas} for replicas in topic.assignments],
        }
        for topic in request.topics
    ]
    return Call(37, 3, {"topics": topics, "timeout": timeout_ms, "validate_only": request.validate_only})


def _alter_configs(request: IncrementalAlterConfigsRequest, timeout_ms: int) -> Call:
    resources = [
        {
            "resource_type": resource.resource_type.value,
            "resource_name": resource.resource_name,
            "configs": [
                {"name": it.name, "config_operation": it.operation.value, "value": it.value} for it in resource.configs
            ],
        }
        for resource in request.resources
    ]
    return Call(44, 1, {"resources": resources, "validate_only": request.validate_only})


def _elect(request: ElectLeadersRequest, timeout_ms: int) -> Call:
    partitions = [{"topic": it.topic, "partitions": it.partitions} for it in request.topic_partitions or ()]
    kind = ELECTIONS[request.election_type]
    return Call(43, 2, {"election_type": kind, "topic_partitions": partitions, "timeout": timeout_ms})


def _reassign(request: AlterPartitionReassignmentsRequest, timeout_ms: int) -> Call:
    topics = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": it.partition_index, "replicas": it.replicas} for it in topic.partitions],
        }
        for topic in request.topics
    ]
    if request.allow_replication_factor_change:
        return Call(45, 0, {"timeout": timeout_ms, "topics": topics})
    values = {"timeout": timeout_ms, "allow_replication_factor_change": False, "topics": topics}
    return Call(45, 1, values)


def _unregister(request: UnregisterBrokerRequest, timeout_ms: int) -> Call:
    return Call(64, 0, {"broker_id": request.broker_id})


def _add_voter(request: AddVoterRequest, timeout_ms: int) -> Call:
    listeners = [{"name": it.name, "host": it.host, "port": it.port} for it in request.endpoints]
    voter = {"voter_id": request.voter_id, "voter_directory_id": _uuid(request.voter_uuid), "listeners": listeners}
    values = {"cluster_id": None, "timeout": timeout_ms, **voter}
    return Call(80, 0, values) if request.ack_when_committed else Call(80, 1, values | {"ack_when_committed": False})


def _remove_voter(request: RemoveVoterRequest, timeout_ms: int) -> Call:
    voter = {"voter_id": request.voter_id, "voter_directory_id": _uuid(request.voter_uuid)}
    return Call(81, 0, {"cluster_id": None, **voter})


def _uuid(text: str) -> UUID:
    """A uuid of Kafka's, 16 bytes in base64; none is zero."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "==")) if text else UUID(int=0)


_CALLS: Mapping[type[AdminRequest], Callable[..., Call]] = {
    CreateTopicsRequest: _create_topics,
    DeleteTopicsRequest: _delete_topics,
    CreatePartitionsRequest: _create_partitions,
    IncrementalAlterConfigsRequest: _alter_configs,
    ElectLeadersRequest: _elect,
    AlterPartitionReassignmentsRequest: _reassign,
    UnregisterBrokerRequest: _unregister,
    AddVoterRequest: _add_voter,
    RemoveVoterRequest: _remove_voter,
}


def call_of(request: AdminRequest, timeout_ms: int) -> Call:
    """The request as one of Kafka's. KeyError for one that Kafka does not have."""
    return _CALLS[type(request)](request, timeout_ms)


def error_code(number: int) -> ErrorCode:
    """The code of an error of Kafka's; UNKNOWN_SERVER_ERROR for one that this project does not use."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def failure(response: Any) -> Failure:
    """The first error in a response with its message, of the whole request or of a part; (NONE, "") for none."""
    found = (item for item in _failures(response) if item[0] is not ErrorCode.NONE)
    return next(found, (ErrorCode.NONE, ""))


def _failures(part: Any) -> Iterator[Failure]:
    """The errors of a response and of all its parts, of which kio makes objects with slots."""
    fields = {name: getattr(part, name) for name in getattr(part, "__dataclass_fields__", ())}
    if "error_code" in fields:
        yield error_code(int(fields["error_code"])), fields.get("error_message") or ""
    for value in fields.values():
        for item in value if isinstance(value, tuple) else ():
            yield from _failures(item)
