"""Metadata records: the only way in which controller state changes (decide, append, replay).

Field names are Kafka's in snake_case. In a change record `None` means "unchanged"; the two integer fields that cannot
be null on Kafka's wire use -2 (leader, last known leader) and -1 (leader recovery state) for it (requirements
G20-G22, N15).

Partition records of version 1 carry the ELR fields; version 0 is what a cluster writes below metadata version 2, and
what it reads has none (G34, K3). Removing partitions is no part of Kafka's protocol: `first_leader_epoch` keeps a
partition that comes again under the same index from being taken for the one that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from protocol.ids import NO_LEADER, UNCHANGED_LEADER
from protocol.messages.acls import AclEntry
from protocol.messages.base import Int8, Int16, Int32, Int64, Message

UNCHANGED_RECOVERY_STATE = -1


class MetadataRecord(Message):
    """Base of all metadata records."""


class RegisterBrokerRecord(MetadataRecord):
    """A broker registered (KIP-631): it is fenced until a later record unfences it. `broker_epoch` is the record's
    offset.
    """

    broker_id: Int32
    broker_epoch: Int64
    incarnation_id: str
    fenced: bool = True
    in_controlled_shutdown: bool = False
    rack: str | None = None


class BrokerRegistrationChangeRecord(MetadataRecord):
    """Fences or unfences a broker, or marks it as shutting down; `None` leaves a flag unchanged."""

    broker_id: Int32
    broker_epoch: Int64
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


class TopicRecord(MetadataRecord):
    """A topic exists under this id. New partitions of it start with `first_leader_epoch`, which lies behind all epochs
    of partitions that it has lost.
    """

    name: str
    topic_id: str
    first_leader_epoch: Int32 = 0


class RemoveTopicRecord(MetadataRecord):
    """A topic and all its partitions and configs are gone."""

    topic_id: str


class ConfigRecord(MetadataRecord):
    """Sets (`value`) or removes (`None`) one config of a topic, or the cluster default (`topic_id` None)."""

    topic_id: str | None
    name: str
    value: str | None


class PartitionRecord(MetadataRecord):
    """A new partition (G21, G22). `first_leader_epoch` is the leader epoch with which it came into being."""

    SINCE: ClassVar[Mapping[str, int]] = {
        "eligible_leader_replicas": 1,
        "last_known_elr": 1,
        "last_known_leader": 1,
    }

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


class PartitionChangeRecord(MetadataRecord):
    """A change to a partition (G20, G22). A leader other than -2 raises the leader epoch."""

    SINCE: ClassVar[Mapping[str, int]] = PartitionRecord.SINCE

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
    """A partition and its records are gone."""

    topic_id: str
    partition_id: Int32


class UnregisterBrokerRecord(MetadataRecord):
    """The broker's registration is gone."""

    broker_id: Int32
    broker_epoch: Int64


class FeatureLevelRecord(MetadataRecord):
    """A finalized feature level."""

    name: str
    feature_level: Int16


class ProducerIdsRecord(MetadataRecord):
    """All producer ids below this one have been given out."""

    next_producer_id: Int64


class AccessControlEntryRecord(MetadataRecord):
    """An access control entry exists."""

    entry: AclEntry


class RemoveAccessControlEntryRecord(MetadataRecord):
    """An access control entry is gone."""

    entry: AclEntry
