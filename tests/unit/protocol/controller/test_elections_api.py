"""ElectLeaders: the leader that each type elects, errors and their order, limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.config import ClusterConfig, Generation
from protocol.controller.administration import handle
from protocol.controller.awaited_elections import Awaited
from protocol.controller.controller_result import ControllerResult
from protocol.controller.partition_change import ChangeRequest, Election, decide
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, TopicIdPartition
from protocol.messages.acls import AclEntry, AclOperation, AclResourceType
from protocol.messages.partitions import ElectionType, ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from protocol.messages.records import (
    AccessControlEntryRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from protocol.messages.recovery import RecoveryMode
from protocol.messages.topics import MAX_TOPICS_PER_REQUEST
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change
from tests.unit.protocol.node_helpers import ControllerBench, config_of, fencing, registrations, topic_records

PREFERRED, UNCLEAN, DESIGNATION = ElectionType.PREFERRED, ElectionType.UNCLEAN, ElectionType.DESIGNATION
LONGEST_LOG = [ElectionType.LONGEST_LOG_BALANCED, ElectionType.LONGEST_LOG_PROACTIVE]
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING
LEADERLESS: dict[str, Any] = {"isr": (), "leader": NO_LEADER}
"""A partition that has lost everyone."""


def bench(
    *records: MetadataRecord, generation: Generation = Generation.KIP_966, **partition: object
) -> ControllerBench:
    """Brokers 0..3 are active, 4 is fenced; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    base = [*registrations((0, 1, 2, 3, 4), fenced=(4,)), *topic_records(2, **partition)]
    return ControllerBench(*base, *records, config=config_of(generation))


def elect(kind: ElectionType, topic: str = "t", partition: int = 0, desired: int | None = None) -> ElectLeadersRequest:
    return admin_requests.elect_leader(topic, partition, kind, desired)


def request_of(kind: ElectionType, *topics: TopicPartitions) -> ElectLeadersRequest:
    return ElectLeadersRequest(correlation_id=3, election_type=kind, topic_partitions=topics)


def error_of(found: ControllerResult) -> ErrorCode:
    return found.response.failure()[0]


def results_of(found: ControllerResult) -> list[tuple[str, int, ErrorCode]]:
    assert isinstance(found.response, ElectLeadersResponse)
    return [(result.topic, result.partition_index, result.error) for result in found.response.partitions]


# -- preferred and unclean ---------------------------------------------------------------------------------------------


@pytest.mark.covers("J2", "G33")
def test_preferred_election_moves_the_leadership_back() -> None:
    controller = bench(leader=1)
    [record] = controller.apply(handle(controller.state, elect(PREFERRED)).records)
    assert isinstance(record, PartitionChangeRecord)
    assert (record.leader, record.isr, controller.partition().leader_epoch) == (0, None, 1)


@pytest.mark.covers("J2", "G33")
@pytest.mark.parametrize(
    ("records", "partition"),
    [((), {"leader": 1, "isr": (1, 2)}), ((fencing(0, 0, True),), {"leader": 1})],
    ids=["not in sync", "fenced"],
)
def test_preferred_election_without_the_preferred_replica(
    records: tuple[MetadataRecord, ...], partition: dict[str, object]
) -> None:
    found = handle(bench(*records, **partition).state, elect(PREFERRED))
    assert (error_of(found), list(found.records)) == (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, [])


@pytest.mark.covers("J3", "G33", "C12")
def test_unclean_election_takes_any_active_replica_of_a_leaderless_partition() -> None:
    controller = bench(fencing(0, 0, True), **LEADERLESS, last_known_elr=(0,))
    controller.apply(handle(controller.state, elect(UNCLEAN)).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_recovery_state) == (1, (1,), RECOVERING)
    refused = bench(*(fencing(broker, broker, True) for broker in (0, 1, 2)), **LEADERLESS)
    assert error_of(handle(refused.state, elect(UNCLEAN))) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


@pytest.mark.covers("M74", "F23", "J2", "J4")
@pytest.mark.parametrize("kind", ElectionType)
def test_a_partition_with_a_leader_needs_no_election(kind: ElectionType) -> None:
    found = handle(bench().state, elect(kind, desired=1 if kind is DESIGNATION else None))
    assert (error_of(found), list(found.records)) == (ErrorCode.ELECTION_NOT_NEEDED, [])


@pytest.mark.covers("K1", "K8")
@pytest.mark.parametrize("generation", [Generation.KIP_497, Generation.KIP_966_ELR])
def test_the_first_phase_serves_every_election_but_those_of_the_longest_log(generation: Generation) -> None:
    """Without unclean recovery, which is the second phase."""
    leaderless = {"isr": (2,), "leader": NO_LEADER}
    state = bench(fencing(2, 2, True), generation=generation, **leaderless).state
    served = [handle(state, elect(UNCLEAN)), handle(state, elect(DESIGNATION, desired=1))]
    assert [(error_of(found), len(found.records)) for found in served] == [(ErrorCode.NONE, 1)] * 2
    for kind in LONGEST_LOG:
        refused = handle(state, elect(kind))
        assert (error_of(refused), list(refused.records)) == (ErrorCode.UNSUPPORTED_VERSION, [])
    preferred = handle(bench(generation=generation, leader=1).state, elect(PREFERRED))
    assert (error_of(preferred), len(preferred.records)) == (ErrorCode.NONE, 1)


@pytest.mark.covers("K1", "K6")
@pytest.mark.parametrize("unfenced", [(0, 1, 2), (1, 2), (2, 1), (2,), ()])
def test_an_unclean_election_of_the_first_phase_elects_the_first_replica_that_is_unfenced(
    unfenced: tuple[int, ...],
) -> None:
    fenced = [fencing(broker, broker, True) for broker in range(3) if broker not in unfenced]
    controller = bench(*fenced, generation=Generation.KIP_966_ELR, **LEADERLESS)
    found = handle(controller.state, elect(UNCLEAN))
    controller.apply(found.records)
    state = controller.partition()
    if unfenced:
        assert (state.leader, state.isr, state.leader_recovery_state) == (min(unfenced), (min(unfenced),), RECOVERING)
    else:
        assert (error_of(found), state.leader) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, NO_LEADER)


# -- designation -------------------------------------------------------------------------------------------------------


@pytest.mark.covers("F22", "F17", "C12", "N28", "J4", "G27")
def test_a_designated_leader_that_lacks_records_is_an_unclean_choice() -> None:
    controller = bench(**LEADERLESS, eligible_leader_replicas=(0,), last_known_elr=(1,), last_known_leader=1)
    controller.apply(handle(controller.state, elect(DESIGNATION, desired=2)).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())
    assert (found.leader_recovery_state, found.leader_epoch, found.last_known_leader) == (RECOVERING, 1, NO_LEADER)
    assert found.last_known_elr == (0, 1), "who may hold more than the leader, until min ISR is reached"


def test_a_designated_leader_leaves_the_last_known_elr() -> None:
    controller = bench(**LEADERLESS, last_known_elr=(1, 2))
    controller.apply(handle(controller.state, elect(DESIGNATION, desired=2)).records)
    assert controller.partition().last_known_elr == (1,)


@pytest.mark.covers("C12", "E30")
def test_a_designated_member_of_the_elr_is_elected_cleanly() -> None:
    controller = bench(fencing(0, 0, True), **LEADERLESS, eligible_leader_replicas=(0, 2), last_known_elr=(1,))
    controller.apply(handle(controller.state, elect(DESIGNATION, desired=2)).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (2, (2,), (0,), (1,))
    assert found.leader_recovery_state is RECOVERED


@pytest.mark.covers("F22", "C12")
@pytest.mark.parametrize(
    ("generation", "partition"),
    [
        (Generation.KIP_497, {"isr": (0,), "leader": NO_LEADER}),
        (Generation.KIP_966_ELR, LEADERLESS | {"last_known_elr": (0,)}),
    ],
)
def test_a_designation_in_generations_without_a_last_known_elr(
    generation: Generation, partition: dict[str, Any]
) -> None:
    controller = bench(fencing(0, 0, True), generation=generation, **partition)
    controller.apply(handle(controller.state, elect(DESIGNATION, desired=2)).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.elr, found.last_known_elr) == (2, (2,), (), ())
    assert found.leader_recovery_state is RECOVERING


@pytest.mark.covers("F24")
@pytest.mark.parametrize("record", [fencing(2, 2, True), None], ids=["fenced", "shutting down"])
def test_a_designated_leader_must_be_active(record: MetadataRecord | None) -> None:
    shutting_down = replace(fencing(2, 2, False), in_controlled_shutdown=True)
    controller = bench(record or shutting_down, **LEADERLESS, eligible_leader_replicas=(0, 2))
    found = handle(controller.state, elect(DESIGNATION, desired=2))
    assert (error_of(found), list(found.records)) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, [])


@pytest.mark.covers("F24")
def test_a_change_without_a_leader_is_not_an_election() -> None:
    """An ELR that an older metadata version left goes with the next change; that is not what was asked for."""
    left = {"isr": (0,), "leader": NO_LEADER, "eligible_leader_replicas": (2,)}
    dead = [fencing(broker, broker, True) for broker in (0, 2)]
    found = handle(bench(*dead, generation=Generation.KIP_497, **left).state, elect(DESIGNATION, desired=2))
    assert (error_of(found), list(found.records)) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, [])


@pytest.mark.covers("G33")
@pytest.mark.parametrize("partition", [LEADERLESS, {}], ids=["leaderless", "led"])
@pytest.mark.parametrize(
    ("kind", "desired"),
    [
        (DESIGNATION, ()),
        (DESIGNATION, (1, 2)),
        (DESIGNATION, (3,)),
        (DESIGNATION, (-1,)),
        (PREFERRED, (1,)),
        (UNCLEAN, (1,)),
    ],
    ids=["none", "too many", "not a replica", "unknown broker", "preferred", "unclean"],
)
def test_invalid_desired_leaders_are_refused(
    kind: ElectionType, desired: tuple[int, ...], partition: dict[str, Any]
) -> None:
    wanted = TopicPartitions(topic="t", partitions=(0,), desired_leaders=desired)
    found = handle(bench(**partition).state, request_of(kind, wanted))
    assert (error_of(found), list(found.records)) == (ErrorCode.INVALID_REQUEST, [])
    assert found.response.failure()[1]


@pytest.mark.covers("G27")
def test_desired_leaders_go_index_by_index_with_the_partitions() -> None:
    more = [
        PartitionRecord(topic_id="T", partition_id=index, replicas=(0, 1, 2), isr=(), leader=NO_LEADER)
        for index in (1, 2)
    ]
    controller = bench(*more, **LEADERLESS)
    wanted = TopicPartitions(topic="t", partitions=(2, 0, 1), desired_leaders=(0, 3, 2))
    found = handle(controller.state, request_of(DESIGNATION, wanted))
    assert results_of(found) == [
        ("t", 2, ErrorCode.NONE),
        ("t", 0, ErrorCode.INVALID_REQUEST),
        ("t", 1, ErrorCode.NONE),
    ]
    assert [(record.partition_id, record.leader) for record in found.records] == [(2, 0), (1, 2)]  # type: ignore[attr-defined]


# -- longest log -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LONGEST_LOG)
def test_longest_log_elections_need_unclean_recovery(kind: ElectionType) -> None:
    found = handle(bench(generation=Generation.KIP_966_ELR, **LEADERLESS, last_known_elr=(0, 1)).state, elect(kind))
    assert (error_of(found), list(found.records)) == (ErrorCode.UNSUPPORTED_VERSION, [])
    assert kind.name in found.response.failure()[1]


@pytest.mark.covers("F22", "J4")
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        (ElectionType.LONGEST_LOG_BALANCED, RecoveryMode.BALANCED),
        (ElectionType.LONGEST_LOG_PROACTIVE, RecoveryMode.PROACTIVE),
    ],
)
def test_the_response_of_a_longest_log_election_is_awaited(kind: ElectionType, mode: RecoveryMode) -> None:
    found = handle(bench(**LEADERLESS, last_known_elr=(0, 1)).state, elect(kind))
    assert (list(found.records), found.awaited) == ([], Awaited(mode, 60_000, {TopicIdPartition("T", 0): 0}))


@pytest.mark.covers("F22", "F24", "F29")
@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (ElectionType.LONGEST_LOG_BALANCED, {"last_known_elr": ()}),
        (ElectionType.LONGEST_LOG_BALANCED, {"last_known_elr": (0, 1)}),
        (ElectionType.LONGEST_LOG_BALANCED, {"eligible_leader_replicas": (1,), "last_known_elr": (2,)}),
        (ElectionType.LONGEST_LOG_PROACTIVE, {"last_known_elr": (0,), "replicas": (1, 4)}),
    ],
)
def test_a_longest_log_election_needs_active_replicas(kind: ElectionType, kept: dict[str, Any]) -> None:
    found = handle(bench(fencing(1, 1, True), **LEADERLESS | kept).state, elect(kind))
    assert (error_of(found), found.awaited) == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, None)


# -- requests as a whole -----------------------------------------------------------------------------------------------


@pytest.mark.covers("G33")
@pytest.mark.parametrize("kind", ElectionType)
@pytest.mark.parametrize(("topic", "partition"), [("u", 0), ("t", 1), ("t", -1)])
def test_an_election_for_an_unknown_partition_is_an_error(kind: ElectionType, topic: str, partition: int) -> None:
    found = handle(bench(**LEADERLESS).state, elect(kind, topic, partition, 0 if kind is DESIGNATION else None))
    assert results_of(found) == [(topic, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert not found.records


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


@pytest.mark.covers("J7")
def test_an_election_for_all_partitions_reports_failures() -> None:
    controller = bench(fencing(2, 2, True), *leaderless_topics(1))
    kind = ElectionType.LONGEST_LOG_BALANCED
    request = ElectLeadersRequest(correlation_id=1, election_type=kind, topic_partitions=None)
    assert results_of(handle(controller.state, request)) == [("u0", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]


@pytest.mark.covers("J7")
def test_a_designation_names_its_partitions() -> None:
    request = ElectLeadersRequest(correlation_id=1, election_type=DESIGNATION, topic_partitions=None)
    found = handle(bench(*leaderless_topics(2)).state, request)
    assert (found.response.error, list(found.records)) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize(
    "wanted",
    [
        [TopicPartitions(topic="t", partitions=(0, 0))],
        [TopicPartitions(topic="t", partitions=(0,)), TopicPartitions(topic="t", partitions=(0,))],
    ],
    ids=["in one topic", "in two"],
)
def test_a_partition_that_is_named_twice_is_refused(wanted: list[TopicPartitions]) -> None:
    controller = bench(*leaderless_topics(1), **LEADERLESS)
    found = handle(controller.state, request_of(UNCLEAN, *wanted, TopicPartitions(topic="u0", partitions=(0,))))
    assert results_of(found) == [
        ("t", 0, ErrorCode.INVALID_REQUEST),
        ("t", 0, ErrorCode.INVALID_REQUEST),
        ("u0", 0, ErrorCode.NONE),
    ]
    assert [record.topic_id for record in found.records] == ["U0"]  # type: ignore[attr-defined]


@pytest.mark.covers("G27", "G32", "M86")
def test_elections_need_cluster_action() -> None:
    config = ClusterConfig.of(Generation.KIP_966, {"authorizer.class.name": "standard"})
    controller = ControllerBench(*registrations(), *topic_records(leader=1), config=config)
    request = replace(elect(PREFERRED), principal="User:alice")
    refused = handle(controller.state, request)
    assert (refused.response.error, list(refused.records)) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert results_of(refused) == []

    def allow(operation: AclOperation) -> None:
        entry = AclEntry(
            resource_type=AclResourceType.CLUSTER,
            resource_name="kafka-cluster",
            principal="User:alice",
            operation=operation,
        )
        controller.apply([AccessControlEntryRecord(entry=entry)])

    allow(AclOperation.ALTER)
    assert handle(controller.state, request).response.error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    allow(AclOperation.CLUSTER_ACTION)
    assert error_of(handle(controller.state, request)) is ErrorCode.NONE


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
