"""Read-only requests: topics and reassignments page by page, and authorization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config import Generation
from protocol.errors import ErrorCode
from protocol.messages.acls import AclEntry, AclOperation, AclPermissionType, AclResourceType, DescribeAclsRequest
from protocol.messages.admin import AdminRequest
from protocol.messages.base import field_values
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse, DescribeFeaturesRequest
from protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopic,
)
from protocol.messages.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from protocol.messages.topics import (
    MAX_PARTITIONS_PER_RESPONSE,
    MAX_TOPICS_PER_REQUEST,
    NO_AUTHORIZED_OPERATIONS,
    Cursor,
    DescribedTopic,
    DescribeTopicRequest,
    DescribeTopicResponse,
)
from protocol.metadata.authorizer import TOPIC_OPERATIONS
from protocol.metadata.image import MetadataImage
from protocol.metadata.queries import READ_ONLY_REQUESTS, answer
from tests.unit.protocol.node_helpers import CONTROLLER, config_of, fencing, registrations, topic_records

ALICE = "User:alice"
SECURE: dict[str, Any] = {"authorizer_class_name": "standard"}


def image_of(*records: MetadataRecord, generation: Generation = Generation.KIP_966, **values: object) -> MetadataImage:
    """Brokers 0, 1, 2 are active; then `records`."""
    image = MetadataImage(config_of(generation, **values))
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


# -- DescribeTopic: contents ------------------------------------------------------------------------------------------


@pytest.mark.covers("E36", "G25")
def test_a_partition_is_described_as_the_metadata_has_it() -> None:
    image = image_of(
        *topic_records(
            2,
            replicas=(0, 1, 2, 7),
            isr=(0,),
            leader=0,
            leader_epoch=4,
            partition_epoch=9,
            eligible_leader_replicas=(1,),
            last_known_elr=(2,),
            adding_replicas=(7,),
            removing_replicas=(2,),
            leader_recovery_state=1,
        ),
        fencing(1, 1, True),
    )
    [found] = describe(image, "t").topics
    assert (found.name, found.topic_id, found.is_internal) == ("t", "T", False)
    [partition] = found.partitions
    assert {name: value for name, value in field_values(partition).items() if name not in ("error", "message")} == {
        "partition_index": 0,
        "leader_id": 0,
        "leader_epoch": 4,
        "partition_epoch": 9,
        "replica_nodes": (0, 1, 2, 7),
        "isr_nodes": (0,),
        "eligible_leader_replicas": (1,),
        "last_known_elr": (2,),
        "last_known_leader": -1,
        "offline_replicas": (1, 7),
        "adding_replicas": (7,),
        "removing_replicas": (2,),
        "leader_recovery_state": 1,
        "min_insync_replicas": 2,
    }


def test_a_broker_in_controlled_shutdown_is_not_offline() -> None:
    leaving = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=True)
    [found] = describe(image_of(*topic_records(), leaving), "t").topics
    assert found.partitions[0].offline_replicas == ()


ELR_FIELDS = {
    Generation.KIP_497: (None, None, None),
    Generation.KIP_966_ELR: ((1,), (2,), None),
    Generation.KIP_966: ((1,), (2,), 0),
}


@pytest.mark.covers("E36", "G25")
@pytest.mark.parametrize(("generation", "expected"), ELR_FIELDS.items(), ids=[g.value for g in ELR_FIELDS])
def test_fields_that_a_generation_does_not_track_are_none(generation: Generation, expected: tuple[object, ...]) -> None:
    state = {"eligible_leader_replicas": (1,), "last_known_elr": (2,), "last_known_leader": 0, "isr": (), "leader": -1}
    [found] = describe(image_of(*topic_records(2, **state), generation=generation), "t").topics
    [partition] = found.partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.last_known_leader) == expected


@pytest.mark.covers("E8")
@pytest.mark.parametrize(
    ("generation", "expected"),
    [(Generation.KIP_966, [3, 1, 5]), (Generation.KIP_966_ELR, [3, 1, 5]), (Generation.KIP_497, [5, 5, 5])],
)
def test_the_effective_min_isr_is_that_of_each_partition(generation: Generation, expected: list[int]) -> None:
    """min.insync.replicas is 5; the partitions of one topic may have different numbers of replicas."""
    others = (
        PartitionRecord(topic_id="T", partition_id=index, replicas=replicas, isr=replicas[:1], leader=replicas[0])
        for index, replicas in ((1, (2,)), (2, (0, 1, 2, 3, 4, 5)))
    )
    [found] = describe(image_of(*topic_records(5), *others, generation=generation), "t").topics
    assert [partition.min_insync_replicas for partition in found.partitions] == expected


def test_a_topic_without_partition_records_has_no_partitions() -> None:
    [found] = describe(image_of(TopicRecord(name="t", topic_id="T"), min_insync_replicas=2), "t").topics
    assert (found.error, found.partitions) == (ErrorCode.NONE, ())


def test_an_unknown_topic_is_an_error_of_its_own() -> None:
    found = describe(image_of(*topic("b")), "c", "b", "a")
    assert [(item.name, item.error) for item in found.topics] == [
        ("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", ErrorCode.NONE),
        ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert found.failure()[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_named_twice_is_described_once() -> None:
    assert [item.name for item in describe(image_of(*topic("b")), "b", "b").topics] == ["b"]


# -- DescribeTopic: pages ----------------------------------------------------------------------------------------------

WRONG: dict[str, dict[str, object]] = {
    "21 topics": {"topics": tuple(f"t{index}" for index in range(MAX_TOPICS_PER_REQUEST + 1))},
    "21 times the same topic": {"topics": ("t",) * (MAX_TOPICS_PER_REQUEST + 1)},
    "limit 0": {"response_partition_limit": 0},
    "limit below 0": {"topics": ("t",), "response_partition_limit": -1},
    "cursor on another topic": {"topics": ("t",), "cursor": Cursor(topic_name="u", partition_index=0)},
    "cursor on an earlier topic": {"topics": ("t",), "cursor": Cursor(topic_name="a", partition_index=0)},
    "cursor before the first partition": {"cursor": Cursor(topic_name="t", partition_index=-1)},
}


@pytest.mark.covers("G31", "L13", "M86")
@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_a_request_over_its_limits_is_refused_as_a_whole(fields: dict[str, object]) -> None:
    found = describe(image_of(*topic("t")), **fields)
    assert (found.error, found.topics, found.next_cursor) == (ErrorCode.INVALID_REQUEST, (), None)
    assert found.message


@pytest.mark.covers("G24", "L13", "M86")
def test_twenty_topics_are_described_and_not_twenty_one() -> None:
    names = tuple(f"t{index:02}" for index in range(21))
    image = image_of(*(record for name in names for record in topic(name)))
    found = describe(image, *names[:20])
    assert [(item.name, item.error) for item in found.topics] == [(name, ErrorCode.NONE) for name in names[:20]]
    refused = describe(image, *names)
    assert (refused.error, refused.topics) == (ErrorCode.INVALID_REQUEST, ())


@pytest.mark.covers("N34")
def test_all_topics_are_not_limited_by_the_twenty() -> None:
    names = tuple(f"t{index:02}" for index in range(MAX_TOPICS_PER_REQUEST + 5))
    found = describe(image_of(*(record for name in reversed(names) for record in topic(name))))
    assert [item.name for item in found.topics] == list(names)
    assert found.next_cursor is None


@pytest.mark.parametrize("limit", [MAX_PARTITIONS_PER_RESPONSE, 2**31 - 1])
def test_no_page_has_more_than_two_thousand_partitions(limit: int) -> None:
    image = image_of(*topic("t", MAX_PARTITIONS_PER_RESPONSE + 1))
    found = describe(image, response_partition_limit=limit)
    assert len(found.topics[0].partitions) == MAX_PARTITIONS_PER_RESPONSE
    assert found.next_cursor == Cursor(topic_name="t", partition_index=MAX_PARTITIONS_PER_RESPONSE)
    rest = describe(image, cursor=found.next_cursor)
    assert [partition.partition_index for partition in rest.topics[0].partitions] == [MAX_PARTITIONS_PER_RESPONSE]
    assert rest.next_cursor is None


def test_a_page_that_ends_with_a_topic_continues_at_the_next() -> None:
    image = image_of(*topic("a", 2), *topic("b", 1))
    found = describe(image, response_partition_limit=2)
    assert [item.name for item in found.topics] == ["a"]
    assert found.next_cursor == Cursor(topic_name="b", partition_index=0)
    assert describe(image_of(*topic("a", 2)), response_partition_limit=2).next_cursor is None


def test_a_cursor_on_a_deleted_topic_continues_at_the_next() -> None:
    found = describe(image_of(*topic("a"), *topic("c")), cursor=Cursor(topic_name="b", partition_index=3))
    assert [(item.name, len(item.partitions)) for item in found.topics] == [("c", 1)]


def test_a_cursor_behind_the_last_partition_finds_none() -> None:
    found = describe(image_of(*topic("a")), cursor=Cursor(topic_name="a", partition_index=2**31 - 1))
    assert [(item.name, item.partitions) for item in found.topics] == [("a", ())]


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
    image = image_of(*(r for name, size in sizes.items() for r in topic(name, size)), *acls, **SECURE)
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


# -- DescribeTopic: rights ---------------------------------------------------------------------------------------------


@pytest.mark.covers("G32", "M86", "G24")
def test_a_principal_without_describe_does_not_learn_whether_a_topic_exists() -> None:
    image = image_of(*topic("a"), *topic("b"), allowed(AclOperation.READ, "b"), **SECURE)
    named = describe(image, "a", "b", "no", principal=ALICE)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [(item.name, item.error, item.topic_id) for item in named.topics] == [
        ("a", refused, ""),
        ("b", ErrorCode.NONE, "B"),
        ("no", refused, ""),
    ]
    assert [item.name for item in describe(image, principal=ALICE).topics] == ["b"]
    first = describe(image, response_partition_limit=1, principal=ALICE)
    assert first.next_cursor is None, "a cursor would name what is hidden"


@pytest.mark.covers("L20")
def test_a_topic_is_described_with_the_authorized_operations() -> None:
    read = allowed(AclOperation.READ, "a")
    [found, missing] = describe(image_of(*topic("a"), read, **SECURE), "a", "b", principal=ALICE).topics
    assert found.topic_authorized_operations == 1 << AclOperation.READ.value | 1 << AclOperation.DESCRIBE.value
    assert missing.topic_authorized_operations == NO_AUTHORIZED_OPERATIONS == -2147483648
    [everything] = describe(image_of(*topic("a")), "a").topics
    assert everything.topic_authorized_operations == sum(1 << operation.value for operation in TOPIC_OPERATIONS)


# -- ListPartitionReassignments ----------------------------------------------------------------------------------------


def moving(name: str, adding: tuple[int, ...], removing: tuple[int, ...]) -> list[MetadataRecord]:
    fields = {"replicas": (0, 1), "isr": (0,), "leader": 0, "adding_replicas": adding, "removing_replicas": removing}
    records: list[MetadataRecord] = [TopicRecord(name=name, topic_id=name.upper())]
    return [*records, PartitionRecord(**({"topic_id": name.upper(), "partition_id": 0} | fields))]


def ongoing(image: MetadataImage, topics: object, **fields: object) -> list[tuple[str, int]]:
    request = ListPartitionReassignmentsRequest(**({"correlation_id": 5, "topics": topics} | fields))
    found = answer(image, CONTROLLER, request)
    assert isinstance(found, ListPartitionReassignmentsResponse)
    return [(item.topic, item.partition_index) for item in found.partitions]


def of(name: str, *partitions: int) -> ListPartitionReassignmentsTopic:
    return ListPartitionReassignmentsTopic(name=name, partition_indexes=partitions)


@pytest.mark.covers("J18")
def test_ongoing_reassignments_are_listed() -> None:
    image = image_of(*moving("c", (1,), ()), *moving("b", (), (1,)), *topic("a", 2))
    assert ongoing(image, None) == [("b", 0), ("c", 0)]
    assert ongoing(image, ()) == []
    assert ongoing(image, (of("c", 0, 7), of("a", 0, 1), of("no", 0), of("b", -1))) == [("c", 0)]
    request = ListPartitionReassignmentsRequest(correlation_id=5)
    found = answer(image, CONTROLLER, request)
    assert isinstance(found, ListPartitionReassignmentsResponse)
    assert [(p.replicas, p.adding_replicas, p.removing_replicas) for p in found.partitions] == [
        ((0, 1), (), (1,)),
        ((0, 1), (1,), ()),
    ]


# -- rights, and the rest ----------------------------------------------------------------------------------------------

OF_CLUSTER: list[AdminRequest] = [
    ListPartitionReassignmentsRequest(correlation_id=5, principal=ALICE),
    DescribeClusterRequest(correlation_id=5, principal=ALICE),
    DescribeAclsRequest(correlation_id=5, principal=ALICE),
]


@pytest.mark.covers("G32")
@pytest.mark.parametrize("request_", OF_CLUSTER, ids=lambda request: type(request).__name__)
def test_requests_about_the_cluster_need_describe(request_: AdminRequest) -> None:
    image = image_of(**SECURE)
    assert answer(image, CONTROLLER, request_).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    entry = AclEntry(
        resource_type=AclResourceType.CLUSTER,
        resource_name="kafka-cluster",
        principal=ALICE,
        operation=AclOperation.DESCRIBE,
    )
    image.replay(AccessControlEntryRecord(entry=entry))
    assert answer(image, CONTROLLER, request_).error is ErrorCode.NONE


def test_describing_acls_without_an_authorizer_is_security_disabled() -> None:
    found = answer(image_of(), CONTROLLER, DescribeAclsRequest(correlation_id=5))
    assert (found.error, found.message) == (ErrorCode.SECURITY_DISABLED, "the cluster has no authorizer")


def test_brokers_are_described_in_order_with_their_state() -> None:
    found = answer(image_of(fencing(1, 1, True)), CONTROLLER, DescribeClusterRequest(correlation_id=5))
    assert isinstance(found, DescribeClusterResponse)
    assert found.controller_id == CONTROLLER
    assert [(b.broker_id, b.broker_epoch, b.is_fenced) for b in found.brokers] == [
        (0, 0, False),
        (1, 1, True),
        (2, 2, False),
    ]


def test_every_read_only_request_has_a_handler() -> None:
    declared = {kind for kind in AdminRequest.__subclasses__() if kind.READ_ONLY}
    assert set(READ_ONLY_REQUESTS) == declared
    assert answer(image_of(), CONTROLLER, DescribeFeaturesRequest(correlation_id=5)).correlation_id == 5
