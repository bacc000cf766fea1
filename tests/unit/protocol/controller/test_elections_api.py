"""ElectLeaders: limits, and the decision for any partition. Examples: `testdata/elections.txt`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.controller.elections import preferred_leaders
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.partitions import ElectionType, ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from protocol.messages.records import MetadataRecord, PartitionRecord, TopicRecord
from protocol.messages.topics import MAX_TOPICS_PER_REQUEST
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change
from tests.unit.protocol.node_helpers import bench

PREFERRED, UNCLEAN, DESIGNATION = ElectionType.PREFERRED, ElectionType.UNCLEAN, ElectionType.DESIGNATION
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING


def request_of(kind: ElectionType, *topics: TopicPartitions) -> ElectLeadersRequest:
    return ElectLeadersRequest(correlation_id=3, election_type=kind, topic_partitions=topics)


def results_of(found: ControllerResult) -> list[tuple[str, int, ErrorCode]]:
    assert isinstance(found.response, ElectLeadersResponse)
    return [(result.topic, result.partition_index, result.error) for result in found.response.partitions]


# -- requests as a whole -----------------------------------------------------------------------------------------------


@pytest.mark.covers("G27", "G31", "L13", "M86")
def test_more_topics_than_the_limit_are_refused_as_a_whole() -> None:
    controller = bench(leader=1)
    wanted = [TopicPartitions(topic="t", partitions=(0,))]
    wanted += [TopicPartitions(topic=f"u{number}", partitions=(0,)) for number in range(MAX_TOPICS_PER_REQUEST)]
    found = handle(controller.state, request_of(PREFERRED, *wanted))
    assert found.response == ElectLeadersResponse(
        correlation_id=3, error=ErrorCode.INVALID_REQUEST, message="21 topics in one request; allowed: 20"
    )
    assert not found.records
    at_limit = handle(controller.state, request_of(PREFERRED, *wanted[:-1]))
    assert at_limit.response.error is ErrorCode.NONE
    assert len(at_limit.records) == 1


def leaderless_topics(count: int) -> list[MetadataRecord]:
    """Topics `u0`, `u1`, ...: the even ones have lost their leader and keep 2 in the ELR."""
    records: list[MetadataRecord] = []
    for number in range(count):
        topic_id = f"U{number}"
        gone: dict[str, Any] = {"isr": (), "leader": NO_LEADER, "eligible_leader_replicas": (2,)}
        state = gone if number % 2 == 0 else {"isr": (0, 1, 2), "leader": 0}
        records.append(TopicRecord(name=f"u{number}", topic_id=topic_id))
        records.append(PartitionRecord(**({"topic_id": topic_id, "partition_id": 0, "replicas": (0, 1, 2)} | state)))
    return records


@pytest.mark.covers("J7", "N34")
def test_an_election_for_all_partitions_covers_those_that_need_one_without_a_limit() -> None:
    controller = bench(*leaderless_topics(50))
    request = ElectLeadersRequest(correlation_id=1, election_type=UNCLEAN, topic_partitions=None)
    found = handle(controller.state, request)
    assert results_of(found) == [(f"u{number}", 0, ErrorCode.NONE) for number in range(0, 50, 2)]
    assert len(found.records) == 25
    controller.apply(found.records)
    assert results_of(handle(controller.state, request)) == []


# -- elections without a request ---------------------------------------------------------------------------------------


def test_preferred_leaders_are_elected_where_they_may_lead_and_do_not() -> None:
    """Partition 0 of `t` is led by another replica; 1 by the preferred one, 2 by none; of 3 and 4 the preferred leader
    is out of the ISR or fenced; 5 is as partition 0."""
    states: list[dict[str, object]] = [
        {"isr": (0, 1), "leader": 0},
        {"isr": (), "leader": NO_LEADER, "eligible_leader_replicas": (1,), "replicas": (4, 1, 2)},
        {"isr": (1, 2), "leader": 1},
        {"isr": (4, 1), "leader": 1, "replicas": (4, 1, 2)},
        {"isr": (2, 0), "leader": 2},
    ]
    default = {"topic_id": "T", "replicas": (0, 1, 2)}
    others = [PartitionRecord(**(default | {"partition_id": at} | state)) for at, state in enumerate(states, 1)]
    controller = bench(*others, leader=1)
    found = preferred_leaders(controller.state, limit=9)
    assert [(record.partition_id, record.leader) for record in found] == [(0, 0), (5, 0)]
    assert preferred_leaders(controller.state, limit=1) == found[:1]
    controller.apply(found)
    assert preferred_leaders(controller.state, limit=9) == []


# -- the decision ------------------------------------------------------------------------------------------------------

SWITCHES: list[dict[str, bool]] = [
    {"elr_enabled": False},
    {"elr_enabled": True, "use_last_known_leader": True},
    {"elr_enabled": True, "track_last_known_leader": True},
]


def designated(
    state: PartitionState, leader: int, alive: tuple[int, ...], switches: dict[str, bool], min_isr: int = 2
) -> PartitionState:
    request = ChangeRequest(
        min_isr=min_isr,
        is_acceptable_leader=frozenset(alive).__contains__,
        election=Election.UNCLEAN,
        designated_leader=leader,
        **switches,
    )
    record = decide("topic", 0, state, request)
    return state if record is None else replay_change(state, record)


@pytest.mark.covers("C12")
def test_members_that_could_not_lead_become_eligible_or_last_known() -> None:
    """A partition that comes from a generation without ELR may keep a dead member in its ISR."""
    state = PartitionState((1, 2, 3), isr=(1,), elr=(2,), last_known_elr=(), leader=NO_LEADER)
    clean = designated(state, 2, (2, 3), SWITCHES[2])
    assert (clean.isr, clean.elr, clean.last_known_elr, clean.leader_recovery_state) == ((2,), (1,), (), RECOVERED)
    unclean = designated(state, 3, (2, 3), SWITCHES[2])
    assert (unclean.isr, unclean.elr, unclean.last_known_elr) == ((3,), (), (1, 2))
    assert unclean.leader_recovery_state is RECOVERING


@st.composite
def leaderless(draw: st.DrawFn) -> PartitionState:
    replicas = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True)))
    some = st.lists(st.sampled_from(replicas), unique=True)
    elr = tuple(sorted(draw(some)))
    known = tuple(sorted(set(draw(some)) - set(elr)))
    return PartitionState(replicas, (), elr, known, leader=NO_LEADER, leader_epoch=3, partition_epoch=7)


@pytest.mark.covers("F22", "F23", "F24", "C12")
@given(leaderless(), st.integers(0, 4), st.sets(st.integers(0, 4)), st.sampled_from(SWITCHES[1:]), st.integers(1, 5))
def test_a_designation_elects_the_named_leader_or_none(
    state: PartitionState, leader: int, alive: set[int], switches: dict[str, bool], min_isr: int
) -> None:
    found = designated(state, leader, tuple(alive), switches, min(min_isr, len(state.replicas)))
    if leader not in state.replicas or leader not in alive:
        assert (found.leader, found.leader_epoch) == (NO_LEADER, 3)
        return
    assert (found.leader, found.isr, found.leader_epoch) == (leader, (leader,), 4)
    assert (found.leader_recovery_state is RECOVERED) == (leader in state.elr)
    assert leader not in (*found.elr, *found.last_known_elr)


@given(st.integers(0, 2), st.sets(st.integers(0, 2)), st.sampled_from(SWITCHES))
def test_a_designation_never_deposes_a_leader(leader: int, alive: set[int], switches: dict[str, bool]) -> None:
    state = PartitionState((0, 1, 2), isr=(0, 1, 2), leader=0)
    assert designated(state, leader, (0, *alive), switches) == state
