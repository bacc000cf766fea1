"""DescribeQuorum and changes of the voters as an operator uses them, on a simulated quorum."""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import Any

import pytest

from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimStorage
from experiments.hunt.quorum.harness import CLUSTER, QuorumHarness
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.admin import AdminRequest
from protocol.messages.codec import decode, encode
from protocol.messages.quorum import (
    AddVoterRequest,
    AddVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Endpoint,
    RemoveVoterRequest,
    RemoveVoterResponse,
    ReplicaState,
)
from protocol.quorum.describe import OBSERVER_MS, describe_quorum, quorum_gauges
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.state_file import format_voters
from protocol.quorum.voters import ReplicaKey, VoterSet
from tests.sim.quorum_helpers import SOON_MS, leader, settle, started, voter_ids
from tests.unit.protocol.messages.malformed_helpers import request


def settled(harness: QuorumHarness) -> QuorumHarness:
    settle(harness)
    return harness


def response_to(harness: QuorumHarness, wanted: AdminRequest, to: NodeId | None = None) -> Any:
    """The response to a request; `to` is the leader by default."""
    harness.responses.clear()
    harness.submit(leader(harness).key.id if to is None else to, wanted)
    assert harness.run_until(lambda: bool(harness.responses), SOON_MS)
    return harness.responses[0]


def add(key: ReplicaKey, **fields: Any) -> AddVoterRequest:
    return AddVoterRequest(correlation_id=1, voter_id=key.id, voter_uuid=key.uuid, **fields)


def described(harness: QuorumHarness, replica: QuorumReplica | None = None) -> DescribeQuorumResponse:
    return describe_quorum(replica or leader(harness), harness.now_ms, DescribeQuorumRequest(correlation_id=1))


def keys(states: tuple[ReplicaState, ...]) -> list[tuple[NodeId, str, bool]]:
    return [(state.replica_id, state.replica_uuid, state.is_promotable) for state in states]


def grown(observers: int = 1) -> QuorumHarness:
    """Two voters, a controller that is an observer, and a broker."""
    harness = started("described", observers=observers)
    where = (Endpoint(name="CONTROLLER", host="localhost", port=9093),)
    key = harness.nodes[1001].replica.key
    assert response_to(harness, add(key, cluster_id=CLUSTER, endpoints=where)).error is ErrorCode.NONE
    settled(harness)
    assert harness.run_until(lambda: not lags(harness), SOON_MS)
    return harness


def lags(harness: QuorumHarness) -> dict[NodeId, int]:
    """The lag of each replica in the leader's description."""
    found = described(harness)
    return {state.replica_id: state.lag for state in (*found.voters, *found.observers) if state.lag}


@pytest.mark.covers("D23", "D29", "G19", "J16")
def test_a_leader_describes_voters_and_promotable_observers() -> None:
    harness = grown()
    first = leader(harness)
    harness.append()
    found = described(harness)
    assert (found.error, found.leader_id, found.leader_uuid) == (ErrorCode.NONE, first.key.id, first.key.uuid)
    assert (found.leader_epoch, found.now_ms) == (first.epoch, harness.now_ms)
    one, two, three = (harness.nodes[node].replica.key for node in harness.ids)
    assert keys(found.voters) == [(*one, True), (*two, True)]
    assert keys(found.observers) == [(0, "", False), (*three, True)]
    assert [len(state.endpoints) for state in found.voters] == [0, 1]
    end = first.log.end_offset
    assert found.high_watermark == end - 1
    ends = {state.replica_id: state.log_end_offset for state in (*found.voters, *found.observers)}
    assert ends == dict.fromkeys({0, *harness.ids}, end - 1) | {first.key.id: end}
    assert lags(harness) == dict.fromkeys({0, *harness.ids} - {first.key.id}, 1)
    assert all(0 <= harness.now_ms - state.last_fetch_ms <= first.config.fetch_ms for state in found.observers)
    assert harness.run_until(lambda: not lags(harness), SOON_MS)
    assert decode(encode(found)) == found
    names = [[field.name for field in fields(kind)] for kind in (DescribeQuorumRequest, AdminRequest)]
    assert names[0] == names[1], "the request has no new field"


@pytest.mark.covers("D29", "G19")
def test_an_observer_without_a_uuid_or_under_static_voters_is_not_promotable() -> None:
    harness = QuorumHarness("static", 3, static=True, observers=1)
    harness.start(*harness.disks)
    first = leader(harness)
    assert harness.run_until(lambda: len(described(harness).observers) == 1, SOON_MS)
    found = described(harness)
    assert [(state.replica_id, state.is_promotable) for state in found.observers] == [(0, False)]
    assert [state.is_promotable for state in found.voters] == [True, True, True]
    assert first.key.id in {state.replica_id for state in found.voters}


def test_a_voter_that_has_not_fetched_lags_by_the_whole_log() -> None:
    harness = QuorumHarness("silent", 3, static=True)
    harness.start(1000, 1001)
    first = leader(harness)
    [silent] = [state for state in described(harness).voters if state.replica_id == 1002]
    assert silent == ReplicaState(replica_id=1002, replica_uuid="", lag=first.log.end_offset)


@pytest.mark.covers("D13")
def test_only_the_leader_describes_the_quorum() -> None:
    harness = grown()
    first = leader(harness)
    for node in (set(harness.ids) | {0}) - {first.key.id}:
        found = described(harness, harness.nodes[node].replica)
        assert found == DescribeQuorumResponse(
            correlation_id=1,
            error=ErrorCode.NOT_CONTROLLER,
            message=f"{first.key.id} leads in epoch {first.epoch}",
            leader_id=first.key.id,
            leader_epoch=first.epoch,
        )


def test_static_voters_are_described_with_the_uuids_of_their_disks() -> None:
    harness = settled(QuorumHarness("static", 3, static=True, observers=1))
    found = described(harness)
    assert keys(found.voters) == [(*harness.nodes[node].replica.key, True) for node in harness.ids]
    assert keys(found.observers) == [(0, "", False)]


def test_an_observer_that_stopped_fetching_is_omitted_after_five_minutes() -> None:
    harness = grown()
    harness.crash(0)
    harness.append()
    left_ms = harness.now_ms
    harness.run_for(OBSERVER_MS - 10_000)
    assert keys(described(harness).observers)[0] == (0, "", False)
    harness.run_until(lambda: harness.now_ms > left_ms + OBSERVER_MS, 2 * OBSERVER_MS)
    assert [state.replica_id for state in described(harness).observers] == [1002]


@pytest.mark.covers("M78")
def test_a_replaced_disk_is_omitted_after_the_fetch_timeout() -> None:
    harness = grown()
    old = harness.nodes[1002].replica.key
    harness.crash(1002, Loss("all"))
    harness.start(1002)
    new = harness.nodes[1002].replica.key
    assert harness.run_until(lambda: (*new, True) in keys(described(harness).observers), SOON_MS)
    assert (*old, True) in keys(described(harness).observers), "both have just fetched"
    harness.run_for(leader(harness).config.fetch_ms)
    assert [state.replica_uuid for state in described(harness).observers if state.replica_id == 1002] == [new.uuid]


def test_a_removed_leader_describes_itself_as_an_observer() -> None:
    harness = grown()
    first = leader(harness)
    other = next(node for node in (1000, 1001) if node != first.key.id)
    harness.cuts = {(other, first.key.id)}
    gone = RemoveVoterRequest(correlation_id=1, voter_id=first.key.id, voter_uuid=first.key.uuid)
    harness.submit(first.key.id, gone)
    assert harness.run_until(lambda: first.key not in first.voters, SOON_MS)
    assert (*first.key, True) in keys(described(harness, first).observers)
    assert quorum_gauges(first, harness.now_ms) == (1, 3, 1, 0)
    settled(harness)


@pytest.mark.covers("D34", "I9")
def test_the_gauges_of_a_quorum() -> None:
    harness = grown()
    first = leader(harness)
    assert quorum_gauges(first, harness.now_ms) == (2, 2, 0, 0)
    follower = harness.nodes[next(node for node in harness.ids if node != first.key.id)].replica
    assert quorum_gauges(follower, harness.now_ms) == (2, 0, 0, 0)
    assert response_to(harness, add(harness.nodes[1002].replica.key)).error is ErrorCode.NONE
    assert quorum_gauges(leader(harness), harness.now_ms) == (3, 1, 0, 0)


def test_static_voters_that_the_snapshot_does_not_contain_are_ignored() -> None:
    harness = QuorumHarness("ignored", 3, static=True)
    settled(harness)
    found = leader(harness)
    assert quorum_gauges(found, harness.now_ms) == (3, 0, 0, 0)
    found.take_snapshot(found.high_watermark, b"state")
    harness.crash(found.key.id)
    harness.ids = (*harness.ids, 1003)
    harness.start(found.key.id)
    assert quorum_gauges(harness.nodes[found.key.id].replica, harness.now_ms) == (3, 0, 0, 1)


# -- changes of the voters ---------------------------------------------------------------------------------------------


@pytest.mark.covers("N18")
@pytest.mark.parametrize("kind", [AddVoterRequest, RemoveVoterRequest])
@pytest.mark.parametrize("to_leader", [True, False])
def test_a_request_for_another_cluster_id_is_rejected(
    kind: type[AddVoterRequest | RemoveVoterRequest], to_leader: bool
) -> None:
    harness = grown()
    first, key = leader(harness), ReplicaKey(1009, "u")
    to = first.key.id if to_leader else next(node for node in harness.ids if node != first.key.id)
    for cluster_id, error in (
        ("another", ErrorCode.INCONSISTENT_CLUSTER_ID),
        ("", ErrorCode.REQUEST_TIMED_OUT if kind is AddVoterRequest else ErrorCode.VOTER_NOT_FOUND),
        (CLUSTER, ErrorCode.REQUEST_TIMED_OUT if kind is AddVoterRequest else ErrorCode.VOTER_NOT_FOUND),
    ):
        wanted = kind(correlation_id=1, cluster_id=cluster_id, voter_id=key.id, voter_uuid=key.uuid, timeout_ms=100)
        found = response_to(harness, wanted, to)
        assert isinstance(found, AddVoterResponse | RemoveVoterResponse)
        asks_leader = to_leader or error is ErrorCode.INCONSISTENT_CLUSTER_ID
        assert found.error is (error if asks_leader else ErrorCode.NOT_CONTROLLER)


@pytest.mark.covers("D16")
@pytest.mark.parametrize("timeout_ms", [0, 500, 45_000])
def test_a_change_times_out(timeout_ms: int) -> None:
    harness = grown()
    harness.crash(1002)
    asked_ms = harness.now_ms
    found = response_to(harness, add(ReplicaKey(1002, "another disk"), timeout_ms=timeout_ms))
    assert found.error is ErrorCode.REQUEST_TIMED_OUT
    assert found.message == f"not done within {timeout_ms} ms: 1002:another disk does not fetch"
    assert timeout_ms <= harness.now_ms - asked_ms <= timeout_ms + 10


@pytest.mark.covers("D16")
def test_a_timed_out_change_that_was_appended_stays_in_the_log() -> None:
    harness = grown(observers=0)
    first = leader(harness)
    third = harness.nodes[1002].replica
    other = next(node for node in (1000, 1001) if node != first.key.id)
    harness.submit(first.key.id, add(third.key, timeout_ms=300))
    harness.run_until(lambda: third.key in first.voters, SOON_MS)
    harness.cuts = {(node, first.key.id) for node in (other, 1002)}
    assert harness.run_until(lambda: bool(harness.responses[1:]), SOON_MS)
    found = harness.responses[-1]
    assert isinstance(found, AddVoterResponse)
    assert found.error is ErrorCode.REQUEST_TIMED_OUT
    assert found.message == "not done within 300 ms: appended; it may still be committed"
    settled(harness)
    assert third.key in leader(harness).voters


def test_a_change_that_is_confirmed_when_it_is_appended_need_not_be_committed() -> None:
    harness = grown(observers=0)
    first, third = leader(harness), harness.nodes[1002].replica
    harness.cuts = {(first.key.id, node) for node in harness.ids}
    assert response_to(harness, add(third.key, ack_when_committed=False)).error is ErrorCode.NONE
    assert third.key in first.voters
    assert first.log.voters.last_change >= first.high_watermark
    settled(harness)
    assert voter_ids(harness) == {(1000, 1001, 1002)}


# -- controllers that join by themselves -------------------------------------------------------------------------------


@pytest.mark.covers("D11", "D32")
def test_controllers_join_one_by_one_and_again_with_another_disk() -> None:
    harness = started("joining", 4, observers=1, joins=True)
    assert harness.run_until(lambda: voter_ids(harness) == {(1000, 1001, 1002, 1003)}, SOON_MS)
    former = harness.nodes[1003].replica.key
    harness.crash(1003, Loss("all"))
    harness.start(1003)
    assert harness.run_until(lambda: harness.nodes[1003].replica.is_voter, SOON_MS)
    settled(harness)
    assert former not in leader(harness).voters
    assert harness.responses == [], "no operator has asked for anything"


def test_a_voter_that_is_removed_while_it_runs_joins_again() -> None:
    harness = settled(started("removed", 3, joins=True))
    assert harness.run_until(lambda: voter_ids(harness) == {(1000, 1001, 1002)}, SOON_MS)
    first = leader(harness).key
    gone = RemoveVoterRequest(correlation_id=1, voter_id=first.id, voter_uuid=first.uuid)
    assert response_to(harness, gone).error is ErrorCode.NONE
    assert first not in leader(harness).voters
    assert harness.run_until(lambda: first in leader(harness).voters, SOON_MS)
    settled(harness)


@pytest.mark.parametrize(("static", "last_change"), [(False, 0), (True, -1)])
def test_brokers_and_static_voters_do_not_join(static: bool, last_change: int) -> None:
    harness = settled(started("not joining", 1, static=static, observers=1, joins=True))
    harness.run_for(SOON_MS)
    assert leader(harness).log.voters.last_change == last_change


def test_removing_the_second_to_last_voter_commits_at_once() -> None:
    harness = grown(observers=0)
    first = leader(harness)
    other = next(harness.nodes[node].replica for node in (1000, 1001) if node != first.key.id)
    gone = RemoveVoterRequest(correlation_id=1, voter_id=other.key.id, voter_uuid=other.key.uuid)
    asked_ms = harness.now_ms
    assert response_to(harness, gone).error is ErrorCode.NONE
    assert harness.now_ms == asked_ms + 1, "the remaining voter commits the removal alone"


@pytest.mark.covers("D31", "J15")
def test_controllers_formatted_with_the_same_voters_need_no_addition() -> None:
    harness = QuorumHarness("listed", 3)
    first = [ReplicaKey(node, f"uuid-{node}") for node in harness.ids]
    for key in first:
        harness.disks[key.id] = SimStorage()
        format_voters(harness.disks[key.id], CLUSTER, key, VoterSet.of(first), now_ms=0)
    harness.start(*harness.disks)
    settled(harness)
    harness.append()
    settled(harness)
    assert all(node.replica.voters.keys == tuple(first) for node in harness.nodes.values())
    harness.crash(leader(harness).key.id)
    assert leader(harness).key in first


@pytest.mark.covers("D13", "D20")
@pytest.mark.parametrize("static", [False, True])
def test_every_request_gets_one_response_and_the_quorum_stays_available(static: bool) -> None:
    harness = settled(QuorumHarness("anything", 3, static=static))
    before, rng = leader(harness).voters, Random(f"anything/{static}")
    for number in range(1, 400):
        kinds: list[type[AdminRequest]] = [AddVoterRequest, RemoveVoterRequest]
        given = {"correlation_id": number, "timeout_ms": rng.choice([-1, 0, 5, 50])}
        harness.submit(rng.choice(harness.ids), request(rng.choice(kinds), rng, {}, **given))
        harness.run_for(rng.choice([0, 1, 20]))
    harness.run_for(1_000)
    assert sorted(answer.correlation_id for answer in harness.responses) == list(range(1, 400))
    assert {answer.error for answer in harness.responses} >= {ErrorCode.INVALID_REQUEST, ErrorCode.NOT_CONTROLLER}
    assert ErrorCode.NONE not in {answer.error for answer in harness.responses}
    assert leader(harness).voters == before
    settled(harness)
