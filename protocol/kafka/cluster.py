"""ApiVersions, Metadata and DescribeCluster: what a client asks before anything else.

Brokers are those that are registered with a listener and not fenced. The controller that Metadata names is a broker
that takes administration requests, as with KRaft, where clients do not reach controllers: this broker.

Departure from Kafka: a topic that does not exist is not created by a request for its metadata
(`auto.create.topics.enable=false`).
"""

from __future__ import annotations

from typing import Any

from protocol.errors import ErrorCode
from protocol.features import SUPPORTED_FEATURES
from protocol.ids import NO_LEADER
from protocol.kafka.view import NO_UUID, Client, View, text_of, uuid_of
from protocol.kafka.wire import KafkaRequest, Values
from protocol.messages.acls import AclOperation
from protocol.messages.topics import NO_AUTHORIZED_OPERATIONS
from protocol.metadata.authorizer import authorized_operations, cluster_operations, may
from protocol.metadata.image import MetadataImage, TopicImage
from protocol.metadata.partition import PartitionState
from protocol.metadata.queries import is_offline

_ZERO_LEVELS = 4
"""The version of ApiVersions from which the lowest level of a feature may be 0."""
_NAMES_BY_ID = 12
"""The version of Metadata from which a topic may be named by its id alone."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets"})


def api_versions(view: View, client: Client, request: KafkaRequest) -> Values:
    """The APIs with their versions, and the features with their supported and finalized levels. Below version 4 a
    feature whose lowest level is 0 is left out of the supported ones, since clients of that time refuse 0 (KIP-1022).
    """
    levels = {name: level for name, level in view.image.feature_levels.items() if level}
    return {
        **supported(view.supported, ErrorCode.NONE),
        "supported_features": [
            {"name": feature, "min_version": low, "max_version": high}
            for feature, (low, high) in SUPPORTED_FEATURES.items()
            if low or request.version >= _ZERO_LEVELS
        ],
        "finalized_features_epoch": view.image.next_offset - 1,
        "finalized_features": [
            {"name": feature, "max_version_level": level, "min_version_level": level}
            for feature, level in levels.items()
        ],
    }


def supported(ranges: dict[int, tuple[int, int]], error: ErrorCode) -> Values:
    """The response of ApiVersions. With UNSUPPORTED_VERSION it is that of version 0, which every client reads."""
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in sorted(ranges.items())]
    return {"error_code": error, "api_keys": keys}


def metadata(view: View, client: Client, request: KafkaRequest) -> Values:
    """Brokers and topics: all topics where none is named (null; version 0: an empty list)."""
    topics, has_operations = request.body.topics, getattr(request.body, "include_topic_authorized_operations", False)
    is_asked = getattr(request.body, "include_cluster_authorized_operations", False)
    if topics is None or (request.version == 0 and not topics):
        described = [
            _topic(view, topic, client.principal, has_operations)
            for _, topic in sorted((topic.name, topic) for topic in view.image.topics.values())
            if may(view.image, client.principal, AclOperation.DESCRIBE, topic.name)
        ]
    elif request.version < _NAMES_BY_ID and any(item.name is None for item in topics):
        described = [_failed(item.name or "", NO_UUID, ErrorCode.INVALID_REQUEST) for item in topics]
    else:
        described = [_named_topic(view, item, client.principal, has_operations) for item in topics]
    return {
        "brokers": view.node_endpoints(view.live_brokers()),
        "cluster_id": view.cluster_id,
        "controller_id": view.me,
        "topics": described,
        "cluster_authorized_operations": _operations(view, client, is_asked),
        "error_code": ErrorCode.NONE,
    }


def describe_cluster(view: View, client: Client, request: KafkaRequest) -> Values:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": 1,
        "cluster_id": view.cluster_id,
        "controller_id": view.me,
        "brokers": [
            {**item, "broker_id": item["node_id"], "is_fenced": False}
            for item in view.node_endpoints(view.live_brokers())
        ],
        "cluster_authorized_operations": _operations(view, client, request.body.include_cluster_authorized_operations),
    }


def _operations(view: View, client: Client, is_asked: bool) -> int:
    """What the client may do to the cluster, where it asks for that."""
    return cluster_operations(view.image, client.principal) if is_asked else NO_AUTHORIZED_OPERATIONS


def _named_topic(view: View, item: Any, principal: str, has_operations: bool) -> Values:
    name, topic_id = item.name, getattr(item, "topic_id", None)
    topic = view.topic(name, topic_id)
    error = ErrorCode.NONE
    if topic is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID
    if name and not may(view.image, principal, AclOperation.DESCRIBE, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if error is ErrorCode.NONE and topic is not None:
        return _topic(view, topic, principal, has_operations)
    return _failed(name, topic_id or NO_UUID, error)


def _failed(name: str | None, topic_id: Any, error: ErrorCode) -> Values:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": (),
        "topic_authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }


def _topic(view: View, topic: TopicImage, principal: str, has_operations: bool) -> Values:
    operations = NO_AUTHORIZED_OPERATIONS
    if has_operations:
        operations = authorized_operations(view.image, principal, topic.name)
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id),
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [_partition(view.image, index, state) for index, state in sorted(topic.partitions.items())],
        "topic_authorized_operations": operations,
    }


def _partition(image: MetadataImage, index: int, state: PartitionState) -> Values:
    has_leader = state.leader != NO_LEADER
    return {
        "error_code": ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [broker for broker in state.replicas if is_offline(image, broker)],
    }


def topic_id_text(topic_id: Any) -> str | None:
    """A topic id of a request as the metadata have it; None for the zero uuid."""
    return None if topic_id is None or topic_id == NO_UUID else text_of(topic_id)
