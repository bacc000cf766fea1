"""Metadata records as text, for stories and dumps: the type without its suffix, its subject, and the fields it sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from protocol.messages.base import field_values
from protocol.messages.quorum import Endpoint, Voter
from protocol.messages.records import ControllerFeature, MetadataRecord, TopicRecord

_SUBJECT = (
    *("topic_id", "partition_id", "broker_id", "controller_id", "name"),
    *("voter_id", "voter_uuid", "leader_id", "leader_uuid"),
)
_HIDDEN = (*_SUBJECT, "incarnation_id")


def topic_names(records: Iterable[MetadataRecord]) -> dict[str, str]:
    """The names by topic id of all topics that the records create."""
    return {record.topic_id: record.name for record in records if isinstance(record, TopicRecord)}


def record_text(record: MetadataRecord, topics: Mapping[str, str]) -> str:
    """A record as one line: `PartitionChange t-0: isr {0 1}, eligible_leader_replicas {2}`, `AddVoter 1001:UUID`."""
    values = field_values(record)
    defaults = {field.name: field.default for field in fields(record)}
    set_fields = ((name, value) for name, value in values.items() if name not in _HIDDEN and value != defaults[name])
    changes = ", ".join(f"{name} {_value(value)}" for name, value in set_fields)
    kind = type(record).__name__.removesuffix("Record")
    return " ".join([kind, *_subject(values, topics)]) + (f": {changes}" if changes else "")


def _subject(values: Mapping[str, object], topics: Mapping[str, str]) -> Sequence[str]:
    topic_id, words = values.get("topic_id"), []
    if isinstance(topic_id, str):
        partition = values.get("partition_id")
        words.append(topics.get(topic_id, topic_id) + ("" if partition is None else f"-{partition}"))
    for node in ("broker", "controller"):
        if f"{node}_id" in values:
            words.append(f"{node} {values[f'{node}_id']}")
    for role in ("voter", "leader"):
        if f"{role}_uuid" in values:
            words.append(replica_text(values[f"{role}_id"], values[f"{role}_uuid"]))
    if "name" in values and values["name"] not in words:
        words.append(str(values["name"]))
    return words


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + " ".join(_value(item) for item in value) + "}"
    if isinstance(value, Voter):
        return replica_text(value.voter_id, value.voter_uuid)
    if isinstance(value, ControllerFeature):
        return f"{value.name}={value.min_supported_version}-{value.max_supported_version}"
    if isinstance(value, Endpoint):
        return endpoint_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def replica_text(replica_id: object, uuid: object) -> str:
    """A replica of the metadata log: `1001:UUID`, or `1001` where its directory id is not known."""
    return f"{replica_id}:{uuid}" if uuid else str(replica_id)


def endpoint_text(endpoint: Endpoint) -> str:
    """An endpoint of a replica of the metadata log: `CONTROLLER://localhost:9093`."""
    return f"{endpoint.name}://{endpoint.host}:{endpoint.port}"
