"""What a hunt has reached of the protocol: elections by their reason, transitions, error codes.

A hunt that finds nothing says something only about what it has reached. Everything here is counted from trace events
and messages; what is never reached has its line too.

An election is a change of leader in the controller's state of a partition. Its reason is what vouched for the new
leader in the state before: membership of the ISR, which the same change may have given it where it completes a
reassignment; of the ELR; being the last known leader; nothing (an unclean election).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import Any

from protocol.broker.lifecycle import LifecycleState
from protocol.contract import Trace
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NodeId, TimeMs, TopicPartition
from protocol.messages.base import Message

FROM_ISR, FROM_ELR, LAST_KNOWN, UNCLEAN, NOBODY = "from the ISR", "from the ELR", "last known leader", "unclean", "none"
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
_TRACED = {
    "truncated": "follower truncates",
    "reset": "follower begins anew",
    "segments_deleted": "retention deletes",
    "session_expired": "session expires",
    "storage_error": "disk fails",
    "controller_started": "controller starts",
    "data_loss_routine": "data-loss routine runs",
}

KNOWN: Mapping[str, tuple[str, ...]] = {
    "election": (FROM_ISR, FROM_ELR, LAST_KNOWN, UNCLEAN, NOBODY),
    "transition": (*_TRANSITIONS, *_TRACED.values()),
    "broker": tuple(state.value for state in LifecycleState if state is not LifecycleState.NOT_RUNNING),
    "error": tuple(code.name for code in ErrorCode if code is not ErrorCode.NONE),
}
"""What can be reached, by group."""


class Coverage:
    """Counts by (group, name). `observe` and `message` are for the hooks of a simulated cluster."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._states: dict[TopicPartition, Mapping[str, Any]] = {}

    def observe(self, now_ms: TimeMs, node: NodeId, trace: Trace) -> None:
        """A trace event."""
        if trace.kind == "partition" and trace.partition is not None:
            before = self._states.get(trace.partition)
            self._states[trace.partition] = trace.detail
            if before is not None:
                self.counts.update(("transition", name) for name in _changes(before, trace.detail))
                if trace.detail["leader_epoch"] != before["leader_epoch"]:
                    self.counts["election", _reason(before, trace.detail)] += 1
        elif trace.kind == "broker_state":
            self.counts["broker", str(trace.detail["state"])] += 1
        elif trace.kind in _TRACED:
            self.counts["transition", _TRACED[trace.kind]] += 1

    def message(self, source: NodeId, target: NodeId, message: Message) -> None:
        """A message that was sent."""
        has_error, has_parts = _shape(type(message))
        if has_error:
            self._error(message.error)  # type: ignore[attr-defined]
        if has_parts:
            for part in message.partitions:  # type: ignore[attr-defined]
                if _shape(type(part))[0]:
                    self._error(part.error)

    def _error(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self.counts["error", error.name] += 1

    def note(self, group: str, name: str, count: int) -> None:
        """Something of another group, which has no list of what can be reached."""
        self.counts[group, name] += count


@cache
def _shape(kind: Hashable) -> tuple[bool, bool]:
    """Whether messages of this type have an error, and partitions."""
    fields: Mapping[str, object] = getattr(kind, "model_fields", {})
    return "error" in fields, "partitions" in fields


def rows(counts: Counter[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
    """(group, name, count), everything that can be reached first, as it is declared; then the rest by name."""
    for group, names in KNOWN.items():
        yield from ((group, name, counts[group, name]) for name in names)
    for group, name in sorted(counts):
        if group not in KNOWN:
            yield group, name, counts[group, name]


def _reason(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    leader = after["leader"]
    if leader == NO_LEADER:
        return NOBODY
    if leader in before["isr"]:
        return FROM_ISR
    if leader in before["elr"]:
        return FROM_ELR
    if not after["recovering"]:
        return FROM_ISR
    known = before["last_known_leader"] == leader or (not before["elr"] and leader in before["last_known_elr"])
    return LAST_KNOWN if known else UNCLEAN


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    isr, elr = set(after["isr"]), set(after["elr"])
    old_isr, old_elr = set(before["isr"]), set(before["elr"])
    changed = (
        bool(old_isr - isr),
        bool(isr - old_isr),
        bool(old_isr) and not isr,
        bool(elr - old_elr),
        bool(old_elr - elr),
        bool(old_elr) and not elr,
        set(before["replicas"]) != set(after["replicas"]),
        bool(before["recovering"]) and not after["recovering"],
    )
    yield from (name for name, is_so in zip(_TRANSITIONS, changed, strict=True) if is_so)
