"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Single brokers have no configs of their own (H15). A broker that is asked for the configs of its own id describes those
in force in the cluster; one that is asked for another's refuses, as in Kafka. The cluster-wide default (an empty name)
is described by what was set dynamically, as in Kafka. Resources of other types (broker loggers, client metrics, groups)
are not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol.config import CONFIGS
from protocol.errors import ErrorCode
from protocol.kafka.calls import Handler
from protocol.kafka.forward import (
    DEFAULT_TIMEOUT_MS,
    allowed,
    change,
    error_fields,
    member,
    parts,
    read,
    refused,
)
from protocol.kafka.view import Client, View
from protocol.kafka.wire import KafkaRequest, Values
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
)

_TYPES = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "LONG": 5}
"""Kafka's wire values of the types of configs."""


def describe_configs(view: View, client: Client, request: KafkaRequest) -> Values:
    """The configs of each resource, all or those named, with their sources."""
    body = request.body
    has_documentation = getattr(body, "include_documentation", False)
    return {
        "results": [_result(view, client, item, body.include_synonyms, has_documentation) for item in body.resources]
    }


def _result(view: View, client: Client, item: Any, has_synonyms: bool, has_documentation: bool) -> Values:
    fields: dict[str, Any] = {"resource_type": item.resource_type, "resource_name": item.resource_name, "configs": ()}
    kind, name = member(ConfigResourceType, item.resource_type), item.resource_name
    if kind is None:
        return fields | _unknown_type(item.resource_type)
    is_default = kind is ConfigResourceType.BROKER and not name
    if kind is ConfigResourceType.BROKER and name:
        if name != str(view.me):
            text = f"found broker {name!r}; allowed: {view.me}, or an empty name for the cluster's default"
            return fields | refused(ErrorCode.INVALID_REQUEST, text)
        name = ""
    keys = item.configuration_keys
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else tuple(keys)
    )
    question = DescribeConfigsRequest(
        correlation_id=0, principal=client.principal, resources=(resource,), include_synonyms=has_synonyms
    )
    (found,) = read(view, question, DescribeConfigsResponse).results
    described = [
        _config(config, has_documentation)
        for config in found.configs
        if not is_default or config.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    ]
    return fields | error_fields(found) | {"configs": described}


def _config(config: DescribedConfig, has_documentation: bool) -> Values:
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": config.source.value,
        "is_sensitive": False,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source.value}
            for synonym in config.synonyms
        ],
        "config_type": _TYPES[config.config_type],
        "documentation": CONFIGS[config.name].text if has_documentation else None,
    }


def _unknown_type(value: int) -> dict[str, Any]:
    text = f"found resource type {value}; allowed: {allowed(ConfigResourceType)}"
    return refused(ErrorCode.INVALID_REQUEST, text)


def alter_configs(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Replaces all overrides of each resource."""
    return _alter(AlterConfigsRequest, view, client, request)


def incremental_alter_configs(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Changes the named overrides, atomically per resource."""
    return _alter(IncrementalAlterConfigsRequest, view, client, request)


def _alter(
    request_type: type[AlterConfigsRequest | IncrementalAlterConfigsRequest],
    view: View,
    client: Client,
    request: KafkaRequest,
) -> Handler:
    places: dict[int, AlterConfigsResource] = {}
    errors: dict[int, Values] = {}
    for place, item in enumerate(request.body.resources):
        kind = member(ConfigResourceType, item.resource_type)
        unknown = sorted({_operation(it) for it in item.configs} - {it.value for it in ConfigOperation})
        if kind is None:
            errors[place] = _unknown_type(item.resource_type)
        elif unknown:
            text = f"found operation {unknown[0]}; allowed: {allowed(ConfigOperation)}"
            errors[place] = refused(ErrorCode.INVALID_REQUEST, text)
        else:
            places[place] = AlterConfigsResource(
                resource_type=kind, resource_name=item.resource_name, configs=tuple(_changes(item.configs))
            )
    if places:
        forwarded = request_type(
            correlation_id=0,
            principal=client.principal,
            resources=tuple(places.values()),
            validate_only=request.body.validate_only,
        )
        answer = yield from change(view, forwarded, AlterConfigsResponse, DEFAULT_TIMEOUT_MS)
        errors |= zip(places, map(error_fields, parts(answer, len(places))), strict=True)
    return {
        "responses": [
            {"resource_type": item.resource_type, "resource_name": item.resource_name, **errors[place]}
            for place, item in enumerate(request.body.resources)
        ]
    }


def _operation(item: Any) -> int:
    """The operation of a change, which AlterConfigs does not name: it sets every config."""
    return int(getattr(item, "config_operation", ConfigOperation.SET.value))


def _changes(configs: Iterable[Any]) -> Iterable[AlterableConfig]:
    for item in configs:
        yield AlterableConfig(name=item.name, operation=ConfigOperation(_operation(item)), value=item.value)
