"""The trace events, from their declarations in `protocol.events`: docstrings, fields, and annotations of the fields."""

from __future__ import annotations

from importlib import import_module
from types import NoneType, UnionType
from typing import get_args, get_type_hints

from experiments.reference.markdown import code, sections, table
from protocol.events.base import Trace
from protocol.events.registry import EVENTS, detail_names
from protocol.ids import TopicPartition

TITLE = "Trace events"
SUMMARY = "what nodes, their hosts and engines report to observers: every kind and its fields"


def page() -> str:
    modules = dict.fromkeys(event.__module__ for event in EVENTS)
    return sections(
        "A recorded event is a line `[TIME_MS, NODE, KIND, [TOPIC, PARTITION] | null, FIELDS]` of `trace.jsonl` "
        "([check.md](../check.md)); the partition is there for events about one partition. Brokers and nodes are "
        "given by their ids.",
        *(_section(module) for module in modules),
    )


def _section(module: str) -> str:
    name, text = module.rpartition(".")[2], import_module(module).__doc__ or ""
    rows = [_row(event) for event in EVENTS if event.__module__ == module]
    return sections(f"## {name.capitalize()}", text, table(("kind", "when", "fields"), rows))


def _row(event: type[Trace]) -> tuple[str, str, str]:
    hints = get_type_hints(event, include_extras=True)
    about = "about a partition; " if "partition" in hints else ""
    declared = {name: get_args(hints[name]) for name in detail_names(event)}
    described = "; ".join(f"{code(name)} ({_type(hint)}): {text}" for name, (hint, text) in declared.items())
    return code(event.kind), event.__doc__ or "", (about + described).removesuffix("; ")


def _type(hint: object) -> str:
    """A type of fields in words: `int`, `tuple of int`, `str or null`."""
    if isinstance(hint, type) and not get_args(hint):
        return "partition" if hint is TopicPartition else hint.__name__
    parts = [_type(part) for part in get_args(hint) if part not in (NoneType, Ellipsis)]
    if isinstance(hint, UnionType):
        return " or ".join([*parts, "null"])
    return f"tuple of {parts[0]}" if Ellipsis in get_args(hint) else f"({', '.join(parts)})"
