"""All kinds of trace events, and their form as plain values: as recorded, as hashed, and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from protocol.events import broker, controller, host, node, quorum, store
from protocol.events.base import PartitionTrace, Trace
from protocol.ids import NodeId, TimeMs, TopicPartition

_MODULES = (broker, controller, quorum, store, node, host)
EVENTS: tuple[type[Trace], ...] = tuple(
    event
    for module in _MODULES
    for event in vars(module).values()
    if is_dataclass(event) and isinstance(event, type) and issubclass(event, Trace) and hasattr(event, "kind")
)
"""Every event class, by emitter and in the order of their declaration."""

KINDS: dict[str, type[Trace]] = {event.kind: event for event in EVENTS}


def detail_names(event: type[Trace]) -> tuple[str, ...]:
    """The names of an event's fields as recorded: all but the partition, which is recorded beside them."""
    return tuple(field.name for field in fields(event) if field.name != "partition")  # type: ignore[arg-type]


def detail_of(trace: Trace) -> dict[str, object]:
    """The fields of an event by name, without the partition."""
    return {name: getattr(trace, name) for name in _NAMES[type(trace)]}


class EventError(ValueError):
    """Values that are no trace event; the message is one line that names the kind or field, and what is allowed."""


def decode(kind: str, partition: TopicPartition | None, detail: Mapping[str, object]) -> Trace:
    """The event of that kind, the inverse of `detail_of`; `detail` may have lists where the event has tuples.
    EventError for an unknown kind, for an unknown, missing or wrong field, and for a partition that is missing or not
    expected.
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
    has_partition = issubclass(event, PartitionTrace | broker.StorageFailed)
    if issubclass(event, PartitionTrace) and partition is None:
        raise EventError(f"{kind}: a partition is missing")
    if partition is not None and not has_partition:
        raise EventError(f"{kind}: no partition is expected, found {partition}")
    make: Any = event
    values = {name: getattr(checked, name) for name in detail_names(event)}
    found: Trace = make(partition, **values) if has_partition else make(**values)
    return found


@cache
def _model(kind: str) -> type[BaseModel]:
    event = KINDS[kind]
    hints = get_type_hints(event)
    declared: dict[str, Any] = {name: (hints[name], ...) for name in detail_names(event)}
    return create_model(event.__name__, __config__=ConfigDict(extra="forbid", strict=True), **declared)


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def text_of(events: Iterable[tuple[TimeMs, NodeId, Trace]]) -> str:
    """What the trace hash is made of: for each event `repr` of its time, node, kind, partition and `detail_of`."""
    return "".join(
        [
            _FORMATS[type(trace)]
            % (now_ms, source, _partition_text(trace.about()), *[getattr(trace, name) for name in _NAMES[type(trace)]])
            for now_ms, source, trace in events
        ]
    )


@lru_cache(maxsize=65_536)
def _partition_text(partition: TopicPartition | None) -> str:
    return repr(partition)


def _format(event: type[Trace]) -> str:
    """The format of the event's text, for its time, its node, the text of its partition and its details."""
    details = ", ".join(f"{name!r}: %r" for name in detail_names(event))
    return f"(%d, %d, {event.kind!r}, %s, {{{details}}})"


_NAMES: dict[type[Trace], tuple[str, ...]] = {event: detail_names(event) for event in EVENTS}
_FORMATS = {event: _format(event) for event in EVENTS}
