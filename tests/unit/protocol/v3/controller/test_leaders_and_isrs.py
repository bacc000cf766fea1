"""Requested elections, controlled shutdown, and ISRs that leaders or the controller write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import ErrorCode, Refused
from protocol.ids import TopicPartition
from protocol.messages.partitions import ElectionType
from protocol.v3.controller.administration import request
from protocol.v3.controller.broker_changes import controlled_shutdown, elect_leaders
from protocol.v3.controller.context import Settings
from protocol.v3.controller.isr_updates import PROPAGATION_MS, IsrChanges, alter_isr, with_isr, write_isrs
from protocol.v3.controller.procedure import Commands, Event, Reads, Writes
from protocol.v3.store import paths
from protocol.v3.store.records import IsrChangeNode, Stored
from tests.unit.protocol.v3.controller.procedure_helpers import ADMIN, CONTROLLERS, World

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
LEADER, CONTROLLER = Settings(), Settings(leaders_write_isr=False)


def make(settings: Settings = LEADER) -> World:
    world = World(settings=settings)
    world.create_topic("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    world.create_topic("u", {0: (4,)})
    world.take_over()
    world.steps.clear()
    return world


def run(world: World, procedure: Any, *arguments: Any) -> Any:
    assert world.controller is not None
    return world.run(procedure(world.controller, *arguments))


def shut_down(world: World, broker: int) -> Any:
    return run(world, controlled_shutdown, broker, world.brokers[broker].epoch)


# -- elections ---------------------------------------------------------------------------------------------------------


def test_a_preferred_election() -> None:
    world = make()
    world.stop_broker(1)
    world.handle_events()
    world.start_broker(1)
    world.settle()
    assert (world.leader(T0), set(world.state(T0).isr)) == (2, {1, 2, 3})
    unknown = TopicPartition("t", 9)
    outcome = run(world, elect_leaders, ElectionType.PREFERRED, [T0, T1, unknown])
    assert outcome == {
        T0: ErrorCode.NONE, T1: ErrorCode.ELECTION_NOT_NEEDED, unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }  # fmt: skip
    assert world.leader(T0) == 1
    world.assert_brokers_follow()


@pytest.mark.covers("C3", "C4", "C6", "C7", "G9")
def test_an_unclean_election_sets_the_flag_and_a_clean_one_clears_it() -> None:
    world = make(Settings(unclean_allowed=False))
    world.set_isr(T0, (1,))
    world.stop_broker(1)
    world.handle_events()
    assert run(world, elect_leaders, ElectionType.UNCLEAN, None) == {
        T0: ErrorCode.NONE, T1: ErrorCode.ELECTION_NOT_NEEDED, U0: ErrorCode.ELECTION_NOT_NEEDED
    }  # fmt: skip
    assert (world.leader(T0), world.state(T0).is_unclean_leader) == (2, True)
    assert [world.brokers[b].replicas["T", 0].is_unclean_leader for b in (2, 3)] == [True, True]
    world.settle()
    assert (world.state(T0).isr, world.state(T0).is_unclean_leader) == ((2, 3), True)
    world.stop_broker(2)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).is_unclean_leader) == (3, False)
    assert world.brokers[3].replicas["T", 0].is_unclean_leader is False


def test_v3_does_not_know_the_elections_of_later_generations() -> None:
    with pytest.raises(Refused, match="election DESIGNATION; allowed in v3: PREFERRED, UNCLEAN"):
        run(make(), elect_leaders, ElectionType.DESIGNATION, [T0])


# -- controlled shutdown -----------------------------------------------------------------------------------------------


@pytest.mark.covers("B3", "B7", "M56")
@pytest.mark.parametrize(("settings", "reads"), [(LEADER, 2), (CONTROLLER, 0)], ids=["re-reading", "from memory"])
def test_a_controlled_shutdown_moves_leaderships_and_leaves_the_isrs(settings: Settings, reads: int) -> None:
    world = make(settings)
    assert shut_down(world, 2) == ()
    assert (world.leader(T0), world.state(T0).isr) == (1, (1, 3))
    assert (world.leader(T1), world.state(T1).isr) == (3, (3, 1))
    assert sum(len(step.operations) for step in world.steps if isinstance(step, Reads)) == reads
    assert sum(len(step.units) for step in world.steps if isinstance(step, Writes)) == 2
    (sent,) = (step for step in world.steps if isinstance(step, Commands))
    assert sorted(command.broker for command in sent.commands) == [1, 2, 3]
    before = [world.stored(key) for key in (T0, T1)]
    world.stop_broker(2)
    world.handle_events()
    assert [world.stored(key) for key in (T0, T1)] == before


def test_a_broker_keeps_the_partitions_that_only_it_can_lead() -> None:
    world = make()
    assert shut_down(world, 4) == (U0,)
    assert world.leader(U0) == 4
    world.stop_broker(1)
    world.handle_events()
    assert world.leader(U0) == 4


def test_a_broker_that_leaves_is_not_elected_and_is_again_when_it_has_restarted() -> None:
    world = make()
    shut_down(world, 2)
    outcome = run(world, elect_leaders, ElectionType.PREFERRED, [T1])
    assert outcome == {T1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    world.stop_broker(2)
    world.start_broker(2)
    world.settle()
    assert run(world, elect_leaders, ElectionType.PREFERRED, [T1]) == {T1: ErrorCode.NONE}


def test_an_earlier_incarnation_cannot_leave() -> None:
    world = make()
    with pytest.raises(Refused, match="broker 2 has epoch") as raised:
        run(world, controlled_shutdown, 2, world.brokers[2].epoch - 1)
    assert raised.value.error is ErrorCode.STALE_BROKER_EPOCH


# -- leaders that write ISRs -------------------------------------------------------------------------------------------


@pytest.mark.covers("A7", "A46", "A50", "M28", "M30")
def test_a_leader_cannot_change_the_isr_after_the_controller_has_decided() -> None:
    world = make()
    known = {key: world.stored(key) for key in (T0, T1)}
    shut_down(world, 1)
    changes = {key: Stored(with_isr(known[key].state, (1, 2)), known[key].version) for key in known}
    before = world.state(T0)
    assert world.admin(write_isrs(changes, world.topic_ids())) == {}
    assert world.state(T0) == before


@pytest.mark.covers("A46")
def test_a_leader_changes_the_isr_only() -> None:
    world = make()
    before = world.stored(T0)
    written = world.admin(write_isrs({T0: Stored(with_isr(before.state, (1, 3)), before.version)}, world.topic_ids()))
    assert written == {T0: before.version + 1}
    assert world.state(T0) == before.state.model_copy(update={"isr": (1, 3)})


def test_a_write_of_the_leader_that_is_repeated_is_found_to_have_taken_effect() -> None:
    world = make()
    before = world.stored(T0)
    change = {T0: Stored(with_isr(before.state, (1, 3)), before.version)}
    for _ in range(2):
        assert world.admin(write_isrs(change, world.topic_ids())) == {T0: before.version + 1}


@pytest.mark.covers("B2", "L8")
def test_a_leader_notifies_of_its_changes_once_a_minute_at_most() -> None:
    world = make()
    changes = IsrChanges(1, world.brokers[1].epoch)
    assert changes.due_ms() is None
    changes.changed |= {T0}
    assert changes.due_ms() == 0
    world.admin(changes.notify(1_000))
    assert changes.due_ms() is None
    changes.changed |= {T1, T0}
    assert changes.due_ms() == 1_000 + PROPAGATION_MS
    world.admin(changes.notify(61_000))
    nodes = [world.tree.find(f"{paths.ISR_CHANGES}/{name}") for name in world.tree.children(paths.ISR_CHANGES)]
    found = [IsrChangeNode.decode("", node.data).keys for node in nodes if node is not None]
    assert found == [[T0], [T0, T1]]


@pytest.mark.covers("B2", "K12")
def test_the_controller_learns_of_isrs_by_notifications_and_removes_them() -> None:
    world = make()
    world.set_isr(T0, (1, 3))
    assert world.controller is not None
    assert world.controller.states[T0].state.isr == (1, 2, 3)
    changes = IsrChanges(1, world.brokers[1].epoch, {T0, TopicPartition("gone", 0)})
    world.admin(changes.notify(0))
    world.transact(ADMIN, ())
    assert world.events == [Event.ISR_CHANGE]
    world.handle_events()
    assert world.controller.states[T0] == world.stored(T0)
    assert world.tree.children(paths.ISR_CHANGES) == ()


@pytest.mark.covers("B8", "L10")
@pytest.mark.parametrize("settings", [LEADER, CONTROLLER])
def test_a_reassignment_goes_on_as_soon_as_the_controller_hears_of_the_isr(settings: Settings) -> None:
    world = make(settings)
    assert not world.admin(request(paths.REASSIGNED, T0, (1, 4)))
    world.handle_events()
    assert world.catch_up()
    assert world.topic("t").partitions[0] == (1, 2, 3)
    if settings is LEADER:
        world.handle_events()
        assert world.topic("t").partitions[0] == (1, 2, 3)
        world.admin(IsrChanges(1, world.brokers[1].epoch, {T0}).notify(0))
    else:
        assert world.timers == {Event.WAKE_UP: None}
    world.handle_events()
    assert world.topic("t").partitions[0] == (1, 4)


@pytest.mark.covers("K12")
def test_a_controller_that_writes_isrs_removes_old_notifications_without_a_watch() -> None:
    world = make()
    world.admin(IsrChanges(1, world.brokers[1].epoch, {T0}).notify(0))
    world.depose()
    world.settings = CONTROLLER
    world.take_over(CONTROLLERS[1])
    assert world.tree.children(paths.ISR_CHANGES) == ()
    world.admin(IsrChanges(2, world.brokers[2].epoch, {T0}).notify(0))
    assert not world.events


# -- the controller writes ISRs ----------------------------------------------------------------------------------------


@pytest.mark.covers("B1", "B4", "B16", "N3", "N4")
def test_alter_isr_writes_and_answers_with_the_new_state_and_sends_it() -> None:
    world = make(CONTROLLER)
    before = world.stored(T0)
    response = run(world, alter_isr, world.proposal(T0, (1, 3)))
    (result,) = response.partitions
    assert (result.error, result.isr, result.leader) == (ErrorCode.NONE, (1, 3), 1)
    assert (result.leader_epoch, result.partition_epoch) == (before.state.leader_epoch, before.version + 1)
    assert world.state(T0).isr == (1, 3)
    assert world.brokers[1].replicas["T", 0].version == before.version + 1
    assert not [step for step in world.steps if isinstance(step, Reads)]


@pytest.mark.covers("B15", "B17", "G7", "L11")
def test_proposals_for_many_partitions_are_accepted_or_refused_one_by_one() -> None:
    world = make(CONTROLLER)
    world.stop_broker(2)
    world.handle_events()
    world.steps.clear()
    parts = [world.proposal(key, (3, 1) if key == T1 else (1,)).partitions[0] for key in (T0, T1, U0)]
    twice = world.proposal(T0, (1, 3)).partitions[0]
    gone = replace(parts[0], topic_id="X")
    request = replace(world.proposal(T0, (1,)), partitions=(*parts, twice, gone))
    response = run(world, alter_isr, request)
    assert [result.error for result in response.partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert world.state(T0).isr == (1,)
    assert sum(isinstance(step, Commands) for step in world.steps) == 1


@pytest.mark.covers("B20", "G7", "M52")
def test_a_request_of_an_earlier_incarnation_is_refused() -> None:
    world = make(CONTROLLER)
    before = world.stored(T0)
    request = world.proposal(T0, (1,))
    world.stop_broker(1)
    world.start_broker(1)
    world.handle_events()
    assert run(world, alter_isr, request).error is ErrorCode.STALE_BROKER_EPOCH
    assert world.state(T0).leader_epoch > before.state.leader_epoch


@pytest.mark.covers("B18", "B19", "M51")
def test_a_proposal_of_an_old_version_is_refused() -> None:
    world = make(CONTROLLER)
    old = world.proposal(T0, (1, 2))
    assert not run(world, alter_isr, world.proposal(T0, (1, 3))).partitions[0].error
    assert run(world, alter_isr, old).partitions[0].error is ErrorCode.INVALID_UPDATE_VERSION
    assert world.state(T0).isr == (1, 3)


@pytest.mark.covers("K13")
@pytest.mark.parametrize("settings", [LEADER, CONTROLLER])
def test_while_some_leaders_write_and_others_send_one_of_two_changes_wins(settings: Settings) -> None:
    world = make(settings)
    stale = world.proposal(T0, (1, 2))
    world.set_isr(T0, (1, 3))
    error = run(world, alter_isr, stale).partitions[0].error
    assert error is ErrorCode.INVALID_UPDATE_VERSION
    assert world.state(T0).isr == (1, 3)
    assert world.brokers[1].replicas["T", 0].version == (world.stored(T0).version if settings is CONTROLLER else 0)
    assert not run(world, alter_isr, world.proposal(T0, (1, 3, 2))).partitions[0].error
    assert world.state(T0).isr == (1, 3, 2)


@pytest.mark.covers("C5", "M57")
def test_a_leader_clears_the_unclean_flag_by_alter_isr() -> None:
    world = make(CONTROLLER)
    assert not run(world, alter_isr, world.proposal(T0, (1,))).partitions[0].error
    world.stop_broker(1)
    world.handle_events()
    assert world.state(T0).is_unclean_leader
    assert not run(world, alter_isr, world.proposal(T0, (2, 3))).partitions[0].error
    assert world.state(T0).is_unclean_leader
    response = run(world, alter_isr, world.proposal(T0, (2, 3), leader_recovery_state=0))
    assert response.partitions[0].leader_recovery_state == 0
    assert not world.state(T0).is_unclean_leader
    refused = run(world, alter_isr, world.proposal(T0, (2, 3), leader_recovery_state=1))
    assert refused.partitions[0].error is ErrorCode.INVALID_REQUEST
