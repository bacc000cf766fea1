"""A run as the page carries it: columns of small numbers and tables of what they stand for, as JSON, compressed.

What repeats (kinds, sets of partitions, names of fields) is stored once and referred to by number, times as
differences; the rest compresses well. The browser decompresses with its own `DecompressionStream`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Hashable, Sequence
from itertools import pairwise

from experiments.explorer.run import Run, RunEvent
from protocol.events.registry import KINDS
from protocol.ids import is_broker, is_client, is_controller, node_name
from protocol.messages.base import Message

GROUPS = {
    "data": "Produce and fetch",
    "producers": "Produce and fetch",
    "quorum": "Metadata quorum",
    "metadata_batch": "Metadata quorum",
    "control": "Brokers and ISR",
    "recovery": "Unclean recovery",
}
"""Groups of messages by their module in `protocol/messages`; all others are administration."""
EMITTERS = {
    "broker": "Broker events",
    "controller": "Controller events",
    "quorum": "Quorum events",
    "client": "Client events",
}
"""Groups of trace events by their module in `protocol/events`; all others are of the host."""


class _Table:
    """Distinct values in the order in which they first occurred."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> list[Hashable]:
        return list(self.numbers)


def group_of(event: RunEvent) -> str:
    """The group of an event's kind, by which the page colours and filters."""
    if event.role in ("send", "receive"):
        return GROUPS.get(Message.REGISTRY[event.kind].__module__.rpartition(".")[2], "Administration")
    if event.role == "trace":
        return EMITTERS.get(KINDS[event.kind].__module__.rpartition(".")[2], "Node events")
    return {"timer": "Timers", "change": "Experiment", "violation": "Violations"}[event.role]


def columns(run: Run) -> dict[str, object]:
    """The run as JSON has it; `data.js` describes the columns where it reads them."""
    kinds, sets, shapes, partitions = _Table(), _Table(), _Table(), _Table()
    lanes = {node: lane for lane, node in enumerate(run.nodes)}
    events = run.events
    for event in events:
        for name in event.partitions:
            partitions.number(name)
    return {
        "title": run.title,
        "facts": run.facts,
        "notes": run.notes,
        "nodes": [{"id": node, "name": node_name(node), "type": _type(node)} for node in run.nodes],
        "time": _differences([event.time_ms for event in events]),
        "node": [lanes[event.node] for event in events],
        "kind": [kinds.number((event.role, event.kind, group_of(event))) for event in events],
        "about": [sets.number(tuple(partitions.number(name) for name in event.partitions)) for event in events],
        "cause": [index - event.cause if event.cause >= 0 else 0 for index, event in enumerate(events)],
        "shape": [shapes.number(tuple(event.fields)) for event in events],
        "values": [list(event.fields.values()) for event in events],
        "text": ["" if event.role in ("send", "receive") else event.text for event in events],
        "headings": run.headings,
        "kinds": kinds.values(),
        "sets": sets.values(),
        "shapes": shapes.values(),
        "partitions": partitions.values(),
    }


def packed(document: object) -> str:
    """A document as JSON, compressed by gzip (with no time in it), in base64."""
    text = json.dumps(document, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _differences(times: Sequence[int]) -> list[int]:
    return [*times[:1], *(later - earlier for earlier, later in pairwise(times))]


def _type(node: int) -> str:
    if is_broker(node):
        return "broker"
    if is_controller(node):
        return "controller"
    return "client" if is_client(node) else "manager"
