"""Metadata records: the only way to change controller state (generate, append, replay).

Field names are Kafka's in snake_case. In a change record `None` means "unchanged"; the two integer fields that cannot
be null on Kafka's wire use -2 (leader, last known leader) and -1 (leader recovery state) instead (requirements G20-G22,
N15).

A cluster below metadata version 2 writes version 0 of partition records, without the ELR fields (G34, K3). Kafka cannot
remove partitions; here `first_leader_epoch` distinguishes a new partition from a removed one with the same index.
"""

from __future__ import annotations

from protocol.ids import NO_LEADER, UNCHANGED_LEADER
from protocol.messages.acls import AclEntry
from protocol.messages.base import Int8, Int16, Int32, Int64, Message

UNCHANGED_RECOVERY_STATE = -1


class MetadataRecord(Message):
    """Base of all metadata records."""


class RegisterBrokerRecord(MetadataRecord):
    """A broker has registered (KIP-631); it is fenced until unfenced. `broker_epoch` is the offset of the record."""

    broker_id: Int32
    broker_epoch: Int64
    incarnation_id: str
    fenced: bool = True
    in_controlled_shutdown: bool = False
    rack: str | None = None


class BrokerEndpointRecord(MetadataRecord):
    """A registered broker has a listener for Kafka's clients at `endpoint`, `HOST:PORT`; follows its registration."""

    broker_id: Int32
    broker_epoch: Int64
    endpoint: str


class BrokerRegistrationChangeRecord(MetadataRecord):
    """Fences or unfences a broker, or marks it as shutting down; `None` leaves a flag unchanged."""

    broker_id: Int32
    broker_epoch: Int64
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


class TopicRecord(MetadataRecord):
    """Creates a topic. `first_leader_epoch` of new partitions is above all epochs of partitions removed from it."""

    name: str
    topic_id: str
    first_leader_epoch: Int32 = 0


class RemoveTopicRecord(MetadataRecord):
    """Deletes a topic with all its partitions and configs."""

    topic_id: str


class ConfigRecord(MetadataRecord):
    """Sets (`value`) or removes (`None`) one config of a topic, or the cluster default (`topic_id` None)."""

    topic_id: str | None
    name: str
    value: str | None


_SINCE_ELR = {"eligible_leader_replicas": 1, "last_known_elr": 1, "last_known_leader": 1}


class PartitionRecord(MetadataRecord, since=_SINCE_ELR):
    """Creates a partition (G21, G22). `first_leader_epoch` is the leader epoch of its creation."""

    topic_id: str
    partition_id: Int32
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    leader: Int32
    leader_recovery_state: Int8 = 0
    leader_epoch: Int32 = 0
    partition_epoch: Int32 = 0
    first_leader_epoch: Int32 = 0
    eligible_leader_replicas: tuple[Int32, ...] = ()
    last_known_elr: tuple[Int32, ...] = ()
    last_known_leader: Int32 = NO_LEADER


class PartitionChangeRecord(MetadataRecord, since=_SINCE_ELR):
    """A change to a partition (G20, G22). A leader other than -2 raises the leader epoch."""

    topic_id: str
    partition_id: Int32
    isr: tuple[Int32, ...] | None = None
    leader: Int32 = UNCHANGED_LEADER
    replicas: tuple[Int32, ...] | None = None
    removing_replicas: tuple[Int32, ...] | None = None
    adding_replicas: tuple[Int32, ...] | None = None
    leader_recovery_state: Int8 = UNCHANGED_RECOVERY_STATE
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    last_known_leader: Int32 = UNCHANGED_LEADER


class RemovePartitionRecord(MetadataRecord):
    """Removes a partition with its records."""

    topic_id: str
    partition_id: Int32


class UnregisterBrokerRecord(MetadataRecord):
    """Removes the registration of a broker."""

    broker_id: Int32
    broker_epoch: Int64


class ControllerFeature(Message):
    """The levels of a feature that a controller supports."""

    name: str
    min_supported_version: Int16
    max_supported_version: Int16


class RegisterControllerRecord(MetadataRecord):
    """A process of a controller has registered (KIP-919); its endpoints are those of its vote (KIP-853)."""

    controller_id: Int32
    incarnation_id: str
    features: tuple[ControllerFeature, ...] = ()


class UnregisterControllerRecord(MetadataRecord):
    """Removes the registration of a controller (KIP-1312)."""

    controller_id: Int32


class FeatureLevelRecord(MetadataRecord):
    """A finalized feature level."""

    name: str
    feature_level: Int16


class ProducerIdsRecord(MetadataRecord):
    """All producer ids below this one have been assigned."""

    next_producer_id: Int64


class AccessControlEntryRecord(MetadataRecord):
    """Creates an access control entry."""

    entry: AclEntry


class RemoveAccessControlEntryRecord(MetadataRecord):
    """Deletes an access control entry."""

    entry: AclEntry
