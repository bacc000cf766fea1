"""Messages and trace events as plain values, as JSON has them, and the partitions that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from protocol.ids import TopicPartition
from protocol.messages.base import Message, field_values

_SHOWN_BYTES = 16


def plain(value: object) -> object:
    """A value of a message or trace event: models as mappings, enumerations by name, bytes by length and beginning."""
    if isinstance(value, Message):
        return message_fields(value)
    if isinstance(value, TopicPartition):
        return str(value)
    if isinstance(value, tuple | list | frozenset):
        items = sorted(value) if isinstance(value, frozenset) else value
        return [plain(item) for item in items]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        beginning = value[:_SHOWN_BYTES].hex()
        return f"{len(value)} B: {beginning}{'...' if len(value) > _SHOWN_BYTES else ''}"
    return value


def message_fields(message: Message) -> dict[str, object]:
    """The fields of a message by name, as plain values."""
    return {name: plain(value) for name, value in field_values(message).items()}


def partitions_in(value: object, topics: Mapping[str, str]) -> tuple[str, ...]:
    """The partitions that plain values mention, sorted: mappings with a topic (or its id, a key of `topics`) and a
    partition (or a list of them), at any depth.
    """
    return tuple(sorted(set(_mentioned(value, topics))))


def _mentioned(value: object, topics: Mapping[str, str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        topic = value.get("topic", topics.get(str(value.get("topic_id"))))
        for name in ("partition", "partition_id", "partitions"):
            found = value.get(name)
            numbers = found if isinstance(found, list) else [found]
            yield from (f"{topic}-{number}" for number in numbers if isinstance(topic, str) and type(number) is int)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping | list):
                yield from _mentioned(item, topics)
