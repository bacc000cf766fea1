"""Administration of the quorum: rejected requests, conditions of a change, authorization, formatting."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from experiments.engines.sim.disk import SimStorage
from protocol import metrics
from protocol.controller.context import ControllerState
from protocol.controller.metrics import ControllerMetrics
from protocol.errors import ErrorCode, ForeignDirectoryError, ProtocolInvariantError
from protocol.ids import METADATA_LOG
from protocol.messages.acls import AclEntry, AclOperation, AclPermissionType, AclResourceType
from protocol.messages.admin import AdminRequest
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterRequest,
    CurrentLeader,
    DescribeQuorumRequest,
    Endpoint,
    RemoveVoterRecord,
    RemoveVoterRequest,
)
from protocol.messages.records import AccessControlEntryRecord
from protocol.metadata.authorizer import may_administer_quorum
from protocol.metadata.image import MetadataImage
from protocol.quorum import state_file
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.log import SNAPSHOT_FILE, QuorumLog
from protocol.quorum.membership import (
    Change,
    VoterRequest,
    blocking_reason,
    joining_request,
    not_leader,
    rejection,
    response_to,
)
from protocol.quorum.state_file import format_voters
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet
from tests.unit.protocol.node_helpers import config_of

A, B, C = (ReplicaKey(1000 + index, f"uuid-{index}") for index in range(3))
THREE = VoterSet.of([A, B, C])
BY_ID = VoterSet.of([ReplicaKey(key.id, "") for key in (A, B, C)])
HERE = Endpoint(name="CONTROLLER", host="localhost", port=9093)
NONE = ErrorCode.NONE


def add(key: ReplicaKey, **fields: Any) -> AddVoterRequest:
    return AddVoterRequest(correlation_id=7, voter_id=key.id, voter_uuid=key.uuid, **fields)


def remove(key: ReplicaKey, **fields: Any) -> RemoveVoterRequest:
    return RemoveVoterRequest(correlation_id=7, voter_id=key.id, voter_uuid=key.uuid, **fields)


NEW = ReplicaKey(1005, "u")
OTHER_DISK = ReplicaKey(B.id, "u")
DUPLICATE, INVALID, MISSING = ErrorCode.DUPLICATE_VOTER, ErrorCode.INVALID_REQUEST, ErrorCode.VOTER_NOT_FOUND
NO_PORT = replace(HERE, port=65_536)
TWO, ONE = VoterSet.of([A, B]), VoterSet.of([A])
OF_DYNAMIC_VOTERS: list[tuple[VoterRequest, VoterSet, ErrorCode, str]] = [
    (add(NEW, endpoints=(HERE,)), THREE, NONE, ""),
    (add(B), THREE, DUPLICATE, "1001:uuid-1 is already a voter"),
    (add(OTHER_DISK), THREE, DUPLICATE, "1001:uuid-1 has the id of 1001:u; remove it first"),
    (add(ReplicaKey(1005, "")), THREE, INVALID, "replica 1005 has no uuid and cannot be a voter"),
    (add(ReplicaKey(-1, "u")), THREE, INVALID, "voter_id: found -1; allowed: from 0"),
    (add(NEW, endpoints=(NO_PORT,)), THREE, INVALID, "endpoints: CONTROLLER: found port 65536; allowed: 1 to 65535"),
    (
        add(NEW, endpoints=(HERE, HERE)),
        THREE,
        INVALID,
        "endpoints: found the names CONTROLLER, CONTROLLER; allowed: each once",
    ),
    (remove(B, timeout_ms=-1), THREE, INVALID, "timeout_ms: found -1; allowed: from 0"),
    (remove(B), THREE, NONE, ""),
    (remove(NEW), TWO, MISSING, "no voter has id 1005; voters: 1000:uuid-0, 1001:uuid-1"),
    (remove(OTHER_DISK), THREE, MISSING, "1001:u is not a voter: the voter of that id is 1001:uuid-1"),
    (remove(A), ONE, INVALID, "1000:uuid-0 is the last voter"),
]
OF_STATIC_VOTERS: list[tuple[VoterRequest, VoterSet, ErrorCode, str]] = [
    (add(OTHER_DISK), THREE, NONE, ""),
    (add(B), BY_ID, NONE, ""),
    (add(B), THREE, DUPLICATE, "1001:uuid-1 is already a voter"),
    (add(B, endpoints=(HERE,)), THREE, INVALID, "endpoints are set by controller.quorum.voters"),
    (add(NEW), THREE, INVALID, "controller.quorum.voters does not list replica 1005"),
    (remove(B), BY_ID, INVALID, "controller.quorum.voters lists the voters; only a disk can be replaced"),
    (remove(OTHER_DISK), THREE, MISSING, "1001:u is not a voter: the voter of that id is 1001:uuid-1"),
]
REJECTIONS = [(False, *case) for case in OF_DYNAMIC_VOTERS] + [(True, *case) for case in OF_STATIC_VOTERS]


@pytest.mark.covers("D1", "D12", "D14", "D20", "N18", "M83")
@pytest.mark.parametrize(("static", "request_", "voters", "error", "message"), REJECTIONS)
def test_an_impossible_change_is_rejected_with_a_message(
    static: bool, request_: VoterRequest, voters: VoterSet, error: ErrorCode, message: str
) -> None:
    assert rejection(request_, voters, static=static) == (error, message)


@pytest.mark.covers("D11", "D12", "D15")
def test_a_change_waits_for_a_commit_in_the_epoch_an_earlier_change_and_the_replica() -> None:
    history = VoterHistory(VoterSet.of([A]))
    leader_state = LeaderState(epoch=4, start_offset=10, since_ms=0, local=A)
    adding, removing = Change(9000, add(B), 0), Change(9000, remove(A), 0)
    assert blocking_reason(adding, history, leader_state, 10, 11) == "no record of epoch 4 is committed"
    assert blocking_reason(removing, history, leader_state, 10, 11) == "no record of epoch 4 is committed"
    assert blocking_reason(adding, history, leader_state, 11, 11) == "1001:uuid-1 does not fetch"
    leader_state.record_fetch(B._replace(uuid="another disk"), 11, 11, now_ms=1)
    assert blocking_reason(adding, history, leader_state, 11, 11) == "1001:uuid-1 does not fetch"
    leader_state.record_fetch(B, 7, 11, now_ms=1)
    assert blocking_reason(adding, history, leader_state, 11, 11) == "1001:uuid-1 has 7 of 11 records"
    assert blocking_reason(removing, history, leader_state, 11, 11) == ""
    assert blocking_reason(Change(9000, add(A), 0), history, leader_state, 11, 11) == "", (
        "the leader has its own whole log"
    )
    leader_state.record_fetch(B, 11, 11, now_ms=2)
    assert blocking_reason(adding, history, leader_state, 11, 11) == ""
    history.append(11, AddVoterRecord(voter_id=C.id, voter_uuid=C.uuid))
    assert blocking_reason(adding, history, leader_state, 11, 12) == "another change is not committed"


JOINING: list[tuple[ReplicaKey, VoterSet, VoterRequest | None]] = [
    (B, THREE, None),
    (B, BY_ID, None),
    (NEW, THREE, add(NEW, ack_when_committed=False)),
    (C, TWO, add(C, ack_when_committed=False)),
    (OTHER_DISK, THREE, remove(B)),
    (OTHER_DISK, ONE, add(OTHER_DISK, ack_when_committed=False)),
]


@pytest.mark.parametrize(("me", "voters", "expected"), JOINING)
def test_a_controller_joins_by_ending_the_vote_of_its_former_disk_first(
    me: ReplicaKey, voters: VoterSet, expected: VoterRequest | None
) -> None:
    assert joining_request(me, voters, correlation_id=7) == expected


@pytest.mark.parametrize(
    ("request_", "offset", "done"),
    [
        (add(NEW), -1, False),
        (add(NEW), 10, False),
        (add(NEW), 9, True),
        (add(NEW, ack_when_committed=False), -1, False),
        (add(NEW, ack_when_committed=False), 10, True),
        (remove(B), 10, False),
        (remove(B), 9, True),
    ],
)
def test_a_change_is_done_when_it_is_committed_or_where_that_is_enough_appended(
    request_: VoterRequest, offset: int, done: bool
) -> None:
    assert Change(9000, request_, 0, offset).is_done(high_watermark=10) is done


@pytest.mark.covers("D35")
def test_a_change_waits_until_all_voters_fetch_with_a_uuid() -> None:
    history = VoterHistory(BY_ID)
    leader_state = LeaderState(epoch=4, start_offset=10, since_ms=0, local=A)
    adding = Change(9000, add(B), 0)
    leader_state.record_fetch(B, 11, 11, now_ms=1)
    assert blocking_reason(adding, history, leader_state, 11, 11) == "voter 1002 has not fetched with a uuid"
    leader_state.record_fetch(ReplicaKey(C.id, ""), 11, 11, now_ms=1)
    assert blocking_reason(adding, history, leader_state, 11, 11) == "voter 1002 has not fetched with a uuid"
    leader_state.record_fetch(C, 11, 11, now_ms=2)
    assert blocking_reason(adding, history, leader_state, 11, 11) == ""
    leader_state.record_fetch(ReplicaKey(C.id, ""), 11, 11, now_ms=3)
    assert blocking_reason(adding, history, leader_state, 11, 11) == "voter 1002 has not fetched with a uuid", (
        "the voter was downgraded"
    )
    assert blocking_reason(Change(9000, add(C), 0), history, leader_state, 11, 11) == "", (
        "the change itself adds the uuid"
    )


def test_a_voter_without_a_uuid_is_removed_by_its_id() -> None:
    assert Change(9000, remove(B), 0).record(BY_ID) == RemoveVoterRecord(voter_id=B.id, voter_uuid="")
    assert Change(9000, remove(B), 0).record(THREE) == RemoveVoterRecord(voter_id=B.id, voter_uuid=B.uuid)


@pytest.mark.covers("D13", "G14", "G15")
def test_a_replica_that_does_not_lead_returns_the_leader() -> None:
    answer = not_leader(add(B), 1002, 5)
    assert (answer.correlation_id, answer.error, answer.message) == (
        7,
        ErrorCode.NOT_CONTROLLER,
        "1002 leads in epoch 5",
    )
    assert answer.current_leader == CurrentLeader(leader_id=1002, leader_epoch=5)
    assert not_leader(remove(B), -1, 5).message == "epoch 5 has no leader"
    assert response_to(remove(B), ErrorCode.NONE, "").current_leader == CurrentLeader(leader_id=-1, leader_epoch=-1)


@pytest.mark.covers("G32")
@pytest.mark.parametrize(
    ("request_", "needed", "not_enough"),
    [
        (add(B), AclOperation.ALTER, AclOperation.DESCRIBE),
        (remove(B), AclOperation.ALTER, AclOperation.DESCRIBE),
        (DescribeQuorumRequest(correlation_id=1), AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS),
    ],
)
def test_describing_and_changing_the_quorum_need_authorization(
    request_: AdminRequest, needed: AclOperation, not_enough: AclOperation
) -> None:
    asked = replace(request_, principal="User:alice")
    for operation, allowed in ((needed, True), (not_enough, False)):
        image = MetadataImage(config_of(authorizer_class_name="standard"))
        entry = AclEntry(
            resource_type=AclResourceType.CLUSTER,
            resource_name="kafka-cluster",
            principal="User:alice",
            operation=operation,
            permission_type=AclPermissionType.ALLOW,
        )
        image.replay(AccessControlEntryRecord(entry=entry))
        assert may_administer_quorum(image, asked) is allowed


@pytest.mark.covers("D34", "I9")
def test_the_quorum_metrics_are_the_gauges_of_the_replica() -> None:
    found = ControllerMetrics(ControllerState(config_of(), Random(0)), lambda: (3, 4, 1, 2)).values()
    assert [found[name] for name in metrics.RAFT_METRICS] == [3, 4, 1, 2]
    assert tuple(found) == metrics.CLUSTER_METRICS


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("D31", "J15")
@pytest.mark.parametrize("voters", [VoterSet(), VoterSet.of([A]), THREE])
def test_a_disk_is_formatted_with_the_initial_voters(voters: VoterSet) -> None:
    storage = SimStorage()
    format_voters(storage, "cluster", A, voters, now_ms=0)
    log = QuorumLog(storage, METADATA_LOG, VoterSet())
    assert (log.voters.latest, log.end_offset) == (voters, len(voters))
    raw = storage.read_file(state_file.FILE)
    assert raw is not None
    assert state_file.decode(raw) == state_file.QuorumState("cluster", A.uuid)
    with pytest.raises(ForeignDirectoryError, match="1000 is formatted already"):
        format_voters(storage, "cluster", A, voters, now_ms=0)


def test_formatting_stores_the_endpoints_of_the_voters() -> None:
    storage = SimStorage()
    format_voters(storage, "cluster", A, VoterSet({A: (HERE,)}), now_ms=0)
    assert QuorumLog(storage, METADATA_LOG, VoterSet()).voters.latest.endpoints == {A: (HERE,)}


@pytest.mark.parametrize("name", [state_file.FILE, SNAPSHOT_FILE])
def test_a_disk_with_data_of_a_replica_is_not_formatted(name: str) -> None:
    storage = SimStorage()
    storage.write_file(name, b"anything")
    with pytest.raises(ForeignDirectoryError, match="formatted already"):
        format_voters(storage, "cluster", A, THREE, now_ms=0)
    assert storage.read_file(name) == b"anything"
    assert storage.log_names() == []


@pytest.mark.parametrize(("me", "voters"), [(A._replace(uuid="u"), THREE), (A._replace(uuid=""), VoterSet())])
def test_formatting_needs_a_uuid_and_membership(me: ReplicaKey, voters: VoterSet) -> None:
    storage = SimStorage()
    with pytest.raises(ProtocolInvariantError, match="is not among the voters"):
        format_voters(storage, "cluster", me, voters, now_ms=0)
    assert storage.read_file(state_file.FILE) is None
