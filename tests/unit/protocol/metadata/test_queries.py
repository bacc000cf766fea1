"""Read-only requests: pages of topics together, and what holds for all configs and requests. Examples: `testdata`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config import CONFIGS
from protocol.errors import ErrorCode
from protocol.messages.acls import AclEntry, AclOperation, AclPermissionType, AclResourceType
from protocol.messages.admin import AdminRequest
from protocol.messages.cluster import DescribeFeaturesRequest
from protocol.messages.configs import (
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from protocol.messages.records import AccessControlEntryRecord, MetadataRecord, PartitionRecord, TopicRecord
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    Cursor,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
)
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS, answer
from tests.unit.protocol.node_helpers import CONTROLLER, config_of, registrations

ALICE = "User:alice"
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


def image_of(*records: MetadataRecord, **values: object) -> MetadataImage:
    """Brokers 0, 1, 2 are active; then `records`."""
    image = MetadataImage(config_of(**values))
    for record in (*registrations(), *records):
        image.replay(record)
    return image


def topic(name: str, partitions: int = 1) -> list[MetadataRecord]:
    """A topic whose id is its name in capitals, all partitions on broker 0."""
    made: list[MetadataRecord] = [TopicRecord(name=name, topic_id=name.upper())]
    return made + [
        PartitionRecord(topic_id=name.upper(), partition_id=index, replicas=(0,), isr=(0,), leader=0)
        for index in range(partitions)
    ]


def allowed(operation: AclOperation, topic_name: str, deny: bool = False) -> AccessControlEntryRecord:
    permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return AccessControlEntryRecord(
        entry=AclEntry(
            resource_type=AclResourceType.TOPIC,
            resource_name=topic_name,
            principal=ALICE,
            operation=operation,
            permission_type=permission,
        )
    )


def describe(image: MetadataImage, *names: str, **fields: object) -> DescribeTopicResponse:
    request = DescribeTopicRequest(**({"correlation_id": 5, "topics": names} | fields))
    found = answer(image, CONTROLLER, request)
    assert isinstance(found, DescribeTopicResponse)
    assert found.correlation_id == 5
    return found


@pytest.mark.parametrize("limit", [MAX_PARTITIONS_PER_RESPONSE, 2**31 - 1])
def test_no_page_has_more_than_two_thousand_partitions(limit: int) -> None:
    image = image_of(*topic("t", MAX_PARTITIONS_PER_RESPONSE + 1))
    found = describe(image, response_partition_limit=limit)
    assert len(found.topics[0].partitions) == MAX_PARTITIONS_PER_RESPONSE
    assert found.next_cursor == Cursor(topic_name="t", partition_index=MAX_PARTITIONS_PER_RESPONSE)
    rest = describe(image, cursor=found.next_cursor)
    assert [partition.partition_index for partition in rest.topics[0].partitions] == [MAX_PARTITIONS_PER_RESPONSE]
    assert rest.next_cursor is None


NAMES = "abcdefg"


def pages(image: MetadataImage, names: Sequence[str], limit: int) -> Iterator[DescribeTopicResponse]:
    cursor = None
    while True:
        page = describe(image, *names, response_partition_limit=limit, cursor=cursor, principal=ALICE)
        yield page
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def summary(topics: Sequence[DescribedTopic]) -> list[tuple[str, ErrorCode, int]]:
    """(topic, error, partition) in order; -1 where a topic comes without partitions."""
    return [
        (item.name, item.error, index)
        for item in topics
        for index in ([p.partition_index for p in item.partitions] or [-1])
    ]


@pytest.mark.covers("G24", "J13", "N34")
@given(
    sizes=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 6)),
    names=st.lists(st.sampled_from(NAMES), max_size=10),
    hidden=st.sets(st.sampled_from(NAMES)),
    limit=st.integers(1, 8),
)
def test_pages_together_describe_everything_once_and_in_order(
    sizes: dict[str, int], names: list[str], hidden: set[str], limit: int
) -> None:
    acls = [
        allowed(AclOperation.DESCRIBE, "*"),
        *(allowed(AclOperation.DESCRIBE, n, deny=True) for n in sorted(hidden)),
    ]
    image = image_of(
        *(r for name, size in sizes.items() for r in topic(name, size)), *acls, authorizer_class_name="standard"
    )
    found = list(pages(image, names, limit))
    expected = []
    for name in sorted(set(names) or sizes.keys() - hidden):
        if name in hidden:
            expected.append((name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1))
        elif name not in sizes:
            expected.append((name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1))
        else:
            expected += [(name, ErrorCode.NONE, index) for index in range(sizes[name])]
    assert [item for page in found for item in summary(page.topics)] == expected
    for page in found:
        assert sum(len(item.partitions) for item in page.topics) <= limit
        assert page.topics or not expected, "no page is empty"


def configs(image: MetadataImage, kind: ConfigResourceType, name: str, keys: tuple[str, ...] | None) -> set[str]:
    """The names of the configs in the response to a request for one resource."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    found = answer(image, CONTROLLER, DescribeConfigsRequest(correlation_id=5, resources=(resource,)))
    assert isinstance(found, DescribeConfigsResponse)
    [result] = found.results
    assert result.error is ErrorCode.NONE
    return {item.name for item in result.configs}


def test_all_configs_of_a_resource_are_described_unless_keys_are_named() -> None:
    image = image_of(*topic("t"))
    topic_scoped = {name for name, definition in CONFIGS.items() if definition.topic_scoped}
    for everything in (None, ()):
        assert configs(image, TOPIC, "t", everything) == topic_scoped
        assert configs(image, BROKER, "", everything) == set(CONFIGS)


def test_a_resource_named_twice_is_described_twice() -> None:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    request = DescribeConfigsRequest(correlation_id=1, resources=(resource, resource))
    found = answer(image_of(*topic("t")), CONTROLLER, request)
    assert isinstance(found, DescribeConfigsResponse)
    assert len(found.results) == 2
    assert found.results[0] == found.results[1]


def test_every_read_only_request_has_a_handler() -> None:
    declared = {kind for kind in AdminRequest.__subclasses__() if kind.READ_ONLY}
    assert set(READ_ONLY_REQUESTS) == declared
    assert answer(image_of(), CONTROLLER, DescribeFeaturesRequest(correlation_id=5)).correlation_id == 5
