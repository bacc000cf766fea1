"""The controller's view: the metadata image, and the indexes that make broker events cheap.

`ControllerState` answers which partitions a broker is in the ISR or ELR of, which it leads, and which have no leader,
without walking all partitions. The indexes follow the image with every replay.
"""

from __future__ import annotations

from protocol.config import (
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
    ClusterConfig,
)
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.ids import NO_LEADER, BrokerId, TopicIdPartition
from protocol.messages.records import MetadataRecord, PartitionChangeRecord
from protocol.metadata.image import MetadataDelta, MetadataImage
from protocol.metadata.partition import PartitionState


class ControllerState:
    """Image and indexes of one controller; changed only by `replay`."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.image = MetadataImage(config)
        self._members: dict[BrokerId, set[TopicIdPartition]] = {}
        self._led: dict[BrokerId, set[TopicIdPartition]] = {}
        self._indexed: dict[TopicIdPartition, PartitionState] = {}

    def replay(self, record: MetadataRecord) -> MetadataDelta:
        """Applies a record and returns what it changed."""
        self.image.replay(record)
        delta = self.image.take_delta()
        for key in delta.partitions:
            self._index(key, self.image.partition(key))
        for topic_id, topic in delta.deleted_topics.items():
            for index in topic.partitions:
                self._index(TopicIdPartition(topic_id, index), None)
        return delta

    def _index(self, key: TopicIdPartition, state: PartitionState | None) -> None:
        old = self._indexed.pop(key, None)
        if old is not None:
            self._led[old.leader].discard(key)
            for broker in (*old.isr, *old.elr):
                self._members[broker].discard(key)
        if state is not None:
            self._indexed[key] = state
            self._led.setdefault(state.leader, set()).add(key)
            for broker in (*state.isr, *state.elr):
                self._members.setdefault(broker, set()).add(key)

    def partitions_with(self, broker: BrokerId) -> list[TopicIdPartition]:
        """Partitions that have the broker in their ISR or ELR, in order."""
        return sorted(self._members.get(broker, ()))

    def partitions_in_sync_with(self, broker: BrokerId) -> list[TopicIdPartition]:
        """Partitions that have the broker in their ISR, in order."""
        return [key for key in self.partitions_with(broker) if broker in self._indexed[key].isr]

    def partitions_led_by(self, broker: BrokerId) -> list[TopicIdPartition]:
        """Partitions that the broker leads, in order; NO_LEADER gives the leaderless ones."""
        return sorted(self._led.get(broker, ()))

    def has_leaderships(self, broker: BrokerId) -> bool:
        return bool(self._led.get(broker))

    def leaderless(self) -> list[TopicIdPartition]:
        return self.partitions_led_by(NO_LEADER)

    def request(
        self, key: TopicIdPartition, state: PartitionState, election: Election | None = None, **wishes: object
    ) -> ChangeRequest:
        """A change request under this cluster's features; `election` defaults to what the topic's configs allow.

        `wishes` are fields of `ChangeRequest`; `is_acceptable_leader` defaults to "is active".
        """
        features = self.config.features
        if election is None:
            unclean = bool(self.image.config(key.topic_id, UNCLEAN_LEADER_ELECTION_ENABLE))
            election = Election.UNCLEAN if unclean else Election.ONLINE
        wishes.setdefault("is_acceptable_leader", self.image.is_active)
        return ChangeRequest(
            min_isr=self.image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas)),
            elr_enabled=features.elr,
            use_last_known_leader=features.last_known_leader_in_elr,
            track_last_known_leader=features.track_last_known_leader,
            election=election,
            **wishes,  # type: ignore[arg-type]
        )

    def change(
        self, key: TopicIdPartition, election: Election | None = None, **wishes: object
    ) -> PartitionChangeRecord | None:
        """Decides a change of a partition that exists."""
        state = self._indexed[key]
        return decide(key.topic_id, key.partition, state, self.request(key, state, election, **wishes))
