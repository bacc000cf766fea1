"""The requests of consumer groups: FindCoordinator, membership, offsets, and their administration.

Rights are Kafka's. A member needs READ on its group, also to commit offsets; to find the coordinator, to describe a
group and to fetch its offsets takes DESCRIBE, to delete it DELETE. The list has the groups that the principal may
describe, or all of them with DESCRIBE on the cluster. Offsets are those of the topics on which it has READ to commit,
and DESCRIBE to fetch them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import NO_NODE, NO_OFFSET
from protocol.kafka.api import Api
from protocol.kafka.calls import Handler
from protocol.kafka.groups.coordinator import Coordinator, Join, Joined, MemberOf, Synced
from protocol.kafka.groups.group import Group, GroupState, Member
from protocol.kafka.groups.records import OFFSETS_TOPIC, CommittedOffset, partition_of
from protocol.kafka.view import Client, View
from protocol.kafka.wire import KafkaRequest, Values, ms_of
from protocol.messages.acls import AclOperation
from protocol.messages.topics import NO_AUTHORIZED_OPERATIONS
from protocol.metadata.authorizer import group_operations, may, may_on_group

GROUP = 0
TRANSACTION = 1
"""The key types of coordinators; that of share groups is not there."""
_REFUSED_KEYS = {
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
MAX_METADATA_BYTES = 4_096
"""The default of `offset.metadata.max.bytes`."""
_FIRST_BATCHED_FIND = 4
_FIRST_BATCHED_FETCH = 8
_FIRST_BATCHED_LEAVE = 3
_FIRST_NOT_FOUND = 6


def group_apis(coordinator: Coordinator) -> tuple[Api, ...]:
    """The APIs that `coordinator` serves."""

    def api(key: int, name: str, low: int, high: int, handler: Any) -> Api:
        return Api(key, name, low, high, partial(handler, coordinator))

    return (
        api(8, "OffsetCommit", 2, 9, offset_commit),
        api(9, "OffsetFetch", 1, 9, offset_fetch),
        api(10, "FindCoordinator", 0, 5, find_coordinator),
        api(11, "JoinGroup", 0, 9, join_group),
        api(12, "Heartbeat", 0, 4, heartbeat),
        api(13, "LeaveGroup", 0, 5, leave_group),
        api(14, "SyncGroup", 0, 5, sync_group),
        api(15, "DescribeGroups", 0, 6, describe_groups),
        api(16, "ListGroups", 0, 4, list_groups),
        api(42, "DeleteGroups", 0, 2, delete_groups),
    )


def find_coordinator(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Handler:
    """The broker that leads the partition with the group's records; the first request creates the topic. A
    transactional producer gets an error that it does not retry: there are no transactions.
    """
    body, is_batched = request.body, request.version >= _FIRST_BATCHED_FIND
    keys = body.coordinator_keys if is_batched else (body.key,)
    key_type = getattr(body, "key_type", GROUP)
    allowed = {key for key in keys if key_type == GROUP and not _refused(view, client, AclOperation.DESCRIBE, key)}
    if allowed and view.image.topic_named(OFFSETS_TOPIC) is None:
        yield from coordinator.shards.create_topic()
    refused = _NO_COORDINATOR | {"error_code": _REFUSED_KEYS.get(key_type, ErrorCode.INVALID_REQUEST)}
    found = [_coordinator_of(view, key) if key in allowed else refused for key in keys]
    if is_batched:
        return {"coordinators": [{"key": key, **values} for key, values in zip(keys, found, strict=True)]}
    return found[0]


def _refused(view: View, client: Client, operation: AclOperation, group: str) -> bool:
    return not may_on_group(view.image, client.principal, operation, group)


_NO_COORDINATOR: dict[str, Any] = {
    "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE,
    "error_message": None,
    "node_id": NO_NODE,
    "host": "",
    "port": -1,
}


def _coordinator_of(view: View, group: str) -> Values:
    topic = view.image.topic_named(OFFSETS_TOPIC)
    if not topic:
        return _NO_COORDINATOR
    state = topic.partitions[partition_of(group, len(topic.partitions))]
    endpoint = view.endpoint(state.leader)
    if endpoint is None:
        return _NO_COORDINATOR
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "node_id": state.leader,
        "host": endpoint[0],
        "port": endpoint[1],
    }


def join_group(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Handler:
    body = request.body
    session_ms = ms_of(body.session_timeout)
    rebalance_ms = ms_of(body.rebalance_timeout) if hasattr(body, "rebalance_timeout") else session_ms
    join = Join(
        body.group_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
        client.client_id,
        f"/{client.peer.rpartition(':')[0]}",
        session_ms,
        rebalance_ms if rebalance_ms >= 0 else session_ms,
        body.protocol_type,
        tuple((item.name, item.metadata) for item in body.protocols),
        request.version >= 4,
    )
    if _refused(view, client, AclOperation.READ, body.group_id):
        joined = Joined(ErrorCode.GROUP_AUTHORIZATION_FAILED, member_id=body.member_id)
    else:
        joined = yield from coordinator.join(join)
    has_nullable = request.version >= 7
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if has_nullable else joined.protocol or "",
        "leader": joined.leader,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member, "group_instance_id": instance, "metadata": metadata}
            for member, instance, metadata in joined.members
        ],
    }


def sync_group(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Handler:
    assignments = {item.member_id: item.assignment for item in request.body.assignments}
    if _refused(view, client, AclOperation.READ, request.body.group_id):
        synced = Synced(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        synced = yield from coordinator.sync(_sender(request.body), assignments)
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


def heartbeat(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Values:
    if _refused(view, client, AclOperation.READ, request.body.group_id):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    return {"error_code": coordinator.heartbeat(_sender(request.body))}


def leave_group(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Values:
    body, is_batched = request.body, request.version >= _FIRST_BATCHED_LEAVE
    leaving: list[tuple[str, str | None]] = (
        [(item.member_id, item.group_instance_id) for item in body.members] if is_batched else [(body.member_id, None)]
    )
    error, errors = ErrorCode.GROUP_AUTHORIZATION_FAILED, list[ErrorCode]()
    if not _refused(view, client, AclOperation.READ, body.group_id):
        error, errors = coordinator.leave(body.group_id, leaving)
    if not is_batched:
        return {"error_code": errors[0] if errors else error}
    members = [
        {"member_id": member, "group_instance_id": instance, "error_code": each}
        for (member, instance), each in zip(leaving, errors, strict=bool(errors))
    ]
    return {"error_code": error, "members": members}


def _sender(body: Any) -> MemberOf:
    generation = body.generation_id if hasattr(body, "generation_id") else body.generation_id_or_member_epoch
    return MemberOf(body.group_id, body.member_id, getattr(body, "group_instance_id", None), generation)


def offset_commit(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Handler:
    """Commits the offsets of the topics that exist and that the client may read."""
    errors: dict[tuple[str, int], ErrorCode] = {}
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    for topic in request.body.topics:
        found = view.image.topic_named(topic.name)
        is_allowed = may(view.image, client.principal, AclOperation.READ, topic.name)
        for item in topic.partitions:
            place = topic.name, item.partition_index
            metadata = item.committed_metadata or ""
            if not is_allowed:
                errors[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif found is None or item.partition_index not in found.partitions:
                errors[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > MAX_METADATA_BYTES:
                errors[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = getattr(item, "committed_leader_epoch", -1)
                offsets[place] = CommittedOffset(item.committed_offset, epoch, metadata, view.now_ms)
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not _refused(view, client, AclOperation.READ, request.body.group_id):
        error = yield from coordinator.commit(_sender(request.body), offsets)
    errors |= dict.fromkeys(offsets, error)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": errors[topic.name, item.partition_index],
                    }
                    for item in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def offset_fetch(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Values:
    """The committed offsets of one group, or of several; -1 where there is none."""
    body = request.body
    if request.version < _FIRST_BATCHED_FETCH:
        return _fetched(coordinator, view, client, body)
    return {"groups": [{"group_id": item.group_id, **_fetched(coordinator, view, client, item)}
                       for item in body.groups]}  # fmt: skip


def _fetched(coordinator: Coordinator, view: View, client: Client, asked: Any) -> dict[str, Any]:
    """The offsets of a group of the topics that are `asked` for, or of all that the client may describe."""
    found: dict[tuple[str, int], CommittedOffset] | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not _refused(view, client, AclOperation.DESCRIBE, asked.group_id):
        found = coordinator.committed(asked.group_id)
    error = found if isinstance(found, ErrorCode) else ErrorCode.NONE
    offsets = {} if isinstance(found, ErrorCode) else found
    wanted: dict[str, list[int]] = {}
    if asked.topics is None:
        for name, partition in sorted(offsets):
            wanted.setdefault(name, []).append(partition)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in asked.topics}
    described = []
    for name, partitions in wanted.items():
        is_allowed = may(view.image, client.principal, AclOperation.DESCRIBE, name)
        if is_allowed or asked.topics is not None:
            refused = error if is_allowed or error is not ErrorCode.NONE else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            of_topic = offsets if is_allowed else {}
            listed = [_offset(of_topic.get((name, index)), index, refused) for index in partitions]
            described.append({"name": name, "partitions": listed})
    return {"topics": described, "error_code": error}


def _offset(found: CommittedOffset | None, partition: int, error: ErrorCode) -> Values:
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET if found is None else found.offset,
        "committed_leader_epoch": -1 if found is None else found.leader_epoch,
        "metadata": "" if found is None else found.metadata,
        "error_code": error,
    }


def describe_groups(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Values:
    described = []
    for name in request.body.groups:
        found: Group | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not _refused(view, client, AclOperation.DESCRIBE, name):
            found = coordinator.describe(name)
        values = _described(found, name, request.version)
        if getattr(request.body, "include_authorized_operations", False) and not isinstance(found, ErrorCode):
            values["authorized_operations"] = group_operations(view.image, client.principal, name)
        described.append(values)
    return {"groups": described}


def _described(found: Group | ErrorCode, name: str, version: int) -> dict[str, Any]:
    """A group. From version 6 on an unknown group is an error, before that it is a dead one (KIP-1043)."""
    group = Group(name) if isinstance(found, ErrorCode) else found
    error = found if isinstance(found, ErrorCode) else ErrorCode.NONE
    if version >= _FIRST_NOT_FOUND and group.state is GroupState.DEAD:
        error = ErrorCode.GROUP_ID_NOT_FOUND
    return {
        "error_code": error,
        "error_message": None if error is ErrorCode.NONE else f"{error.name}: group {name}",
        "group_id": name,
        "group_state": "" if isinstance(found, ErrorCode) else group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol or "",
        "members": [_described_member(group, member) for member in group.members.values()],
        "authorized_operations": NO_AUTHORIZED_OPERATIONS,
    }


def _described_member(group: Group, member: Member) -> Values:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.subscription(group.protocol),
        "member_assignment": member.assignment,
    }


def list_groups(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Values:
    """The groups that this broker coordinates, those in the wanted states where states are named."""
    wanted = {state.lower() for state in getattr(request.body, "states_filter", ())}
    sees_all = may(view.image, client.principal, AclOperation.DESCRIBE)
    groups = [
        group
        for group in coordinator.groups()
        if (not wanted or group.state.value.lower() in wanted)
        and (sees_all or not _refused(view, client, AclOperation.DESCRIBE, group.group_id))
    ]
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {"group_id": group.group_id, "protocol_type": group.protocol_type, "group_state": group.state.value}
            for group in groups
        ],
    }


def delete_groups(coordinator: Coordinator, view: View, client: Client, request: KafkaRequest) -> Handler:
    results = []
    for name in request.body.groups_names:
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if not _refused(view, client, AclOperation.DELETE, name):
            error = yield from coordinator.delete(name)
        results.append({"group_id": name, "error_code": error})
    return {"results": results}
