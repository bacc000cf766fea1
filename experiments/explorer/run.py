"""A run as the explorer shows it: nodes, events in causal order, the story, and what was violated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from protocol.ids import NodeId, TimeMs

Role = Literal["send", "receive", "trace", "timer", "change", "violation"]
"""What an event is; `change`: the experiment changed a node or a link; `violation`: an invariant broke."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event on one node.

    `kind` is the type of the message, the kind of the trace event, the name of the timer, the change, or the invariant.
    `partitions` are those that it is about, as `topic-0`; empty if it is about none. `fields` are plain values as JSON
    has them. `cause` is the index of the sending of the message that is received here, otherwise -1. `text` is the
    event in words, empty if it has none.
    """

    time_ms: TimeMs
    node: NodeId
    role: Role
    kind: str
    partitions: tuple[str, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    cause: int = -1
    text: str = ""


@dataclass(frozen=True, slots=True)
class StoryRow:
    """A line of the story: the event that it is about, or that follows it; time and node are None in headings."""

    event: int
    time_ms: TimeMs | None
    node: NodeId | None
    text: str
    is_heading: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `title` says what was run, `facts` are pairs of a name and a value about the whole run, such as seed and
    trace hash. `nodes` are the lanes in their order. `headings` are pairs of the index of the event that follows, and
    the text. `notes` say what the page cannot show.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    nodes: Sequence[NodeId]
    events: Sequence[RunEvent]
    headings: Sequence[tuple[int, str]] = ()
    story: Sequence[StoryRow] = ()
    notes: Sequence[str] = ()
