"""CreateAcls and DeleteAcls: authorization, and entries that are refused because no principal could match them."""

from __future__ import annotations

import pytest
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
from protocol.messages.admin import AdminRequest
from protocol.messages.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
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


def test_an_entry_that_exists_makes_no_record() -> None:
    controller = bench(READ)
    request = CreateAclsRequest(correlation_id=5, principal=ROOT, creations=(READ, WRITE, WRITE))
    found = handle(controller.state, request)
    assert found.records == [AccessControlEntryRecord(entry=WRITE)]
    assert [result.error for result in found.response.parts()] == [ErrorCode.NONE] * 3


WRONG = {
    "empty resource name": entry(resource_name=""),
    "empty prefix": entry(resource_name="", pattern_type=PatternType.PREFIXED),
    "another cluster": entry(resource_type=AclResourceType.CLUSTER, resource_name="kafka"),
    "any cluster": entry(resource_type=AclResourceType.CLUSTER, resource_name="*"),
    "a principal without a type": entry(principal="alice"),
    "a principal without a name": entry(principal="User:"),
    "no principal": entry(principal=""),
    "a node": entry(principal="Node:broker-0"),
    "one host": entry(host="192.0.2.1"),
    "no host": entry(host=""),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_invalid_entry_is_refused_and_the_others_are_created(wrong: AclEntry) -> None:
    controller = bench()
    assert create(controller, wrong, READ) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert stored(controller) == [READ]


FILTERS = {
    "everything": (AclFilter(), ALL),
    "of a principal": (AclFilter(principal=BOB), (OF_BOB,)),
    "of a resource": (AclFilter(resource_type=AclResourceType.CLUSTER), (CLUSTER,)),
    "of a pattern": (AclFilter(pattern_type=PatternType.PREFIXED), (PREFIX,)),
    "denials": (AclFilter(permission_type=AclPermissionType.DENY), (DENIAL,)),
    "two conditions": (AclFilter(resource_name="t", operation=AclOperation.WRITE), (WRITE,)),
    "nothing": (AclFilter(principal=BOB, operation=AclOperation.WRITE), ()),
    "an unknown host": (AclFilter(host="192.0.2.1"), ()),
}


@pytest.mark.parametrize(("wanted", "gone"), FILTERS.values(), ids=FILTERS)
def test_a_filter_deletes_the_entries_that_match_all_of_its_fields(
    wanted: AclFilter, gone: tuple[AclEntry, ...]
) -> None:
    controller = bench(*ALL)
    assert delete(controller, wanted) == [gone]
    assert stored(controller) == [item for item in ALL if item not in gone]


def test_an_entry_that_two_filters_match_is_deleted_once() -> None:
    controller = bench(READ, OF_BOB)
    request = DeleteAclsRequest(
        correlation_id=5, principal=ROOT, filters=(AclFilter(principal=ALICE), AclFilter(resource_name="t"))
    )
    found = handle(controller.state, request)
    assert found.records == [RemoveAccessControlEntryRecord(entry=item) for item in (READ, OF_BOB)]
    assert delete(controller, *request.filters) == [(READ,), (READ, OF_BOB)]
    assert stored(controller) == []


CHANGES: list[AdminRequest] = [
    CreateAclsRequest(correlation_id=5, principal=ALICE, creations=(WRITE,)),
    DeleteAclsRequest(correlation_id=5, principal=ALICE, filters=(AclFilter(),)),
]


@pytest.mark.covers("G32")
@pytest.mark.parametrize("request_", CHANGES, ids=["create", "delete"])
def test_acl_changes_need_alter_on_the_cluster(request_: AdminRequest) -> None:
    found = handle(bench(READ).state, request_)
    assert found.response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not found.records
    assert handle(bench(READ, CLUSTER).state, request_).records, "alice may, once she has ALTER on the cluster"


@pytest.mark.parametrize("request_", CHANGES, ids=["create", "delete"])
def test_acl_changes_without_an_authorizer_are_security_disabled(request_: AdminRequest) -> None:
    found = handle(bench(authorizer="").state, request_)
    assert (found.response.error, list(found.records)) == (ErrorCode.SECURITY_DISABLED, [])


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
