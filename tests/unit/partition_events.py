"""The controller's event that a partition has changed, for tests that need a few of its fields."""

from __future__ import annotations

from protocol.events.controller import PartitionChanged
from protocol.ids import NO_LEADER, NodeId, TopicPartition


def partition_changed(
    topic: str,
    leader: NodeId,
    leader_epoch: int,
    partition_epoch: int,
    isr: tuple[NodeId, ...],
    elr: tuple[NodeId, ...] = (),
    recovering: bool = False,
) -> PartitionChanged:
    """Partition 0 of a topic with min ISR 1, on brokers 0 to 2."""
    return PartitionChanged(
        TopicPartition(topic, 0),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        replicas=(0, 1, 2),
        isr=isr,
        elr=elr,
        last_known_elr=(),
        last_known_leader=NO_LEADER,
        recovering=recovering,
        min_isr=1,
    )
