"""Answers to read-only administration requests, from the metadata that the asked node has: which answer belongs to
which request, and the short ones. Topics are described in `describe.py`, configs in `describe_configs.py`.

Every answer is a pure function of the image, so brokers and controllers answer alike once they have the same metadata.
Each costs what it tells of; only what asks for all walks over all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.config import SUPPORTED_FEATURES
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.acls import AclOperation, DescribeAclsRequest, DescribeAclsResponse
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
    DescribedFeature,
    DescribeFeaturesRequest,
    DescribeFeaturesResponse,
)
from protocol.messages.configs import DescribeConfigsRequest
from protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
)
from protocol.messages.topics import DescribeTopicRequest
from protocol.metadata.authorizer import is_enabled, may
from protocol.metadata.describe import describe_topics
from protocol.metadata.describe_configs import describe_configs
from protocol.metadata.image import MetadataImage, TopicImage


def answer(image: MetadataImage, controller_id: NodeId, request: AdminRequest) -> AdminResponse:
    """The response to a request that only asks; `controller_id` is the controller that the asked node knows."""
    if isinstance(request, DescribeClusterRequest):
        return _describe_cluster(image, controller_id, request)
    return _ANSWERS[type(request)](image, request)


def _describe_cluster(
    image: MetadataImage, controller_id: NodeId, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if not may(image, request.principal, AclOperation.DESCRIBE):
        return DescribeClusterResponse(
            correlation_id=request.correlation_id, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
    brokers = tuple(
        DescribedBroker(
            broker_id=broker,
            broker_epoch=registration.broker_epoch,
            rack=registration.rack,
            is_fenced=registration.fenced,
            in_controlled_shutdown=registration.in_controlled_shutdown,
        )
        for broker, registration in sorted(image.brokers.items())
    )
    return DescribeClusterResponse(correlation_id=request.correlation_id, brokers=brokers, controller_id=controller_id)


def _describe_features(image: MetadataImage, request: DescribeFeaturesRequest) -> DescribeFeaturesResponse:
    features = tuple(
        DescribedFeature(
            name=name,
            min_version_level=lowest,
            max_version_level=highest,
            finalized_version_level=image.feature_levels[name],
        )
        for name, (lowest, highest) in SUPPORTED_FEATURES.items()
    )
    return DescribeFeaturesResponse(correlation_id=request.correlation_id, features=features)


def _list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Those of the named partitions, or of all, that are being reassigned; one that does not exist is not."""
    if not may(image, request.principal, AclOperation.DESCRIBE):
        return ListPartitionReassignmentsResponse(
            correlation_id=request.correlation_id, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
    wanted: list[tuple[TopicImage, Sequence[int]]] = []
    if request.topics is None:
        topics = (image.topics[topic_id] for _, topic_id in sorted(image.topic_ids.items()))
        wanted = [(topic, sorted(topic.partitions)) for topic in topics]
    for named in request.topics or ():
        topic = image.topic_named(named.name)
        if topic is not None:
            wanted.append((topic, named.partition_indexes))
    ongoing = tuple(
        OngoingPartitionReassignment(
            topic=topic.name,
            partition_index=index,
            replicas=state.replicas,
            adding_replicas=state.adding_replicas,
            removing_replicas=state.removing_replicas,
        )
        for topic, indexes in wanted
        for index in indexes
        if (state := topic.partitions.get(index)) is not None and (state.adding_replicas or state.removing_replicas)
    )
    return ListPartitionReassignmentsResponse(correlation_id=request.correlation_id, partitions=ongoing)


def _describe_acls(image: MetadataImage, request: DescribeAclsRequest) -> DescribeAclsResponse:
    error, message = ErrorCode.NONE, ""
    if not is_enabled(image):
        error, message = ErrorCode.SECURITY_DISABLED, "the cluster has no authorizer"
    elif not may(image, request.principal, AclOperation.DESCRIBE):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    found = () if error is not ErrorCode.NONE else tuple(e for e in image.acls if request.filter.matches(e))
    return DescribeAclsResponse(correlation_id=request.correlation_id, error=error, message=message, acls=found)


_ANSWERS: Mapping[type[AdminRequest], Callable[[MetadataImage, Any], AdminResponse]] = {
    DescribeTopicRequest: describe_topics,
    DescribeConfigsRequest: describe_configs,
    ListPartitionReassignmentsRequest: _list_reassignments,
    DescribeFeaturesRequest: _describe_features,
    DescribeAclsRequest: _describe_acls,
}
READ_ONLY_REQUESTS: tuple[type[AdminRequest], ...] = (DescribeClusterRequest, *_ANSWERS)
"""The types that `answer` answers."""
