"""Administration requests that only read: the table of their handlers, and the short handlers.

Every response is a pure function of the metadata image, so a broker and a controller answer alike once they have the
same metadata. The cost of a response is that of its contents; only a request for all of a kind walks over all of them.
Topics are described in `describe.py`, configs in `describe_configs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from protocol.config import SUPPORTED_FEATURES
from protocol.errors import ErrorCode, Refused
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
from protocol.messages.configs import DescribeConfigsRequest, ListConfigResourcesRequest
from protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
)
from protocol.messages.topics import DescribeTopicRequest
from protocol.metadata.authorizer import is_enabled, require_cluster
from protocol.metadata.describe import describe_topics
from protocol.metadata.describe_configs import describe_configs, list_config_resources
from protocol.metadata.image import MetadataImage, TopicImage


def answer(image: MetadataImage, controller_id: NodeId, request: AdminRequest) -> AdminResponse:
    """The response to a request of one of the `READ_ONLY_REQUESTS`; the error of `Refused` where its handler refuses
    it as a whole. `controller_id` is the active controller as far as the answering node knows, -1 where it does not.
    """
    try:
        if isinstance(request, DescribeClusterRequest):
            return _describe_cluster(image, controller_id, request)
        return _HANDLERS[type(request)](image, request)
    except Refused as refused:
        response = cast("type[AdminResponse]", request.response_type())
        return response(correlation_id=request.correlation_id, error=refused.error, message=refused.message)


def _describe_cluster(
    image: MetadataImage, controller_id: NodeId, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    require_cluster(image, request, AclOperation.DESCRIBE)
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
    """Those of the named partitions, or of all, that are being reassigned; a partition that does not exist is not."""
    require_cluster(image, request, AclOperation.DESCRIBE)
    named: list[tuple[TopicImage, Sequence[int]]] = []
    if request.topics is None:
        topics = (image.topics[topic_id] for _, topic_id in sorted(image.topic_ids.items()))
        named = [(topic, sorted(topic.partitions)) for topic in topics]
    for entry in request.topics or ():
        topic = image.topic_named(entry.name)
        if topic is not None:
            named.append((topic, entry.partition_indexes))
    ongoing = tuple(
        OngoingPartitionReassignment(
            topic=topic.name,
            partition_index=index,
            replicas=state.replicas,
            adding_replicas=state.adding_replicas,
            removing_replicas=state.removing_replicas,
        )
        for topic, indexes in named
        for index in indexes
        if (state := topic.partitions.get(index)) is not None and (state.adding_replicas or state.removing_replicas)
    )
    return ListPartitionReassignmentsResponse(correlation_id=request.correlation_id, partitions=ongoing)


def _describe_acls(image: MetadataImage, request: DescribeAclsRequest) -> DescribeAclsResponse:
    if not is_enabled(image):
        raise Refused(ErrorCode.SECURITY_DISABLED, "the cluster has no authorizer")
    require_cluster(image, request, AclOperation.DESCRIBE)
    matching = tuple(entry for entry in image.acls if request.filter.matches(entry))
    return DescribeAclsResponse(correlation_id=request.correlation_id, acls=matching)


_HANDLERS: Mapping[type[AdminRequest], Callable[[MetadataImage, Any], AdminResponse]] = {
    DescribeTopicRequest: describe_topics,
    DescribeConfigsRequest: describe_configs,
    ListConfigResourcesRequest: list_config_resources,
    ListPartitionReassignmentsRequest: _list_reassignments,
    DescribeFeaturesRequest: _describe_features,
    DescribeAclsRequest: _describe_acls,
}
READ_ONLY_REQUESTS: Collection[type[AdminRequest]] = (DescribeClusterRequest, *_HANDLERS)
"""The request types that `answer` takes."""
