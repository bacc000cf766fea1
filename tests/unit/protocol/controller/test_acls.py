"""CreateAcls, DeleteAcls and DescribeAcls: the entries that are in force. Examples: `testdata/acls.txt`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.administration import handle
from protocol.errors import ErrorCode
from protocol.messages.acls import (
    AclEntry,
    AclFilter,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    PatternType,
)
from protocol.messages.records import AccessControlEntryRecord
from protocol.metadata.queries import answer
from tests.unit.protocol.node_helpers import CONTROLLER, ControllerBench, config_of, registrations

ROOT, ALICE, BOB = "User:root", "User:alice", "User:bob"


def entry(**fields: object) -> AclEntry:
    """Alice may read topic `t`, or whatever else `fields` say."""
    defaults = {
        "resource_type": AclResourceType.TOPIC,
        "resource_name": "t",
        "principal": ALICE,
        "operation": AclOperation.READ,
    }
    return AclEntry(**(defaults | fields))


READ, WRITE, PREFIX = entry(), entry(operation=AclOperation.WRITE), entry(pattern_type=PatternType.PREFIXED)
OF_BOB, DENIAL = entry(principal=BOB), entry(permission_type=AclPermissionType.DENY)
CLUSTER = entry(resource_type=AclResourceType.CLUSTER, resource_name="kafka-cluster", operation=AclOperation.ALTER)
ALL = (READ, WRITE, PREFIX, OF_BOB, DENIAL, CLUSTER)


def bench(*entries: AclEntry, authorizer: str = "standard") -> ControllerBench:
    config = config_of(authorizer_class_name=authorizer, super_users=ROOT)
    return ControllerBench(*registrations(), *(AccessControlEntryRecord(entry=e) for e in entries), config=config)


def create(controller: ControllerBench, *entries: AclEntry, principal: str = ROOT) -> list[ErrorCode]:
    found = handle(controller.state, CreateAclsRequest(correlation_id=5, principal=principal, creations=entries))
    controller.apply(found.records)
    assert isinstance(found.response, CreateAclsResponse)
    assert (found.response.correlation_id, found.response.error) == (5, ErrorCode.NONE)
    return [result.error for result in found.response.results]


def delete(controller: ControllerBench, *filters: AclFilter, principal: str = ROOT) -> list[tuple[AclEntry, ...]]:
    found = handle(controller.state, DeleteAclsRequest(correlation_id=5, principal=principal, filters=filters))
    controller.apply(found.records)
    assert isinstance(found.response, DeleteAclsResponse)
    return [result.matching_acls for result in found.response.filter_results]


def stored(controller: ControllerBench) -> list[AclEntry]:
    return list(controller.state.image.acls)


def test_entries_are_created_described_and_deleted() -> None:
    controller = bench()
    assert create(controller, READ, CLUSTER) == [ErrorCode.NONE] * 2
    found = answer(controller.state.image, CONTROLLER, DescribeAclsRequest(correlation_id=1, principal=ROOT))
    assert isinstance(found, DescribeAclsResponse)
    assert found.acls == (READ, CLUSTER)
    assert delete(controller, AclFilter(operation=AclOperation.READ)) == [(READ,)]
    assert stored(controller) == [CLUSTER]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(ALL), max_size=4)), max_size=6))
def test_the_image_has_the_entries_that_were_created_and_not_deleted(steps: list[tuple[bool, list[AclEntry]]]) -> None:
    controller, expected = bench(), set[AclEntry]()
    for creates, entries in steps:
        if creates:
            create(controller, *entries)
            expected |= set(entries)
        else:
            delete(controller, *map(AclFilter.exactly, entries))
            expected -= set(entries)
    assert set(stored(controller)) == expected
    assert len(stored(controller)) == len(expected)
