"""Builders of requests for topics and partitions, and of a controller that has some; shared by their tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.config import ClusterConfig
from protocol.controller.controller_result import ControllerResult
from protocol.errors import ErrorCode
from protocol.messages.records import BrokerRegistrationChangeRecord, MetadataRecord, PartitionRecord, TopicRecord
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    RemovePartitionsRequest,
    RemovePartitionsTopic,
    ReplicaAssignment,
)
from protocol.metadata.image import TopicImage
from tests.unit.protocol.node_helpers import ControllerBench, registrations, topic_records

NONE = ErrorCode.NONE
NO_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT
BAD_NAME = ErrorCode.INVALID_TOPIC_EXCEPTION
BAD_REQUEST = ErrorCode.INVALID_REQUEST
UNAUTHORIZED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def bench(*records: MetadataRecord, config: ClusterConfig | None = None, **partition: object) -> ControllerBench:
    """Brokers 0..3 are active, 4 is fenced, 5 is shutting down; topic `t` has one partition on 0, 1, 2."""
    leaving = BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=5, in_controlled_shutdown=True)
    base = [*registrations(range(6), fenced=(4,)), leaving, *topic_records(2, **partition)]
    return ControllerBench(*base, *records, config=config)


def assigned(*replicas: tuple[int, ...]) -> tuple[ReplicaAssignment, ...]:
    return tuple(ReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas))


def new(name: str = "new", *replicas: tuple[int, ...], **fields: Any) -> CreatableTopic:
    """A topic by assignment, or by count where no replicas are given."""
    configs = tuple(
        CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in fields.pop("configs", {}).items()
    )
    return CreatableTopic(**{"name": name, "assignments": assigned(*replicas), "configs": configs} | fields)


def create(*topics: CreatableTopic, **fields: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(correlation_id=1, topics=topics, **fields)


def delete(*topics: DeleteTopicState, **fields: Any) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(correlation_id=1, topics=topics, **fields)


def named(*names: str) -> list[DeleteTopicState]:
    return [DeleteTopicState(name=name) for name in names]


def with_id(*topic_ids: str) -> list[DeleteTopicState]:
    return [DeleteTopicState(topic_id=topic_id) for topic_id in topic_ids]


def more(count: int, *replicas: tuple[int, ...], name: str = "t") -> CreatePartitionsTopic:
    """Partitions to add as assigned, or by count where no replicas are given."""
    return CreatePartitionsTopic(name=name, count=count, assignments=replicas or None)


def add(*topics: CreatePartitionsTopic, **fields: Any) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(correlation_id=1, topics=topics, **fields)


def fewer(*partitions: int, name: str = "t") -> RemovePartitionsTopic:
    return RemovePartitionsTopic(name=name, partitions=partitions)


def remove(*topics: RemovePartitionsTopic, **fields: Any) -> RemovePartitionsRequest:
    return RemovePartitionsRequest(correlation_id=1, topics=topics, **fields)


def another(name: str, topic_id: str, partitions: int = 1) -> list[MetadataRecord]:
    """One more topic, its partitions on brokers 0 and 1."""
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            PartitionRecord(topic_id=topic_id, partition_id=index, replicas=(0, 1), isr=(0, 1), leader=0)
            for index in range(partitions)
        ),
    ]


def errors_of(found: ControllerResult) -> list[ErrorCode]:
    return [result.error for result in found.response.parts()]


def partitions_in(records: Sequence[MetadataRecord]) -> list[PartitionRecord]:
    return [record for record in records if isinstance(record, PartitionRecord)]


def topic(controller: ControllerBench, name: str = "t") -> TopicImage:
    found = controller.state.image.topic_named(name)
    assert found is not None
    return found
