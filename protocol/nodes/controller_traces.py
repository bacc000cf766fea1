"""What a controller tells observers of the records that it replays; the words are in docs/architecture.md."""

from __future__ import annotations

from protocol.config import MIN_INSYNC_REPLICAS
from protocol.contract import Outbox
from protocol.controller.metrics import Alert
from protocol.ids import Offset, TopicIdPartition
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.metadata.image import MetadataDelta, MetadataImage
from protocol.metadata.partition import PartitionState


def trace_committed(out: Outbox, image: MetadataImage, end_offset: Offset) -> None:
    """Records from where `image` stands to `end_offset` are there, or will be when this is said."""
    out.trace("committed", None, base_offset=image.next_offset, end_offset=end_offset)


def trace_record(out: Outbox, image: MetadataImage, record: MetadataRecord, delta: MetadataDelta) -> None:
    """What a record has done to all but the states of partitions; `image` has replayed it."""
    for topic in delta.deleted_topics.values():
        out.trace("topic_deleted", None, topic=topic.name)
    for key in delta.removed_partitions:
        out.trace("partition_removed", image.name_of(key))
    if isinstance(record, FeatureLevelRecord):
        out.trace("feature_level", None, feature=record.name, level=record.feature_level)
    for broker in delta.brokers:
        registration = image.brokers.get(broker)
        if registration is None:
            out.trace("broker_unregistered", None, broker=broker)
            continue
        out.trace(
            "broker_registration",
            None,
            broker=broker,
            broker_epoch=registration.broker_epoch,
            fenced=registration.fenced,
            in_controlled_shutdown=registration.in_controlled_shutdown,
        )


def trace_partition(out: Outbox, image: MetadataImage, key: TopicIdPartition) -> None:
    """A partition's state has changed, unless it is gone again."""
    state = image.partition(key)
    if state is not None:
        min_isr = image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
        out.trace("partition", image.name_of(key), **partition_detail(state), min_isr=min_isr)


def trace_alert(out: Outbox, image: MetadataImage, alert: Alert) -> None:
    """Something that an operator wants to know."""
    state = alert.state
    name = image.name_of(alert.key)
    out.trace("alert", name, alert=alert.kind, leader=state.leader, leader_epoch=state.leader_epoch)


def partition_detail(state: PartitionState) -> dict[str, object]:
    """A partition's state in the plain values of a trace event."""
    return {
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "elr": state.elr,
        "last_known_elr": state.last_known_elr,
        "last_known_leader": state.last_known_leader,
        "recovering": bool(state.leader_recovery_state),
    }
