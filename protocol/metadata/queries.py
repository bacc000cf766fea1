"""Administration requests that only read: the table of their handlers, and those about the cluster and about configs.

Every response is a pure function of the metadata image, so a broker and a controller answer alike once they have the
same metadata. The cost of a response is that of its contents; only a request for all of a kind walks over all of them.
Topics are described in `describe.py`.

A config has a value from up to four sources, of which the first is in force: the topic's override, the dynamic default
for the whole cluster, the static configuration of the nodes (where it differs from the default), the default. These are
Kafka's sources, as far as they exist here: single brokers have no configs of their own (H15). As in Kafka, keys that
name no config of the resource are left out, no keys at all are the same as all keys, and a resource that is named twice
is described twice. Two departures: of the cluster-wide default (BROKER, empty name) Kafka describes only what was set
dynamically, here every config is described; and Kafka lists resources (ListConfigResources, KIP-1142) to principals
with DESCRIBE_CONFIGS on the cluster (KAFKA-20144), here a principal is listed the resources that it may describe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from protocol.config import CONFIGS, SUPPORTED_FEATURES, ConfigDef, config_text
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
from protocol.messages.configs import (
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    DescribedConfigSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
)
from protocol.messages.topics import DescribeTopicRequest
from protocol.metadata.authorizer import is_enabled, may, require_cluster
from protocol.metadata.describe import describe_topics
from protocol.metadata.image import MetadataImage, TopicImage


def describe_configs(image: MetadataImage, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """One result per resource, in the order of the request."""
    results = []
    for resource in request.resources:
        error, message = _resource_error(image, request.principal, resource)
        configs: tuple[DescribedConfig, ...] = ()
        if error is ErrorCode.NONE:
            configs = tuple(_describe(image, resource, request.include_synonyms))
        results.append(
            DescribeConfigsResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error=error,
                message=message,
                configs=configs,
            )
        )
    return DescribeConfigsResponse(correlation_id=request.correlation_id, results=tuple(results))


def list_config_resources(image: MetadataImage, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """The resources on which the principal has DESCRIBE_CONFIGS."""
    principal, operation = request.principal, AclOperation.DESCRIBE_CONFIGS
    types = request.resource_types or tuple(ConfigResourceType)
    names: list[tuple[ConfigResourceType, str]] = []
    if ConfigResourceType.BROKER in types and may(image, principal, operation):
        names.append((ConfigResourceType.BROKER, ""))
    if ConfigResourceType.TOPIC in types:
        topics = (name for name in sorted(image.topic_ids) if may(image, principal, operation, name))
        names += [(ConfigResourceType.TOPIC, name) for name in topics]
    found = tuple(ConfigResource(resource_type=kind, resource_name=name) for kind, name in names)
    return ListConfigResourcesResponse(correlation_id=request.correlation_id, config_resources=found)


def _resource_error(image: MetadataImage, principal: str, resource: DescribeConfigsResource) -> tuple[ErrorCode, str]:
    name = resource.resource_name
    is_topic = resource.resource_type is ConfigResourceType.TOPIC
    if not may(image, principal, AclOperation.DESCRIBE_CONFIGS, name if is_topic else None):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_topic else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return error, f"{principal} may not {AclOperation.DESCRIBE_CONFIGS.name}"
    if is_topic and name not in image.topic_ids:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}"
    if not is_topic and name:
        return ErrorCode.INVALID_REQUEST, f"found broker {name!r}; allowed: an empty name, for the whole cluster"
    return ErrorCode.NONE, ""


def _describe(image: MetadataImage, resource: DescribeConfigsResource, synonyms: bool) -> Iterator[DescribedConfig]:
    topic_id = None
    if resource.resource_type is ConfigResourceType.TOPIC:
        topic_id = image.topic_ids[resource.resource_name]
    for definition in CONFIGS.values():
        if topic_id is not None and not definition.topic_scoped:
            continue
        if resource.configuration_keys and definition.name not in resource.configuration_keys:
            continue
        sources = tuple(_sources(image, topic_id, definition))
        yield DescribedConfig(
            name=definition.name,
            value=sources[0].value,
            read_only=definition.read_only,
            source=sources[0].source,
            config_type=definition.type_name,
            synonyms=sources if synonyms else (),
        )


def _sources(image: MetadataImage, topic_id: str | None, definition: ConfigDef) -> Iterator[DescribedConfigSynonym]:
    """The values of the config by source, the one in force first."""
    name = definition.name
    scopes: list[tuple[str | None, ConfigSource]] = [(None, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)]
    if topic_id is not None:
        scopes.insert(0, (topic_id, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    for scope, source in scopes:
        if name in image.configs.get(scope, {}):
            yield DescribedConfigSynonym(name=name, value=config_text(image.configs[scope][name]), source=source)
    static = image.defaults.values[name]
    if static != definition.default:
        yield DescribedConfigSynonym(name=name, value=config_text(static), source=ConfigSource.STATIC_BROKER_CONFIG)
    yield DescribedConfigSynonym(name=name, value=config_text(definition.default), source=ConfigSource.DEFAULT_CONFIG)


def answer(image: MetadataImage, controller_id: NodeId, request: AdminRequest) -> AdminResponse:
    """The response to one of the `READ_ONLY_REQUESTS`, with the error of `Refused` where its handler refuses it as a
    whole; `controller_id` is the active controller that the answering node knows, or -1.
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
