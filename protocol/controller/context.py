"""The state of a controller: the metadata image, and indexes of partitions by broker, so that no event needs a walk
over all partitions.
"""

from __future__ import annotations

from random import Random

from protocol.config import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE, ClusterConfig, ConfigValue
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.features import Features
from protocol.ids import NO_LEADER, BrokerId, TopicIdPartition
from protocol.kafka_rules import FIRST_PARTITION_COUNTS
from protocol.messages.records import MetadataRecord, PartitionChangeRecord
from protocol.metadata.image import MetadataDelta, MetadataImage
from protocol.metadata.partition import PartitionState


class ControllerState:
    """Image and indexes of one controller; only `replay` changes them. `rng` is for the placement of replicas."""

    def __init__(self, config: ClusterConfig, rng: Random) -> None:
        self.config = config
        self.rng = rng
        self.image = MetadataImage(config)
        self._members: dict[BrokerId, set[TopicIdPartition]] = {}
        self._led: dict[BrokerId, set[TopicIdPartition]] = {}
        self._indexed: dict[TopicIdPartition, PartitionState] = {}

    def replay(self, record: MetadataRecord) -> MetadataDelta:
        self.image.replay(record)
        delta = self.image.take_delta()
        for key in delta.partitions:
            self._index(key, self.image.partition(key))
        for key in delta.removed():
            self._index(key, None)
        return delta

    def _index(self, key: TopicIdPartition, state: PartitionState | None) -> None:
        old = self._indexed.get(key)
        for index, before, after in (
            (self._members, () if old is None else old.isr + old.elr, () if state is None else state.isr + state.elr),
            (self._led, () if old is None else (old.leader,), () if state is None else (state.leader,)),
        ):
            for broker in before:
                if broker not in after:
                    index[broker].discard(key)
            for broker in after:
                if broker not in before:
                    index.setdefault(broker, set()).add(key)
        if state is not None:
            self._indexed[key] = state
        elif old is not None:
            del self._indexed[key]

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
        self, key: TopicIdPartition, state: PartitionState, election: Election | None = None, **targets: object
    ) -> ChangeRequest:
        """A change request under the feature levels and Kafka's rules in force. `election` defaults to what the topic's
        configs allow, `is_acceptable_leader` to `MetadataImage.is_active`; `targets` are fields of `ChangeRequest`.
        """
        features = self.image.features
        if election is None:
            election = allowed_election(features, self.image.config(key.topic_id, UNCLEAN_LEADER_ELECTION_ENABLE))
        targets.setdefault("is_acceptable_leader", self.image.is_active)
        return ChangeRequest(
            min_isr=self.image.min_isr(key.topic_id, MIN_INSYNC_REPLICAS, self.bound_of_min_isr(key, state)),
            elr_enabled=features.elr,
            use_last_known_leader=features.last_known_leader_in_elr,
            track_last_known_leader=features.track_last_known_leader,
            kafka_rules=self.config.kafka_rules,
            kafka_release=self.config.kafka_release,
            election=election,
            **targets,  # type: ignore[arg-type]
        )

    def bound_of_min_isr(self, key: TopicIdPartition, state: PartitionState) -> int:
        """The number of replicas that the effective min ISR of a partition in this state never exceeds."""
        if FIRST_PARTITION_COUNTS in self.config.kafka_rules:
            state = self._indexed.get(key._replace(partition=0), state)
        return len(state.replicas)

    def change(
        self, key: TopicIdPartition, election: Election | None = None, **targets: object
    ) -> PartitionChangeRecord | None:
        """The record of a change of an existing partition, None if nothing changes; parameters as in `request`."""
        state = self._indexed[key]
        return decide(key.topic_id, key.partition, state, self.request(key, state, election, **targets))


def allowed_election(features: Features, unclean_enabled: ConfigValue) -> Election:
    """The election without a user's request: UNCLEAN only if enabled for the topic and unclean recovery is disabled."""
    return Election.UNCLEAN if unclean_enabled and not features.unclean_recovery else Election.ONLINE
