"""The parts of a replica of the metadata log: votes, voter sets, election state, log and snapshot."""

from __future__ import annotations

from dataclasses import MISSING, replace
from dataclasses import fields as fields_of
from itertools import combinations, product
from typing import Any, get_type_hints
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from experiments.engines.sim.disk import SimStorage
from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import CorruptLogError, ForeignDirectoryError, ProtocolInvariantError
from protocol.ids import METADATA_LOG, NO_LEADER
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.codec import decode, encode
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterRequest,
    BeginQuorumEpochRequest,
    ControlRecord,
    Endpoint,
    LeaderChangeRecord,
    QuorumFetchRequest,
    RemoveVoterRecord,
    RemoveVoterRequest,
    VoteRequest,
)
from protocol.messages.records import MetadataRecord, ProducerIdsRecord
from protocol.quorum.election import Election, Role, VotingState, can_grant_vote
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.log import SNAPSHOT_FILE, DivergingEpoch, QuorumLog, Snapshot, decode_snapshot
from protocol.quorum.state_file import QuorumState, format_voters
from protocol.quorum.state_file import decode as decode_state
from protocol.quorum.state_file import encode as encode_state
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterHistory, VoterSet

A, B, C, D = (ReplicaKey(1000 + index, f"uuid-{index}") for index in range(4))
END = (3, 10)


def voting_state(
    role: Role, voted: ReplicaKey | None = None, leader: int = NO_LEADER, fetched: bool = False
) -> VotingState:
    return VotingState(role, leader, voted, fetched, END)


# -- votes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "vote", "pre_vote"),
    [
        (voting_state(Role.UNATTACHED), True, True),
        (voting_state(Role.UNATTACHED, voted=A), True, True),
        (voting_state(Role.UNATTACHED, voted=B), False, True),
        (voting_state(Role.UNATTACHED, voted=ReplicaKey(A.id, "another disk")), False, True),
        (voting_state(Role.UNATTACHED, voted=ReplicaKey(A.id, NO_UUID)), True, True),
        (voting_state(Role.UNATTACHED, leader=1001), False, True),
        (voting_state(Role.FOLLOWER, leader=1001), False, True),
        (voting_state(Role.FOLLOWER, leader=1001, fetched=True), False, False),
        (voting_state(Role.PROSPECTIVE), True, True),
        (voting_state(Role.PROSPECTIVE, leader=1001), False, True),
        (voting_state(Role.CANDIDATE, voted=B), False, True),
        (voting_state(Role.RESIGNED, leader=1001), False, True),
        (voting_state(Role.LEADER, leader=1001), False, False),
    ],
)
def test_votes_and_pre_votes_depend_on_role_vote_and_leader(own: VotingState, vote: bool, pre_vote: bool) -> None:
    assert can_grant_vote(own, A, END, pre_vote=False) is vote
    assert can_grant_vote(own, A, END, pre_vote=True) is pre_vote


@pytest.mark.parametrize(("log_end", "granted"), [((3, 9), False), ((2, 99), False), ((3, 11), True), ((4, 0), True)])
def test_a_candidate_with_a_less_up_to_date_log_gets_no_vote(log_end: tuple[int, int], granted: bool) -> None:
    for pre_vote in (False, True):
        assert can_grant_vote(voting_state(Role.UNATTACHED), A, log_end, pre_vote=pre_vote) is granted


@pytest.mark.parametrize("size", range(1, 8))
def test_an_election_is_decided_by_a_majority(size: int) -> None:
    voters = VoterSet.of(ReplicaKey(1000 + index, "") for index in range(size))
    for votes in product([True, False], repeat=size):
        election = Election(voters, dict(enumerate(voters.keys)))
        for number, granted in enumerate(votes):
            election.record_vote(number, granted)
            election.record_vote(number, True)
        election.record_vote(99, True)
        assert election.is_won is (sum(votes) > size / 2)
        assert election.is_lost is (not election.is_won)


# -- voters ------------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 6), min_size=1), st.integers(0, 6))
def test_majorities_of_sets_that_differ_by_one_voter_share_a_member(ids: set[int], other: int) -> None:
    before = VoterSet.of(ReplicaKey(node, "") for node in ids)
    key = ReplicaKey(other, "")
    after = before.after(RemoveVoterRecord(voter_id=other, voter_uuid="")) if key in before else before.with_voter(key)
    for first in combinations(before.keys, before.majority):
        for second in combinations(after.keys, after.majority):
            assert not after.keys or set(first) & set(second)


def add(key: ReplicaKey) -> AddVoterRecord:
    return AddVoterRecord(voter_id=key.id, voter_uuid=key.uuid)


def remove(key: ReplicaKey) -> RemoveVoterRecord:
    return RemoveVoterRecord(voter_id=key.id, voter_uuid=key.uuid)


def test_voter_history_follows_truncation_and_deletion_of_the_log() -> None:
    history = VoterHistory(VoterSet.of([A]))
    changes: list[tuple[int, ControlRecord]] = [(5, add(B)), (8, add(C)), (9, remove(A))]
    for offset, record in changes:
        history.append(offset, record)
    history.append(12, LeaderChangeRecord(leader_id=B.id, leader_uuid=B.uuid, voters=()))
    assert history.last_change == 9
    assert [history.before(end).keys for end in (5, 6, 9, 10)] == [(A,), (A, B), (A, B, C), (B, C)]
    history.forget_before(6)
    assert (history.before(0).keys, history.latest.keys) == ((A, B), (B, C))
    history.truncate(9)
    assert (history.latest.keys, history.last_change) == ((A, B, C), 8)
    history.truncate(6)
    assert (history.latest.keys, history.last_change) == ((A, B), -1)


def test_a_voter_replaces_the_voter_with_the_same_id() -> None:
    again = ReplicaKey(A.id, "another disk")
    assert VoterSet.of([A, B]).with_voter(again).keys == (again, B)


# -- the leader's view -------------------------------------------------------------------------------------------------


def test_the_high_watermark_needs_a_majority_of_the_latest_voters_and_a_record_of_the_epoch() -> None:
    leader_state = LeaderState(epoch=4, start_offset=10, since_ms=0, local=A)
    three = VoterSet.of([A, B, C])
    assert leader_state.majority_end_offset(three, 15) is None
    leader_state.record_fetch(B, 10, 15, now_ms=1)
    assert leader_state.majority_end_offset(three, 15) is None, "all of these records are of earlier epochs"
    leader_state.record_fetch(B, 12, 15, now_ms=2)
    assert leader_state.majority_end_offset(three, 15) == 12
    leader_state.record_fetch(ReplicaKey(C.id, "another disk"), 15, 15, now_ms=3)
    assert leader_state.majority_end_offset(three, 15) == 12
    without_me = VoterSet.of([B, C])
    assert leader_state.majority_end_offset(without_me, 15) is None
    leader_state.record_fetch(C, 11, 15, now_ms=4)
    assert leader_state.majority_end_offset(without_me, 15) == 11
    by_id = VoterSet.of([ReplicaKey(key.id, NO_UUID) for key in (A, B, C)])
    assert leader_state.majority_end_offset(by_id, 15) == 12


def test_check_quorum_fails_when_a_majority_is_inactive() -> None:
    leader_state = LeaderState(epoch=4, start_offset=10, since_ms=100, local=A)
    three = VoterSet.of([A, B, C])
    leader_state.record_fetch(B, 10, 15, now_ms=400)
    assert leader_state.has_active_majority(three)
    assert leader_state.inactive_voters(three) == [C]
    leader_state.inactive.add(B.id)
    assert leader_state.has_active_majority(three)
    assert leader_state.inactive_voters(three) == [B, C]
    leader_state.inactive.add(C.id)
    assert not leader_state.has_active_majority(three)
    assert leader_state.has_active_majority(VoterSet.of([A]))
    assert not leader_state.has_active_majority(VoterSet.of([B, C]))
    assert leader_state.preferred_successors(three) == [B, C]


# -- the state file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("voted", [None, A, ReplicaKey(1000, NO_UUID)])
def test_the_state_file_round_trips(voted: ReplicaKey | None) -> None:
    state = QuorumState("cluster", "me", 7, 1002, voted)
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"data_version": 2}',
        b'{"data_version": 1, "leaderEpoch": "7"}',
        b'{"data_version": 1, "leaderEpoch": -7}',
        b'{"data_version": 1, "votedId": true}',
        b'{"data_version": 1, "clusterId": 7}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_state_file_is_rejected(raw: bytes) -> None:
    with pytest.raises(CorruptLogError, match=r"quorum-state: .*allowed: "):
        decode_state(raw)


def test_a_disk_is_formatted_once() -> None:
    storage = SimStorage()
    format_voters(storage, "cluster", A, VoterSet.of([A]), now_ms=0)
    assert QuorumLog(storage, METADATA_LOG, VoterSet()).voters.latest.keys == (A,)
    with pytest.raises(ForeignDirectoryError, match="is formatted already"):
        format_voters(storage, "cluster", A, VoterSet.of([A]), now_ms=0)


# -- the log -----------------------------------------------------------------------------------------------------------


def write(log: QuorumLog, epoch: int, *records: MetadataRecord) -> None:
    payload = pack_records(records)
    log.append(RecordBatch(base_offset=log.end_offset, leader_epoch=epoch, record_count=len(records), payload=payload))


def filled(storage: SimStorage, snapshot: bool = False) -> QuorumLog:
    """Epoch 1 from 0 on, 3 from 4 on, 4 from 6 on; ends at 8. With a snapshot it begins at 6."""
    log = QuorumLog(storage, METADATA_LOG, VoterSet.of([A]))
    write(log, 1, add(B), ProducerIdsRecord(next_producer_id=1))
    write(log, 1, ProducerIdsRecord(next_producer_id=2), ProducerIdsRecord(next_producer_id=3))
    write(log, 3, add(C), ProducerIdsRecord(next_producer_id=4))
    log.flush()
    if snapshot:
        log.take_snapshot(6, b"state")
    write(log, 4, remove(B), ProducerIdsRecord(next_producer_id=5))
    log.flush()
    return log


def test_a_fetch_position_is_valid_diverging_or_below_the_snapshot() -> None:
    log = filled(SimStorage())
    for end in ((0, -1), (2, 1), (4, 1), (6, 3), (8, 4)):
        assert log.validate_fetch_position(*end) is None
    assert log.validate_fetch_position(6, 1) == DivergingEpoch(1, 4)
    assert log.validate_fetch_position(6, 2) == DivergingEpoch(1, 4)
    assert log.validate_fetch_position(9, 4) == DivergingEpoch(4, 8)
    assert log.validate_fetch_position(8, 9) == DivergingEpoch(4, 8)
    assert log.validate_fetch_position(3, 0) == DivergingEpoch(-1, 0)
    log = filled(SimStorage(), snapshot=True)
    assert log.start_offset == 6
    assert log.snapshot is not None
    assert log.snapshot.epoch == 3
    for end in ((6, 3), (8, 4)):
        assert log.validate_fetch_position(*end) is None
    for end in ((0, -1), (4, 1), (5, 3)):
        assert log.validate_fetch_position(*end) is log.snapshot
    assert log.validate_fetch_position(7, 3) == DivergingEpoch(3, 6)


def test_a_reopened_log_has_the_same_offsets_voters_and_snapshot() -> None:
    storage = SimStorage()
    log = filled(storage, snapshot=True)
    log.truncate(6)
    again = QuorumLog(storage, METADATA_LOG, VoterSet.of([D]))
    assert (again.start_offset, again.end, again.voters.latest.keys) == (6, (3, 6), (A, B, C))
    assert again.snapshot == log.snapshot
    with pytest.raises(ProtocolInvariantError, match="truncation to 5"):
        again.truncate(5)


FIVE = 5 * (100 + BATCH_OVERHEAD_BYTES)
"""Bytes of five batches with payloads of 100 bytes."""


def sized(retention_bytes: int) -> QuorumLog:
    """A log of five batches."""
    log = QuorumLog(SimStorage(), METADATA_LOG, VoterSet.of([A]), retention_bytes)
    for offset in range(5):
        batch = RecordBatch(base_offset=offset, leader_epoch=1, record_count=1, payload=b"p" * 100)
        log.append(batch, [ProducerIdsRecord(next_producer_id=offset)])
    return log


@pytest.mark.parametrize(("retention_bytes", "deletes"), [(0, True), (FIVE - 1, True), (FIVE, False), (-1, False)])
def test_a_snapshot_deletes_what_it_covers_from_a_log_that_is_too_large(retention_bytes: int, deletes: bool) -> None:
    log = sized(retention_bytes)
    log.take_snapshot(5, b"state")
    assert log.start_offset == (5 if deletes else 0)
    assert (log.end, log.epoch_at(5), log.bytes_since_snapshot) == ((1, 5), 1, 0)
    assert log.validate_fetch_position(3, 1) == (log.snapshot if deletes else None)


def test_the_size_of_a_log_does_not_count_what_was_truncated() -> None:
    log = sized(FIVE - 1)
    log.truncate(4)
    log.take_snapshot(4, b"state")
    assert log.start_offset == 0


def test_truncation_restores_the_voters_before() -> None:
    log = filled(SimStorage())
    assert log.voters.latest.keys == (A, C)
    log.truncate(6)
    assert (log.voters.latest.keys, log.end) == ((A, B, C), (3, 6))
    log.truncate(0)
    assert (log.voters.latest.keys, log.end) == ((A,), (-1, 0))


def test_a_snapshot_ahead_of_the_log_resets_the_log() -> None:
    storage = SimStorage()
    filled(storage)
    snapshot = Snapshot(5, 20, VoterSet.of([C, D]), b"state")
    storage.write_file(SNAPSHOT_FILE, snapshot.encode())
    log = QuorumLog(storage, METADATA_LOG, VoterSet.of([A]))
    assert (log.start_offset, log.end, log.voters.latest.keys) == (20, (5, 20), (C, D))
    storage.delete_file(SNAPSHOT_FILE)
    with pytest.raises(CorruptLogError, match="begins at 20, its snapshot ends at 0"):
        QuorumLog(storage, METADATA_LOG, VoterSet.of([A]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x94",
        Snapshot(1, 2, VoterSet.of([A]), b"state").encode()[:-1],
        Snapshot(1, 2, VoterSet.of([A]), b"state").encode() + b"!",
        b"\x94\xa1a\x02\xc4\x01\x90\xc4\x00",
    ],
)
def test_invalid_snapshot_bytes_are_rejected(raw: bytes) -> None:
    with pytest.raises(CorruptLogError, match="checkpoint: found"):
        decode_snapshot(raw)


@pytest.mark.covers("D6", "N20")
def test_a_snapshot_contains_the_current_voters_only() -> None:
    voters = VoterSet.of([A, B]).after(RemoveVoterRecord(voter_id=B.id, voter_uuid=B.uuid))
    assert [type(record) for record in voters.to_records()] == [AddVoterRecord]
    gone = msgpack.packb([1, 2, pack_records([RemoveVoterRecord(voter_id=B.id, voter_uuid=B.uuid)]), b""])
    with pytest.raises(CorruptLogError, match="found RemoveVoterRecord; allowed: AddVoterRecord"):
        decode_snapshot(crc32(gone).to_bytes(4, "big") + gone)


# -- messages ----------------------------------------------------------------------------------------------------------

SCHEMAS: dict[type[Message], dict[str, str]] = {
    AddVoterRecord: {"voter_id": "int32", "voter_uuid": "uuid", "endpoints": "array"},
    RemoveVoterRecord: {"voter_id": "int32", "voter_uuid": "uuid"},
    Endpoint: {"name": "string", "host": "string", "port": "uint16", "security_protocol": "int16"},
    AddVoterRequest: {"cluster_id": "string", "voter_id": "int32", "voter_uuid": "uuid", "endpoints": "array"},
    RemoveVoterRequest: {"voter_id": "int32", "voter_uuid": "uuid"},
    QuorumFetchRequest: {"replica_id": "int32", "replica_uuid": "uuid"},
    VoteRequest: {"cluster_id": "string", "candidate_uuid": "uuid", "voter_uuid": "uuid", "last_offset": "int64"}
    | dict.fromkeys(("candidate_id", "voter_id", "candidate_epoch", "last_offset_epoch"), "int32"),
    BeginQuorumEpochRequest: {"cluster_id": "string", "leader_id": "int32", "leader_epoch": "int32"},
}
"""Fields that the drafts name, without the topics and partitions around them: there is one metadata log."""
LARGEST: dict[str, Any] = {
    "int16": 2**15 - 1,
    "uint16": 2**16 - 1,
    "int32": 2**31 - 1,
    "int64": 2**63 - 1,
    "uuid": "f" * 32,
    "string": "localhost",
    "array": (),
}


def required(kind: type[Message]) -> set[str]:
    """The fields without a default."""
    return {field.name for field in fields_of(kind) if field.default is MISSING}


def is_uuid(field: str) -> bool:
    return field.endswith("_uuid")


@pytest.mark.covers("G10", "G11", "G13", "G15", "G16", "G17", "G18", "N19")
@pytest.mark.parametrize("kind", SCHEMAS, ids=lambda kind: kind.__name__)
def test_messages_have_the_fields_of_the_schemas_and_carry_their_largest_values(kind: type[Message]) -> None:
    fields = {name: LARGEST[type_] for name, type_ in SCHEMAS[kind].items()}
    others = {name: "lab" if get_type_hints(kind)[name] is str else 1 for name in required(kind) - fields.keys()}
    message = kind(**fields, **others)
    assert decode(encode(message)) == message
    for name in [name for name, type_ in SCHEMAS[kind].items() if type_ in ("int16", "int32", "int64")]:
        with pytest.raises(ValidationError, match=name):
            kind(**{**fields, **others, name: fields[name] + 1})


@pytest.mark.covers("D35", "G16", "G17")
@pytest.mark.parametrize(
    "kind", [kind for kind in SCHEMAS if any(map(is_uuid, kind.SINCE))], ids=lambda kind: kind.__name__
)
def test_versions_before_uuids_omit_them(kind: type[Message]) -> None:
    message = kind(**{name: "lab" if name == "cluster_id" else 1 for name in required(kind)})
    before = min(kind.SINCE.values()) - 1
    assert decode(encode(message, before)) == message
    uuid = next(filter(is_uuid, kind.SINCE))
    with pytest.raises(ProtocolInvariantError, match=uuid):
        encode(replace(message, **{uuid: "u"}), before)
