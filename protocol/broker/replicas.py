"""The replica manager: applies metadata changes to a broker's replicas (Kafka's `ReplicaManager.applyDelta`).

A new leader epoch makes the broker leader or follower of a partition. The old role ends before the new one begins (A26,
A27): no record of the former leader is appended any more, and no client is answered as by a leader. Within a leader
epoch, the leader adopts a state with a newer partition epoch.
"""

from __future__ import annotations

from protocol.broker import leadership as rules
from protocol.broker.context import BrokerContext, Replica, log_name
from protocol.broker.fetcher import Fetcher
from protocol.broker.flushing import Flusher
from protocol.broker.leader import PartitionLeader
from protocol.config import PRODUCER_ID_EXPIRATION_MS, SEGMENT_BYTES
from protocol.events.broker import BecameFollower, BecameLeader
from protocol.ids import METADATA_LOG, NO_LEADER, TimeMs, TopicIdPartition
from protocol.log.replica_log import ReplicaLog
from protocol.metadata.image import MetadataDelta
from protocol.metadata.partition import PartitionState


class ReplicaManager:
    def __init__(self, context: BrokerContext, flusher: Flusher, leader: PartitionLeader, fetcher: Fetcher) -> None:
        self._context = context
        self._flusher = flusher
        self._leader = leader
        self._fetcher = fetcher

    def apply(self, delta: MetadataDelta, now_ms: TimeMs) -> None:
        """Applies the changes of the metadata image since the last call. Raises StorageError where the disk fails."""
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
        if delta.configs or delta.brokers or delta.features:  # followers may be eligible, or min ISR lower (B6, E11)
            for replica in self._context.replicas.values():
                if replica.leadership is not None:
                    self._leader.isr_committed(replica, now_ms)

    def _apply_partition(self, key: TopicIdPartition, state: PartitionState, now_ms: TimeMs) -> None:
        replica = self._context.replicas.get(key) or self._open(key, state, now_ms)
        leads = state.leader == self._context.me
        if state.leader_epoch > replica.leader_epoch or (replica.leadership is not None) != leads:
            self._end_role(replica)
            replica.leader_epoch = state.leader_epoch
            replica.leader_id = state.leader
            if leads:
                log_end, high_watermark = replica.log.end_offset, replica.log.high_watermark
                replica.leadership = rules.begin(state, self._context.me, log_end, now_ms)
                self._context.out.trace(BecameLeader(replica.name, state.leader_epoch, log_end, high_watermark))
                self._leader.lead(replica, now_ms)
            elif state.leader != NO_LEADER:
                self._context.out.trace(BecameFollower(replica.name, state.leader, state.leader_epoch))
                self._fetcher.follow(replica)
        elif replica.leadership is not None:
            self._leader.adopt(replica, state, now_ms)

    def _end_role(self, replica: Replica) -> None:
        if replica.leadership is not None:
            self._leader.resign(replica)
        elif replica.fetch_state is not None:
            self._fetcher.unfollow(replica)

    def _configure(self, replica: Replica) -> None:
        replica.log.segment_bytes = self._context.image.int_config(replica.key.topic_id, SEGMENT_BYTES)

    def _open(self, key: TopicIdPartition, state: PartitionState, now_ms: TimeMs) -> Replica:
        """Opens the partition's log; deletes one of an older partition with the same index, and a stale checkpoint."""
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
        """Deletes the logs of partitions assigned to other brokers, once the metadata log is replayed (A34, M36)."""
        me, storage = self._context.me, self._context.storage
        wanted = {log_name(key) for key, state in self._context.image.partitions() if me in state.replicas}
        for name in storage.log_names():
            if name not in wanted and name != METADATA_LOG:
                storage.delete_log(name)
