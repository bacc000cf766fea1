"""Administration requests of this project as those of Kafka's protocol, and the answers back.

They go to the active controller's listener, which answers all of them, so they need no broker. Requests that no release
of Kafka has (removal of partitions, elections by the longest log, levels of this project's features) are refused before
a scenario runs (`experiments/scenarios/on_kafka.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from protocol.errors import ErrorCode
from protocol.messages.admin import AdminRequest
from protocol.messages.base import json_values
from protocol.messages.cluster import UnregisterBrokerRequest
from protocol.messages.configs import IncrementalAlterConfigsRequest
from protocol.messages.partitions import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

Values = dict[str, Any]
Failure = tuple[ErrorCode, str]
_APIS: Mapping[type[AdminRequest], tuple[int, int]] = {
    CreateTopicsRequest: (19, 7),
    DeleteTopicsRequest: (20, 6),
    CreatePartitionsRequest: (37, 3),
    ElectLeadersRequest: (43, 2),
    IncrementalAlterConfigsRequest: (44, 1),
    AlterPartitionReassignmentsRequest: (45, 1),
    UnregisterBrokerRequest: (64, 0),
    AddVoterRequest: (80, 1),
    RemoveVoterRequest: (81, 0),
}
"""By the kind of a request, the API and version of Kafka's."""


class Call(NamedTuple):
    """A request of Kafka's protocol: its API, version and fields."""

    api_key: int
    version: int
    values: Values


def call_of(request: AdminRequest, timeout_ms: int) -> Call:
    """The request as one of Kafka's. KeyError for one that Kafka does not have.

    Fields have Kafka's names, but for those that are set here. A request that leaves a field of a newer version at its
    default is of the version before it.
    """
    (api_key, version), values = _APIS[type(request)], json_values(request) | {"timeout": timeout_ms}
    match request:
        case CreateTopicsRequest():
            for topic in values["topics"]:
                topic |= {"num_partitions": -1, "replication_factor": -1} if topic["assignments"] else {}
        case CreatePartitionsRequest():
            for topic in values["topics"]:
                assigned = topic["assignments"]
                topic["assignments"] = assigned and [{"broker_ids": replicas} for replicas in assigned]
        case IncrementalAlterConfigsRequest():
            for resource in values["resources"]:
                for config in resource["configs"]:
                    config["config_operation"] = config["operation"]
        case AlterPartitionReassignmentsRequest(allow_replication_factor_change=True):
            version = 0
        case AddVoterRequest() | RemoveVoterRequest():
            uuid = (
                UUID(bytes=base64.urlsafe_b64decode(request.voter_uuid + "==")) if request.voter_uuid else UUID(int=0)
            )
            values |= {"cluster_id": None, "voter_directory_id": uuid, "listeners": values.get("endpoints")}
            version = 0 if values.get("ack_when_committed") else version
    return Call(api_key, version, values)


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
