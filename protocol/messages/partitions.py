"""Partitions: electing leaders, and moving replicas (requirements G27, G28, G33, J1-J11, J18)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Int32, Message


class ElectionType(Enum):
    """Wire values as requirements N14 settles them."""

    PREFERRED = 0
    UNCLEAN = 1
    LONGEST_LOG_BALANCED = 2
    LONGEST_LOG_PROACTIVE = 3
    DESIGNATION = 4


class TopicPartitions(Message):
    """Partitions of a topic. `desired_leaders` goes with DESIGNATION only, index by index with `partitions`."""

    topic: str
    partitions: tuple[Int32, ...]
    desired_leaders: tuple[Int32, ...] = ()


class ElectLeadersRequest(AdminRequest):
    """Elects leaders for partitions of up to 20 topics, or for all partitions (`topic_partitions` None)."""

    election_type: ElectionType
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout_ms: Int32 = 60_000


class PartitionResult(Result):
    topic: str
    partition_index: Int32


class ElectLeadersResponse(AdminResponse):
    """For all partitions, those that needed no election are left out."""

    partitions: tuple[PartitionResult, ...] = ()

    def parts(self) -> Sequence[Result]:
        return self.partitions


class ReassignablePartition(Message):
    """The replicas that a partition shall have; None takes back the reassignment that is under way."""

    partition_index: Int32
    replicas: tuple[Int32, ...] | None


class ReassignableTopic(Message):
    name: str
    partitions: tuple[ReassignablePartition, ...]


class AlterPartitionReassignmentsRequest(AdminRequest):
    """Starts and cancels reassignments, each partition by itself."""

    topics: tuple[ReassignableTopic, ...]
    timeout_ms: Int32 = 60_000


class AlterPartitionReassignmentsResponse(AdminResponse):
    partitions: tuple[PartitionResult, ...] = ()

    def parts(self) -> Sequence[Result]:
        return self.partitions


class ListPartitionReassignmentsTopic(Message):
    name: str
    partition_indexes: tuple[Int32, ...]


class ListPartitionReassignmentsRequest(AdminRequest):
    """Which of these partitions are being reassigned; of all, where `topics` is None."""

    READ_ONLY: ClassVar[bool] = True

    topics: tuple[ListPartitionReassignmentsTopic, ...] | None = None
    timeout_ms: Int32 = 60_000


class OngoingPartitionReassignment(Message):
    topic: str
    partition_index: Int32
    replicas: tuple[Int32, ...]
    adding_replicas: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...]


class ListPartitionReassignmentsResponse(AdminResponse):
    partitions: tuple[OngoingPartitionReassignment, ...] = ()
