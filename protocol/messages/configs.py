"""Describe and alter the configs of a topic or of the whole cluster.

A resource of type BROKER with an empty name is the cluster-wide default. Single brokers have no configs of their own,
because leader and controller must agree (H15).
"""

from __future__ import annotations

from enum import Enum

from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Message, Response
from protocol.values import direct


@direct
class ConfigResourceType(Enum):
    """Kafka's wire values."""

    TOPIC = 2
    BROKER = 4


@direct
class ConfigOperation(Enum):
    """Kafka's wire values. APPEND and SUBTRACT are for list configs, of which there are none."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@direct
class ConfigSource(Enum):
    """The source of a value, by Kafka's wire values."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class AlterableConfig(Message):
    """A change of one config."""

    name: str
    operation: ConfigOperation = ConfigOperation.SET
    value: str | None = None


class AlterConfigsResource(Message):
    """The changes of one resource."""

    resource_type: ConfigResourceType
    resource_name: str
    configs: tuple[AlterableConfig, ...]


class AlterConfigsRequest(AdminRequest):
    """Replaces all overrides of each resource: configs that are not named lose theirs. Every operation is SET."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


class IncrementalAlterConfigsRequest(AdminRequest):
    """Changes the named overrides, atomically per resource (KIP-339)."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False

    @classmethod
    def response_type(cls) -> type[Response]:
        return AlterConfigsResponse


class AlterConfigsResult(Result):
    """The result for one resource."""

    resource_type: ConfigResourceType
    resource_name: str


class AlterConfigsResponse(AdminResponse):
    """One result per resource; the response to AlterConfigs and IncrementalAlterConfigs."""

    resources: tuple[AlterConfigsResult, ...] = ()


class ListConfigResourcesRequest(AdminRequest, read_only=True):
    """Requests the resources (of `resource_types`; empty: all) whose configs the principal may describe (KIP-1142)."""

    resource_types: tuple[ConfigResourceType, ...] = ()


class ConfigResource(Message):
    """A resource to name in DescribeConfigs. The empty name of a BROKER is the cluster-wide default."""

    resource_type: ConfigResourceType
    resource_name: str


class ListConfigResourcesResponse(AdminResponse):
    """The cluster-wide default first, then topics in the order of their names."""

    config_resources: tuple[ConfigResource, ...] = ()


class DescribeConfigsResource(Message):
    """A resource to describe: all its configs, or those named."""

    resource_type: ConfigResourceType
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


class DescribeConfigsRequest(AdminRequest, read_only=True):
    """Requests configs of resources; with `include_synonyms` also the values that are not in force."""

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False


class DescribedConfigSynonym(Message):
    """One value of a config with its source; the value in force is first."""

    name: str
    value: str
    source: ConfigSource


class DescribedConfig(Message):
    """A config with the value in force and its source."""

    name: str
    value: str
    read_only: bool
    source: ConfigSource
    config_type: str
    synonyms: tuple[DescribedConfigSynonym, ...] = ()


class DescribeConfigsResult(Result):
    """The configs of one resource."""

    resource_type: ConfigResourceType
    resource_name: str
    configs: tuple[DescribedConfig, ...] = ()


class DescribeConfigsResponse(AdminResponse):
    """One result per resource."""

    results: tuple[DescribeConfigsResult, ...] = ()
