"""The metadata log as a controller uses it: the state that replay has built, and the one way to change that state.

Every change is a batch of records that is appended to the controller's replica of the log and replayed at once
(`write`). A controller that stands by replays what the quorum has committed (`replay_log`). Observers receive trace
events for the records of the active controller, and for those that a new leader of the quorum has committed although
its predecessor may not have reported them (`traced`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from protocol.config import MIN_INSYNC_REPLICAS, ClusterConfig
from protocol.contract import Outbox
from protocol.controller.context import ControllerState
from protocol.controller.heartbeats import BrokerIncarnations
from protocol.controller.metrics import ControllerMetrics
from protocol.controller.recovery_requests import RecoveryRequests
from protocol.errors import ProtocolInvariantError
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
from protocol.ids import BrokerId, Offset, TimeMs, TopicIdPartition, TopicPartition
from protocol.messages.metadata_batch import pack_batch
from protocol.messages.records import FeatureLevelRecord, MetadataRecord
from protocol.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_sessions import BrokerSessions
from protocol.nodes.metadata_feed import log_entries
from protocol.quorum.describe import quorum_gauges
from protocol.quorum.replica import QuorumReplica


class ControllerLog:
    """`state`, `recoveries`, `metrics` and `incarnations` follow the replayed records; these may end `sessions`."""

    # The metrics follow the records, and no decision reads them.
    NOT_STATE: ClassVar[frozenset[str]] = frozenset({"_replica", "metrics"})

    def __init__(
        self, replica: QuorumReplica, config: ClusterConfig, rng: Random, sessions: BrokerSessions, out: Outbox
    ) -> None:
        self._replica = replica
        self._config = config
        self._rng = rng
        self._sessions = sessions
        self._out = out
        self._begin_at(0)

    def reset(self) -> None:
        self._begin_at(self.metrics.now_ms)

    def _begin_at(self, now_ms: TimeMs) -> None:
        self.state = ControllerState(self._config, self._rng)
        self.recoveries = RecoveryRequests(self.state, self._out)
        self.metrics = ControllerMetrics(self.state, self._quorum_gauges, self.recoveries)
        self.metrics.now_ms = now_ms
        self.incarnations = BrokerIncarnations(self.state)
        self._records: list[MetadataRecord] = []
        self.first_record: Offset = 0
        self._sessions.forget_all()

    def _quorum_gauges(self) -> Sequence[int]:
        return quorum_gauges(self._replica, self.metrics.now_ms)

    @property
    def committed_records(self) -> Sequence[MetadataRecord]:
        committed = self._replica.high_watermark - self.first_record
        return self._records if committed == len(self._records) else self._records[:committed]

    def write(self, records: Sequence[MetadataRecord]) -> None:
        """Appends and replays one batch of records, with the trace events and alerts that follow from them."""
        if not records:
            return
        next_offset = self.state.image.next_offset  # the event is emitted once the records are committed
        self._out.trace(MetadataCommitted(next_offset, next_offset + len(records)))
        for key in self.append(records):
            trace_partition(self._out, self.state.image, key)
        for alert in self.metrics.take_alerts():
            name, state = self.state.image.name_of(alert.key), alert.state
            self._out.trace(AlertRaised(name, alert.kind, leader=state.leader, leader_epoch=state.leader_epoch))

    def append(self, records: Sequence[MetadataRecord]) -> dict[TopicIdPartition, None]:
        """Appends records in the versions of the feature levels in force, replays them, and returns the partitions that
        they changed. ProtocolInvariantError where the log does not end where the replay did.
        """
        image = self.state.image
        end_offset = self._replica.append(self.metrics.now_ms, records, pack_batch(records, image.feature_levels))
        if end_offset != image.next_offset + len(records):
            found = f"{image.next_offset} replayed, {len(records)} appended"
            raise ProtocolInvariantError(f"controller {self._replica.key.id}: {found}, log end offset {end_offset}")
        return self._replay(records, traced=True)

    def replay_log(self, end_offset: Offset, *, traced: bool = False) -> None:
        """Replays the log below `end_offset`, from where the last call has ended."""
        if self.state.image.next_offset >= end_offset:
            return
        for entries in log_entries(self._replica, self.state.image.next_offset, end_offset):
            if entries.is_snapshot:
                self.reset()
                self._replay(entries.records, traced=False)
                self._records.clear()
                self.first_record = self.state.image.next_offset = entries.next_offset
                continue
            if traced:
                self._out.trace(MetadataCommitted(self.state.image.next_offset, entries.next_offset))
            for key in self._replay(entries.records, traced=traced):
                if traced:
                    trace_partition(self._out, self.state.image, key)

    def _replay(self, records: Sequence[MetadataRecord], *, traced: bool) -> dict[TopicIdPartition, None]:
        """The partitions that the records changed, in the order of their first change."""
        changed: dict[TopicIdPartition, None] = {}
        for record in records:
            delta = self.state.replay(record)
            self.metrics.replayed(record, delta)
            self.recoveries.replayed(delta)
            self._records.append(record)
            changed.update(delta.partitions)
            if traced:
                trace_record(self._out, self.state.image, record, delta)
            for broker in delta.brokers:
                if broker not in self.state.image.brokers:
                    self.incarnations.forget(broker)
                    self._sessions.end(broker)
        return changed


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


def broker_registered(broker: BrokerId, registration: BrokerRegistration) -> BrokerRegistered:
    fenced, stopping = registration.fenced, registration.in_controlled_shutdown
    return BrokerRegistered(broker, registration.broker_epoch, fenced=fenced, in_controlled_shutdown=stopping)


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
