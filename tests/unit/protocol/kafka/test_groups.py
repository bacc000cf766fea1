"""Consumer groups through the wire: joining, assignments, expiry, static members, offsets, a new coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    group_record,
    offset_record,
    partition_of,
    read_record,
)
from protocol.messages.acls import AclEntry, AclOperation, AclPermissionType, AclResourceType
from protocol.messages.records import (
    AccessControlEntryRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from tests.unit.protocol.kafka.kafka_bench import KafkaBench, one_topic
from tests.unit.protocol.node_helpers import config_of

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE = 8, 9, 10, 11, 12, 13, 14, 15, 16, 42
OFFSETS_ID = "T2Zmc2V0c09mZnNldHNPZg"
DELAY_MS = 3_000


def offsets_topic(partitions: int = 2) -> list[MetadataRecord]:
    fields: dict[str, Any] = {"replicas": (0,), "isr": (0,), "leader": 0, "topic_id": OFFSETS_ID}
    return [
        TopicRecord(name="__consumer_offsets", topic_id=OFFSETS_ID),
        *(PartitionRecord(partition_id=index, **fields) for index in range(partitions)),
    ]


@pytest.fixture
def bench() -> KafkaBench:
    return KafkaBench().run(*one_topic(), *offsets_topic()).connect()


def join_fields(member: str = "", protocols: tuple[str, ...] = ("range",), **fields: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": f"{name} of {member}".encode()} for name in protocols],
    } | fields


def joined(bench: KafkaBench, connection: int = 1, version: int = 9, **fields: Any) -> str:
    """A member sends its join with the id that it gets; returns the id. The answer is still to come."""
    bench.connect(connection)
    found = bench.ask(JOIN, version, join_fields(**fields), connection)
    assert found.error_code == ErrorCode.MEMBER_ID_REQUIRED
    bench.send(JOIN, version, join_fields(found.member_id, **fields), connection)
    return str(found.member_id)


def pass_ms(bench: KafkaBench, wait_ms: int) -> None:
    """Lets the listener's timers of that time fire."""
    end_ms = bench.now_ms + wait_ms
    while True:
        due = [ms for name, ms in bench.timers.items() if name == "kafka/" and ms <= end_ms]
        if not due:
            break
        del bench.timers["kafka/"]
        bench.fire("kafka/", max(due[0], bench.now_ms))
    bench.now_ms = end_ms


def member_fields(member: str, generation: int = 1, **fields: Any) -> dict[str, Any]:
    return {"group_id": "g", "member_id": member, "generation_id": generation} | fields


def sync_fields(member: str, generation: int = 1, assignments: dict[str, bytes] | None = None) -> dict[str, Any]:
    listed = [{"member_id": name, "assignment": data} for name, data in (assignments or {}).items()]
    return member_fields(member, generation, assignments=listed)


def stable(bench: KafkaBench) -> tuple[str, str]:
    """A group of two members in generation 1; their ids, the leader's first."""
    one, two = joined(bench, 1), joined(bench, 2)
    pass_ms(bench, DELAY_MS)
    first, second = bench.response(JOIN, 9, 1), bench.response(JOIN, 9, 2)
    assert (first.generation_id, first.leader, second.leader) == (1, one, one)
    assert {item.member_id for item in first.members} == {one, two}
    assert second.members == ()
    bench.send(SYNC, 5, sync_fields(two), 2)
    assert bench.response(SYNC, 5, 2) is None
    bench.send(SYNC, 5, sync_fields(one, 1, {one: b"A", two: b"B"}), 1)
    pass_ms(bench, 0)
    assert [bench.response(SYNC, 5, number).assignment for number in (1, 2)] == [b"A", b"B"]
    return one, two


def commit_fields(offset: int, member: str = "", generation: int = -1, group: str = "g") -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "retention_time": -1,
        "topics": [{"name": "t", "partitions": [partition]}],
    }


SECURED = config_of(authorizer_class_name="standard")
READER = "User:ANONYMOUS"


def secured(*rights: tuple[AclOperation, AclResourceType, str]) -> KafkaBench:
    """A cluster with an authorizer, on which the clients without a name have these rights."""
    entries = [
        AclEntry(resource_type=kind, resource_name=name, principal=READER, operation=operation)
        for operation, kind, name in rights
    ]
    records = [AccessControlEntryRecord(entry=entry) for entry in entries]
    return KafkaBench(config=SECURED).run(*one_topic(), *offsets_topic(), *records).connect()


MEMBER = member_fields("m")
LEAVING = {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None}]}


def offsets_of(*topics: str) -> dict[str, Any]:
    """A request for the offsets of group `g`: of partition 0 of these topics, or of all."""
    asked = [{"name": topic, "partition_indexes": [0]} for topic in topics] or None
    return {"groups": [{"group_id": "g", "topics": asked}], "require_stable": False}


GROUP_REQUESTS: dict[str, tuple[int, int, dict[str, Any], AclOperation]] = {
    "commit": (COMMIT, 8, commit_fields(1), AclOperation.READ),
    "fetch": (FETCH, 8, offsets_of(), AclOperation.DESCRIBE),
    "find": (FIND, 4, {"key_type": 0, "coordinator_keys": ["g"]}, AclOperation.DESCRIBE),
    "join": (JOIN, 9, join_fields("m"), AclOperation.READ),
    "heartbeat": (HEARTBEAT, 4, MEMBER, AclOperation.READ),
    "leave": (LEAVE, 4, LEAVING, AclOperation.READ),
    "sync": (SYNC, 5, MEMBER | {"assignments": []}, AclOperation.READ),
    "describe": (DESCRIBE, 5, {"groups": ["g"], "include_authorized_operations": True}, AclOperation.DESCRIBE),
    "delete": (DELETE, 2, {"groups_names": ["g"]}, AclOperation.DELETE),
}


def errors_in(response: Any) -> set[int]:
    """All error codes of a response, at any depth."""
    found = {int(response.error_code)} if hasattr(response, "error_code") else set()
    for name in ("topics", "groups", "coordinators", "partitions", "results"):
        for item in getattr(response, name, None) or ():
            found |= errors_in(item)
    return found


@pytest.mark.parametrize("name", GROUP_REQUESTS)
def test_a_request_needs_its_right_on_the_group(name: str) -> None:
    """Kafka's table of rights: https://kafka.apache.org/documentation/#operations_resources_and_protocols."""
    key, version, fields, operation = GROUP_REQUESTS[name]
    others = {AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, AclOperation.WRITE} - {operation}
    if operation is AclOperation.DESCRIBE:  # the others include it
        others = {AclOperation.CREATE}
    topic = (AclOperation.READ, AclResourceType.TOPIC, "t")
    refused = secured(topic, *((other, AclResourceType.GROUP, "g") for other in others))
    assert errors_in(refused.ask(key, version, fields)) >= {ErrorCode.GROUP_AUTHORIZATION_FAILED}
    allowed = secured(topic, (operation, AclResourceType.GROUP, "g"))
    assert ErrorCode.GROUP_AUTHORIZATION_FAILED not in errors_in(allowed.ask(key, version, fields))


def test_the_list_of_groups_and_the_offsets_are_those_that_may_be_described() -> None:
    """Bit N of the operations is wire value N: READ 3, DESCRIBE 8; READ includes DESCRIBE."""
    topic, group = AclResourceType.TOPIC, AclResourceType.GROUP
    bench = secured((AclOperation.READ, group, "*"), (AclOperation.READ, topic, "t"))
    for name in ("g", "h"):
        bench.ask(COMMIT, 8, commit_fields(5, group=name))
    [described] = bench.ask(DESCRIBE, 5, {"groups": ["g"], "include_authorized_operations": True}).groups
    assert described.authorized_operations == 1 << 3 | 1 << 8
    listed = {"states_filter": ()}
    assert {it.group_id for it in bench.ask(LIST, 4, listed).groups} == {"g", "h"}
    assert len(bench.ask(FETCH, 8, offsets_of()).groups[0].topics) == 1
    deny = AclEntry(
        resource_type=group,
        resource_name="h",
        principal=READER,
        operation=AclOperation.DESCRIBE,
        permission_type=AclPermissionType.DENY,
    )
    no_topic = AclEntry(
        resource_type=topic,
        resource_name="t",
        principal=READER,
        operation=AclOperation.ALL,
        permission_type=AclPermissionType.DENY,
    )
    bench.publish(AccessControlEntryRecord(entry=deny), AccessControlEntryRecord(entry=no_topic))
    assert {it.group_id for it in bench.ask(LIST, 4, listed).groups} == {"g"}
    assert bench.ask(FETCH, 8, offsets_of()).groups[0].topics == ()
    [found] = bench.ask(FETCH, 8, offsets_of("t")).groups[0].topics[0].partitions
    assert (found.error_code, found.committed_offset) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)


def committed(bench: KafkaBench, group: str = "g", connection: int = 1) -> tuple[int, str, int]:
    topics = [{"name": "t", "partition_indexes": [0]}]
    found = bench.ask(FETCH, 5, {"group_id": group, "topics": topics}, connection).topics[0].partitions[0]
    return found.committed_offset, found.metadata, found.error_code


def test_two_members_share_the_first_rebalance(bench: KafkaBench) -> None:
    one, two = stable(bench)
    for number, member in ((1, one), (2, two)):
        assert bench.ask(HEARTBEAT, 4, member_fields(member), number).error_code == ErrorCode.NONE
    described = bench.ask(DESCRIBE, 5, {"groups": ["g"], "include_authorized_operations": False}).groups[0]
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert {item.member_id: item.member_assignment for item in described.members} == {one: b"A", two: b"B"}
    unknown = bench.ask(DESCRIBE, 6, {"groups": ["x"], "include_authorized_operations": False}).groups[0]
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert [item.group_id for item in bench.ask(LIST, 4, {"states_filter": ["Stable"]}).groups] == ["g"]


def test_a_member_that_leaves_has_the_others_rebalance(bench: KafkaBench) -> None:
    one, two = stable(bench)
    left = bench.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": two}, {"member_id": "x"}]}, 2)
    assert [item.error_code for item in left.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert bench.ask(HEARTBEAT, 4, member_fields(one)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    bench.send(JOIN, 9, join_fields(one))
    pass_ms(bench, 0)
    assert bench.response(JOIN, 9).generation_id == 2
    assert bench.ask(HEARTBEAT, 4, member_fields(one, 1)).error_code == ErrorCode.ILLEGAL_GENERATION


def test_a_silent_member_expires(bench: KafkaBench) -> None:
    one, two = stable(bench)
    for _ in range(3):
        pass_ms(bench, 4_000)
        error = bench.ask(HEARTBEAT, 4, member_fields(one)).error_code
    assert error == ErrorCode.REBALANCE_IN_PROGRESS
    assert bench.ask(HEARTBEAT, 4, member_fields(two), 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_takes_over_its_place_and_fences_its_former_self(bench: KafkaBench) -> None:
    fields = join_fields(group_instance_id="i")
    bench.send(JOIN, 9, fields)
    pass_ms(bench, DELAY_MS)
    first = bench.response(JOIN, 9)
    bench.connect(2)
    bench.send(JOIN, 9, fields, 2)
    pass_ms(bench, 0)
    second = bench.response(JOIN, 9, 2)
    assert second.member_id != first.member_id
    stale = member_fields(first.member_id, second.generation_id, group_instance_id="i")
    assert bench.ask(HEARTBEAT, 4, stale).error_code == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", range(10))
def test_joins_at_every_version(bench: KafkaBench, version: int) -> None:
    if version >= 4:
        joined(bench, 1, version)
    else:
        bench.send(JOIN, version, join_fields())
    pass_ms(bench, DELAY_MS)
    found = bench.response(JOIN, version)
    assert (found.error_code, found.generation_id, found.protocol_name) == (0, 1, "range")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_refused_joins(bench: KafkaBench, fields: dict[str, Any], error: ErrorCode) -> None:
    assert bench.ask(JOIN, 9, join_fields() | fields).error_code == error


@pytest.mark.parametrize("version", range(2, 10))
def test_commits_at_every_version(bench: KafkaBench, version: int) -> None:
    assert committed(bench) == (-1, "", 0)
    found = bench.ask(COMMIT, version, commit_fields(5))
    assert found.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert committed(bench) == (5, "m", 0)


@pytest.mark.parametrize("version", range(1, 10))
def test_fetches_offsets_at_every_version(bench: KafkaBench, version: int) -> None:
    bench.ask(COMMIT, 5, commit_fields(5))
    topics = [{"name": "t", "partition_indexes": [0, 1]}]
    found = bench.ask(
        FETCH, version, {"group_id": "g", "topics": topics, "groups": [{"group_id": "g", "topics": topics}]}
    )
    found = found.groups[0] if version >= 8 else found
    assert [item.committed_offset for item in found.topics[0].partitions] == [5, -1]


def test_who_may_commit(bench: KafkaBench) -> None:
    one, _ = stable(bench)

    def error(*fields: Any) -> int:
        return int(bench.ask(COMMIT, 7, commit_fields(*fields)).topics[0].partitions[0].error_code)

    assert error(1, one, 1) == ErrorCode.NONE
    assert error(1, one, 0) == ErrorCode.ILLEGAL_GENERATION
    assert error(1, "x", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert error(1, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_groups_and_offsets_survive_in_the_log(bench: KafkaBench) -> None:
    one, _ = stable(bench)
    bench.ask(COMMIT, 7, commit_fields(7, one, 1))
    for epoch, leader in ((1, 9), (2, 0)):
        bench.publish(
            *(PartitionChangeRecord(topic_id=OFFSETS_ID, partition_id=index, leader=leader) for index in range(2))
        )
        if leader != 0:
            assert committed(bench)[2] == ErrorCode.NOT_COORDINATOR, epoch
    assert committed(bench) == (7, "m", 0)
    assert bench.ask(HEARTBEAT, 4, member_fields(one)).error_code == ErrorCode.NONE
    pass_ms(bench, 10_000)
    assert bench.ask(HEARTBEAT, 4, member_fields(one)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_succeeds_while_the_group_is_loading(bench: KafkaBench) -> None:
    one, _ = stable(bench)
    for shard in bench.both.listener._coordinator.shards.owned.values():
        shard.is_loaded = False
    assert bench.ask(HEARTBEAT, 4, member_fields(one)).error_code == ErrorCode.NONE
    assert committed(bench)[2] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_deletes_a_group_without_members(bench: KafkaBench) -> None:
    bench.ask(COMMIT, 7, commit_fields(7))

    def delete() -> int:
        return int(bench.ask(DELETE, 2, {"groups_names": ["g"]}).results[0].error_code)

    assert [delete(), delete()] == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert committed(bench) == (-1, "", 0)
    stable(bench)
    assert delete() == ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize("version", range(6))
def test_finds_the_coordinator_at_every_version(bench: KafkaBench, version: int) -> None:
    found = bench.ask(FIND, version, {"key": "g", "coordinator_keys": ["g"], "key_type": 0})
    found = found.coordinators[0] if version >= 4 else found
    assert (found.error_code, found.node_id, found.port) == (0, 0, 9092)


@pytest.mark.parametrize(
    ("key_type", "error"), [(1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), (2, ErrorCode.INVALID_REQUEST)]
)
def test_there_is_no_coordinator_of_transactions_and_clients_need_not_ask_again(
    bench: KafkaBench, key_type: int, error: ErrorCode
) -> None:
    found = bench.ask(FIND, 4, {"coordinator_keys": ["x"], "key_type": key_type}).coordinators
    assert [(it.key, it.error_code, it.node_id) for it in found] == [("x", error, -1)]


def test_the_partition_of_a_group_is_that_of_its_hash_in_java() -> None:
    """ "abc".hashCode() is 97 * 31^2 + 98 * 31 + 99 = 96354; that of "polygenelubricants" is the smallest int."""
    assert partition_of("abc", 50) == 96_354 % 50
    assert partition_of("polygenelubricants", 50) == 0


def test_records_say_what_was_written() -> None:
    offset = CommittedOffset(5, 3, "m", 77)
    member = StoredMember("m-1", None, "c", "/h", 20_000, 10_000, b"s", b"a")
    group = StoredGroup("consumer", 4, "range", "m-1", (member,))
    assert read_record(*offset_record(OffsetKey("g", "t", 1), offset)) == (OffsetKey("g", "t", 1), offset)
    assert read_record(*group_record("g", group, 9)) == (GroupKey("g"), group)
    assert read_record(*group_record("g", None, 9)) == (GroupKey("g"), None)
    assert read_record(b"\0\7", b"") is None
