"""Emits the trace events of the records that a controller replays; `protocol/events/controller.py` declares them."""

from __future__ import annotations

from protocol.config import MIN_INSYNC_REPLICAS
from protocol.contract import Outbox
from protocol.controller.metrics import Alert
from protocol.events.controller import (
    AlertRaised,
    BrokerRegistered,
    BrokerUnregistered,
    FeatureLevelChanged,
    MetadataCommitted,
    PartitionChanged,
    PartitionRemoved,
    TopicDeleted,
)
from protocol.ids import BrokerId, Offset, TopicIdPartition, TopicPartition
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from protocol.metadata.partition import PartitionState


def trace_committed(out: Outbox, image: MetadataImage, end_offset: Offset) -> None:
    """The records between the offset of `image` and `end_offset` are committed by the time the event is emitted."""
    out.trace(MetadataCommitted(image.next_offset, end_offset))


def trace_record(out: Outbox, image: MetadataImage, record: MetadataRecord, delta: MetadataDelta) -> None:
    """The events of a record that `image` has replayed, except those of changed partitions (`trace_partition`)."""
    for topic in delta.deleted_topics.values():
        out.trace(TopicDeleted(topic.name))
    for key in delta.removed_partitions:
        out.trace(PartitionRemoved(image.name_of(key)))
    if isinstance(record, FeatureLevelRecord):
        out.trace(FeatureLevelChanged(record.name, record.feature_level))
    for broker in delta.brokers:
        registration = image.brokers.get(broker)
        if registration is None:
            out.trace(BrokerUnregistered(broker))
        else:
            out.trace(broker_registered(broker, registration))


def trace_partition(out: Outbox, image: MetadataImage, key: TopicIdPartition) -> None:
    """A partition's new state; no event where the partition was removed again."""
    state = image.partition(key)
    if state is not None:
        min_isr = image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas))
        out.trace(partition_changed(image.name_of(key), state, min_isr))


def trace_alert(out: Outbox, image: MetadataImage, alert: Alert) -> None:
    """An alert for the operator."""
    state = alert.state
    name = image.name_of(alert.key)
    out.trace(AlertRaised(name, alert.kind, leader=state.leader, leader_epoch=state.leader_epoch))


def broker_registered(broker: BrokerId, registration: BrokerRegistration) -> BrokerRegistered:
    """The trace event of a broker's registration."""
    return BrokerRegistered(
        broker,
        registration.broker_epoch,
        fenced=registration.fenced,
        in_controlled_shutdown=registration.in_controlled_shutdown,
    )


def partition_changed(name: TopicPartition, state: PartitionState, min_isr: int) -> PartitionChanged:
    """The trace event of a partition's state; `min_isr` is the effective one."""
    return PartitionChanged(
        name,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        elr=state.elr,
        last_known_elr=state.last_known_elr,
        last_known_leader=state.last_known_leader,
        recovering=bool(state.leader_recovery_state),
        min_isr=min_isr,
    )
