"""The cluster's metadata as the metadata log defines it: brokers, topics, partitions, configs, feature levels, ACLs.

Only `replay` of the next record changes an image; equal prefixes of the log give equal images. A partition's state and
a broker's registration are immutable values, so a change replaces a value in a dict and costs the same whatever the
size of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from protocol.config import CONFIGS, ClusterConfig, ConfigValue, config_text
from protocol.errors import ProtocolInvariantError
from protocol.features import Features, features_at
from protocol.ids import BrokerId, Epoch, NodeId, Offset, TopicIdPartition, TopicPartition, partition_key
from protocol.messages.acls import WILDCARD, AclEntry, AclResourceType, PatternType
from protocol.messages.quorum import ControlRecord
from protocol.messages.records import (
    AccessControlEntryRecord,
    BrokerEndpointRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change
from protocol.values import immutable


@immutable
class BrokerRegistration:
    """A broker's registration; `broker_epoch` is the offset of the record that made it."""

    broker_id: BrokerId
    broker_epoch: Epoch
    incarnation_id: str
    fenced: bool = True
    in_controlled_shutdown: bool = False
    rack: str | None = None
    endpoint: str | None = None


@dataclass(slots=True)
class TopicImage:
    """A topic and its partitions by index. New partitions start with `first_leader_epoch`."""

    name: str
    topic_id: str
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    first_leader_epoch: Epoch = 0


@dataclass(slots=True)
class MetadataDelta:
    """In a deterministic order. A removed partition is also in `partitions` if it was created again."""

    partitions: dict[TopicIdPartition, None] = field(default_factory=dict)
    removed_partitions: dict[TopicIdPartition, None] = field(default_factory=dict)
    deleted_topics: dict[str, TopicImage] = field(default_factory=dict)
    brokers: dict[BrokerId, None] = field(default_factory=dict)
    configs: dict[str | None, None] = field(default_factory=dict)
    features: bool = False

    def removed(self) -> list[TopicIdPartition]:
        """The partitions that were removed, alone or with their topic."""
        keys = list(self.removed_partitions) if self.removed_partitions else []
        for topic_id, topic in self.deleted_topics.items():
            keys += [TopicIdPartition(topic_id, index) for index in topic.partitions]
        return keys


class MetadataImage:
    """The state after the records below `next_offset`. Without feature levels those of `defaults` apply."""

    def __init__(self, defaults: ClusterConfig) -> None:
        self.defaults = defaults
        self.next_offset: Offset = 0
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self.controllers: dict[NodeId, RegisterControllerRecord] = {}
        self.topics: dict[str, TopicImage] = {}
        self.topic_ids: dict[str, str] = {}
        self.configs: dict[str | None, dict[str, ConfigValue]] = {}
        self.feature_levels: Mapping[str, int] = dict(defaults.generation.feature_levels)
        self.features: Features = defaults.generation.features
        self.acls: dict[AclEntry, None] = {}
        self._acls_of: dict[tuple[AclResourceType, str | None], dict[AclEntry, None]] = {}
        self.partition_count = 0
        self.next_producer_id = 0
        self.is_bootstrapped = False
        """Whether a feature level was replayed; the first records of every log are feature levels."""
        self._delta = MetadataDelta()
        self.taken_offset: Offset = 0
        """The end of the records whose changes `take_delta` has returned."""

    def take_delta(self) -> MetadataDelta:
        """The changes since the last call."""
        delta, self._delta = self._delta, MetadataDelta()
        self.taken_offset = self.next_offset
        return delta

    def is_active(self, broker_id: BrokerId) -> bool:
        """Whether the broker is unfenced and not shutting down: it may lead and be in an ISR (B6, E17)."""
        registration = self.brokers.get(broker_id)
        return registration is not None and not registration.fenced and not registration.in_controlled_shutdown

    def broker_epoch(self, broker_id: BrokerId) -> Epoch | None:
        registration = self.brokers.get(broker_id)
        return None if registration is None else registration.broker_epoch

    def partition(self, key: TopicIdPartition) -> PartitionState | None:
        topic = self.topics.get(key.topic_id)
        return None if topic is None else topic.partitions.get(key.partition)

    def partitions(self, topic_id: str | None = None) -> Iterator[tuple[TopicIdPartition, PartitionState]]:
        """The partitions of a topic, or of all topics in order of creation."""
        for topic in self.topics.values() if topic_id is None else (self.topics[topic_id],):
            for index, state in topic.partitions.items():
                yield TopicIdPartition(topic.topic_id, index), state

    def name_of(self, key: TopicIdPartition) -> TopicPartition:
        """The partition by the name of its topic; KeyError where the topic does not exist."""
        return TopicPartition(self.topics[key.topic_id].name, key.partition)

    def topic_named(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def config(self, topic_id: str | None, name: str) -> ConfigValue:
        """The value in force: the topic's override, else the cluster-wide dynamic value, else the static one."""
        if self.configs:
            for scope in (topic_id, None):
                overrides = self.configs.get(scope)
                if overrides is not None and name in overrides:
                    return overrides[name]
        return self.defaults.values[name]

    def int_config(self, topic_id: str | None, name: str) -> int:
        """The value in force of a config that is a whole number."""
        value = self.config(topic_id, name)
        return value if isinstance(value, int) else int(value)

    def min_isr(self, topic_id: str, name: str, replica_count: int) -> int:
        """The effective value of config `name` (min.insync.replicas) for `replica_count` replicas (E8, E9)."""
        configured = self.int_config(topic_id, name)
        return min(configured, replica_count) if self.features.effective_min_isr else configured

    @property
    def size(self) -> int:
        """The number of records that `to_records` returns."""
        configs = sum(len(overrides) for overrides in self.configs.values())
        entities = len(self.feature_levels) + len(self.acls) + len(self.brokers) + len(self.topics)
        entities += len(self.controllers)
        return entities + configs + self.partition_count + (self.next_producer_id > 0)

    def acls_for(self, resource_type: AclResourceType, name: str) -> Iterator[AclEntry]:
        """The access control entries that match a resource: by its name, by the wildcard, by a prefix."""
        for place in (name, WILDCARD):
            yield from self._acls_of.get((resource_type, place), ())
        prefixed = self._acls_of.get((resource_type, None), ())
        yield from (entry for entry in prefixed if name.startswith(entry.resource_name))

    def to_records(self) -> list[MetadataRecord]:
        """Records that build this image from an empty one; the content of a snapshot."""
        records: list[MetadataRecord] = [
            FeatureLevelRecord.unchecked(name=name, feature_level=level) for name, level in self.feature_levels.items()
        ]
        records += [AccessControlEntryRecord(entry=entry) for entry in self.acls]
        for registration in self.brokers.values():
            values = asdict(registration)
            endpoint = values.pop("endpoint")
            records.append(RegisterBrokerRecord.unchecked(**values))
            if endpoint is not None:
                records.append(_endpoint_record(registration, endpoint))
        records += self.controllers.values()
        records += [
            TopicRecord.unchecked(name=topic.name, topic_id=topic.topic_id, first_leader_epoch=topic.first_leader_epoch)
            for topic in self.topics.values()
        ]
        if self.next_producer_id:
            records.append(ProducerIdsRecord(next_producer_id=self.next_producer_id))
        records += [
            ConfigRecord.unchecked(topic_id=topic_id, name=name, value=config_text(value))
            for topic_id, overrides in self.configs.items()
            for name, value in overrides.items()
        ]
        records += [state.to_record(*key) for key, state in self.partitions()]
        return records

    def load(self, records: Sequence[MetadataRecord], next_offset: Offset) -> None:
        """Replaces the image by that of a snapshot, all of which counts as changed, and what it lacks as deleted."""
        before = self.topics
        self.brokers, self.topics, self.topic_ids, self.configs, self.acls, self._acls_of = {}, {}, {}, {}, {}, {}
        self.controllers, self.partition_count = {}, 0
        for record in records:
            self.replay(record)
        for topic_id, topic in before.items():
            if topic_id not in self.topics:
                self._delta.deleted_topics[topic_id] = topic
                continue
            for index, old in topic.partitions.items():
                key = TopicIdPartition(topic_id, index)
                state = self.partition(key)
                if state is None or state.first_leader_epoch != old.first_leader_epoch:
                    self._delta.removed_partitions[key] = None
        self._delta.configs.update(dict.fromkeys(self.configs))
        self.next_offset = next_offset

    def replay(self, record: MetadataRecord) -> None:
        """Applies the record at `next_offset`; ProtocolInvariantError where the present state excludes it."""
        handler = _REPLAY.get(type(record))
        if handler is not None:
            try:
                handler(self, record)
            except KeyError as error:
                raise ProtocolInvariantError(f"{record} does not fit: {error}") from error
        elif not isinstance(record, ControlRecord):
            raise ProtocolInvariantError(f"no replay for {type(record).__name__}")
        self.next_offset += 1

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self.brokers[record.broker_id] = BrokerRegistration(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            record.fenced,
            record.in_controlled_shutdown,
            record.rack,
        )
        self._delta.brokers[record.broker_id] = None

    def _change_registration(self, record: BrokerRegistrationChangeRecord) -> None:
        registration = self.brokers.get(record.broker_id)
        if registration is None or registration.broker_epoch != record.broker_epoch:
            raise ProtocolInvariantError(f"registration change for unknown broker {record.broker_id} at {record}")
        shutting_down = record.in_controlled_shutdown
        self.brokers[record.broker_id] = BrokerRegistration(
            registration.broker_id,
            registration.broker_epoch,
            registration.incarnation_id,
            registration.fenced if record.fenced is None else record.fenced,
            registration.in_controlled_shutdown if shutting_down is None else shutting_down,
            registration.rack,
            registration.endpoint,
        )
        self._delta.brokers[record.broker_id] = None

    def _set_endpoint(self, record: BrokerEndpointRecord) -> None:
        registration = self.brokers.get(record.broker_id)
        if registration is None or registration.broker_epoch != record.broker_epoch:
            raise ProtocolInvariantError(f"endpoint of unknown broker {record.broker_id} at {record}")
        self.brokers[record.broker_id] = replace(registration, endpoint=record.endpoint)
        self._delta.brokers[record.broker_id] = None

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        if self.brokers[record.broker_id].broker_epoch != record.broker_epoch:
            raise ProtocolInvariantError(f"{record} does not fit {self.brokers[record.broker_id]}")
        del self.brokers[record.broker_id]
        self._delta.brokers[record.broker_id] = None

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self.controllers[record.controller_id] = record

    def _unregister_controller(self, record: UnregisterControllerRecord) -> None:
        del self.controllers[record.controller_id]

    def _set_feature_level(self, record: FeatureLevelRecord) -> None:
        self.feature_levels = {**self.feature_levels, record.name: record.feature_level}
        self.features = features_at(self.feature_levels)
        self.is_bootstrapped = True
        self._delta.features = True

    def _add_acl(self, record: AccessControlEntryRecord) -> None:
        self.acls[record.entry] = None
        self._acls_of.setdefault(_acl_key(record.entry), {})[record.entry] = None

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        del self.acls[record.entry]
        del self._acls_of[_acl_key(record.entry)][record.entry]

    def _set_next_producer_id(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self.next_producer_id:
            raise ProtocolInvariantError(f"{record}: ids below {self.next_producer_id} are allocated")
        self.next_producer_id = record.next_producer_id

    def _add_topic(self, record: TopicRecord) -> None:
        self.topics[record.topic_id] = TopicImage(
            record.name, record.topic_id, first_leader_epoch=record.first_leader_epoch
        )
        self.topic_ids[record.name] = record.topic_id

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self.topics.pop(record.topic_id)
        del self.topic_ids[topic.name]
        self.configs.pop(record.topic_id, None)
        self.partition_count -= len(topic.partitions)
        self._delta.deleted_topics[record.topic_id] = topic

    def _set_config(self, record: ConfigRecord) -> None:
        overrides = self.configs.setdefault(record.topic_id, {})
        if record.value is None:
            overrides.pop(record.name, None)
        else:
            overrides[record.name] = CONFIGS[record.name].parse(record.value)
        self._delta.configs[record.topic_id] = None

    def _add_partition(self, record: PartitionRecord) -> None:
        partitions = self.topics[record.topic_id].partitions
        self.partition_count += record.partition_id not in partitions
        partitions[record.partition_id] = PartitionState(
            replicas=record.replicas,
            isr=record.isr,
            elr=record.eligible_leader_replicas,
            last_known_elr=record.last_known_elr,
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            leader=record.leader,
            leader_recovery_state=LeaderRecoveryState(record.leader_recovery_state),
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            last_known_leader=record.last_known_leader,
            first_leader_epoch=record.first_leader_epoch,
        )
        self._delta.partitions[partition_key(record.topic_id, record.partition_id)] = None

    def _remove_partition(self, record: RemovePartitionRecord) -> None:
        topic = self.topics[record.topic_id]
        state = topic.partitions.pop(record.partition_id)
        topic.first_leader_epoch = max(topic.first_leader_epoch, state.leader_epoch + 1)
        self.partition_count -= 1
        key = TopicIdPartition(record.topic_id, record.partition_id)
        self._delta.partitions.pop(key, None)
        self._delta.removed_partitions[key] = None

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self.topics[record.topic_id].partitions
        partitions[record.partition_id] = replay_change(partitions[record.partition_id], record)
        self._delta.partitions[partition_key(record.topic_id, record.partition_id)] = None


def _endpoint_record(registration: BrokerRegistration, endpoint: str) -> BrokerEndpointRecord:
    broker, epoch = registration.broker_id, registration.broker_epoch
    return BrokerEndpointRecord.unchecked(broker_id=broker, broker_epoch=epoch, endpoint=endpoint)


def _acl_key(entry: AclEntry) -> tuple[AclResourceType, str | None]:
    """The index key of an entry: its resource's name, None for all prefixes."""
    return entry.resource_type, None if entry.pattern_type is PatternType.PREFIXED else entry.resource_name


_REPLAY: dict[type[MetadataRecord], Callable[[MetadataImage, Any], None]] = {
    RegisterBrokerRecord: MetadataImage._register_broker,
    BrokerRegistrationChangeRecord: MetadataImage._change_registration,
    BrokerEndpointRecord: MetadataImage._set_endpoint,
    TopicRecord: MetadataImage._add_topic,
    RemoveTopicRecord: MetadataImage._remove_topic,
    ConfigRecord: MetadataImage._set_config,
    PartitionRecord: MetadataImage._add_partition,
    PartitionChangeRecord: MetadataImage._change_partition,
    RemovePartitionRecord: MetadataImage._remove_partition,
    UnregisterBrokerRecord: MetadataImage._unregister_broker,
    RegisterControllerRecord: MetadataImage._register_controller,
    UnregisterControllerRecord: MetadataImage._unregister_controller,
    FeatureLevelRecord: MetadataImage._set_feature_level,
    AccessControlEntryRecord: MetadataImage._add_acl,
    RemoveAccessControlEntryRecord: MetadataImage._remove_acl,
    ProducerIdsRecord: MetadataImage._set_next_producer_id,
}
