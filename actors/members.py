"""What a cluster of actors keeps of each of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import ray

from actors.failures import ACTOR_GONE
from actors.nodes import NodeSnapshot, PollReport
from actors.outbox import Outbox
from actors.peers import Handle
from actors.processes import ProcessId
from actors.storage import DiskLossKind
from protocol.ids import NO_EPOCH, NodeId


@dataclass(slots=True)
class Member:
    """One node. `actor` is its present actor, None while it does not run, `incarnation` counts its starts.

    `process` is the process of the present incarnation, or of the last one that is known, with the call `asked` for it
    under way. `poll` and `snapshot` are calls under way; `answered`: the present incarnation has answered a poll;
    `version` is that of its last snapshot (-1: none), `active_epoch` that of an active controller. `loss_kind` and
    `loss_count` are applied to the disk before the next start; `disk` counts the disks before; `outboxes` are those of
    the data and the control channel.
    """

    actor: Handle = None
    incarnation: int = 0
    process: ProcessId | None = None
    asked: ray.ObjectRef[ProcessId] | None = None
    poll: ray.ObjectRef[PollReport] | None = None
    answered: bool = False
    snapshot: ray.ObjectRef[tuple[int, NodeSnapshot | None]] | None = None
    version: int = -1
    active_epoch: int = NO_EPOCH
    loss_kind: DiskLossKind = "none"
    loss_count: int = 0
    disk: int = 0
    outboxes: tuple[Outbox, Outbox] = field(default_factory=lambda: (Outbox(), Outbox()))


def take_snapshots(members: Mapping[NodeId, Member]) -> list[tuple[NodeId, NodeSnapshot]]:
    """The snapshots that have arrived and changed."""
    return [(node, found) for node, member in members.items() if (found := _take_snapshot(member)) is not None]


def _take_snapshot(member: Member) -> NodeSnapshot | None:
    """The answer to the member's snapshot call, None where it has not arrived or nothing has changed."""
    call = member.snapshot
    if call is None or not ray.wait([call], timeout=0)[0]:
        return None
    member.snapshot = None
    try:
        member.version, snapshot = ray.get(call)
    except ACTOR_GONE:
        return None  # the next poll reports the failure
    return snapshot
