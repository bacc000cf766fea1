"""Replicas of the metadata log on the harness (`experiments/hunt/quorum`): elections, replication, snapshots and
changes of the voters. The safety invariants are checked after every step of every test.
"""

from __future__ import annotations

import pytest

from experiments.engines.port import Loss
from experiments.hunt.quorum.harness import CLUSTER, QuorumHarness
from experiments.hunt.quorum.operator import change_request
from protocol.errors import ErrorCode, ForeignDirectoryError
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import (
    VOTER_CHANGE_TIMEOUT_MS,
    AddVoterRequest,
    AddVoterResponse,
    BeginQuorumEpochRequest,
    CurrentLeader,
    Endpoint,
    LeaderChangeRecord,
    Voter,
    VoteResponse,
)
from protocol.quorum import state_file
from protocol.quorum.election import Role
from protocol.quorum.voters import ReplicaKey
from tests.sim.quorum_helpers import (
    SOON_MS,
    answer,
    ask,
    change,
    leader,
    replica,
    settle,
    started,
    vote_request,
    voter_ids,
)


def grown(size: int, observers: int = 0) -> QuorumHarness:
    """A quorum that has grown from one voter to `size` under writes."""
    harness = started("grown", size, observers=observers)
    for node in harness.ids[1:]:
        harness.append()
        assert change(harness, True, replica(harness, node).key) is ErrorCode.NONE
        harness.append()
    settle(harness)
    return harness


# -- elections ---------------------------------------------------------------------------------------------------------


def test_static_voters_elect_one_leader_and_follow_it() -> None:
    harness = started("static", static=True)
    settle(harness)
    assert sorted(node.replica.role for node in harness.nodes.values()) == [Role.FOLLOWER, Role.FOLLOWER, Role.LEADER]
    harness.append()
    settle(harness)
    assert len(harness.view.committed) == 2


def test_a_new_leader_with_all_committed_records_is_elected_soon_after_a_crash() -> None:
    harness = grown(3)
    before, committed = leader(harness), len(harness.view.committed)
    harness.crash(before.key.id)
    died_ms = harness.now_ms
    after = leader(harness)
    assert harness.now_ms - died_ms <= 2 * after.config.fetch_ms + after.config.election_ms
    assert after.epoch > before.epoch
    harness.append()
    harness.run_for(100)
    assert after.high_watermark == committed + 2  # the leader's own first record, and one more
    settle(harness)


def test_a_leader_that_shuts_down_is_replaced_at_once() -> None:
    harness = grown(3)
    before = leader(harness)
    harness.shut_down(before.key.id)
    asked_ms = harness.now_ms
    assert leader(harness).key != before.key
    assert harness.now_ms - asked_ms < 100


def test_a_partitioned_voter_does_not_depose_the_leader() -> None:
    harness = grown(3)
    first = leader(harness)
    [lonely, _] = [node for node in harness.ids if node != first.key.id]
    harness.cut(lonely)
    harness.run_for(60_000)
    assert replica(harness, lonely).role is Role.PROSPECTIVE
    assert replica(harness, lonely).epoch == first.epoch
    settle(harness)
    assert leader(harness) is first


def test_a_leader_without_a_majority_resigns_and_commits_nothing() -> None:
    harness = grown(3)
    first, committed = leader(harness), len(harness.view.committed)
    harness.cut(first.key.id)
    harness.append()
    harness.run_for(20_000)
    assert not first.is_leader
    second = leader(harness)
    assert second.epoch > first.epoch
    settle(harness)
    assert len(harness.view.committed) == committed + 1, "the new leader's record, not the one without a majority"


@pytest.mark.covers("D26", "D27", "G12", "G17", "N17")
def test_a_vote_is_durable() -> None:
    harness = QuorumHarness("votes", 3, static=True)
    harness.start(1000)
    me = replica(harness, 1000)
    for candidate, granted in ((1001, True), (1002, False), (1001, True)):
        harness.responses.clear()
        harness.submit(1000, vote_request(ReplicaKey(candidate, f"uuid-{candidate}"), 7, me.key, (-1, 0)))
        found = answer(harness, candidate)
        assert isinstance(found, VoteResponse)
        assert (found.vote_granted, found.leader_epoch) == (granted, 7)
        raw = harness.disks[1000].read_file(state_file.FILE)
        assert raw is not None
        assert state_file.decode(raw).voted == ReplicaKey(1001, "uuid-1001"), (
            "the vote is durable with the candidate's uuid"
        )
        harness.crash(1000)
        harness.start(1000)
        assert replica(harness, 1000).key == me.key


@pytest.mark.covers("D24", "G17", "M78")
def test_a_vote_request_for_another_disk_is_rejected() -> None:
    harness = QuorumHarness("keys", 3, static=True)
    harness.start(1000)
    harness.submit(1000, vote_request(ReplicaKey(1001, "a"), 7, ReplicaKey(1000, "the disk before"), (-1, 0)))
    assert answer(harness, 1001).error is ErrorCode.INVALID_VOTER_KEY
    assert replica(harness, 1000).epoch == 0


@pytest.mark.covers("D28", "G18")
@pytest.mark.parametrize(("uuid", "error"), [("the disk before", ErrorCode.INVALID_VOTER_KEY), ("", ErrorCode.NONE)])
def test_begin_quorum_epoch_for_another_disk_is_rejected(uuid: str, error: ErrorCode) -> None:
    harness = QuorumHarness("begin", 3, static=True)
    harness.start(1000)
    request = BeginQuorumEpochRequest(
        correlation_id=1, cluster_id=CLUSTER, voter_id=1000, voter_uuid=uuid, leader_id=1001, leader_epoch=7
    )
    harness.submit(1000, request)
    assert answer(harness, 1).error is error
    assert replica(harness, 1000).leader == (1001 if error is ErrorCode.NONE else -1)


@pytest.mark.covers("D25", "M81")
def test_a_voter_that_lacks_its_own_addition_grants_votes() -> None:
    harness = started("unaware")
    assert change(harness, True, replica(harness, 1001).key) is ErrorCode.NONE
    settle(harness)
    old = leader(harness)
    other = next(replica(harness, node) for node in (1000, 1001) if node != old.key.id)
    unaware = replica(harness, 1002)
    harness.cuts = {(old.key.id, unaware.key.id)}
    assert change(harness, True, unaware.key) is ErrorCode.NONE
    harness.crash(old.key.id)
    harness.cuts = frozenset()
    assert not unaware.is_voter
    assert leader(harness) is other, "elected with the vote of a voter that lacks its own addition"
    assert harness.run_until(lambda: unaware.is_voter, SOON_MS)


@pytest.mark.covers("D10")
def test_an_epoch_starts_with_a_leader_change_record() -> None:
    harness = grown(3)
    harness.crash(leader(harness).key.id)
    second = leader(harness)
    assert second.leader_state is not None
    [batch] = second.log.read(second.leader_state.start_offset, max_bytes=1)
    [first] = unpack_records(batch.payload)
    assert first == LeaderChangeRecord(
        leader_id=second.key.id,
        leader_uuid=second.key.uuid,
        voters=tuple(Voter(voter_id=key.id, voter_uuid=key.uuid) for key in second.voters.keys),
    )


def test_requests_and_disks_of_another_cluster_are_rejected() -> None:
    harness = grown(1)
    request = AddVoterRequest(correlation_id=1, cluster_id="another", voter_id=1001, voter_uuid="u")
    harness.submit(1000, request)
    assert answer(harness, 1).error is ErrorCode.INCONSISTENT_CLUSTER_ID
    harness.crash(1000)
    raw = harness.disks[1000].read_file(state_file.FILE)
    assert raw is not None
    harness.disks[1000].write_file(state_file.FILE, raw.replace(CLUSTER.encode(), b"another"))
    with pytest.raises(ForeignDirectoryError, match="found 'another'; allowed: 'lab'"):
        harness.start(1000)


# -- changes of the voters ---------------------------------------------------------------------------------------------


@pytest.mark.covers("D3", "D6", "M77")
def test_one_voter_grows_to_three_under_writes() -> None:
    harness = grown(3, observers=1)
    assert voter_ids(harness) == {(1000, 1001, 1002)}
    assert len(harness.view.committed) == 1 + 1 + 2 + 4  # the format, the leader, two voters, four writes


@pytest.mark.covers("D12", "D16", "M79")
def test_a_replica_is_added_only_when_it_has_caught_up() -> None:
    harness = started("lagging")
    key = replica(harness, 1001).key
    leader(harness)
    harness.cut(1001)
    number = ask(harness, True, key)
    with pytest.raises(AssertionError):
        answer(harness, number, VOTER_CHANGE_TIMEOUT_MS - 1_000)
    assert answer(harness, number).error is ErrorCode.REQUEST_TIMED_OUT
    number = ask(harness, True, key)
    harness.run_for(5_000)
    harness.heal()
    assert answer(harness, number).error is ErrorCode.NONE
    settle(harness)
    assert voter_ids(harness) == {(1000, 1001)}


@pytest.mark.covers("D11", "M79")
def test_a_change_waits_for_the_one_before_it() -> None:
    """The first addition cannot be committed while the replica that it adds is cut off."""
    harness = started("two")
    first = leader(harness)
    one, two = (replica(harness, node).key for node in (1001, 1002))
    ask(harness, True, one)
    assert harness.run_until(lambda: one in first.voters, SOON_MS)
    harness.cut(1001)
    ask(harness, True, two)
    harness.run_for(1_500)
    assert first.is_leader
    assert two not in first.voters
    assert harness.responses == []
    harness.heal()
    assert harness.run_until(lambda: len(harness.responses) == 2, SOON_MS)
    assert [response.error for response in harness.responses] == [ErrorCode.NONE, ErrorCode.NONE]
    settle(harness)
    assert voter_ids(harness) == {(1000, 1001, 1002)}


@pytest.mark.parametrize("arrives", [False, True])
def test_an_addition_whose_leader_crashes_applies_everywhere_or_nowhere(arrives: bool) -> None:
    harness = grown(4)
    first = leader(harness)
    added, second, third = (replica(harness, node) for node in harness.ids if node != first.key.id)
    assert change(harness, False, added.key) is ErrorCode.NONE
    settle(harness)
    number = ask(harness, True, added.key)
    if not arrives:
        harness.cuts = {(first.key.id, node.key.id) for node in (second, third)}
    harness.run_until(lambda: added.key in (second if arrives else first).voters, SOON_MS)
    assert not [response for response in harness.responses if response.correlation_id == number]
    harness.crash(first.key.id)
    harness.cuts = frozenset()
    assert leader(harness) in (second, third)
    settle(harness)
    assert voter_ids(harness) == {harness.ids if arrives else tuple(n for n in harness.ids if n != added.key.id)}


@pytest.mark.covers("D17", "D18", "M82")
def test_a_removed_leader_commits_its_removal_and_resigns() -> None:
    harness = grown(3)
    first = leader(harness)
    assert change(harness, False, first.key) is ErrorCode.NONE
    assert harness.run_until(lambda: not first.is_leader, 1_000)
    second = leader(harness)
    assert second.key.id != first.key.id
    settle(harness)
    assert first.key not in second.voters
    assert first.role is Role.FOLLOWER


def test_a_removed_leader_rejects_waiting_changes() -> None:
    harness = grown(3)
    first = leader(harness)
    other = next(node for node in harness.ids if node != first.key.id)
    numbers = [ask(harness, False, first.key)]
    numbers.append(numbers[0] + 1)
    harness.submit(first.key.id, change_request(numbers[1], False, replica(harness, other).key))
    assert [answer(harness, number).error for number in numbers] == [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER]
    settle(harness)
    assert voter_ids(harness) == {tuple(node for node in harness.ids if node != first.key.id)}


@pytest.mark.covers("D19", "M82")
def test_a_removed_follower_becomes_an_observer() -> None:
    harness = grown(3)
    first = leader(harness)
    gone = next(node for node in harness.ids if node != first.key.id)
    assert change(harness, False, replica(harness, gone).key) is ErrorCode.NONE
    harness.append()
    settle(harness)
    assert not replica(harness, gone).is_voter
    harness.crash(first.key.id)
    harness.run_for(30_000)
    assert harness.leader is None, "one of two voters is not a majority, and an observer is never a candidate"
    settle(harness)


@pytest.mark.covers("D4", "D32", "M78")
def test_a_replaced_disk_is_another_replica_until_it_is_added() -> None:
    harness = grown(3)
    first = leader(harness)
    gone = next(node for node in harness.ids if node != first.key.id)
    old = replica(harness, gone).key
    harness.crash(gone, Loss("all"))
    harness.start(gone)
    harness.run_for(10_000)
    new = replica(harness, gone).key
    assert new.uuid != old.uuid
    assert not replica(harness, gone).is_voter
    assert replica(harness, gone).high_watermark == len(harness.view.committed)
    assert change(harness, True, new) is ErrorCode.DUPLICATE_VOTER
    assert change(harness, False, old) is ErrorCode.NONE
    assert change(harness, True, new) is ErrorCode.NONE
    settle(harness)
    assert new in leader(harness).voters


@pytest.mark.covers("D13", "D14", "D20", "M85")
def test_impossible_changes_are_rejected_at_once() -> None:
    harness = grown(2)
    first = leader(harness)
    other = next(node for node in harness.ids if node != first.key.id)
    stranger = ReplicaKey(1005, "u")
    number = ask(harness, True, stranger, to=other)
    hint = answer(harness, number)
    assert isinstance(hint, AddVoterResponse)
    assert hint.error is ErrorCode.NOT_CONTROLLER
    assert hint.current_leader == CurrentLeader(leader_id=first.key.id, leader_epoch=first.epoch)
    assert change(harness, True, first.key) is ErrorCode.DUPLICATE_VOTER
    assert change(harness, True, ReplicaKey(1005, "")) is ErrorCode.INVALID_REQUEST
    assert change(harness, False, stranger) is ErrorCode.VOTER_NOT_FOUND
    assert change(harness, False, first.key._replace(uuid="u")) is ErrorCode.VOTER_NOT_FOUND
    assert change(harness, False, replica(harness, other).key) is ErrorCode.NONE
    assert change(harness, False, first.key) is ErrorCode.INVALID_REQUEST
    settle(harness)
    assert voter_ids(harness) == {(first.key.id,)}


@pytest.mark.covers("D1", "M83")
def test_static_voters_accept_a_replaced_disk_only() -> None:
    harness = started("static", static=True)
    settle(harness)
    key = replica(harness, 1002).key
    where = (Endpoint(name="CONTROLLER", host="localhost", port=9093),)
    assert change(harness, True, key, endpoints=where) is ErrorCode.INVALID_REQUEST
    assert change(harness, True, ReplicaKey(1009, "u")) is ErrorCode.INVALID_REQUEST
    assert change(harness, True, key) is ErrorCode.NONE
    settle(harness)
    assert key in leader(harness).voters


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("D3", "D7", "M84")
def test_a_snapshot_carries_the_voters() -> None:
    harness = grown(3, observers=1)
    harness.crash(0)
    for _ in range(20):
        harness.append()
    harness.run_for(1_000)
    for node in harness.ids:
        replica(harness, node).take_snapshot(replica(harness, node).high_watermark, b"x" * 3_000_000)
    harness.append()
    harness.start(0)
    settle(harness)
    found = replica(harness, 0).snapshot
    assert found is not None
    assert len(found.data) == 3_000_000
    assert voter_ids(harness) == {(1000, 1001, 1002)}
    harness.crash(0)
    harness.start(0)
    settle(harness)
    assert voter_ids(harness) == {(1000, 1001, 1002)}


@pytest.mark.covers("D5", "D35", "K14", "M84")
def test_a_state_file_of_version_0_gets_a_durable_uuid() -> None:
    harness = QuorumHarness("v0", 1, static=True)
    old = b'{"clusterId":"lab","leaderId":1000,"leaderEpoch":4,"votedId":1000,"appliedOffset":0,"data_version":0}'
    harness.disks[1000].write_file(state_file.FILE, old)
    harness.start(1000)
    key = leader(harness).key
    assert len(key.uuid) == 22
    assert leader(harness).epoch == 5
    harness.crash(1000)
    harness.start(1000)
    assert leader(harness).key == key
