"""Which behaviour of the protocol the runs have reached: elections by their reason, transitions, error codes.

Clean runs are evidence only for behaviour that they have reached. Everything here is counted from trace events
and messages; what is never reached is listed too. Error codes are counted in answers and in all their parts; those
that could be reached are read from the protocol's own source: the codes that brokers and controllers name other than to
compare with them.

An election is a change of leader in the controller's state of a partition. Its reason is why the new leader was
eligible in the state before: membership of the ISR, which the same change may have given it where it completes a
reassignment; of the ELR; being the last known leader; nothing (an unclean election).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import get_args

from pydantic import BaseModel

from protocol.broker.lifecycle import LifecycleState
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import (
    BrokerStateChanged,
    DataLossRoutineBegan,
    LogReset,
    LogTruncated,
    SegmentsDeleted,
    StorageFailed,
)
from protocol.events.controller import ControllerStarted, PartitionChanged, SessionExpired
from protocol.ids import NO_LEADER, NodeId, TimeMs, TopicPartition

FROM_ISR, FROM_ELR, LAST_KNOWN = "from the ISR", "from the ELR", "last known leader"
UNCLEAN, LEADERLESS = "unclean", "none"
_TRANSITIONS = (
    "ISR shrinks",
    "ISR grows",
    "ISR becomes empty",
    "ELR gains members",
    "ELR loses members",
    "ELR is cleared",
    "replicas change",
    "leader recovers",
)
_TRACED: Mapping[type[Trace], str] = {
    LogTruncated: "follower truncates",
    LogReset: "follower begins anew",
    SegmentsDeleted: "retention deletes",
    SessionExpired: "session expires",
    StorageFailed: "disk fails",
    ControllerStarted: "controller starts",
    DataLossRoutineBegan: "data-loss routine runs",
}

_ANSWERING = ("broker", "controller", "log", "metadata", "nodes", "recovery")
"""Units of the protocol whose errors travel in answers; those of clients are outcomes."""


@cache
def known() -> Mapping[str, tuple[str, ...]]:
    """What can be reached, by group."""
    return {
        "election": (FROM_ISR, FROM_ELR, LAST_KNOWN, UNCLEAN, LEADERLESS),
        "transition": (*_TRANSITIONS, *_TRACED.values()),
        "broker": tuple(state.value for state in LifecycleState if state is not LifecycleState.NOT_RUNNING),
        "error": answerable(),
    }


def answerable() -> tuple[str, ...]:
    """The names of the error codes that the protocol's source can answer, by number."""
    named = {name for unit in _ANSWERING for text in _sources(files("protocol") / unit) for name in codes_in(text)}
    return tuple(code.name for code in ErrorCode if code.name in named and code is not ErrorCode.NONE)


def _sources(folder: Traversable) -> Iterator[str]:
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name.endswith(".py"):
                yield entry.read_text(encoding="utf-8")


def codes_in(source: str) -> set[str]:
    """The error codes that a module's source names as values. One that is only compared with is no answer, nor is a
    member of a constant set or tuple, which is there to be compared with.
    """
    tree = ast.parse(source)
    compared = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    constants = (node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value)
    ignored = {id(part) for node in (*compared, *constants) for part in ast.walk(node)}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorCode"
        if id(node) not in ignored
    }


class Coverage:
    """Counts by (group, name). `observe` and `message` are for the hooks of a simulated cluster."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._states: dict[TopicPartition, PartitionChanged] = {}

    def observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        """A trace event."""
        if isinstance(trace, PartitionChanged):
            before = self._states.get(trace.partition)
            self._states[trace.partition] = trace
            if before is not None:
                self.counts.update(("transition", name) for name in _changes(before, trace))
                if trace.leader_epoch != before.leader_epoch:
                    self.counts["election", _reason(before, trace)] += 1
        elif isinstance(trace, BrokerStateChanged):
            self.counts["broker", trace.state] += 1
        elif type(trace) in _TRACED:
            self.counts["transition", _TRACED[type(trace)]] += 1

    def message(self, source: NodeId, target: NodeId, message: BaseModel) -> None:
        """A message that was sent."""
        has_error, parts = _shape(type(message))
        if has_error and message.error is not ErrorCode.NONE:  # type: ignore[attr-defined]
            self.counts["error", message.error.name] += 1  # type: ignore[attr-defined]
        for name in parts:
            value = getattr(message, name)
            for part in value if isinstance(value, tuple) else (value,):
                if part is not None:
                    self.message(source, target, part)

    def add(self, group: str, name: str, count: int) -> None:
        """Counts something of a group without a list of what can be reached."""
        self.counts[group, name] += count


@cache
def _shape(kind: type[BaseModel]) -> tuple[bool, tuple[str, ...]]:
    """Whether messages of this type have an error, and their fields that hold parts, one or several, which have."""
    parts = [name for name, field in kind.model_fields.items() if _bears_error(field.annotation)]
    return "error" in kind.model_fields, tuple(parts)


def _bears_error(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        has_error, parts = _shape(annotation)
        return has_error or bool(parts)
    return any(map(_bears_error, get_args(annotation)))


def rows(counts: Counter[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
    """(group, name, count), everything that can be reached first, as it is declared; then the rest by name."""
    reachable = known()
    for group, names in reachable.items():
        yield from ((group, name, counts[group, name]) for name in names)
    for group, name in sorted(counts):
        if name not in reachable.get(group, ()):
            yield group, name, counts[group, name]


def missed(counts: Counter[tuple[str, str]]) -> dict[str, list[str]]:
    """What can be reached and was not, by group; groups of which all was reached are left out."""
    never = {group: [name for name in names if not counts[group, name]] for group, names in known().items()}
    return {group: names for group, names in never.items() if names}


def document(counts: Counter[tuple[str, str]]) -> dict[str, object]:
    """The table as JSON: `reached` is group -> name -> count, `never_reached` group -> names."""
    reached: dict[str, dict[str, int]] = {}
    for group, name, count in rows(counts):
        if count:
            reached.setdefault(group, {})[name] = count
    return {"reached": reached, "never_reached": missed(counts)}


def _reason(before: PartitionChanged, after: PartitionChanged) -> str:
    leader = after.leader
    if leader == NO_LEADER:
        return LEADERLESS
    if leader in before.isr:
        return FROM_ISR
    if leader in before.elr:
        return FROM_ELR
    if not after.recovering:
        return FROM_ISR
    known = before.last_known_leader == leader or (not before.elr and leader in before.last_known_elr)
    return LAST_KNOWN if known else UNCLEAN


def _changes(before: PartitionChanged, after: PartitionChanged) -> Iterator[str]:
    isr, elr = set(after.isr), set(after.elr)
    old_isr, old_elr = set(before.isr), set(before.elr)
    changed = (
        bool(old_isr - isr),
        bool(isr - old_isr),
        bool(old_isr) and not isr,
        bool(elr - old_elr),
        bool(old_elr - elr),
        bool(old_elr) and not elr,
        set(before.replicas) != set(after.replicas),
        before.recovering and not after.recovering,
    )
    yield from (name for name, is_so in zip(_TRANSITIONS, changed, strict=True) if is_so)
