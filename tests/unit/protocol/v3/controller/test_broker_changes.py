"""Brokers die and come back: who leads then, what is written, and which commands are sent."""

from __future__ import annotations

import pytest

from protocol.ids import TopicPartition
from protocol.messages.store import Check, SetData, WriteOperation
from protocol.v3.controller.administration import delete_topic
from protocol.v3.controller.broker_changes import on_broker_change
from protocol.v3.controller.context import Settings
from protocol.v3.controller.isr_updates import IsrChanges
from protocol.v3.controller.procedure import Commands, Event, Later, Pause, Reads, Writes
from protocol.v3.store import paths
from tests.unit.protocol.v3.controller.procedure_helpers import ADMIN, World, changes

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ASSIGNED = {"t": {0: (1, 2, 3), 1: (2, 3, 1)}, "u": {0: (3, 4)}}


def make(settings: Settings | None = None) -> World:
    world = World(settings=settings)
    for name, assignment in ASSIGNED.items():
        world.create_topic(name, assignment)
    world.take_over()
    world.steps.clear()
    return world


def commands_of(world: World) -> list[Commands]:
    return [step for step in world.steps if isinstance(step, Commands) and step.commands]


def written_paths(world: World) -> list[str]:
    return [
        op.path
        for step in world.steps
        if isinstance(step, Writes)
        for unit in step.units
        for op in unit
        if not isinstance(op, Check)
    ]


@pytest.mark.covers("A2", "A11", "A16", "A17", "M25")
@pytest.mark.parametrize("leaders_write_isr", [True, False])
def test_the_partitions_of_a_dead_broker_fail_over_and_each_broker_gets_one_request(leaders_write_isr: bool) -> None:
    world = make(Settings(leaders_write_isr=leaders_write_isr))
    world.stop_broker(1)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).isr, world.state(T0).leader_epoch) == (2, (2, 3), 1)
    assert (world.leader(T1), world.state(T1).isr, world.state(T1).leader_epoch) == (2, (2, 3), 1)
    assert world.state(U0).leader_epoch == 0
    assert written_paths(world) == [paths.leader_and_isr(T0), paths.leader_and_isr(T1)]
    ((to_2, to_3),) = (sent.commands for sent in commands_of(world))
    assert (to_2.broker, to_3.broker) == (2, 3)
    assert [part.version for part in to_2.leader_and_isr] == [world.stored(key).version for key in (T0, T1)]
    positions = [type(step) for step in world.steps]
    assert positions.index(Commands) > positions.index(Writes)


@pytest.mark.covers("A14", "A15", "C3", "C4", "M26", "M27")
def test_unclean_elections_and_partitions_without_a_live_replica() -> None:
    world = make()
    world.set_isr(T0, (1,))
    world.handle_events()
    for broker in (1, 2, 3):
        world.stop_broker(broker)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).isr) == (-1, (1,))
    assert world.state(U0) == world.state(U0).model_copy(update={"leader": 4, "isr": (4,)})
    assert world.alerts == ["2 partitions, t-0 first: no replica that may lead is alive"]
    world.start_broker(3)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).isr, world.state(T0).is_unclean_leader) == (3, (3,), True)
    assert (world.leader(T1), world.state(T1).is_unclean_leader) == (3, False)
    world.settle()
    world.start_broker(1)
    world.settle()
    world.stop_broker(3)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).is_unclean_leader) == (1, False)
    world.assert_brokers_follow()


@pytest.mark.covers("M27", "N12")
def test_without_unclean_elections_the_partition_waits_for_the_isr() -> None:
    world = make(Settings(unclean_allowed=False))
    world.set_isr(T0, (1,))
    world.handle_events()
    world.stop_broker(1)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).isr) == (-1, (1,))
    world.start_broker(1)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).is_unclean_leader) == (1, False)


@pytest.mark.covers("A7", "A16", "M28", "N11")
@pytest.mark.parametrize("leaders_write_isr", [True, False])
def test_after_a_conflict_the_partition_is_read_and_decided_again(leaders_write_isr: bool) -> None:
    """The leader of t-1 takes broker 3 out of the ISR between the controller's read and its write."""
    world = make(Settings(leaders_write_isr=leaders_write_isr))

    def interfere(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.leader_and_isr(T1)):
            world.before_write = lambda operations: None
            world.set_isr(T1, (2, 1))

    world.before_write = interfere
    world.stop_broker(1)
    world.handle_events()
    assert world.state(T1).isr == (2,)
    assert world.state(T0).isr == (2, 3)
    reads = [operation.path for step in world.steps if isinstance(step, Reads) for operation in step.operations]
    assert reads.count(paths.leader_and_isr(T1)) == (2 if leaders_write_isr else 1)
    assert reads.count(paths.leader_and_isr(T0)) == (1 if leaders_write_isr else 0)
    assert len(commands_of(world)) == 1
    world.assert_brokers_follow()


def test_a_storm_of_conflicts_ends_with_an_alert_and_is_continued_later() -> None:
    world = make(Settings(attempts=4, backoff_ms=20, retry_ms=700))

    def interfere(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.leader_and_isr(T1)):
            node = world.tree.find(paths.leader_and_isr(T1))
            assert node is not None
            world.transact(ADMIN, (SetData(path=paths.leader_and_isr(T1), data=node.data),))

    world.before_write = interfere
    world.stop_broker(2)
    assert world.events.pop(0) is Event.BROKER_CHANGE
    assert world.controller is not None
    world.run(on_broker_change(world.controller))
    assert world.alerts == ["1 partitions, t-1 first: 4 writes found another version each"]
    assert [step.duration_ms for step in world.steps if isinstance(step, Pause)] == [20, 40, 80]
    assert [step for step in world.steps if isinstance(step, Later)] == [Later(Event.BROKER_CHANGE, 700)]
    assert (world.leader(T0), world.state(T0).isr, world.leader(T1)) == (1, (1, 3), 2)
    assert commands_of(world), "the other partitions are not held up"
    world.before_write = lambda operations: None
    world.handle_events()
    assert world.leader(T1) == 3
    assert not world.controller.unsettled
    world.assert_brokers_follow()


def test_a_decision_whose_response_was_lost_is_found_and_its_commands_are_sent() -> None:
    """The first write takes effect, and is repeated as the runner repeats it."""
    world = make()

    def repeat(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.leader_and_isr(T0)):
            world.before_write = lambda operations: None
            world.transact(ADMIN, operations)

    world.before_write = repeat
    world.stop_broker(1)
    world.handle_events()
    assert world.state(T0).leader_epoch == 1
    world.assert_brokers_follow()


@pytest.mark.covers("A34", "A36", "M37")
def test_a_broker_that_comes_back_gets_all_that_it_holds_as_its_first_command() -> None:
    world = make()
    world.stop_broker(3)
    world.handle_events()
    world.brokers[3].replicas["gone", 0] = world.brokers[1].replicas["T", 0]
    world.steps.clear()
    world.start_broker(3)
    world.handle_events()
    ((init,),) = (sent.commands for sent in commands_of(world))
    assert (init.broker, init.is_init, len(init.leader_and_isr)) == (3, True, 3)
    assert world.brokers[3].deleted == [("gone", 0)]
    world.assert_brokers_follow()


@pytest.mark.covers("A36", "A52")
def test_dead_brokers_get_no_commands() -> None:
    world = make()
    world.stop_broker(1)
    world.handle_events()
    assert {command.broker for sent in commands_of(world) for command in sent.commands} == {2, 3}


@pytest.mark.covers("A52", "M39")
@pytest.mark.parametrize("leaders_write_isr", [True, False])
def test_a_broker_that_was_replaced_between_two_reads_has_been_dead(leaders_write_isr: bool) -> None:
    world = make(Settings(leaders_write_isr=leaders_write_isr))
    world.stop_broker(1)
    world.start_broker(1)
    world.handle_events()
    assert (world.leader(T0), world.state(T0).isr) == (2, (2, 3))
    assert (world.leader(T1), world.state(T1).isr) == (2, (2, 3))
    world.settle()
    assert set(world.state(T0).isr) == {1, 2, 3}
    world.assert_brokers_follow()


def test_the_only_replica_that_is_replaced_leads_again_in_a_new_epoch() -> None:
    world = World()
    world.create_topic("s", {0: (1,)})
    world.take_over()
    key = TopicPartition("s", 0)
    world.stop_broker(1)
    world.start_broker(1)
    world.handle_events()
    assert (world.leader(key), world.state(key).leader_epoch, world.state(key).is_unclean_leader) == (1, 2, False)
    world.assert_brokers_follow()


@pytest.mark.covers("A12")
def test_an_isr_that_a_leader_has_expanded_unseen_loses_its_dead_member() -> None:
    """The controller knows the ISR (1, 2); the leader has added 3 since, and 3 dies."""
    world = make()
    world.set_isr(T0, (1, 2))
    world.admin(IsrChanges(1, world.brokers[1].epoch, {T0}).notify(0))
    world.handle_events()
    world.set_isr(T0, (1, 2, 3))
    world.stop_broker(3)
    world.handle_events()
    assert world.state(T0).isr == (1, 2)


def test_a_partition_that_is_deleted_meanwhile_is_left_alone() -> None:
    world = make()

    def delete(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.leader_and_isr(U0)):
            world.before_write = lambda operations: None
            assert not world.admin(delete_topic("u"))

    world.before_write = delete
    world.stop_broker(3)
    world.handle_events()
    assert world.controller is not None
    assert set(world.controller.topics) == {"t"}
    world.assert_brokers_follow()
