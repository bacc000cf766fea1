"""Trace events: every class is registered and describes its fields; a recorded event is read back as it was."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_args, get_type_hints

import pytest

import protocol.events
from protocol.events.base import PartitionTrace, Trace
from protocol.events.broker import StorageFailed
from protocol.events.controller import PartitionChanged
from protocol.events.registry import EVENTS, KINDS, EventError, decode, detail_names, detail_of, text_of
from protocol.ids import TopicPartition

T0 = TopicPartition("t", 0)


def declared() -> set[type[Trace]]:
    """The event classes of all modules of the package."""
    modules = [import_module(f"protocol.events.{module.name}") for module in iter_modules(protocol.events.__path__)]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return {event for event in found if issubclass(event, Trace) and hasattr(event, "kind")}


def example(event: type[Trace]) -> Trace:
    """An event whose fields have values of their types."""
    hints = get_type_hints(event)
    return event(*(_value(hints[field.name]) for field in fields(event)))  # type: ignore[arg-type]


def _value(hint: Any) -> object:
    if hint is TopicPartition:
        return T0
    if hint in (int, str, bool):
        return hint()
    arguments = [argument for argument in get_args(hint) if argument is not Ellipsis]
    return (
        tuple(_value(argument) for argument in arguments)
        if hint.__args__[-1] is not type(None)
        else _value(arguments[0])
    )


def test_every_event_is_registered_under_a_kind_of_its_own() -> None:
    assert set(EVENTS) == declared()
    assert len(KINDS) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_describes_itself_and_all_its_fields(event: type[Trace]) -> None:
    hints = get_type_hints(event, include_extras=True)
    assert event.__doc__
    assert [name for name in detail_names(event) if not hasattr(hints[name], "__metadata__")] == []


@pytest.mark.parametrize("event", EVENTS)
def test_a_recorded_event_is_read_back_as_the_same_event(event: type[Trace]) -> None:
    trace = example(event)
    recorded = json.loads(json.dumps(detail_of(trace)))
    assert decode(event.kind, trace.about(), recorded) == trace


@pytest.mark.parametrize("event", EVENTS)
def test_the_text_of_an_event_is_that_of_its_fields(event: type[Trace]) -> None:
    trace = example(event)
    expected = f"(7, 3, {event.kind!r}, {trace.about()!r}, {detail_of(trace)!r})"
    assert text_of([(7, 3, trace), (7, 3, trace)]) == expected * 2


@pytest.mark.parametrize("event", EVENTS)
def test_a_sentence_is_one_line(event: type[Trace]) -> None:
    assert "\n" not in example(event).sentence()


def test_the_sentence_of_a_partition_names_what_is_not_empty() -> None:
    empty = PartitionChanged(T0, -1, 5, 9, (0, 1, 2), (), (), (), -1, False, 2)
    assert empty.sentence() == "t-0: no leader, epochs 5/9, ISR {}"
    whole = replace(empty, elr=(1,), last_known_elr=(2,), last_known_leader=2, recovering=True)
    parts = "ELR {1}, last known ELR {2}, last known leader 2, recovering"
    assert whole.sentence() == f"{empty.sentence()}, {parts}"


def test_only_events_about_partitions_have_one() -> None:
    assert {event for event in EVENTS if example(event).about() is not None} == {
        event for event in EVENTS if issubclass(event, PartitionTrace | StorageFailed)
    }


@pytest.mark.parametrize(
    ("kind", "partition", "detail", "error"),
    [
        ("became_king", None, {}, "'became_king' is no kind of trace event"),
        ("topic_deleted", None, {"topic": "t", "why": 1}, "topic_deleted: why: .*; its fields: topic$"),
        ("topic_deleted", None, {}, "topic_deleted: topic: Field required; its fields: topic$"),
        ("topic_deleted", None, {"topic": 7}, "topic_deleted: topic: .*string; its fields: topic$"),
        ("topic_deleted", T0, {"topic": "t"}, "topic_deleted: no partition is expected, found t-0$"),
        ("segments_deleted", None, {"log_start": 1}, "segments_deleted: a partition is missing$"),
        ("segments_deleted", T0, {"log_start": True}, "segments_deleted: log_start: .*integer; its fields: log_start$"),
    ],
)
def test_values_that_are_no_event_are_refused_in_one_line(
    kind: str, partition: TopicPartition | None, detail: dict[str, object], error: str
) -> None:
    with pytest.raises(EventError, match=error) as refused:
        decode(kind, partition, detail)
    assert "\n" not in str(refused.value)
