"""Reads recorded trace events: the inverse of `registry.detail_of`, for values that come from a file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from protocol.events.base import PartitionTrace, Trace
from protocol.events.broker import StorageFailed
from protocol.events.registry import KINDS, detail_names
from protocol.ids import TopicPartition


class EventError(ValueError):
    """Values that are no trace event; the message is one line that names the kind or field, and what is allowed."""


def decode(kind: str, partition: TopicPartition | None, detail: Mapping[str, object]) -> Trace:
    """The event of that kind; `detail` may have lists where the event has tuples. EventError for an unknown kind, for
    an unknown, missing or wrong field, and for a partition that is missing or not expected.
    """
    event = KINDS.get(kind)
    if event is None:
        raise EventError(f"{kind!r} is no kind of trace event")
    try:
        checked = _model(kind).model_validate({name: _tuples(value) for name, value in detail.items()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        allowed = ", ".join(detail_names(event)) or "none"
        raise EventError(f"{kind}: {where}: {first['msg']}; its fields: {allowed}") from error
    if issubclass(event, PartitionTrace) and partition is None:
        raise EventError(f"{kind}: a partition is missing")
    values = {name: getattr(checked, name) for name in detail_names(event)}
    make: Any = event
    if issubclass(event, PartitionTrace | StorageFailed):
        return make(partition, **values)  # type: ignore[no-any-return]
    if partition is not None:
        raise EventError(f"{kind}: no partition is expected, found {partition}")
    return make(**values)  # type: ignore[no-any-return]


@cache
def _model(kind: str) -> type[BaseModel]:
    event = KINDS[kind]
    hints = get_type_hints(event)
    declared: dict[str, Any] = {name: (hints[name], ...) for name in detail_names(event)}
    return create_model(event.__name__, __config__=ConfigDict(extra="forbid", strict=True), **declared)


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
