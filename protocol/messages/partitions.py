"""Partitions: electing leaders, and moving replicas (requirements G27, G28, G33, J1-J11, J18)."""

from __future__ import annotations

from enum import Enum

from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Int32, Message
from protocol.values import direct


@direct
class ElectionType(Enum):
    """How to elect. Wire values are those of requirements N14."""

    PREFERRED = 0
    UNCLEAN = 1
    LONGEST_LOG_BALANCED = 2
    LONGEST_LOG_PROACTIVE = 3
    DESIGNATION = 4


class TopicPartitions(Message):
    """Partitions of a topic. `desired_leaders`, for DESIGNATION only, corresponds to `partitions` by index."""

    topic: str
    partitions: tuple[Int32, ...]
    desired_leaders: tuple[Int32, ...] = ()


class ElectLeadersRequest(AdminRequest):
    """Elects leaders for partitions of up to 20 topics, or for all partitions (`topic_partitions` None)."""

    election_type: ElectionType
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: Int32 = 60_000


class PartitionResult(Result):
    """The result for one partition."""

    topic: str
    partition_index: Int32


class ElectLeadersResponse(AdminResponse):
    """One result per partition. For a request about all partitions, those that needed no election are omitted."""

    partitions: tuple[PartitionResult, ...] = ()


class ReassignablePartition(Message):
    """The new replicas of a partition; None cancels the reassignment in progress."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None


class ReassignableTopic(Message):
    """The partitions of a topic to reassign."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(AdminRequest, since={"allow_replication_factor_change": 1}):
    """Starts and cancels reassignments, independently per partition (KIP-455). Those that would change a replication
    factor fail unless the request allows it (KIP-860).
    """

    topics: tuple[ReassignableTopic, ...]
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: bool = True


class AlterPartitionReassignmentsResponse(AdminResponse, since={"allow_replication_factor_change": 1}):
    """One result per partition, and what the request allowed."""

    partitions: tuple[PartitionResult, ...] = ()
    allow_replication_factor_change: bool = True


class ListPartitionReassignmentsTopic(Message):
    """Partitions of a topic to list."""

    name: str
    partition_indexes: tuple[Int32, ...]


class ListPartitionReassignmentsRequest(AdminRequest, read_only=True):
    """Requests which of these partitions are being reassigned; `topics` None means all partitions."""

    topics: tuple[ListPartitionReassignmentsTopic, ...] | None = None
    timeout_ms: Int32 = 60_000


class OngoingPartitionReassignment(Message):
    """A partition that is being reassigned: its replicas, and which of them are added and removed."""

    topic: str
    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


class ListPartitionReassignmentsResponse(AdminResponse):
    """The partitions that are being reassigned."""

    partitions: tuple[OngoingPartitionReassignment, ...] = ()
