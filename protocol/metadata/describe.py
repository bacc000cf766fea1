"""Responses about topics from the metadata image: the leaders of a topic (Metadata), and full descriptions page by page
(DescribeTopic, KIP-966; requirements E36, G24, G25, L13).

Pages follow Kafka's DescribeTopicPartitions: topics in the order of their names, partitions in the order of their
indexes, and a cursor to the next partition where a page is full. The topic of a cursor must be among the named topics;
where all topics are requested it may have been deleted meanwhile, and the next topic in order follows. A topic named
twice is described once. A topic that the principal may not describe is an error where it is named, and left out where
all topics are requested, so that the response does not disclose whether it exists.

Departures from Kafka: more than 20 named topics are refused (G31, M86), a limit below 1 is an error instead of 1, and
errors are in order among the descriptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from protocol.config import MIN_INSYNC_REPLICAS
from protocol.errors import ErrorCode, Refused
from protocol.ids import BrokerId, Epoch
from protocol.messages.acls import AclOperation
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    MAX_TOPICS_PER_REQUEST,
    Cursor,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
)
from protocol.metadata.authorizer import authorized_operations, may
from protocol.metadata.image import MetadataImage, TopicImage


def metadata_response(image: MetadataImage, request: MetadataRequest) -> MetadataResponse:
    """A topic's leaders; TOPIC_AUTHORIZATION_FAILED without DESCRIBE, or UNKNOWN_TOPIC_OR_PARTITION."""
    error = ErrorCode.NONE
    topic = image.topic_named(request.topic)
    if not may(image, request.principal, AclOperation.DESCRIBE, request.topic):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if error is not ErrorCode.NONE or topic is None:
        return MetadataResponse.unchecked(correlation_id=request.correlation_id, error=error)
    partitions = tuple(
        _partition_metadata(index, state.leader, state.leader_epoch) for index, state in topic.partitions.items()
    )
    description = TopicMetadata.unchecked(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
    return MetadataResponse.unchecked(correlation_id=request.correlation_id, topics=(description,))


@lru_cache(maxsize=4_096)
def _partition_metadata(index: int, leader: BrokerId, leader_epoch: Epoch) -> PartitionMetadata:
    """Cached, since clients request the same few leaders again and again."""
    return PartitionMetadata(partition=index, leader=leader, leader_epoch=leader_epoch)


def describe_topics(image: MetadataImage, request: DescribeTopicRequest) -> DescribeTopicResponse:
    """One page of descriptions; raises Refused for an invalid limit, cursor or number of topics (INVALID_REQUEST)."""
    _require_valid(request)
    room = min(request.response_partition_limit, MAX_PARTITIONS_PER_RESPONSE)
    topics: list[DescribedTopic] = []
    next_cursor = None
    for name in _names(image, request):
        if room == 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        cursor = request.cursor
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        described, next_index = _describe(image, request.principal, name, first, room)
        topics.append(described)
        room -= len(described.partitions)
        if next_index is not None:
            next_cursor = Cursor(topic_name=name, partition_index=next_index)
            break
    return DescribeTopicResponse(correlation_id=request.correlation_id, topics=tuple(topics), next_cursor=next_cursor)


def _require_valid(request: DescribeTopicRequest) -> None:
    cursor = request.cursor
    if len(request.topics) > MAX_TOPICS_PER_REQUEST:
        found = f"found {len(request.topics)} topics; allowed: up to {MAX_TOPICS_PER_REQUEST}"
    elif request.response_partition_limit < 1:
        found = f"found response_partition_limit {request.response_partition_limit}; allowed: 1 or more"
    elif cursor is not None and cursor.partition_index < 0:
        found = f"found partition {cursor.partition_index} in the cursor; allowed: 0 or more"
    elif cursor is not None and request.topics and cursor.topic_name not in request.topics:
        found = f"the cursor's topic {cursor.topic_name!r} is not among the topics asked for"
    else:
        return
    raise Refused(ErrorCode.INVALID_REQUEST, found)


def _names(image: MetadataImage, request: DescribeTopicRequest) -> Iterable[str]:
    """The topics to describe, from the cursor on; where none is named, those that the principal may describe."""
    first = "" if request.cursor is None else request.cursor.topic_name
    names = sorted(name for name in set(request.topics) or image.topic_ids if name >= first)
    if request.topics:
        return names
    return (name for name in names if may(image, request.principal, AclOperation.DESCRIBE, name))


def _describe(
    image: MetadataImage, principal: str, name: str, first: int, limit: int
) -> tuple[DescribedTopic, int | None]:
    """A topic with at most `limit` of its partitions, from `first` on, and the index of the next partition, if any."""
    if not may(image, principal, AclOperation.DESCRIBE, name):
        message = f"{principal} may not {AclOperation.DESCRIBE.name} topic {name!r}"
        return DescribedTopic(name=name, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=message), None
    topic = image.topic_named(name)
    if topic is None:
        message = f"no topic {name!r}"
        return DescribedTopic(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=message), None
    end = min(first + limit, len(topic.partitions))
    described = DescribedTopic(
        name=name,
        topic_id=topic.topic_id,
        partitions=tuple(_partition(image, topic, index) for index in range(first, end)),
        topic_authorized_operations=authorized_operations(image, principal, name),
    )
    return described, end if end < len(topic.partitions) else None


def _partition(image: MetadataImage, topic: TopicImage, index: int) -> DescribedPartition:
    features, state = image.features, topic.partitions[index]
    return DescribedPartition(
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        eligible_leader_replicas=state.elr if features.elr else None,
        last_known_elr=state.last_known_elr if features.elr else None,
        last_known_leader=state.last_known_leader if features.track_last_known_leader else None,
        offline_replicas=tuple(broker for broker in state.replicas if _is_offline(image, broker)),
        adding_replicas=state.adding_replicas,
        removing_replicas=state.removing_replicas,
        leader_recovery_state=int(state.leader_recovery_state),
        min_insync_replicas=image.min_isr(topic.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas)),
    )


def _is_offline(image: MetadataImage, broker: int) -> bool:
    registration = image.brokers.get(broker)
    return registration is None or registration.fenced
