"""AlterPartitionReassignments: start, replace, cancel complete, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.config import ClusterConfig, Generation
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.controller.partition_change import ChangeRequest, decide
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER
from protocol.messages.acls import AclEntry, AclOperation, AclResourceType
from protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.records import AccessControlEntryRecord, ConfigRecord, MetadataRecord, PartitionRecord
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change
from tests.unit.protocol.controller.reassignment_helpers import (
    CANCEL,
    KIP_966,
    after_isr,
    bench,
    done,
    error_of,
    is_moving,
    reassign,
    under_way,
)
from tests.unit.protocol.node_helpers import ControllerBench, fencing, registrations, topic_records

KIP_497, KIP_966_ELR = Generation.KIP_497, Generation.KIP_966_ELR
BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT
UNCLEAN_ALLOWED = ConfigRecord(topic_id="T", name="unclean.leader.election.enable", value="true")
PROACTIVE = ConfigRecord(topic_id="T", name="unclean.recovery.strategy", value="proactive")


def results_of(found: ControllerResult) -> list[tuple[str, int, ErrorCode]]:
    assert isinstance(found.response, AlterPartitionReassignmentsResponse)
    return [(result.topic, result.partition_index, result.error) for result in found.response.partitions]


# -- start -------------------------------------------------------------------------------------------------------------


def test_a_reassignment_grows_first() -> None:
    found = done(bench(), reassign(0, 1, 3))
    assert found.replicas == (0, 1, 3, 2)
    assert (found.adding_replicas, found.removing_replicas) == ((3,), (2,))
    assert (found.isr, found.leader, found.leader_epoch) == ((0, 1, 2), 0, 0)


@pytest.mark.covers("N8")
def test_a_reassignment_whose_replicas_are_in_sync_completes_at_once() -> None:
    found = done(bench(), reassign(1, 2))
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((1, 2), (1, 2), 1, 1)
    assert not is_moving(found)


def test_another_order_of_the_replicas_is_not_a_reassignment() -> None:
    found = done(bench(), reassign(2, 1, 0))
    assert (found.replicas, found.leader, found.leader_epoch, is_moving(found)) == ((2, 1, 0), 0, 0, False)
    assert not handle(bench().state, reassign(0, 1, 2)).records


def test_a_fenced_broker_may_be_moved_to() -> None:
    assert done(bench(), reassign(0, 1, 6)).adding_replicas == (6,)


@pytest.mark.parametrize("generation", [KIP_497, KIP_966_ELR, KIP_966])
def test_a_leaderless_partition_gets_no_empty_leader_by_a_move(generation: Generation) -> None:
    """Even where unclean elections are allowed: the new replicas have nothing yet."""
    dead = [fencing(broker, broker, True) for broker in (0, 1, 2)]
    isr = (0,) if generation is KIP_497 else ()
    controller = bench(*dead, UNCLEAN_ALLOWED, generation=generation, isr=isr, leader=NO_LEADER)
    found = done(controller, reassign(3, 4, 5))
    assert (found.leader, found.adding_replicas, found.removing_replicas) == (NO_LEADER, (3, 4, 5), (0, 1, 2))


# -- refusals ----------------------------------------------------------------------------------------------------------

REFUSED = {
    "unknown topic": (reassign(0, 1, topic="u"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "unknown partition": (reassign(0, 1, partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "cancel on an unknown partition": (admin_requests.reassign("t", 1, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "no replicas": (reassign(), BAD_ASSIGNMENT),
    "one broker twice": (reassign(1, 1), BAD_ASSIGNMENT),
    "an unknown broker": (reassign(0, 1, 9), BAD_ASSIGNMENT),
    "a negative broker": (reassign(0, -1), BAD_ASSIGNMENT),
    "cancel what is not under way": (CANCEL, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
}


@pytest.mark.covers("J18")
@pytest.mark.parametrize(("request_", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_with_a_reason_and_without_records(
    request_: AlterPartitionReassignmentsRequest, error: ErrorCode
) -> None:
    found = handle(bench().state, request_)
    assert found.response.error is ErrorCode.NONE
    assert error_of(found) is error
    assert found.response.failure()[1]
    assert not found.records


def named(*parts: tuple[str, int, tuple[int, ...] | None]) -> AlterPartitionReassignmentsRequest:
    topics = tuple(
        ReassignableTopic(name=topic, partitions=(ReassignablePartition(partition_index=index, replicas=replicas),))
        for topic, index, replicas in parts
    )
    return AlterPartitionReassignmentsRequest(correlation_id=5, topics=topics)


def test_a_refused_partition_does_not_affect_the_others() -> None:
    more = PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0)
    controller = bench(more)
    found = handle(controller.state, named(("t", 0, (0, 9)), ("t", 1, (0, 3)), ("u", 0, None)))
    assert results_of(found) == [
        ("t", 0, BAD_ASSIGNMENT),
        ("t", 1, ErrorCode.NONE),
        ("u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [record.partition_id for record in found.records] == [1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("second", [(0, 1, 3), None], ids=["the same", "a cancellation"])
def test_a_partition_that_is_named_twice_is_refused(second: tuple[int, ...] | None) -> None:
    more = PartitionRecord(topic_id="T", partition_id=1, replicas=(0, 1), isr=(0, 1), leader=0)
    found = handle(bench(more).state, named(("t", 0, (0, 1, 3)), ("t", 1, (0, 3)), ("t", 0, second)))
    twice = ("t", 0, ErrorCode.INVALID_REQUEST)
    assert results_of(found) == [twice, ("t", 1, ErrorCode.NONE), twice]
    assert len(found.records) == 1


@pytest.mark.parametrize("request_", [reassign(0, 1, 3), CANCEL], ids=["start", "cancel"])
def test_reassignments_need_alter_on_the_cluster(request_: AlterPartitionReassignmentsRequest) -> None:
    config = ClusterConfig.of(KIP_966, {"authorizer.class.name": "standard"})
    controller = ControllerBench(*registrations(range(4)), *topic_records(), config=config)
    request = replace(request_, principal="User:alice")
    found = handle(controller.state, request)
    assert (found.response.error, results_of(found), list(found.records)) == (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        [],
        [],
    )
    entry = AclEntry(
        resource_type=AclResourceType.CLUSTER,
        resource_name="kafka-cluster",
        principal="User:alice",
        operation=AclOperation.ALTER,
    )
    controller.apply([AccessControlEntryRecord(entry=entry)])
    assert handle(controller.state, request).response.error is ErrorCode.NONE


# -- completion --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("E32", "M75")
@pytest.mark.parametrize(
    ("isr", "complete"),
    [((0, 1, 2), False), ((0, 3), True), ((3, 2), False), ((0, 3, 2), True), ((0, 1, 3), True)],
    ids=["3 is awaited", "1 is down", "3 alone would stay", "2 goes", "all in sync"],
)
@pytest.mark.parametrize("min_isr", ["1", "2"])
def test_a_move_completes_with_the_adding_replicas_and_two_copies_in_sync(
    isr: tuple[int, ...], complete: bool, min_isr: str
) -> None:
    controller = under_way((0, 1, 2), ConfigRecord(topic_id="T", name="min.insync.replicas", value=min_isr))
    found = after_isr(controller, *isr)
    assert is_moving(found) is not complete
    if complete:
        assert found.replicas == (0, 1, 3)
        assert found.isr == tuple(broker for broker in isr if broker != 2)
        assert found.leader_epoch == 1, "the assignment has lost a replica"


@pytest.mark.covers("M75")
def test_a_waiting_reassignment_completes_when_another_replica_joins_the_isr() -> None:
    controller = under_way((2,), leader=2)
    assert is_moving(after_isr(controller, 2, 3))
    assert error_of(handle(controller.state, CANCEL)) is BAD_ASSIGNMENT
    found = after_isr(controller, 2, 3, 1)
    assert (found.replicas, found.isr, found.leader) == ((0, 1, 3), (3, 1), 1)


@pytest.mark.covers("L16")
@pytest.mark.parametrize("generation", [KIP_497, KIP_966_ELR])
def test_generations_before_wait_for_the_whole_assignment(generation: Generation) -> None:
    controller = under_way((0, 1, 2), generation=generation)
    assert is_moving(after_isr(controller, 0, 2, 3)), "1 is in the final assignment, and down"
    assert not is_moving(after_isr(controller, 0, 1, 2, 3))


@pytest.mark.covers("N31", "E14")
def test_the_min_isr_of_a_completion_is_that_of_the_final_assignment() -> None:
    """Three of five replicas are wanted by the config; the final assignment has two."""
    wide = ConfigRecord(topic_id="T", name="min.insync.replicas", value="3")
    controller = bench(wide, isr=(0,), eligible_leader_replicas=(1,), last_known_elr=(2,))
    assert is_moving(done(controller, reassign(0, 3)))
    found = after_isr(controller, 0, 3)
    assert (found.replicas, found.isr, found.elr, found.last_known_elr) == ((0, 3), (0, 3), (), ())


def test_a_smaller_assignment_waits_for_its_min_isr() -> None:
    controller = bench(isr=(0, 2))
    found = done(controller, reassign(0, 1))
    assert (found.replicas, found.removing_replicas, found.isr) == ((0, 1, 2), (2,), (0, 2))
    assert not is_moving(after_isr(controller, 0, 1, 2))


@pytest.mark.covers("E34", "M76")
def test_a_move_away_from_an_elr_member_leaves_it_ineligible() -> None:
    controller = bench(isr=(0,), eligible_leader_replicas=(1,), last_known_elr=(2,))
    during = done(controller, reassign(0, 3, 4))
    assert (during.elr, during.last_known_elr) == ((1,), (2,)), "until then they are replicas"
    found = after_isr(controller, 0, 3, 4)
    assert (found.replicas, found.elr, found.last_known_elr) == ((0, 3, 4), (), ())


@pytest.mark.covers("M44")
def test_completing_a_reassignment_replaces_a_removed_leader() -> None:
    controller = bench()
    found = done(controller, reassign(1, 2, 3))
    assert (found.leader, found.leader_epoch) == (0, 0)
    found = after_isr(controller, 0, 1, 2, 3)
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((1, 2, 3), (1, 2, 3), 1, 1)


# -- a move that replaces another --------------------------------------------------------------------------------------


def test_a_replaced_reassignment_drops_the_brokers_that_were_being_added() -> None:
    controller = under_way((0, 1, 2))
    found = done(controller, reassign(0, 1, 4))
    assert found.replicas == (0, 1, 4, 2, 3)
    assert (found.adding_replicas, found.removing_replicas) == ((3, 4), (2, 3))
    found = after_isr(controller, 0, 1, 2, 4)
    assert (found.replicas, found.isr, is_moving(found)) == ((0, 1, 4), (0, 1, 4), False)


def test_cancelling_a_replaced_reassignment_returns_to_the_original_replicas() -> None:
    controller = under_way((0, 1, 2, 3))
    done(controller, reassign(0, 4, 5))
    found = done(controller, CANCEL)
    assert (set(found.replicas), found.isr, is_moving(found)) == ({0, 1, 2}, (0, 1, 2), False)


def test_a_reassignment_back_to_the_original_replicas_completes_at_once() -> None:
    found = done(under_way((0, 1, 2)), reassign(0, 1, 2))
    assert (found.replicas, found.isr, is_moving(found)) == ((0, 1, 2), (0, 1, 2), False)


def test_a_reassignment_that_keeps_a_removing_replica() -> None:
    controller = under_way((0, 1, 2))
    found = done(controller, reassign(0, 1, 2, 3))
    assert (found.replicas, found.adding_replicas, found.removing_replicas) == ((0, 1, 2, 3), (3,), ())
    assert after_isr(controller, 0, 1, 2, 3).replicas == (0, 1, 2, 3)


def test_a_reassignment_that_replaces_another_keeps_a_replica_in_sync() -> None:
    found = done(under_way((3,), leader=3), reassign(0, 1, 2))
    assert (found.leader, found.isr, found.removing_replicas) == (3, (3,), (3,))


@given(st.data())
def test_a_cancellation_returns_to_the_original_replicas_after_any_requests(data: st.DataObject) -> None:
    assignments = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple)
    controller = bench(isr=(0, 1, 2))
    first = data.draw(assignments.filter(lambda wanted: not set(wanted) <= {0, 1, 2}))
    done(controller, reassign(*first))
    for wanted in data.draw(st.lists(assignments, max_size=3)):
        done(controller, reassign(*wanted))
        state = controller.partition()
        if not is_moving(state):
            assert set(state.replicas) == set(wanted)
            return
        assert set(state.replicas) - set(state.removing_replicas) == set(wanted)
    assert set(done(controller, CANCEL).replicas) == {0, 1, 2}


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_cancelling_goes_back_to_the_original_replicas() -> None:
    found = done(under_way((0, 1, 2, 3)), CANCEL)
    assert (set(found.replicas), found.isr) == ({0, 1, 2}, (0, 1, 2))
    assert (found.adding_replicas, found.removing_replicas, found.elr) == ((), (), ())


@pytest.mark.covers("E33", "E35", "M75")
@pytest.mark.parametrize(("isr", "leader", "refused"), [((3,), 3, True), ((0, 3), 0, True), ((0, 1, 3), 0, False)])
def test_cancelling_is_refused_where_fewer_than_min_isr_original_replicas_are_in_sync(
    isr: tuple[int, ...], leader: int, refused: bool
) -> None:
    found = handle(under_way(isr, leader=leader).state, CANCEL)
    assert (error_of(found) is BAD_ASSIGNMENT, not found.records) == (refused, refused)


RETURNS = {"cancel": CANCEL, "in the same order": reassign(0, 1, 2), "in another order": reassign(2, 0, 1)}


@pytest.mark.covers("E33", "E35")
@pytest.mark.parametrize("request_", RETURNS.values(), ids=RETURNS)
@pytest.mark.parametrize(
    ("isr", "records", "refused"),
    [((2,), (), True), ((2,), (UNCLEAN_ALLOWED,), True), ((2,), (PROACTIVE,), False), ((0, 2), (), False)],
    ids=["below min ISR", "and unclean elections", "and proactive recovery", "min ISR"],
)
def test_a_reassignment_that_only_removes_is_cancelled_explicitly_or_by_its_original_replicas_alike(
    request_: AlterPartitionReassignmentsRequest,
    isr: tuple[int, ...],
    records: tuple[MetadataRecord, ...],
    refused: bool,
) -> None:
    controller = bench(*records, isr=isr, leader=2, removing_replicas=(2,))
    if refused:
        found = handle(controller.state, request_)
        assert (error_of(found), list(found.records)) == (BAD_ASSIGNMENT, [])
        return
    state = done(controller, request_)
    assert (set(state.replicas), state.isr, state.leader, is_moving(state)) == ({0, 1, 2}, isr, 2, False)
    assert state.replicas == (request_.topics[0].partitions[0].replicas or (0, 1, 2))


@pytest.mark.covers("E33")
@pytest.mark.parametrize("isr", [(2,), (2, 0)])
def test_returning_from_a_reassignment_that_adds_waits_for_min_isr(isr: tuple[int, ...]) -> None:
    found = done(under_way((3, *isr), leader=3), reassign(0, 1, 2))
    assert (is_moving(found), 3 in found.replicas) == (len(isr) < 2, len(isr) < 2)


@pytest.mark.covers("E35", "N31")
def test_the_min_isr_of_a_cancellation_is_that_of_the_original_assignment() -> None:
    wide = ConfigRecord(topic_id="T", name="min.insync.replicas", value="3")
    moving = {"replicas": (0, 3, 4, 1), "adding_replicas": (3, 4), "removing_replicas": (1,)}
    controller = bench(wide, isr=(0, 1), **moving)
    assert set(done(controller, CANCEL).replicas) == {0, 1}


@pytest.mark.covers("E35")
def test_a_cancellation_below_min_isr_is_allowed_with_unclean_elections() -> None:
    assert error_of(handle(under_way((3, 0), UNCLEAN_ALLOWED, leader=3).state, CANCEL)) is BAD_ASSIGNMENT
    found = done(under_way((3, 0), PROACTIVE, leader=3), CANCEL)
    assert (set(found.replicas), found.isr, found.leader) == ({0, 1, 2}, (0,), 0)
    assert found.leader_recovery_state is LeaderRecoveryState.RECOVERED, "0 was in sync"


@pytest.mark.covers("E35", "C12")
@pytest.mark.parametrize("generation", [KIP_497, KIP_966_ELR])
def test_a_cancellation_without_in_sync_replicas_is_an_unclean_election(generation: Generation) -> None:
    without = under_way((3,), leader=3, generation=generation)
    assert error_of(handle(without.state, CANCEL)) is BAD_ASSIGNMENT
    dead = fencing(0, 0, True)
    found = done(under_way((3,), dead, UNCLEAN_ALLOWED, leader=3, generation=generation), CANCEL)
    assert (set(found.replicas), found.leader, found.isr) == ({0, 1, 2}, 1, (1,))
    assert found.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert 3 not in (*found.elr, *found.last_known_elr)


@pytest.mark.covers("E35", "F1")
def test_a_cancellation_without_in_sync_replicas_is_left_to_a_proactive_recovery() -> None:
    found = done(under_way((3,), fencing(0, 0, True), PROACTIVE, leader=3), CANCEL)
    assert (set(found.replicas), found.leader, found.isr) == ({0, 1, 2}, NO_LEADER, ())


@pytest.mark.covers("E29", "E35")
def test_an_unclean_cancellation_prefers_an_eligible_replica() -> None:
    controller = under_way((3,), PROACTIVE, leader=3, eligible_leader_replicas=(1,))
    found = done(controller, CANCEL)
    assert (found.leader, found.isr, found.leader_recovery_state) == (1, (1,), LeaderRecoveryState.RECOVERED)


@pytest.mark.parametrize("generation", [KIP_497, KIP_966_ELR, KIP_966])
def test_an_unclean_cancellation_needs_an_active_original_replica(generation: Generation) -> None:
    dead = [fencing(broker, broker, True) for broker in (0, 1, 2)]
    found = handle(under_way((3,), *dead, UNCLEAN_ALLOWED, PROACTIVE, leader=3, generation=generation).state, CANCEL)
    assert (error_of(found), list(found.records)) == (BAD_ASSIGNMENT, [])


# -- the decision ------------------------------------------------------------------------------------------------------


@st.composite
def moves(draw: st.DrawFn) -> tuple[PartitionState, dict[str, Any]]:
    """A well-formed `kip-966` partition in the middle of a move, and an ISR that its leader proposes."""
    replicas = tuple(draw(st.lists(st.integers(0, 6), min_size=2, max_size=6, unique=True)))
    some = st.lists(st.sampled_from(replicas), unique=True)
    removing = tuple(sorted(draw(some)[: len(replicas) - 1]))
    adding = tuple(sorted(draw(some)[: len(replicas) - 1]))
    min_isr = draw(st.integers(1, len(replicas)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    elr = tuple(sorted(set(draw(some)) - set(isr))) if len(isr) < min_isr else ()
    state = PartitionState(
        replicas, isr, elr, adding_replicas=adding, removing_replicas=removing, leader=isr[0], leader_epoch=3
    )
    proposed = (isr[0], *(broker for broker in draw(some) if broker != isr[0]))
    return state, {"min_isr": min_isr, "target_isr": proposed}


@pytest.mark.covers("E32", "E34", "N30")
@given(moves())
def test_a_completed_reassignment_has_min_isr_replicas_in_sync(case: tuple[PartitionState, dict[str, Any]]) -> None:
    state, fields = case
    request = ChangeRequest(
        is_acceptable_leader=lambda broker: True, elr_enabled=True, track_last_known_leader=True, **fields
    )
    record = decide("topic", 0, state, request)
    found = state if record is None else replay_change(state, record)
    final = set(state.replicas) - set(state.removing_replicas)
    staying = set(fields["target_isr"]) & final
    adding, removing = set(state.adding_replicas), set(state.removing_replicas)
    ready = len(staying) >= min(max(fields["min_isr"], 2 if removing else 1), len(final))
    ready = ready and (final if len(adding) < len(removing) else adding - removing) <= staying
    if not is_moving(state):
        return
    assert is_moving(found) is not ready
    if ready:
        assert (set(found.replicas), set(found.isr)) == (final, staying)
        assert (found.elr, found.last_known_elr) == ((), ())
        assert found.leader in found.isr
        assert found.leader_epoch == 3 + (found.leader != state.leader or bool(state.removing_replicas))
    else:
        assert found.replicas == state.replicas


@pytest.mark.covers("E34")
def test_a_broker_that_returns_by_a_reassignment_is_removed_from_a_stale_elr() -> None:
    """Kafka's first phase keeps members in the ELR that a move took away; their logs are gone with their replicas."""
    controller = bench(
        *(fencing(broker, broker, True) for broker in (0, 1)),
        generation=Generation.KIP_966_ELR,
        replicas=(0,),
        isr=(),
        leader=NO_LEADER,
        eligible_leader_replicas=(0, 1, 2),
    )
    found = done(controller, reassign(0, 1))
    assert (found.replicas, found.isr, found.elr) == ((0, 1), (), (0, 2))
