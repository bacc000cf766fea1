"""What the parts of one broker share: identity, metadata image, storage, partitions, outbox.

A partition that the broker holds is a `Replica`: its log, and its role. The role is exactly one of: leader
(`leadership`), follower (`leader_id`, with its `fetch_state`), or none (no leader is known).

What the disk has not done raises StorageError, full disks included, and nothing here catches it: the broker has one
directory, and ends where that fails, as Kafka's does when its last directory has failed (KIP-112). It writes and
acknowledges nothing more, its session expires, and the controller moves its leaderships (`nodes/broker.py`). One thing
is no failure of the disk as a whole: a batch that is found damaged when somebody wants it. Only that read fails then
(`damage_found`), with CORRUPT_MESSAGE.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.broker.leadership import Leadership
from protocol.config import ClusterConfig
from protocol.contract import Outbox, Storage
from protocol.errors import CorruptLogError
from protocol.ids import (
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    Epoch,
    NodeId,
    Offset,
    TimeMs,
    TopicIdPartition,
    TopicPartition,
    partition_key,
)
from protocol.log.replica_log import ReplicaLog
from protocol.messages.data import FetchPartition
from protocol.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class PendingProduce:
    """An acks=all produce that waits for the high watermark to reach `required_offset`."""

    required_offset: Offset
    base_offset: Offset
    client: NodeId
    correlation_id: int
    deadline_ms: TimeMs


@dataclass(slots=True)
class Replica:
    """One partition on this broker."""

    key: TopicIdPartition
    name: TopicPartition
    log: ReplicaLog
    leader_epoch: Epoch = NO_EPOCH
    leadership: Leadership | None = None
    leader_id: BrokerId = NO_LEADER
    fetch_state: FetchPartition | None = None
    pending: deque[PendingProduce] = field(default_factory=deque)


@dataclass(slots=True)
class BrokerContext:
    """Shared by the parts of one broker; `replicas` is filled by the replica manager only."""

    me: BrokerId
    config: ClusterConfig
    image: MetadataImage
    storage: Storage
    out: Outbox
    broker_epoch: Epoch = NO_EPOCH
    controller_id: NodeId = NO_LEADER
    replicas: dict[TopicIdPartition, Replica] = field(default_factory=dict)

    def replica_named(self, topic: str, partition: int) -> Replica | None:
        topic_id = self.image.topic_ids.get(topic)
        return None if topic_id is None else self.replicas.get(partition_key(topic_id, partition))

    def damage_found(self, replica: Replica, error: CorruptLogError) -> None:
        """A batch that somebody wants is not what was written, or was sent; an operator is told."""
        self.out.trace("storage_error", replica.name, reason=str(error), halted=False)


def log_name(key: TopicIdPartition) -> str:
    """The name of a partition's log in the broker's storage."""
    return f"{key.topic_id}/{key.partition}"
