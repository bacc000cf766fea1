"""All kinds of trace events, and their form as plain values: as recorded, as hashed, and read back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import lru_cache

from protocol.events import broker, controller, host, node, quorum, store
from protocol.events.base import Trace
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
