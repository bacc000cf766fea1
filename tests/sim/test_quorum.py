"""The replicas of the metadata log among themselves (`experiments/hunt/quorum`): elections, replication, snapshots,
changes of the voters, and all of it under faults. Invariants are checked after every event of every test here.
"""

from __future__ import annotations

import pytest

from experiments.engines.port import Loss
from experiments.hunt.quorum.lab import CLUSTER, QuorumLab
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
    RemoveVoterRequest,
    Voter,
    VoteRequest,
    VoteResponse,
)
from protocol.quorum import state_file
from protocol.quorum.election import Role
from protocol.quorum.voters import ReplicaKey
from tests.sim.quorum_helpers import SOON_MS, answer, ask, change, leader, replica, settle, voter_ids


def grown(size: int, observers: int = 0) -> QuorumLab:
    """A quorum that has grown from one voter to `size` under writes."""
    lab = QuorumLab("grown", size, observers=observers)
    lab.start(*lab.disks)
    for node in lab.ids[1:]:
        lab.append()
        assert change(lab, True, replica(lab, node).key) is ErrorCode.NONE
        lab.append()
    settle(lab)
    return lab


# -- elections ---------------------------------------------------------------------------------------------------------


def test_static_voters_elect_one_leader_and_follow_it() -> None:
    lab = QuorumLab("static", 3, static=True)
    lab.start(*lab.disks)
    settle(lab)
    assert sorted(node.replica.role for node in lab.nodes.values()) == [Role.FOLLOWER, Role.FOLLOWER, Role.LEADER]
    lab.append()
    settle(lab)
    assert len(lab.committed) == 2


def test_another_leads_soon_after_a_leader_died_and_has_all_that_was_committed() -> None:
    lab = grown(3)
    before, committed = leader(lab), len(lab.committed)
    lab.crash(before.key.id)
    died_ms = lab.now_ms
    after = leader(lab)
    assert lab.now_ms - died_ms <= 2 * after.config.fetch_ms + after.config.election_ms
    assert after.epoch > before.epoch
    lab.append()
    lab.run_for(100)
    assert after.high_watermark == committed + 2  # the leader's own first record, and one more
    settle(lab)


def test_a_leader_that_shuts_down_is_replaced_at_once() -> None:
    lab = grown(3)
    before = leader(lab)
    lab.shut_down(before.key.id)
    asked_ms = lab.now_ms
    assert leader(lab).key != before.key
    assert lab.now_ms - asked_ms < 100


def test_a_voter_that_was_cut_off_does_not_depose_the_leader_that_all_others_follow() -> None:
    lab = grown(3)
    first = leader(lab)
    [lonely, _] = [node for node in lab.ids if node != first.key.id]
    lab.cut(lonely)
    lab.run_for(60_000)
    assert replica(lab, lonely).role is Role.PROSPECTIVE
    assert replica(lab, lonely).epoch == first.epoch
    settle(lab)
    assert leader(lab) is first


def test_a_leader_without_a_majority_resigns_and_commits_nothing_more() -> None:
    lab = grown(3)
    first, committed = leader(lab), len(lab.committed)
    lab.cut(first.key.id)
    lab.append()
    lab.run_for(20_000)
    assert not first.is_leader
    second = leader(lab)
    assert second.epoch > first.epoch
    settle(lab)
    assert len(lab.committed) == committed + 1  # the new leader's own record, and not what was appended alone


@pytest.mark.covers("D26", "D27", "G12", "G17", "N17")
def test_a_vote_outlives_the_process_that_gave_it() -> None:
    lab = QuorumLab("votes", 3, static=True)
    lab.start(1000)
    me = replica(lab, 1000)
    for candidate, granted in ((1001, True), (1002, False), (1001, True)):
        request = VoteRequest(
            correlation_id=candidate,
            cluster_id=CLUSTER,
            candidate_id=candidate,
            candidate_uuid=f"uuid-{candidate}",
            candidate_epoch=7,
            voter_id=1000,
            voter_uuid=me.key.uuid,
            last_offset_epoch=-1,
            last_offset=0,
        )
        lab.answers.clear()
        lab.ask(1000, request)
        found = answer(lab, candidate)
        assert isinstance(found, VoteResponse)
        assert (found.vote_granted, found.leader_epoch) == (granted, 7)
        raw = lab.disks[1000].read_file(state_file.FILE)
        assert raw is not None
        assert state_file.decode(raw).voted == ReplicaKey(1001, "uuid-1001"), "the disk too that it is for"
        lab.crash(1000)
        lab.start(1000)
        assert replica(lab, 1000).key == me.key


@pytest.mark.covers("D24", "G17", "M78")
def test_a_vote_that_is_meant_for_another_disk_is_not_given() -> None:
    lab = QuorumLab("keys", 3, static=True)
    lab.start(1000)
    request = VoteRequest(
        correlation_id=1,
        cluster_id=CLUSTER,
        candidate_id=1001,
        candidate_uuid="a",
        candidate_epoch=7,
        voter_id=1000,
        voter_uuid="the disk before",
        last_offset_epoch=-1,
        last_offset=0,
    )
    lab.ask(1000, request)
    found = answer(lab, 1)
    assert found.error is ErrorCode.INVALID_VOTER_KEY
    assert replica(lab, 1000).epoch == 0


@pytest.mark.covers("D28", "G18")
@pytest.mark.parametrize(("uuid", "error"), [("the disk before", ErrorCode.INVALID_VOTER_KEY), ("", ErrorCode.NONE)])
def test_a_leader_makes_itself_known_to_the_disk_that_it_means(uuid: str, error: ErrorCode) -> None:
    lab = QuorumLab("begin", 3, static=True)
    lab.start(1000)
    request = BeginQuorumEpochRequest(
        correlation_id=1, cluster_id=CLUSTER, voter_id=1000, voter_uuid=uuid, leader_id=1001, leader_epoch=7
    )
    lab.ask(1000, request)
    assert answer(lab, 1).error is error
    assert replica(lab, 1000).leader == (1001 if error is ErrorCode.NONE else -1)


@pytest.mark.covers("D25", "M81")
def test_a_voter_that_has_not_heard_of_it_votes_so_that_an_election_can_end() -> None:
    lab = QuorumLab("unaware", 3)
    lab.start(*lab.disks)
    assert change(lab, True, replica(lab, 1001).key) is ErrorCode.NONE
    settle(lab)
    old = leader(lab)
    other = next(replica(lab, node) for node in (1000, 1001) if node != old.key.id)
    unaware = replica(lab, 1002)
    lab.cuts = {(old.key.id, unaware.key.id)}
    assert change(lab, True, unaware.key) is ErrorCode.NONE
    lab.crash(old.key.id)
    lab.cuts.clear()
    assert not unaware.is_voter
    assert leader(lab) is other, "one of three voters, with the vote of who does not know that it is one"
    assert lab.run_until(lambda: unaware.is_voter, SOON_MS)


@pytest.mark.covers("D10")
def test_an_epoch_begins_with_its_leader_and_who_voted() -> None:
    lab = grown(3)
    lab.crash(leader(lab).key.id)
    second = leader(lab)
    assert second.leader_state is not None
    [batch] = second.log.read(second.leader_state.start_offset, max_bytes=1)
    [first] = unpack_records(batch.payload)
    assert first == LeaderChangeRecord(
        leader_id=second.key.id,
        leader_uuid=second.key.uuid,
        voters=tuple(Voter(voter_id=key.id, voter_uuid=key.uuid) for key in second.voters.keys),
    )


def test_a_node_of_another_cluster_is_refused_and_its_disk_too() -> None:
    lab = grown(1)
    request = AddVoterRequest(correlation_id=1, cluster_id="another", voter_id=1001, voter_uuid="u")
    lab.ask(1000, request)
    assert answer(lab, 1).error is ErrorCode.INCONSISTENT_CLUSTER_ID
    lab.crash(1000)
    raw = lab.disks[1000].read_file(state_file.FILE)
    assert raw is not None
    lab.disks[1000].write_file(state_file.FILE, raw.replace(CLUSTER.encode(), b"another"))
    with pytest.raises(ForeignDirectoryError, match="found 'another'; allowed: 'lab'"):
        lab.start(1000)


# -- changes of the voters ---------------------------------------------------------------------------------------------


@pytest.mark.covers("D3", "D6", "M77")
def test_one_voter_becomes_three_while_writes_go_on() -> None:
    lab = grown(3, observers=1)
    assert voter_ids(lab) == {(1000, 1001, 1002)}
    assert len(lab.committed) == 1 + 1 + 2 + 4  # the format, the leader, two voters, four writes


@pytest.mark.covers("D12", "D16", "M79")
def test_a_replica_that_lags_is_added_when_it_has_caught_up_or_not_at_all() -> None:
    lab = QuorumLab("lagging", 3)
    lab.start(*lab.disks)
    key = replica(lab, 1001).key
    leader(lab)
    lab.cut(1001)
    number = ask(lab, True, key)
    with pytest.raises(AssertionError):
        answer(lab, number, VOTER_CHANGE_TIMEOUT_MS - 1_000)
    assert answer(lab, number).error is ErrorCode.REQUEST_TIMED_OUT
    number = ask(lab, True, key)
    lab.run_for(5_000)
    lab.heal()
    assert answer(lab, number).error is ErrorCode.NONE
    settle(lab)
    assert voter_ids(lab) == {(1000, 1001)}


@pytest.mark.covers("D11", "M79")
def test_a_change_waits_for_the_one_before_it() -> None:
    lab = QuorumLab("two", 3)
    lab.start(*lab.disks)
    leader(lab)
    numbers = [ask(lab, True, replica(lab, node).key) for node in (1001, 1002)]
    assert len(set(numbers)) == 1, "both are asked for before either is looked at"
    lab.run_for(5_000)
    assert [response.error for response in lab.answers] == [ErrorCode.NONE, ErrorCode.NONE]
    settle(lab)
    assert voter_ids(lab) == {(1000, 1001, 1002)}


@pytest.mark.parametrize("arrives", [False, True])
def test_an_addition_whose_leader_dies_is_done_everywhere_or_nowhere(arrives: bool) -> None:
    lab = grown(4)
    first = leader(lab)
    added, second, third = (replica(lab, node) for node in lab.ids if node != first.key.id)
    assert change(lab, False, added.key) is ErrorCode.NONE
    settle(lab)
    number = ask(lab, True, added.key)
    if not arrives:
        lab.cuts = {(first.key.id, node.key.id) for node in (second, third)}
    lab.run_until(lambda: added.key in (second if arrives else first).voters, SOON_MS)
    assert not [response for response in lab.answers if response.correlation_id == number]
    lab.crash(first.key.id)
    lab.cuts.clear()
    assert leader(lab) in (second, third)
    settle(lab)
    assert voter_ids(lab) == {lab.ids if arrives else tuple(n for n in lab.ids if n != added.key.id)}


@pytest.mark.covers("D17", "D18", "M82")
def test_a_leader_that_is_removed_commits_that_with_the_others_and_goes() -> None:
    lab = grown(3)
    first = leader(lab)
    assert change(lab, False, first.key) is ErrorCode.NONE
    assert lab.run_until(lambda: not first.is_leader, 1_000)
    second = leader(lab)
    assert second.key.id != first.key.id
    settle(lab)
    assert first.key not in second.voters
    assert first.role is Role.FOLLOWER


def test_a_leader_that_is_removed_makes_no_change_that_waited_behind_that() -> None:
    lab = grown(3)
    first = leader(lab)
    other = next(node for node in lab.ids if node != first.key.id)
    numbers = [ask(lab, False, first.key)]
    numbers.append(numbers[0] + 1)
    lab.ask(
        first.key.id,
        RemoveVoterRequest(
            correlation_id=numbers[1], cluster_id=CLUSTER, voter_id=other, voter_uuid=replica(lab, other).key.uuid
        ),
    )
    assert [answer(lab, number).error for number in numbers] == [ErrorCode.NONE, ErrorCode.NOT_CONTROLLER]
    settle(lab)
    assert voter_ids(lab) == {tuple(node for node in lab.ids if node != first.key.id)}


@pytest.mark.covers("D19", "M82")
def test_a_follower_that_is_removed_goes_on_as_an_observer() -> None:
    lab = grown(3)
    first = leader(lab)
    gone = next(node for node in lab.ids if node != first.key.id)
    assert change(lab, False, replica(lab, gone).key) is ErrorCode.NONE
    lab.append()
    settle(lab)
    assert not replica(lab, gone).is_voter
    lab.crash(first.key.id)
    lab.run_for(30_000)
    assert lab.leader is None, "one of two voters is no majority, and an observer does not stand"
    settle(lab)


@pytest.mark.covers("D4", "D32", "M78")
def test_a_replaced_disk_is_another_replica_until_it_is_added() -> None:
    lab = grown(3)
    first = leader(lab)
    gone = next(node for node in lab.ids if node != first.key.id)
    old = replica(lab, gone).key
    lab.crash(gone, Loss("all"))
    lab.start(gone)
    lab.run_for(10_000)
    new = replica(lab, gone).key
    assert new.uuid != old.uuid
    assert not replica(lab, gone).is_voter
    assert replica(lab, gone).high_watermark == len(lab.committed)
    assert change(lab, True, new) is ErrorCode.DUPLICATE_VOTER
    assert change(lab, False, old) is ErrorCode.NONE
    assert change(lab, True, new) is ErrorCode.NONE
    settle(lab)
    assert new in leader(lab).voters


@pytest.mark.covers("D13", "D14", "D20", "M85")
def test_what_cannot_be_is_refused_at_once() -> None:
    lab = grown(2)
    first = leader(lab)
    other = next(node for node in lab.ids if node != first.key.id)
    stranger = ReplicaKey(1005, "u")
    number = ask(lab, True, stranger, to=other)
    hint = answer(lab, number)
    assert isinstance(hint, AddVoterResponse)
    assert hint.error is ErrorCode.NOT_CONTROLLER
    assert hint.current_leader == CurrentLeader(leader_id=first.key.id, leader_epoch=first.epoch)
    assert change(lab, True, first.key) is ErrorCode.DUPLICATE_VOTER
    assert change(lab, True, ReplicaKey(1005, "")) is ErrorCode.INVALID_REQUEST
    assert change(lab, False, stranger) is ErrorCode.VOTER_NOT_FOUND
    assert change(lab, False, first.key._replace(uuid="u")) is ErrorCode.VOTER_NOT_FOUND
    assert change(lab, False, replica(lab, other).key) is ErrorCode.NONE
    assert change(lab, False, first.key) is ErrorCode.INVALID_REQUEST
    settle(lab)
    assert voter_ids(lab) == {(first.key.id,)}


@pytest.mark.covers("D1", "M83")
def test_static_voters_take_another_disk_and_nothing_else() -> None:
    lab = QuorumLab("static", 3, static=True)
    lab.start(*lab.disks)
    settle(lab)
    key = replica(lab, 1002).key
    where = (Endpoint(name="CONTROLLER", host="localhost", port=9093),)
    assert change(lab, True, key, endpoints=where) is ErrorCode.INVALID_REQUEST
    assert change(lab, True, ReplicaKey(1009, "u")) is ErrorCode.INVALID_REQUEST
    assert change(lab, True, key) is ErrorCode.NONE
    settle(lab)
    assert key in leader(lab).voters


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.covers("D3", "D7", "M84")
def test_who_catches_up_from_a_snapshot_has_the_voters_too() -> None:
    lab = grown(3, observers=1)
    lab.crash(0)
    for _ in range(20):
        lab.append()
    lab.run_for(1_000)
    for node in lab.ids:
        replica(lab, node).take_snapshot(replica(lab, node).high_watermark, b"x" * 3_000_000)
    lab.append()
    lab.start(0)
    settle(lab)
    found = replica(lab, 0).snapshot
    assert found is not None
    assert len(found.data) == 3_000_000
    assert voter_ids(lab) == {(1000, 1001, 1002)}
    lab.crash(0)
    lab.start(0)
    settle(lab)
    assert voter_ids(lab) == {(1000, 1001, 1002)}


@pytest.mark.covers("D5", "D35", "M84")
def test_a_state_file_of_the_first_version_gets_a_uuid_that_stays() -> None:
    lab = QuorumLab("v0", 1, static=True)
    old = b'{"clusterId":"lab","leaderId":1000,"leaderEpoch":4,"votedId":1000,"appliedOffset":0,"data_version":0}'
    lab.disks[1000].write_file(state_file.FILE, old)
    lab.start(1000)
    key = leader(lab).key
    assert len(key.uuid) == 32
    assert leader(lab).epoch == 5
    lab.crash(1000)
    lab.start(1000)
    assert leader(lab).key == key
