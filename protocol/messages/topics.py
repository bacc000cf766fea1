"""Topics: create, delete, add and remove partitions, describe (requirements G24, G25, J19, L13).

Field names are Kafka's. Removing partitions is not in Kafka's protocol; it is part of the V3 design (A9, A21).
"""

from __future__ import annotations

from protocol.ids import NO_LEADER
from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Int8, Int16, Int32, Message

MAX_TOPICS_PER_REQUEST = 20
"""Limit of DescribeTopic and ElectLeaders (L13)."""
MAX_PARTITIONS_PER_RESPONSE = 2_000
NO_AUTHORIZED_OPERATIONS = -(2**31)
"""`topic_authorized_operations` of a topic that is not described (L20)."""


class ReplicaAssignment(Message):
    """The replicas of one partition; the first is the preferred leader (A6)."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class CreatableTopicConfig(Message):
    """A config override of a new topic."""

    name: str
    value: str | None


class CreatableTopic(Message):
    """A topic to create: by count (-1: the cluster's default), or with `assignments` and both counts -1."""

    name: str
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


class CreateTopicsRequest(AdminRequest):
    """Creates topics; with `validate_only` it only checks the request."""

    topics: tuple[CreatableTopic, ...]
    validate_only: bool = False


class CreatableTopicResult(Result):
    """The result for one topic; id and counts are those of the created topic."""

    name: str
    topic_id: str = ""
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1


class CreateTopicsResponse(AdminResponse):
    """One result per topic."""

    topics: tuple[CreatableTopicResult, ...] = ()


class DeleteTopicState(Message):
    """A topic by name or by id; exactly one of them is set."""

    name: str | None = None
    topic_id: str | None = None


class DeleteTopicsRequest(AdminRequest):
    """Deletes topics with all their records."""

    topics: tuple[DeleteTopicState, ...]


class DeletableTopicResult(Result):
    """The result for one topic."""

    name: str | None = None
    topic_id: str | None = None


class DeleteTopicsResponse(AdminResponse):
    """One result per topic."""

    topics: tuple[DeletableTopicResult, ...] = ()


class CreatePartitionsTopic(Message):
    """A topic with `count` partitions afterwards. `assignments` are those of the new ones; None: automatic."""

    name: str
    count: Int32
    assignments: tuple[tuple[Int32, ...], ...] | None = None


class CreatePartitionsRequest(AdminRequest):
    """Adds partitions to topics; with `validate_only` it only checks the request."""

    topics: tuple[CreatePartitionsTopic, ...]
    validate_only: bool = False


class TopicResult(Result):
    """The result for one topic."""

    name: str


class CreatePartitionsResponse(AdminResponse):
    """One result per topic."""

    topics: tuple[TopicResult, ...] = ()


class RemovePartitionsTopic(Message):
    """Partitions to remove with their records: the last ones of the topic, so that indexes stay contiguous; not all."""

    name: str
    partitions: tuple[Int32, ...]


class RemovePartitionsRequest(AdminRequest):
    """Removes partitions of topics (V3; A9, A21)."""

    topics: tuple[RemovePartitionsTopic, ...]


class RemovePartitionsResponse(AdminResponse):
    """One result per topic."""

    topics: tuple[TopicResult, ...] = ()


class Cursor(Message):
    """The position at which a description continues: a partition of a topic."""

    topic_name: str
    partition_index: Int32


class DescribeTopicRequest(AdminRequest, read_only=True):
    """Requests a description of up to 20 topics by name, or of all topics (no names). A response with
    `response_partition_limit` partitions ends there and sets `next_cursor` to continue at (E36, G24).
    """

    topics: tuple[str, ...] = ()
    response_partition_limit: Int32 = MAX_PARTITIONS_PER_RESPONSE
    cursor: Cursor | None = None


class DescribedPartition(Result):
    """A partition by the metadata of the responding node. `offline_replicas` are on fenced or unknown brokers. ELR
    fields are None below ELR's feature level. `min_insync_replicas` is the effective value (E8, N31).
    """

    partition_index: Int32
    leader_id: Int32 = NO_LEADER
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    replica_nodes: tuple[Int32, ...] = ()
    isr_nodes: tuple[Int32, ...] = ()
    eligible_leader_replicas: tuple[Int32, ...] | None = None
    last_known_elr: tuple[Int32, ...] | None = None
    last_known_leader: Int32 | None = None
    offline_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    removing_replicas: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = 0
    min_insync_replicas: Int32 = -1


class DescribedTopic(Result):
    """A topic. Bit N of `topic_authorized_operations`: the principal may perform the operation with wire value N."""

    name: str
    topic_id: str = ""
    is_internal: bool = False
    partitions: tuple[DescribedPartition, ...] = ()
    topic_authorized_operations: Int32 = NO_AUTHORIZED_OPERATIONS


class DescribeTopicResponse(AdminResponse):
    """The described topics, and where to continue if the response is incomplete."""

    topics: tuple[DescribedTopic, ...] = ()
    next_cursor: Cursor | None = None
