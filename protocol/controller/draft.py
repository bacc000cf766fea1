"""The state that a request's records will lead to, before they are appended.

The changes of one request build on each other: the cluster-wide min ISR falls, a topic's override of it is removed,
unclean election is enabled, and each change concerns the same partitions. A `Draft` is the controller's state overlaid
with the records so far. Its cost is that of the changes, whatever the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from protocol.config import CONFIGS, MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE, ConfigValue, features_at
from protocol.controller.context import ControllerState, allowed_election
from protocol.controller.partition_change import Election, decide
from protocol.errors import ProtocolInvariantError
from protocol.ids import TopicIdPartition
from protocol.messages.records import ConfigRecord, FeatureLevelRecord, MetadataRecord, PartitionChangeRecord
from protocol.metadata.partition import PartitionState, effective_min_isr, replay_change


class Draft:
    """The `records` so far, with the configs, feature levels and partitions that result from them."""

    def __init__(self, state: ControllerState) -> None:
        self.state = state
        self.records: list[MetadataRecord] = []
        self.levels = state.image.feature_levels
        self.features = state.image.features
        self._configs: dict[tuple[str | None, str], ConfigValue | None] = {}
        self._partitions: dict[TopicIdPartition, PartitionState] = {}

    def add(self, record: ConfigRecord | FeatureLevelRecord | PartitionChangeRecord) -> None:
        """Adds a record; all later calls see its effect."""
        self.records.append(record)
        if isinstance(record, ConfigRecord):
            value = None if record.value is None else CONFIGS[record.name].parse(record.value)
            self._configs[record.topic_id, record.name] = value
        elif isinstance(record, FeatureLevelRecord):
            self.levels = {**self.levels, record.name: record.feature_level}
            self.features = features_at(self.levels)
        else:
            key = TopicIdPartition(record.topic_id, record.partition_id)
            self._partitions[key] = replay_change(self.partition(key), record)

    def override(self, topic_id: str | None, name: str) -> ConfigValue | None:
        """The topic's override, or the dynamic cluster default (`topic_id` None); None where it is not set."""
        if (topic_id, name) in self._configs:
            return self._configs[topic_id, name]
        return self.state.image.configs.get(topic_id, {}).get(name)

    def config(self, topic_id: str | None, name: str) -> ConfigValue:
        """The value in force, by the rules of `MetadataImage.config`."""
        for scope in (topic_id, None):
            value = self.override(scope, name)
            if value is not None:
                return value
        return self.state.config.values[name]

    def overridden_by(self, name: str) -> set[str]:
        topics = {topic for topic, values in self.state.image.configs.items() if topic is not None and name in values}
        for (topic, changed), value in self._configs.items():
            if topic is not None and changed == name:
                topics.discard(topic)
                topics.update({topic} if value is not None else ())
        return topics

    def partition(self, key: TopicIdPartition) -> PartitionState:
        state = self._partitions.get(key) or self.state.image.partition(key)
        if state is None:
            raise ProtocolInvariantError(f"no partition {key}")
        return state

    def partitions(self, topic_id: str | None = None) -> Iterator[tuple[TopicIdPartition, PartitionState]]:
        topics = self.state.image.topics
        for topic in topics.values() if topic_id is None else (topics[topic_id],):
            for index in topic.partitions:
                key = TopicIdPartition(topic.topic_id, index)
                yield key, self.partition(key)

    def allowed_election(self, key: TopicIdPartition) -> Election:
        """The election that the configs and feature levels of the draft allow (`context.allowed_election`)."""
        return allowed_election(self.features, self.config(key.topic_id, UNCLEAN_LEADER_ELECTION_ENABLE))

    def decide(self, key: TopicIdPartition, election: Election) -> None:
        """Adds the record of an election, and of the completion of a reassignment that can be completed, if any."""
        partition, features = self.partition(key), self.features
        configured = int(self.config(key.topic_id, MIN_INSYNC_REPLICAS))
        replica_count = len(partition.replicas)
        request = replace(
            self.state.request(key, partition, election),
            min_isr=effective_min_isr(configured, replica_count) if features.effective_min_isr else configured,
            elr_enabled=features.elr,
            use_last_known_leader=features.last_known_leader_in_elr,
            track_last_known_leader=features.track_last_known_leader,
        )
        record = decide(key.topic_id, key.partition, partition, request)
        if record is not None:
            self.add(record)
