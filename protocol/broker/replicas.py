"""The replica manager: makes a broker's replicas what the metadata says they are.

After each batch of metadata the broker looks at the partitions that changed. A new leader epoch makes it leader or
follower, in the order that A26 and A27 give: first the old role ends (nothing more from the old leader is appended,
no client is answered as leader), then the new one begins. A newer partition epoch of the same leader epoch is adopted
by the leader. Replicas that were deleted or moved away are removed with their logs.
"""

from __future__ import annotations

from protocol.broker import leadership as rules
from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.broker.fetcher import Fetcher
from protocol.broker.flushing import Flusher
from protocol.broker.leader import LeaderSide
from protocol.config import PRODUCER_ID_EXPIRATION_MS, SEGMENT_BYTES
from protocol.ids import METADATA_LOG, NO_LEADER, TimeMs, TopicIdPartition
from protocol.log.replica_log import ReplicaLog
from protocol.metadata.image import MetadataDelta
from protocol.metadata.partition import PartitionState


class ReplicaManager:
    """Applies metadata changes to the replicas of one broker."""

    def __init__(self, context: BrokerContext, flusher: Flusher, leader: LeaderSide, fetcher: Fetcher) -> None:
        self._context = context
        self._flusher = flusher
        self._leader = leader
        self._fetcher = fetcher

    def apply(self, delta: MetadataDelta, now_ms: TimeMs) -> None:
        """Brings the replicas in line with the image, given what changed in it."""
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                self._remove(TopicIdPartition(topic_id, index))
        for key in delta.removed_partitions:
            self._remove(key)
        for key in delta.partitions:
            state = self._context.image.partition(key)
            if state is None:
                continue
            if self._context.me in state.replicas:
                self._apply_partition(key, state, now_ms)
            else:
                self._remove(key)
        self._flusher.write_forgotten()
        if delta.configs:
            for replica in self._context.replicas.values():
                self._configure(replica)
        if delta.configs or delta.brokers or delta.features:
            self._reconsider(now_ms)

    def _apply_partition(self, key: TopicIdPartition, state: PartitionState, now_ms: TimeMs) -> None:
        replica = self._context.replicas.get(key) or self._open(key, state, now_ms)
        leads = state.leader == self._context.me
        if state.leader_epoch > replica.leader_epoch or (replica.leadership is not None) != leads:
            self._end_role(replica)
            replica.leader_epoch = state.leader_epoch
            replica.leader_id = state.leader
            if leads:
                self._become_leader(replica, state, now_ms)
            elif state.leader != NO_LEADER:
                self._context.out.trace(
                    "became_follower", replica.name, leader=state.leader, leader_epoch=state.leader_epoch
                )
                self._fetcher.follow(replica)
        elif replica.leadership is not None:
            self._leader.adopt(replica, state, now_ms)

    def _become_leader(self, replica: Replica, state: PartitionState, now_ms: TimeMs) -> None:
        replica.leadership = rules.begin(state, self._context.me, replica.log.end_offset, now_ms)
        self._context.out.trace(
            "became_leader",
            replica.name,
            leader_epoch=state.leader_epoch,
            log_end=replica.log.end_offset,
            high_watermark=replica.log.high_watermark,
        )
        self._leader.lead(replica, now_ms)

    def _end_role(self, replica: Replica) -> None:
        if replica.leadership is not None:
            self._leader.resign(replica)
        elif replica.fetch_state is not None:
            self._fetcher.unfollow(replica)

    def _reconsider(self, now_ms: TimeMs) -> None:
        """Broker states, configs or feature levels changed: followers may have become eligible, min ISR may have fallen
        (B6, E11)."""
        for replica in self._context.replicas.values():
            if replica.leadership is not None:
                self._leader.isr_committed(replica, now_ms)

    def _configure(self, replica: Replica) -> None:
        replica.log.segment_bytes = self._context.image.int_config(replica.key.topic_id, SEGMENT_BYTES)

    def _open(self, key: TopicIdPartition, state: PartitionState, now_ms: TimeMs) -> Replica:
        """Opens the partition's log. One that belongs to a partition which was removed, and came again under its index,
        is deleted first; and of a log that begins anew the checkpoint knows nothing: its high watermark is that of
        other records.
        """
        log = self._open_log(key)
        if 0 <= log.latest_epoch < state.first_leader_epoch:
            self._context.storage.delete_log(log_name(key))
            log = self._open_log(key)
        if not log.end_offset:
            self._flusher.forget(key)
        replica = Replica(key, self._context.image.name_of(key), log)
        self._context.replicas[key] = replica
        self._configure(replica)
        self._flusher.watch_retention(replica, now_ms)
        return replica

    def _open_log(self, key: TopicIdPartition) -> ReplicaLog:
        storage = self._context.storage.open_log(log_name(key))
        expiration_ms = self._context.config.int_value(PRODUCER_ID_EXPIRATION_MS)
        return ReplicaLog(storage, self._flusher.checkpointed_high_watermark(key), expiration_ms)

    def _remove(self, key: TopicIdPartition) -> None:
        replica = self._context.replicas.get(key)
        if replica is not None:
            self._end_role(replica)
            del self._context.replicas[key]
            self._context.storage.delete_log(log_name(key))

    def remove_stale_logs(self) -> None:
        """Deletes logs of partitions that the metadata does not place here; call once the metadata is caught up (A34,
        M36).
        """
        wanted = {
            log_name(key) for key, state in self._context.image.partitions() if self._context.me in state.replicas
        }
        for name in self._context.storage.log_names():
            if name not in wanted and name != METADATA_LOG:
                self._context.storage.delete_log(name)
