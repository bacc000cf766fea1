"""DescribeConfigs: values with their sources, authorization, and which resources ListConfigResources lists."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import CONFIGS
from protocol.errors import ErrorCode
from protocol.messages.acls import AclEntry, AclOperation, AclResourceType
from protocol.messages.configs import (
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from protocol.messages.records import AccessControlEntryRecord, ConfigRecord, MetadataRecord, TopicRecord
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import answer
from tests.unit.protocol.node_helpers import CONTROLLER, config_of

ALICE = "User:alice"


def image_of(*records: MetadataRecord, **values: Any) -> MetadataImage:
    image = MetadataImage(config_of(**values))
    for record in records:
        image.replay(record)
    return image


def topic(name: str) -> list[MetadataRecord]:
    return [TopicRecord(name=name, topic_id=name.upper())]


TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
MIN_ISR = "min.insync.replicas"


def configs(
    image: MetadataImage, kind: ConfigResourceType, name: str, keys: tuple[str, ...] | None = None, **fields: object
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(**({"correlation_id": 5, "resources": (resource,)} | fields))
    found = answer(image, CONTROLLER, request)
    assert isinstance(found, DescribeConfigsResponse)
    [result] = found.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def one(image: MetadataImage, kind: ConfigResourceType, name: str, key: str) -> DescribedConfig:
    [found] = configs(image, kind, name, (key,), include_synonyms=True).configs
    return found


OVERRIDE = ConfigRecord(topic_id="T", name=MIN_ISR, value="4")
DYNAMIC = ConfigRecord(topic_id=None, name=MIN_ISR, value="3")
STATIC: dict[str, Any] = {"min_insync_replicas": 2}
SOURCES: dict[str, tuple[list[MetadataRecord], dict[str, Any], list[tuple[str, ConfigSource]]]] = {
    "default": ([], {}, [("1", ConfigSource.DEFAULT_CONFIG)]),
    "static": ([], STATIC, [("2", ConfigSource.STATIC_BROKER_CONFIG), ("1", ConfigSource.DEFAULT_CONFIG)]),
    "dynamic": ([DYNAMIC], {}, [("3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG), ("1", ConfigSource.DEFAULT_CONFIG)]),
    "all": (
        [DYNAMIC, OVERRIDE],
        STATIC,
        [
            ("4", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ("3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            ("2", ConfigSource.STATIC_BROKER_CONFIG),
            ("1", ConfigSource.DEFAULT_CONFIG),
        ],
    ),
}


@pytest.mark.parametrize(("records", "static", "expected"), SOURCES.values(), ids=SOURCES)
def test_a_config_is_described_with_the_sources_of_its_value_in_their_order(
    records: list[MetadataRecord], static: dict[str, Any], expected: list[tuple[str, ConfigSource]]
) -> None:
    image = image_of(*topic("t"), *records, **static)
    found = one(image, TOPIC, "t", MIN_ISR)
    assert [(place.value, place.source) for place in found.synonyms] == expected
    assert (found.value, found.source) == expected[0]
    assert found.value == str(image.config("T", MIN_ISR)), "the described value is the one in force"
    of_cluster = one(image, BROKER, "", MIN_ISR)
    assert [(place.value, place.source) for place in of_cluster.synonyms] == [
        place for place in expected if place[1] is not ConfigSource.DYNAMIC_TOPIC_CONFIG
    ]


def test_all_configs_of_a_resource_are_described_unless_keys_are_named() -> None:
    image = image_of(*topic("t"))
    topic_scoped = {name for name, definition in CONFIGS.items() if definition.topic_scoped}
    for everything in (None, ()):
        assert {item.name for item in configs(image, TOPIC, "t", everything).configs} == topic_scoped
        assert {item.name for item in configs(image, BROKER, "", everything).configs} == set(CONFIGS)
    some = configs(image, TOPIC, "t", (MIN_ISR, "no.such.config", "broker.session.timeout.ms"))
    assert [item.name for item in some.configs] == [MIN_ISR]
    assert (some.error, some.configs[0].synonyms) == (ErrorCode.NONE, ())


def test_config_types_and_read_only_configs() -> None:
    image = image_of()
    unclean = one(image, BROKER, "", "unclean.leader.election.enable")
    assert (unclean.value, unclean.config_type, unclean.read_only) == ("false", "BOOLEAN", False)
    super_users = one(image, BROKER, "", "super.users")
    assert (super_users.value, super_users.config_type, super_users.read_only) == ("", "STRING", True)


NO_CONFIGS = {
    "unknown topic": (TOPIC, "u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "topic without a name": (TOPIC, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "one broker": (BROKER, "0", ErrorCode.INVALID_REQUEST),
    "no broker": (BROKER, "zero", ErrorCode.INVALID_REQUEST),
}


@pytest.mark.covers("H15")
@pytest.mark.parametrize(("kind", "name", "error"), NO_CONFIGS.values(), ids=NO_CONFIGS)
def test_a_resource_without_configs_is_an_error(kind: ConfigResourceType, name: str, error: ErrorCode) -> None:
    found = configs(image_of(*topic("t")), kind, name)
    assert (found.error, found.configs) == (error, ())
    assert found.message


def allowed(kind: AclResourceType, name: str) -> AccessControlEntryRecord:
    """An entry that allows Alice ALTER_CONFIGS, which includes DESCRIBE_CONFIGS."""
    operation = AclOperation.ALTER_CONFIGS
    entry = AclEntry(resource_type=kind, resource_name=name, principal=ALICE, operation=operation)
    return AccessControlEntryRecord(entry=entry)


def test_describing_configs_needs_describe_configs_on_the_resource() -> None:
    image = image_of(*topic("a"), *topic("b"), allowed(AclResourceType.TOPIC, "b"), authorizer_class_name="standard")
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [configs(image, TOPIC, name, principal=ALICE).error for name in ("a", "b", "no")] == [
        refused,
        ErrorCode.NONE,
        refused,
    ]
    assert configs(image, BROKER, "", principal=ALICE).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_resource_named_twice_is_described_twice() -> None:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    request = DescribeConfigsRequest(correlation_id=1, resources=(resource, resource))
    found = answer(image_of(*topic("t")), CONTROLLER, request)
    assert isinstance(found, DescribeConfigsResponse)
    assert len(found.results) == 2
    assert found.results[0] == found.results[1]


def resources(image: MetadataImage, *types: ConfigResourceType) -> list[tuple[ConfigResourceType, str]]:
    """What ListConfigResources answers to Alice."""
    request = ListConfigResourcesRequest(correlation_id=5, resource_types=types, principal=ALICE)
    found = answer(image, CONTROLLER, request)
    assert isinstance(found, ListConfigResourcesResponse)
    assert (found.correlation_id, found.error) == (5, ErrorCode.NONE)
    return [(resource.resource_type, resource.resource_name) for resource in found.config_resources]


def test_config_resources_are_listed_by_type_and_name() -> None:
    image = image_of(*topic("b"), *topic("a"))
    assert resources(image, TOPIC) == [(TOPIC, "a"), (TOPIC, "b")]
    assert resources(image, BROKER) == [(BROKER, "")]
    assert resources(image) == resources(image, TOPIC, BROKER, TOPIC) == [(BROKER, ""), (TOPIC, "a"), (TOPIC, "b")]


def test_a_principal_is_listed_the_config_resources_that_it_may_describe() -> None:
    image = image_of(*topic("a"), *topic("b"), authorizer_class_name="standard")
    assert resources(image) == []
    image.replay(allowed(AclResourceType.TOPIC, "b"))
    assert resources(image) == [(TOPIC, "b")]
    image.replay(allowed(AclResourceType.CLUSTER, "kafka-cluster"))
    assert resources(image) == [(BROKER, ""), (TOPIC, "b")]
    for kind, name in resources(image):
        assert configs(image, kind, name, principal=ALICE).error is ErrorCode.NONE
