"""Faults by their purpose: the few that written plans (themes and scripts) are made of. Each lasts from `begin_ms` to
`end_ms`; those of messages concern one group of messages. The cluster has one controller.
"""

from __future__ import annotations

from collections.abc import Iterable

from experiments.faults.kinds.links import Cut, Disturb, Effect, HeartbeatLoss, MessageKind
from experiments.faults.kinds.processes import Crash, PowerLoss
from experiments.faults.schema import Fault
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, NodeId

CONTROLLER = (FIRST_CONTROLLER,)
CLIENT = (FIRST_CLIENT,)


def lose_fetch_responses(broker: NodeId, brokers: Iterable[NodeId], begin_ms: int, end_ms: int) -> Fault:
    """The broker's fetch requests arrive, the responses are lost: the follower stays behind and is seen to lag."""
    return disturb(_others(broker, brokers), (broker,), "lose", begin_ms, end_ms, only="fetches")


def lose_fetch_requests(broker: NodeId, brokers: Iterable[NodeId], begin_ms: int, end_ms: int) -> Fault:
    """The broker's fetch requests are lost: its leader does not learn the follower's new state."""
    return disturb((broker,), _others(broker, brokers), "lose", begin_ms, end_ms, only="fetches")


def lose_proposals(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker's AlterPartition requests are lost; one that it repeats after the end arrives."""
    return disturb((broker,), CONTROLLER, "lose", begin_ms, end_ms, only="proposals")


def duplicate_proposals(broker: NodeId, delay_ms: int, begin_ms: int, end_ms: int) -> Fault:
    """The broker's AlterPartition requests arrive twice, the copy up to `delay_ms` later."""
    return disturb((broker,), CONTROLLER, "duplicate", begin_ms, end_ms, only="proposals", delay_ms=delay_ms)


def reorder_proposals(broker: NodeId, delay_ms: int, begin_ms: int, end_ms: int) -> Fault:
    """The broker's AlterPartition requests arrive up to `delay_ms` later, and overtake each other."""
    return disturb((broker,), CONTROLLER, "reorder", begin_ms, end_ms, only="proposals", delay_ms=delay_ms)


def lose_proposal_responses(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The responses to the broker's AlterPartition requests are lost."""
    return disturb(CONTROLLER, (broker,), "lose", begin_ms, end_ms, only="proposals")


def lose_metadata(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker receives no records of the metadata log."""
    return disturb(CONTROLLER, (broker,), "lose", begin_ms, end_ms, only="metadata")


def cut_from_controller(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker receives nothing from the controller, which receives what the broker sends."""
    return Cut(source=CONTROLLER, target=(broker,), one_way=True, at_ms=begin_ms, duration_ms=end_ms - begin_ms)


def lose_heartbeats(broker: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The broker's heartbeats are lost; it is fenced if that lasts longer than its session timeout."""
    return HeartbeatLoss(node=broker, at_ms=begin_ms, duration_ms=end_ms - begin_ms)


def isolate(broker: NodeId, nodes: Iterable[NodeId], begin_ms: int, end_ms: int) -> Fault:
    """Nothing passes between the broker and these nodes."""
    return Cut(source=(broker,), target=_others(broker, nodes), at_ms=begin_ms, duration_ms=end_ms - begin_ms)


def kill(node: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The process is killed; its page cache survives."""
    return Crash(node=node, at_ms=begin_ms, duration_ms=end_ms - begin_ms)


def fail_power(node: NodeId, begin_ms: int, end_ms: int) -> Fault:
    """The machine loses power, and what was not flushed is lost."""
    return PowerLoss(rack=(node,), at_ms=begin_ms, duration_ms=end_ms - begin_ms)


def disturb(
    source: Iterable[NodeId],
    target: Iterable[NodeId],
    effect: Effect,
    begin_ms: int,
    end_ms: int,
    *,
    only: MessageKind,
    per_mille: int = 1_000,
    delay_ms: int = 0,
) -> Fault:
    """A share of the messages of one group is lost, duplicated, reordered or delayed (`Disturb`)."""
    return Disturb(
        source=tuple(source),
        target=tuple(target),
        effect=effect,
        per_mille=per_mille,
        delay_ms=delay_ms,
        only=only,
        at_ms=begin_ms,
        duration_ms=end_ms - begin_ms,
    )


def _others(broker: NodeId, nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    return tuple(node for node in nodes if node != broker)
