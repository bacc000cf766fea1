"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions.

The controller decides (`protocol/controller/topics.py`, `partitions.py`); the page of a description comes from the
broker's metadata, with eligible leaders and last known eligible leaders (KIP-966).

DescribeTopicPartitions names any number of topics, whereas the project's own request has a limit of 20 (G31); the
handler puts together as many pages as the response has room for. As in Kafka, a limit below 1 is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.config import CONFIGS, UNCLEAN_RECOVERY_STRATEGY, config_text, with_implied_strategy
from protocol.errors import ErrorCode
from protocol.kafka.calls import Handler
from protocol.kafka.cluster import INTERNAL_TOPICS, topic_id_text
from protocol.kafka.forward import change, error_fields, parts, read
from protocol.kafka.view import NO_UUID, Client, View, uuid_of
from protocol.kafka.wire import KafkaRequest, Values, ms_of
from protocol.messages.acls import AclOperation
from protocol.messages.configs import ConfigSource
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    MAX_TOPICS_PER_REQUEST,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    Cursor,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
    ReplicaAssignment,
)
from protocol.metadata.authorizer import may
from protocol.metadata.queries import config_sources


def create_topics(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Creates topics by count or by assignment. From version 5 on the response has counts and configs of each."""
    body = request.body
    forwarded = CreateTopicsRequest(
        correlation_id=0,
        principal=client.principal,
        topics=tuple(_creatable(topic) for topic in body.topics),
        validate_only=body.validate_only,
    )
    answer = yield from change(view, forwarded, CreateTopicsResponse, ms_of(body.timeout))
    results = zip(forwarded.topics, parts(answer, len(forwarded.topics)), strict=True)
    return {"topics": [_created(view, client, topic, result) for topic, result in results]}


def _creatable(topic: Any) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            ReplicaAssignment(partition_index=item.partition_index, broker_ids=item.broker_ids)
            for item in topic.assignments
        ),
        configs=tuple(CreatableTopicConfig(name=item.name, value=item.value) for item in topic.configs),
    )


def _created(view: View, client: Client, topic: CreatableTopic, result: Any) -> Values:
    fields = {"name": topic.name, "topic_id": NO_UUID, **error_fields(result), "configs": ()}
    if result.error is not ErrorCode.NONE:
        return fields
    made: CreatableTopicResult = result
    fields |= {
        "topic_id": uuid_of(made.topic_id),
        "num_partitions": made.num_partitions,
        "replication_factor": made.replication_factor,
    }
    if may(view.image, client.principal, AclOperation.DESCRIBE_CONFIGS, topic.name):
        return fields | {"configs": _configs_of(view, topic)}
    return fields | {"configs": None, "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def _configs_of(view: View, topic: CreatableTopic) -> list[Values]:
    """The configs of a topic that was created: those that were requested, and the values of the cluster."""
    strategy = str(view.image.config(None, UNCLEAN_RECOVERY_STRATEGY))
    asked = {config.name: config.value or "" for config in topic.configs}
    asked = dict(with_implied_strategy(asked, view.image.features, strategy))
    found: list[Values] = []
    for definition in CONFIGS.values():
        if not definition.topic_scoped:
            continue
        name, source = definition.name, next(iter(config_sources(view.image, None, definition)))
        is_asked = name in asked
        found.append(
            {
                "name": name,
                "value": config_text(definition.parse(asked[name])) if is_asked else source.value,
                "read_only": False,
                "config_source": (ConfigSource.DYNAMIC_TOPIC_CONFIG if is_asked else source.source).value,
                "is_sensitive": False,
            }
        )
    return found


def delete_topics(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Deletes topics by name, from version 6 on also by id."""
    body = request.body
    if hasattr(body, "topic_names"):
        wanted = tuple(DeleteTopicState(name=name) for name in body.topic_names)
    else:
        wanted = tuple(DeleteTopicState(name=it.name, topic_id=topic_id_text(it.topic_id)) for it in body.topics)
    forwarded = DeleteTopicsRequest(correlation_id=0, principal=client.principal, topics=wanted)
    answer = yield from change(view, forwarded, DeleteTopicsResponse, ms_of(body.timeout))
    return {
        "responses": [
            {"name": topic.name, "topic_id": _uuid(topic.topic_id), **_deleted(result)}
            for topic, result in zip(wanted, parts(answer, len(wanted)), strict=True)
        ]
    }


def _deleted(result: Any) -> dict[str, Any]:
    fields = error_fields(result)
    if isinstance(result, DeletableTopicResult):
        fields |= {"name": result.name, "topic_id": _uuid(result.topic_id)}
    return fields


def _uuid(topic_id: str | None) -> Any:
    return NO_UUID if topic_id is None else uuid_of(topic_id)


def create_partitions(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Adds partitions to topics, placed by the controller or by assignment."""
    body = request.body
    topics = tuple(
        CreatePartitionsTopic(
            name=topic.name,
            count=topic.count,
            assignments=None if topic.assignments is None else tuple(item.broker_ids for item in topic.assignments),
        )
        for topic in body.topics
    )
    forwarded = CreatePartitionsRequest(
        correlation_id=0, principal=client.principal, topics=topics, validate_only=body.validate_only
    )
    answer = yield from change(view, forwarded, CreatePartitionsResponse, ms_of(body.timeout))
    results = zip(topics, parts(answer, len(topics)), strict=True)
    return {"results": [{"name": topic.name, **error_fields(result)} for topic, result in results]}


def describe_topic_partitions(view: View, client: Client, request: KafkaRequest) -> Values:
    """A page of descriptions: topics by name, partitions by index, and the cursor of the next page."""
    body = request.body
    cursor = None
    if body.cursor is not None:
        cursor = Cursor(topic_name=body.cursor.topic_name, partition_index=body.cursor.partition_index)
    names = sorted({topic.name for topic in body.topics})
    if error := _cursor_error(names, cursor):
        unknown = [DescribedTopic(name=name, error=error) for name in names]
        return {"topics": [_described(topic) for topic in unknown], "next_cursor": None}
    room = max(min(body.response_partition_limit, MAX_PARTITIONS_PER_RESPONSE), 1)
    topics, following = _page(view, client, names, cursor, room)
    next_cursor = following and {
        "topic_name": following.topic_name,
        "partition_index": following.partition_index,
    }
    return {"topics": [_described(topic) for topic in topics], "next_cursor": next_cursor}


def _cursor_error(names: Sequence[str], cursor: Cursor | None) -> ErrorCode:
    is_wrong = cursor is not None and (cursor.partition_index < 0 or bool(names and cursor.topic_name not in names))
    return ErrorCode.INVALID_REQUEST if is_wrong else ErrorCode.NONE


def _page(
    view: View, client: Client, names: Sequence[str], cursor: Cursor | None, room: int
) -> tuple[list[DescribedTopic], Cursor | None]:
    """At most `room` partitions from the cursor on, and where the next page begins."""
    remaining = [name for name in names if cursor is None or name >= cursor.topic_name]
    topics: list[DescribedTopic] = []
    while True:
        if names and room == 0 and remaining:
            return topics, Cursor(topic_name=remaining[0], partition_index=0)
        named, remaining = remaining[:MAX_TOPICS_PER_REQUEST], remaining[MAX_TOPICS_PER_REQUEST:]
        page = read(
            view,
            DescribeTopicRequest(
                correlation_id=0,
                principal=client.principal,
                topics=tuple(named),
                response_partition_limit=room,
                cursor=cursor,
            ),
            DescribeTopicResponse,
        )
        topics += page.topics
        room -= sum(len(topic.partitions) for topic in page.topics)
        cursor = None
        if page.next_cursor is not None or not remaining:
            return topics, page.next_cursor


def _described(topic: DescribedTopic) -> Values:
    return {
        "error_code": topic.error,
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id),
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [_partition(partition) for partition in topic.partitions],
        "topic_authorized_operations": topic.topic_authorized_operations,
    }


def _partition(partition: DescribedPartition) -> Values:
    return {
        "error_code": partition.error,
        "partition_index": partition.partition_index,
        "leader_id": partition.leader_id,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replica_nodes,
        "isr_nodes": partition.isr_nodes,
        "eligible_leader_replicas": partition.eligible_leader_replicas or (),
        "last_known_elr": partition.last_known_elr or (),
        "offline_replicas": partition.offline_replicas,
    }
