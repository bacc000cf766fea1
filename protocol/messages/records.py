"""Metadata records: the only way in which controller state changes (decide, append, replay).

Field names are Kafka's in snake_case. In a change record `None` means "unchanged"; the two integer fields that cannot
be null on Kafka's wire use -2 (leader, last known leader) and -1 (leader recovery state) for it (requirements
G20-G22, N15).
"""

from __future__ import annotations

from protocol.ids import NO_LEADER, UNCHANGED_LEADER
from protocol.messages.base import Message

UNCHANGED_RECOVERY_STATE = -1


class MetadataRecord(Message):
    """Base of all metadata records."""


class RegisterBrokerRecord(MetadataRecord):
    """A broker registered (KIP-631): it is fenced until a later record unfences it. `broker_epoch` is the record's
    offset.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: str
    fenced: bool = True
    in_controlled_shutdown: bool = False
    rack: str | None = None


class BrokerRegistrationChangeRecord(MetadataRecord):
    """Fences or unfences a broker, or marks it as shutting down; `None` leaves a flag unchanged."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


class TopicRecord(MetadataRecord):
    """A topic exists under this id."""

    name: str
    topic_id: str


class RemoveTopicRecord(MetadataRecord):
    """A topic and all its partitions and configs are gone."""

    topic_id: str


class ConfigRecord(MetadataRecord):
    """Sets (`value`) or removes (`None`) one config of a topic, or the cluster default (`topic_id` None)."""

    topic_id: str | None
    name: str
    value: str | None


class PartitionRecord(MetadataRecord):
    """A new partition (G21, G22)."""

    topic_id: str
    partition_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader: int
    leader_recovery_state: int = 0
    leader_epoch: int = 0
    partition_epoch: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER


class PartitionChangeRecord(MetadataRecord):
    """A change to a partition (G20, G22). A leader other than -2 raises the leader epoch."""

    topic_id: str
    partition_id: int
    isr: tuple[int, ...] | None = None
    leader: int = UNCHANGED_LEADER
    replicas: tuple[int, ...] | None = None
    removing_replicas: tuple[int, ...] | None = None
    adding_replicas: tuple[int, ...] | None = None
    leader_recovery_state: int = UNCHANGED_RECOVERY_STATE
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    last_known_leader: int = UNCHANGED_LEADER
