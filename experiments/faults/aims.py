"""Faults by what they bring about: the few that plans which are written, rather than drawn, are made of.

Each function gives one value of the schema (`schema.py`) that lasts from `begin_ms` to `end_ms`. A message that is
"held up" or "lost" is one of its kind; everything else passes. The cluster has one controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from experiments.faults.schema import Crash, Cut, Disturb, Fault, HeartbeatLoss, MessageKind, PowerLoss
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NodeId

CONTROLLER = (FIRST_CONTROLLER,)
CLIENT = (FIRST_CLIENT,)


def starved(broker: NodeId, brokers: Iterable[NodeId], begin_ms: int, end_ms: int) -> Fault:
    """No answer to a fetch of the broker arrives: it stays where it is, and is found to lag."""
    return _lost(_others(broker, brokers), (broker,), "fetches", begin_ms, end_ms)


def silenced(broker: NodeId, brokers: Iterable[NodeId], begin_ms: int, end_ms: int) -> Fault:
    """No fetch of the broker arrives: its leader knows nothing newer of it."""
    return _lost((broker,), _others(broker, brokers), "fetches", begin_ms, end_ms)


def hushed(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker's proposals are lost until the end, when one that it repeats arrives."""
    return _lost((broker,), CONTROLLER, "proposals", begin_ms, end_ms)


def echoed(broker: NodeId, late_ms: int, begin_ms: int, end_ms: int) -> Fault:
    """The broker's proposals arrive twice, the second time up to `late_ms` later."""
    return disturbed((broker,), CONTROLLER, "duplicate", begin_ms, end_ms, only="proposals", delay_ms=late_ms)


def late(broker: NodeId, late_ms: int, begin_ms: int, end_ms: int) -> Fault:
    """The broker's proposals arrive up to `late_ms` later, and overtake each other."""
    return disturbed((broker,), CONTROLLER, "reorder", begin_ms, end_ms, only="proposals", delay_ms=late_ms)


def unanswered(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker does not hear what became of its proposals."""
    return _lost(CONTROLLER, (broker,), "proposals", begin_ms, end_ms)


def blind(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker reads nothing of the metadata log."""
    return _lost(CONTROLLER, (broker,), "metadata", begin_ms, end_ms)


def deaf(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker hears nothing of the controller, which hears the broker."""
    return Cut(source=CONTROLLER, target=(broker,), one_way=True, **_times(begin_ms, end_ms))


def unseen(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker's heartbeats are lost: it is fenced when that lasts longer than its session."""
    return HeartbeatLoss(node=broker, **_times(begin_ms, end_ms))


def isolated(broker: NodeId, nodes: Iterable[NodeId], begin_ms: int, end_ms: int) -> Fault:
    """Nothing passes between the broker and these nodes."""
    return Cut(source=(broker,), target=_others(broker, nodes), **_times(begin_ms, end_ms))


def killed(node: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The process ends; its page cache survives."""
    return Crash(node=node, **_times(begin_ms, end_ms))


def unpowered(node: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The machine fails, and what was not flushed is gone."""
    return PowerLoss(rack=(node,), **_times(begin_ms, end_ms))


def disturbed(
    source: Iterable[NodeId],
    target: Iterable[NodeId],
    effect: Literal["lose", "duplicate", "reorder", "delay"],
    begin_ms: int,
    end_ms: int,
    *,
    only: MessageKind,
    per_mille: int = 1_000,
    delay_ms: int = 0,
) -> Fault:
    """See `Disturb`."""
    return Disturb(
        source=tuple(source),
        target=tuple(target),
        effect=effect,
        per_mille=per_mille,
        delay_ms=delay_ms,
        only=only,
        **_times(begin_ms, end_ms),
    )


def _lost(source: Iterable[NodeId], target: Iterable[NodeId], only: MessageKind, begin_ms: int, end_ms: int) -> Fault:
    return disturbed(source, target, "lose", begin_ms, end_ms, only=only)


def _others(broker: NodeId, nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node != broker)


def _times(begin_ms: int, end_ms: int) -> dict[str, int]:
    return {"at_ms": begin_ms, "duration_ms": end_ms - begin_ms}
