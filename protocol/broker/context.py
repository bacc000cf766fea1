"""What the parts of one broker share: identity, metadata image, storage, partitions, outbox.

A partition that the broker holds is a `Replica`: its log, and its role. The role is exactly one of: leader
(`leadership`), follower (`leader_id`, with the open fetch `wish`), or none (no leader is known).

A partition whose log the disk has failed is *offline*: no replica of it is here for as long as the broker lives, and
whoever asks is told KAFKA_STORAGE_ERROR. A follower drops out of the ISR by its silence. A full disk is another matter:
what did not fit is refused, and the replica goes on. Departure from Kafka: nobody tells the controller, since a broker
here has one directory; an operator sees the `storage_error` trace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.broker.leadership import Leadership
from protocol.config import ClusterConfig
from protocol.contract import Outbox, Storage
from protocol.errors import ErrorCode, StorageError, StorageFullError
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
    wish: FetchPartition | None = None
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
    offline: set[TopicIdPartition] = field(default_factory=set)
    failed: list[Replica] = field(default_factory=list)

    def replica_named(self, topic: str, partition: int) -> Replica | None:
        topic_id = self.image.topic_ids.get(topic)
        return None if topic_id is None else self.replicas.get(TopicIdPartition(topic_id, partition))

    def storage_failed(self, replica: Replica, error: StorageError) -> None:
        """The disk did not do what a replica asked for. The replica is offline from the end of this input on, unless
        the disk is merely full.
        """
        is_offline = not isinstance(error, StorageFullError)
        self.out.trace("storage_error", replica.name, reason=str(error), offline=is_offline)
        if is_offline:
            self.failed.append(replica)

    def why_absent(self, topic: str, partition: int) -> ErrorCode:
        """What to answer whoever takes this broker for the leader of a partition that it does not lead."""
        topic_id = self.image.topic_ids.get(topic)
        is_offline = topic_id is not None and TopicIdPartition(topic_id, partition) in self.offline
        return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER


def log_name(key: TopicIdPartition) -> str:
    """The name of a partition's log in the broker's storage."""
    return f"{key.topic_id}/{key.partition}"
