"""A broker's replica of a partition, for operators and experiments."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker.context import Replica
from protocol.ids import Epoch, NodeId, Offset


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A running broker's replica of a partition. `maximal_isr` is empty unless the replica leads."""

    leads: bool
    leader_epoch: Epoch
    log_end_offset: Offset
    high_watermark: Offset
    maximal_isr: tuple[NodeId, ...] = ()


def replica_view(replica: Replica) -> ReplicaView:
    """The present view of a replica."""
    log, leadership = replica.log, replica.leadership
    maximal_isr = () if leadership is None else leadership.maximal_isr
    return ReplicaView(leadership is not None, replica.leader_epoch, log.end_offset, log.high_watermark, maximal_isr)
