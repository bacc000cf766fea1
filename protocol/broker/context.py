"""What the parts of one broker share: identity, metadata image, storage, replicas, outbox.

A `Replica` is a partition's log on this broker and the replica's role, which is exactly one of: leader (`leadership`),
follower (`leader_id`, with its `fetch_state`), or none (no leader is known).

A failed storage call, also on a full disk, raises StorageError. The parts of the broker do not catch it: a broker has
one log directory and stops when that fails, as Kafka's does when its last directory fails (KIP-112). It writes and
acknowledges nothing more, its session expires, and the controller moves its leaderships (`nodes/broker.py`). A damaged
batch is not such a failure: only the read that meets it fails, with CORRUPT_MESSAGE (`report_damage`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.broker.leadership import Leadership
from protocol.config import ClusterConfig
from protocol.contract import Outbox, Storage
from protocol.errors import CorruptLogError
from protocol.events.broker import StorageFailed
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
from protocol.values import immutable


@immutable
class DelayedProduce:
    """A produce request with acks=all that waits for the high watermark to reach `required_offset`."""

    required_offset: Offset
    base_offset: Offset
    client: NodeId
    correlation_id: int
    deadline_ms: TimeMs


@dataclass(slots=True)
class Replica:
    """One partition on this broker; `name` is that of the topic, which traces and clients use. A broker may hold tens
    of thousands of replicas, and each empty deque would take 760 bytes.
    """

    key: TopicIdPartition
    name: TopicPartition
    log: ReplicaLog
    leader_epoch: Epoch = NO_EPOCH
    leadership: Leadership | None = None
    leader_id: BrokerId = NO_LEADER
    fetch_state: FetchPartition | None = None
    delayed_produces: list[DelayedProduce] = field(default_factory=list)


@dataclass(slots=True)
class BrokerContext:
    """The state that the parts of one broker share; only the replica manager changes `replicas`. `has_queued`: a part
    has something to send at the end of the input, or waits for an input after which it may.
    """

    me: BrokerId
    config: ClusterConfig
    image: MetadataImage
    storage: Storage
    out: Outbox
    broker_epoch: Epoch = NO_EPOCH
    controller_id: NodeId = NO_LEADER
    replicas: dict[TopicIdPartition, Replica] = field(default_factory=dict)
    has_queued: bool = False

    def replica_named(self, topic: str, partition: int) -> Replica | None:
        """The replica of a partition by its topic's name; None where the metadata or this broker has none."""
        topic_id = self.image.topic_ids.get(topic)
        return None if topic_id is None else self.replicas.get(partition_key(topic_id, partition))

    def report_damage(self, replica: Replica, error: CorruptLogError) -> None:
        """Reports a batch that was read or received damaged, for an operator; the broker goes on."""
        self.out.trace(StorageFailed(replica.name, str(error), halted=False))


def log_name(key: TopicIdPartition) -> str:
    return f"{key.topic_id}/{key.partition}"


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A running broker's replica of a partition. `maximal_isr` is empty unless the replica leads."""

    leads: bool
    leader_epoch: Epoch
    log_end_offset: Offset
    high_watermark: Offset
    maximal_isr: tuple[NodeId, ...] = ()


def replica_view(replica: Replica) -> ReplicaView:
    log, leadership = replica.log, replica.leadership
    maximal_isr = () if leadership is None else leadership.maximal_isr
    return ReplicaView(leadership is not None, replica.leader_epoch, log.end_offset, log.high_watermark, maximal_isr)
