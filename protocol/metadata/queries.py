"""Administration requests that only read, and the leaders of a topic (Metadata).

Every response is a pure function of the metadata image, so a broker and a controller answer alike once they have the
same metadata. The cost of a response is that of its contents; only a request for all of a kind walks over all of them.

DescribeTopic (KIP-966; E36, G24, G25, L13) has pages as Kafka's DescribeTopicPartitions: topics in the order of their
names, partitions in the order of their indexes, and a cursor to the next partition where a page is full. The topic of a
cursor must be among the named topics; where all topics are requested it may have been deleted meanwhile, and the next
topic in order follows. A topic that the principal may not describe is an error where it is named, and left out where
all topics are requested, so that the response does not disclose whether it exists. Departures from Kafka: more than 20
named topics are refused (G31, M86), a limit below 1 is an error, and errors are in order among the descriptions.

A config has a value from up to four sources, of which the first is in force: the topic's override, the dynamic default
for the whole cluster, the static configuration of the nodes (where it differs from the default), the default (H15). As
in Kafka, keys that name no config of the resource are left out, no keys are the same as all keys, and a resource that
is named twice is described twice. Departures: Kafka describes only what was set dynamically of the cluster-wide default
(BROKER, empty name), and lists resources (ListConfigResources, KIP-1142) to principals with DESCRIBE_CONFIGS on the
cluster (KAFKA-20144); here a principal is listed the resources that it may describe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from protocol.config import CONFIGS, MIN_INSYNC_REPLICAS, ConfigDef, config_text
from protocol.errors import ErrorCode, Refused
from protocol.features import SUPPORTED_FEATURES
from protocol.ids import BrokerId, Epoch, NodeId
from protocol.messages.acls import AclOperation, DescribeAclsRequest, DescribeAclsResponse
from protocol.messages.admin import (
    AdminRequest,
    AdminResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
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
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    MAX_TOPICS_PER_REQUEST,
    Cursor,
    DescribedPartition,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
)
from protocol.metadata.authorizer import authorized_operations, may, require_access, require_authorizer
from protocol.metadata.image import MetadataImage, TopicImage


def metadata_response(image: MetadataImage, request: MetadataRequest) -> MetadataResponse:
    """A topic's leaders; TOPIC_AUTHORIZATION_FAILED without DESCRIBE, or UNKNOWN_TOPIC_OR_PARTITION."""
    topic = image.topic_named(request.topic)
    is_allowed = may(image, request.principal, AclOperation.DESCRIBE, request.topic)
    if topic is None or not is_allowed:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
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
        described, next_index = _describe_topic(image, request.principal, name, first, room)
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


def _describe_topic(
    image: MetadataImage, principal: str, name: str, first: int, limit: int
) -> tuple[DescribedTopic, int | None]:
    """A topic with at most `limit` of its partitions, from `first` on, and the index of the next partition, if any."""
    topic = image.topic_named(name)
    error, message = ErrorCode.NONE, ""
    if not may(image, principal, AclOperation.DESCRIBE, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        message = f"{principal} may not {AclOperation.DESCRIBE.name} topic {name!r}"
    elif topic is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}"
    if error or topic is None:
        return DescribedTopic(name=name, error=error, message=message), None
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
        offline_replicas=tuple(broker for broker in state.replicas if is_offline(image, broker)),
        adding_replicas=state.adding_replicas,
        removing_replicas=state.removing_replicas,
        leader_recovery_state=int(state.leader_recovery_state),
        min_insync_replicas=image.min_isr(topic.topic_id, MIN_INSYNC_REPLICAS, len(state.replicas)),
    )


def is_offline(image: MetadataImage, broker: int) -> bool:
    """Whether a broker is fenced or not registered."""
    return broker not in image.brokers or image.brokers[broker].fenced


def describe_configs(image: MetadataImage, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """One result per resource, in the order of the request."""
    results = []
    for resource in request.resources:
        error, message = _resource_error(image, request.principal, resource)
        configs = () if error else tuple(_describe_config(image, resource, request.include_synonyms))
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


def _describe_config(
    image: MetadataImage, resource: DescribeConfigsResource, synonyms: bool
) -> Iterator[DescribedConfig]:
    is_topic, keys = resource.resource_type is ConfigResourceType.TOPIC, resource.configuration_keys
    topic_id = image.topic_ids[resource.resource_name] if is_topic else None
    for definition in CONFIGS.values():
        if (is_topic and not definition.topic_scoped) or (keys and definition.name not in keys):
            continue
        sources = tuple(config_sources(image, topic_id, definition))
        yield DescribedConfig(
            name=definition.name,
            value=sources[0].value,
            read_only=definition.read_only,
            source=sources[0].source,
            config_type=definition.type_name,
            synonyms=sources if synonyms else (),
        )


def config_sources(
    image: MetadataImage, topic_id: str | None, definition: ConfigDef
) -> Iterator[DescribedConfigSynonym]:
    """The values of the config by source, the one in force first."""
    name = definition.name
    scopes = {topic_id: ConfigSource.DYNAMIC_TOPIC_CONFIG, None: ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG}
    for scope, source in scopes.items():
        if name in image.configs.get(scope, {}):
            yield DescribedConfigSynonym(name=name, value=config_text(image.configs[scope][name]), source=source)
    static = image.defaults.values[name]
    if static != definition.default:
        yield DescribedConfigSynonym(name=name, value=config_text(static), source=ConfigSource.STATIC_BROKER_CONFIG)
    yield DescribedConfigSynonym(name=name, value=config_text(definition.default), source=ConfigSource.DEFAULT_CONFIG)


def answer(image: MetadataImage, controller_id: NodeId, request: AdminRequest) -> AdminResponse:
    """The response to one of the `READ_ONLY_REQUESTS`; `controller_id`: the active controller, -1 if unknown."""
    try:
        if isinstance(request, DescribeClusterRequest):
            return _describe_cluster(image, controller_id, request)
        return _HANDLERS[type(request)](image, request)
    except Refused as refused:
        return request.refusal(refused.error, refused.message)


def _describe_cluster(
    image: MetadataImage, controller_id: NodeId, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    require_access(image, request, AclOperation.DESCRIBE)
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
    levels = image.feature_levels
    features = tuple(
        DescribedFeature(name=name, min_version_level=low, max_version_level=high, finalized_version_level=levels[name])
        for name, (low, high) in SUPPORTED_FEATURES.items()
    )
    return DescribeFeaturesResponse(correlation_id=request.correlation_id, features=features)


def _list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Those of the named partitions, or of all, that are being reassigned; a partition that does not exist is not."""
    require_access(image, request, AclOperation.DESCRIBE)
    if request.topics is None:
        named = [
            (name, sorted(image.topics[topic_id].partitions)) for name, topic_id in sorted(image.topic_ids.items())
        ]
    else:
        named = [(entry.name, list(entry.partition_indexes)) for entry in request.topics]
    ongoing = tuple(
        OngoingPartitionReassignment(
            topic=name,
            partition_index=index,
            replicas=state.replicas,
            adding_replicas=state.adding_replicas,
            removing_replicas=state.removing_replicas,
        )
        for name, indexes in named
        if (topic := image.topic_named(name)) is not None
        for index in indexes
        if (state := topic.partitions.get(index)) is not None and (state.adding_replicas or state.removing_replicas)
    )
    return ListPartitionReassignmentsResponse(correlation_id=request.correlation_id, partitions=ongoing)


def _describe_acls(image: MetadataImage, request: DescribeAclsRequest) -> DescribeAclsResponse:
    require_authorizer(image, request, AclOperation.DESCRIBE)
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
