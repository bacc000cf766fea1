"""Descriptions of a quorum, and changes of its voters as an operator meets them, in `hunt/quorum/lab.py`."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from experiments.engines.port import Loss
from experiments.engines.sim.disk import SimStorage
from experiments.hunt.quorum.lab import CLUSTER, QuorumLab
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.admin import AdminRequest
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
from protocol.quorum.describe import OBSERVER_MS, QuorumGauges, describe_quorum, quorum_gauges
from protocol.quorum.format import format_voters
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey, VoterSet
from tests.sim.quorum_helpers import SOON_MS, leader, settle
from tests.unit.protocol.messages.malformed_helpers import request


def settled(lab: QuorumLab) -> QuorumLab:
    settle(lab)
    return lab


def asked(lab: QuorumLab, wanted: AdminRequest, to: NodeId | None = None) -> Any:
    """The answer to a request, the leader's if nobody else is named."""
    lab.answers.clear()
    lab.ask(leader(lab).key.id if to is None else to, wanted)
    assert lab.run_until(lambda: bool(lab.answers), SOON_MS)
    return lab.answers[0]


def add(key: ReplicaKey, **fields: Any) -> AddVoterRequest:
    return AddVoterRequest(correlation_id=1, voter_id=key.id, voter_uuid=key.uuid, **fields)


def described(lab: QuorumLab, replica: QuorumReplica | None = None) -> DescribeQuorumResponse:
    return describe_quorum(replica or leader(lab), lab.now_ms, DescribeQuorumRequest(correlation_id=1))


def keys(states: tuple[ReplicaState, ...]) -> list[tuple[NodeId, str, bool]]:
    return [(state.replica_id, state.replica_uuid, state.is_promotable) for state in states]


def grown(observers: int = 1) -> QuorumLab:
    """Two voters, a controller that could be one, and a broker."""
    lab = QuorumLab("described", 3, observers=observers)
    lab.start(*lab.disks)
    where = (Endpoint(name="CONTROLLER", host="localhost", port=9093),)
    key = lab.nodes[1001].replica.key
    assert asked(lab, add(key, cluster_id=CLUSTER, endpoints=where)).error is ErrorCode.NONE
    settled(lab)
    assert lab.run_until(lambda: not lags(lab), SOON_MS)
    return lab


def lags(lab: QuorumLab) -> dict[NodeId, int]:
    """What replicas lack, by the leader's description."""
    found = described(lab)
    return {state.replica_id: state.lag for state in (*found.voters, *found.observers) if state.lag}


@pytest.mark.covers("D23", "D29", "G19", "J16")
def test_a_leader_describes_voters_and_observers_and_who_can_become_a_voter() -> None:
    lab = grown()
    first = leader(lab)
    lab.append()
    found = described(lab)
    assert (found.error, found.leader_id, found.leader_uuid) == (ErrorCode.NONE, first.key.id, first.key.uuid)
    assert (found.leader_epoch, found.now_ms) == (first.epoch, lab.now_ms)
    one, two, three = (lab.nodes[node].replica.key for node in lab.ids)
    assert keys(found.voters) == [(*one, True), (*two, True)]
    assert keys(found.observers) == [(0, "", False), (*three, True)]
    assert [len(state.endpoints) for state in found.voters] == [0, 1]
    end = first.log.end_offset
    assert found.high_watermark == end - 1
    ends = {state.replica_id: state.log_end_offset for state in (*found.voters, *found.observers)}
    assert ends == dict.fromkeys({0, *lab.ids}, end - 1) | {first.key.id: end}
    assert lags(lab) == dict.fromkeys({0, *lab.ids} - {first.key.id}, 1)
    assert all(0 <= lab.now_ms - state.last_fetch_ms <= first.config.fetch_ms for state in found.observers)
    assert lab.run_until(lambda: not lags(lab), SOON_MS)


def test_a_voter_that_has_not_fetched_lacks_everything() -> None:
    lab = QuorumLab("silent", 3, static=True)
    lab.start(1000, 1001)
    first = leader(lab)
    [silent] = [state for state in described(lab).voters if state.replica_id == 1002]
    assert silent == ReplicaState(replica_id=1002, replica_uuid="", lag=first.log.end_offset, is_promotable=True)


@pytest.mark.covers("D13")
def test_only_the_leader_describes_and_the_others_say_who_it_is() -> None:
    lab = grown()
    first = leader(lab)
    for node in (set(lab.ids) | {0}) - {first.key.id}:
        found = described(lab, lab.nodes[node].replica)
        assert found == DescribeQuorumResponse(
            correlation_id=1,
            error=ErrorCode.NOT_CONTROLLER,
            message=f"{first.key.id} leads in epoch {first.epoch}",
            leader_id=first.key.id,
            leader_epoch=first.epoch,
        )


def test_static_voters_are_described_with_the_disks_that_they_have() -> None:
    lab = settled(QuorumLab("static", 3, static=True, observers=1))
    found = described(lab)
    assert keys(found.voters) == [(*lab.nodes[node].replica.key, True) for node in lab.ids]
    assert keys(found.observers) == [(0, "", False)]


def test_an_observer_that_is_gone_is_forgotten_after_a_while() -> None:
    lab = grown()
    lab.crash(0)
    lab.append()
    left_ms = lab.now_ms
    lab.run_for(OBSERVER_MS - 10_000)
    assert keys(described(lab).observers)[0] == (0, "", False)
    lab.run_until(lambda: lab.now_ms > left_ms + OBSERVER_MS, 2 * OBSERVER_MS)
    assert [state.replica_id for state in described(lab).observers] == [1002]


@pytest.mark.covers("M78")
def test_a_disk_that_was_replaced_is_no_observer_for_long() -> None:
    lab = grown()
    old = lab.nodes[1002].replica.key
    lab.crash(1002, Loss("all"))
    lab.start(1002)
    new = lab.nodes[1002].replica.key
    assert lab.run_until(lambda: (*new, True) in keys(described(lab).observers), SOON_MS)
    assert (*old, True) in keys(described(lab).observers), "both have just fetched"
    lab.run_for(leader(lab).config.fetch_ms)
    assert [state.replica_uuid for state in described(lab).observers if state.replica_id == 1002] == [new.uuid]


def test_a_leader_that_is_removed_is_an_observer_until_it_goes() -> None:
    lab = grown()
    first = leader(lab)
    other = next(node for node in (1000, 1001) if node != first.key.id)
    lab.cuts = {(other, first.key.id)}
    gone = RemoveVoterRequest(correlation_id=1, voter_id=first.key.id, voter_uuid=first.key.uuid)
    lab.ask(first.key.id, gone)
    assert lab.run_until(lambda: first.key not in first.voters, SOON_MS)
    assert (*first.key, True) in keys(described(lab, first).observers)
    assert quorum_gauges(first, lab.now_ms) == QuorumGauges(1, 3, 1, 0)
    settled(lab)


@pytest.mark.covers("D34", "I9")
def test_the_gauges_of_a_quorum() -> None:
    lab = grown()
    first = leader(lab)
    assert quorum_gauges(first, lab.now_ms) == QuorumGauges(2, 2, 0, 0)
    follower = lab.nodes[next(node for node in lab.ids if node != first.key.id)].replica
    assert quorum_gauges(follower, lab.now_ms) == QuorumGauges(2, 0, 0, 0)
    assert asked(lab, add(lab.nodes[1002].replica.key)).error is ErrorCode.NONE
    assert quorum_gauges(leader(lab), lab.now_ms) == QuorumGauges(3, 1, 0, 0)


def test_a_static_voter_that_is_configured_after_the_snapshot_has_said_who_votes_is_ignored() -> None:
    lab = QuorumLab("ignored", 3, static=True)
    settled(lab)
    found = leader(lab)
    assert quorum_gauges(found, lab.now_ms) == QuorumGauges(3, 0, 0, 0)
    found.take_snapshot(found.high_watermark, b"state")
    lab.crash(found.key.id)
    lab.ids = (*lab.ids, 1003)
    lab.start(found.key.id)
    assert quorum_gauges(lab.nodes[found.key.id].replica, lab.now_ms) == QuorumGauges(3, 0, 0, 1)


# -- changes of the voters ---------------------------------------------------------------------------------------------


@pytest.mark.covers("N18")
@pytest.mark.parametrize("kind", [AddVoterRequest, RemoveVoterRequest])
@pytest.mark.parametrize("to_leader", [True, False])
def test_a_request_for_another_cluster_is_refused_and_one_for_any_is_not(
    kind: type[AddVoterRequest | RemoveVoterRequest], to_leader: bool
) -> None:
    lab = grown()
    first, key = leader(lab), ReplicaKey(1009, "u")
    to = first.key.id if to_leader else next(node for node in lab.ids if node != first.key.id)
    for cluster_id, error in (
        ("another", ErrorCode.INCONSISTENT_CLUSTER_ID),
        ("", ErrorCode.REQUEST_TIMED_OUT if kind is AddVoterRequest else ErrorCode.VOTER_NOT_FOUND),
        (CLUSTER, ErrorCode.REQUEST_TIMED_OUT if kind is AddVoterRequest else ErrorCode.VOTER_NOT_FOUND),
    ):
        wanted = kind(correlation_id=1, cluster_id=cluster_id, voter_id=key.id, voter_uuid=key.uuid, timeout_ms=100)
        found = asked(lab, wanted, to)
        assert isinstance(found, AddVoterResponse | RemoveVoterResponse)
        asks_leader = to_leader or error is ErrorCode.INCONSISTENT_CLUSTER_ID
        assert found.error is (error if asks_leader else ErrorCode.NOT_CONTROLLER)


@pytest.mark.covers("D16")
@pytest.mark.parametrize("timeout_ms", [0, 500, 45_000])
def test_a_change_is_given_up_after_the_time_that_it_has(timeout_ms: int) -> None:
    lab = grown()
    lab.crash(1002)
    asked_ms = lab.now_ms
    found = asked(lab, add(ReplicaKey(1002, "another disk"), timeout_ms=timeout_ms))
    assert found.error is ErrorCode.REQUEST_TIMED_OUT
    assert found.message == f"not done within {timeout_ms} ms: 1002:another disk does not fetch"
    assert timeout_ms <= lab.now_ms - asked_ms <= timeout_ms + 10


@pytest.mark.covers("D16")
def test_a_change_that_is_appended_and_not_committed_in_time_is_told_as_that_and_stays() -> None:
    lab = grown(observers=0)
    first = leader(lab)
    third = lab.nodes[1002].replica
    other = next(node for node in (1000, 1001) if node != first.key.id)
    lab.ask(first.key.id, add(third.key, timeout_ms=300))
    lab.run_until(lambda: third.key in first.voters, SOON_MS)
    lab.cuts = {(node, first.key.id) for node in (other, 1002)}
    assert lab.run_until(lambda: bool(lab.answers[1:]), SOON_MS)
    found = lab.answers[-1]
    assert isinstance(found, AddVoterResponse)
    assert found.error is ErrorCode.REQUEST_TIMED_OUT
    assert found.message == "not done within 300 ms: appended; it may still be committed"
    settled(lab)
    assert third.key in leader(lab).voters


def test_the_last_but_one_voter_is_removed_in_one_input() -> None:
    lab = grown(observers=0)
    first = leader(lab)
    other = next(lab.nodes[node].replica for node in (1000, 1001) if node != first.key.id)
    gone = RemoveVoterRequest(correlation_id=1, voter_id=other.key.id, voter_uuid=other.key.uuid)
    asked_ms = lab.now_ms
    assert asked(lab, gone).error is ErrorCode.NONE
    assert lab.now_ms == asked_ms + 1, "the one voter that is left commits it alone"


@pytest.mark.covers("D31", "J15")
def test_controllers_that_are_formatted_with_one_list_need_nobody_to_add_them() -> None:
    lab = QuorumLab("listed", 3)
    first = [ReplicaKey(node, f"uuid-{node}") for node in lab.ids]
    for key in first:
        lab.disks[key.id] = SimStorage()
        format_voters(lab.disks[key.id], CLUSTER, key, VoterSet.of(first))
    lab.start(*lab.disks)
    settled(lab)
    lab.append()
    settled(lab)
    assert all(node.replica.voters.keys == tuple(first) for node in lab.nodes.values())
    lab.crash(leader(lab).key.id)
    assert leader(lab).key in first


@pytest.mark.covers("D13", "D20")
@pytest.mark.parametrize("static", [False, True])
def test_every_request_is_answered_once_and_the_quorum_goes_on(static: bool) -> None:
    lab = settled(QuorumLab("anything", 3, static=static))
    before, rng = leader(lab).voters, Random(f"anything/{static}")
    for number in range(1, 400):
        kinds: list[type[AdminRequest]] = [AddVoterRequest, RemoveVoterRequest]
        given = {"correlation_id": number, "timeout_ms": rng.choice([-1, 0, 5, 50])}
        lab.ask(rng.choice(lab.ids), request(rng.choice(kinds), rng, {}, **given))
        lab.run_for(rng.choice([0, 1, 20]))
    lab.run_for(1_000)
    assert sorted(answer.correlation_id for answer in lab.answers) == list(range(1, 400))
    assert {answer.error for answer in lab.answers} >= {ErrorCode.INVALID_REQUEST, ErrorCode.NOT_CONTROLLER}
    assert ErrorCode.NONE not in {answer.error for answer in lab.answers}
    assert leader(lab).voters == before
    settled(lab)
