"""DescribeConfigs: every config of a topic or of the cluster, with its value and the source of the value; and
ListConfigResources: the resources that DescribeConfigs can be asked for (KIP-1142).

A config has a value from up to four sources, of which the first is in force: the topic's override, the dynamic default
for the whole cluster, the static configuration of the nodes (where it differs from the default), the default. These are
Kafka's sources, as far as they exist here: single brokers have no configs of their own (H15).

As in Kafka, keys that name no config of the resource are left out, no keys at all are the same as all keys, and a
resource that is named twice is described twice. Two departures: of the cluster-wide default (BROKER, empty name) Kafka
describes only what was set dynamically, here every config is described; and Kafka lists resources to principals with
DESCRIBE_CONFIGS on the cluster (KAFKA-20144), here a principal is listed the resources that it may describe.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.config import CONFIGS, ConfigDef, config_text
from protocol.errors import ErrorCode
from protocol.messages.acls import AclOperation
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
from protocol.metadata.authorizer import may
from protocol.metadata.image import MetadataImage


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
    """The error and message of a resource that is not described; NONE if it is."""
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
