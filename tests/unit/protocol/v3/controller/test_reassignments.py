"""The reassignment agent: from a request to the switch, with leaders that move and requests that change."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
from protocol.messages.store import Delete, WriteOperation
from protocol.v3.controller.administration import cancel_reassignment, create_topic, delete_topic, request
from protocol.v3.controller.context import Phase, Settings
from protocol.v3.controller.failover import on_controller_failover
from protocol.v3.controller.procedure import Commands, Event, Later, Reads, Writes
from protocol.v3.controller.reassignments import on_wakeup
from protocol.v3.store import paths
from tests.unit.protocol.v3.controller.procedure_helpers import ADMIN, CONTROLLERS, World, changes

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MODES = {"leader": Settings(), "controller": Settings(leaders_write_isr=False)}


def make(settings: Settings | None = None) -> World:
    world = World(settings=settings)
    world.create_topic("t", {0: (1, 2, 3), 1: (2, 3)})
    world.take_over()
    world.steps.clear()
    return world


def reassign(world: World, *target: int) -> None:
    assert not world.admin(request(paths.REASSIGNED, T0, target))
    world.handle_events()


@pytest.mark.covers("A8", "A37", "A38", "A39", "A40", "M44")
@pytest.mark.parametrize("mode", MODES)
def test_a_partition_moves_to_its_target(mode: str) -> None:
    world = make(MODES[mode])
    reassign(world, 1, 2, 4)
    assert world.topic("t").partitions[0] == (1, 2, 3)
    assert world.controller is not None
    assert world.controller.moves[T0].phase is Phase.IN_PROGRESS
    for broker in (1, 2, 3, 4):
        part = world.brokers[broker].replicas["T", 0]
        assert (part.replicas, part.leader_epoch) == ((1, 2, 3, 4), 1)
    assert world.catch_up()
    world.events.append(Event.WAKE_UP)
    world.handle_events()
    assert world.topic("t").partitions[0] == (1, 2, 4)
    assert (world.leader(T0), world.state(T0).isr) == (1, (1, 2, 4))
    assert world.brokers[3].deleted == [("T", 0)]
    assert world.tree.children(paths.REASSIGNED) == ()
    assert not world.controller.moves
    world.assert_brokers_follow()


@pytest.mark.covers("A2", "A40")
def test_isr_assignment_and_request_change_in_one_transaction_before_any_command() -> None:
    world = make()
    reassign(world, 1, 2, 4)
    world.catch_up()
    world.steps.clear()
    assert world.controller is not None
    world.run(on_wakeup(world.controller))
    steps = [step for step in world.steps if not isinstance(step, Commands) or step.commands]
    assert [type(step) for step in steps] == [Reads, Writes, Commands, Commands]
    (unit,) = steps[1].units
    assert [operation.path for operation in unit] == [
        paths.incarnation("t", "T"), paths.topic("t"), paths.leader_and_isr(T0), paths.request(paths.REASSIGNED, T0)
    ]  # fmt: skip


@pytest.mark.covers("A41", "M44")
@pytest.mark.parametrize("mode", MODES)
def test_a_leader_that_is_not_in_the_target_is_replaced_by_the_switch(mode: str) -> None:
    world = make(MODES[mode])
    reassign(world, 4, 2)
    world.settle()
    assert (world.leader(T0), world.state(T0).isr, world.state(T0).is_unclean_leader) == (4, (4, 2), False)
    assert world.brokers[1].deleted == [("T", 0)]
    world.assert_brokers_follow()


@pytest.mark.covers("A41", "M44")
def test_a_leader_that_dies_during_a_reassignment_fails_over_at_once() -> None:
    world = make()
    reassign(world, 4, 2)
    world.stop_broker(1)
    world.handle_events()
    assert world.leader(T0) == 2
    assert world.topic("t").partitions[0] == (1, 2, 3)
    world.settle()
    assert world.topic("t").partitions[0] == (4, 2)
    world.assert_brokers_follow()


@pytest.mark.covers("N8")
def test_a_dead_replica_that_leaves_does_not_hold_the_reassignment_up() -> None:
    world = make()
    world.stop_broker(3)
    world.handle_events()
    reassign(world, 1, 2, 4)
    world.settle()
    assert world.topic("t").partitions[0] == (1, 2, 4)


@pytest.mark.covers("N8", "N31")
@pytest.mark.parametrize(("own", "assigned"), [("3", (1, 2, 3)), ("2", (1, 2, 4)), (None, (1, 2, 4))])
def test_a_reassignment_asks_for_the_min_isr_of_its_topic(own: str | None, assigned: tuple[int, ...]) -> None:
    """Broker 2 is down, so 1 and 4 are in sync of the target; the default of the cluster is 2."""
    world = World(settings=Settings(min_isr=2))
    configs = {} if own is None else {"min.insync.replicas": own}
    assert not world.admin(create_topic("t", "T", {0: (1, 2, 3)}, configs))
    world.take_over()
    reassign(world, 1, 2, 4)
    world.stop_broker(2)
    world.settle()
    assert world.topic("t").partitions[0] == assigned


@pytest.mark.covers("A38", "H13")
def test_the_agent_wakes_up_again_while_there_are_reassignments() -> None:
    world = make()
    world.stop_broker(4)
    world.handle_events()
    world.steps.clear()
    reassign(world, 1, 4)
    periods = {step.after_ms for step in world.steps if isinstance(step, Later)}
    assert periods == {30_000}
    assert world.topic("t").partitions[0] == (1, 2, 3)
    world.start_broker(4)
    world.settle()
    assert world.topic("t").partitions[0] == (1, 4)
    world.steps.clear()
    assert world.controller is not None
    world.run(on_wakeup(world.controller))
    assert not [step for step in world.steps if isinstance(step, Later)]


@pytest.mark.covers("A38", "K12")
def test_an_isr_that_a_leader_of_a_mixed_cluster_writes_completes_a_reassignment() -> None:
    """The controller expects proposals, and watches no notifications; only the next wake-up can find the ISR."""
    world = make(MODES["controller"])
    reassign(world, 1, 2, 4)
    world.set_isr(T0, (1, 2, 3, 4))
    world.handle_events()
    assert world.topic("t").partitions[0] == (1, 2, 3)
    world.events.append(Event.WAKE_UP)
    world.handle_events()
    assert world.topic("t").partitions[0] == (1, 2, 4)
    world.assert_brokers_follow()


def test_replicas_that_only_change_their_order_move_without_a_command_to_begin() -> None:
    world = make()
    reassign(world, 3, 1, 2)
    assert world.topic("t").partitions[0] == (3, 1, 2)
    assert (world.leader(T0), world.state(T0).leader_epoch) == (1, 1)


@pytest.mark.covers("M44")
@pytest.mark.parametrize("mode", MODES)
def test_a_target_that_changes_leaves_no_replica_behind(mode: str) -> None:
    world = make(MODES[mode])
    reassign(world, 4, 2)
    reassign(world, 8, 2)
    assert ("T", 0) in world.brokers[4].replicas
    reassign(world, 1, 2)
    world.settle()
    assert world.brokers[8].deleted == [("T", 0)]
    assert world.topic("t").partitions[0] == (1, 2)
    assert world.brokers[4].deleted == [("T", 0)]
    world.assert_brokers_follow()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("has_joined", [False, True])
def test_a_reassignment_that_is_withdrawn_returns_to_the_assignment(mode: str, has_joined: bool) -> None:
    world = make(MODES[mode])
    reassign(world, 1, 4)
    if has_joined:
        assert world.catch_up()
    assert not world.admin(cancel_reassignment(T0))
    world.settle()
    assert world.topic("t").partitions[0] == (1, 2, 3)
    assert set(world.state(T0).isr) == {1, 2, 3}
    assert world.brokers[4].deleted == [("T", 0)]
    assert world.admin(cancel_reassignment(T0)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    world.assert_brokers_follow()


def test_a_request_that_is_withdrawn_during_the_switch_stops_it() -> None:
    world = make()
    reassign(world, 1, 4)
    world.catch_up()

    def withdraw(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.topic("t")):
            world.before_write = lambda operations: None
            world.transact(ADMIN, (Delete(path=paths.request(paths.REASSIGNED, T0)),))

    world.before_write = withdraw
    world.events.append(Event.WAKE_UP)
    world.settle()
    assert world.topic("t").partitions[0] == (1, 2, 3)
    world.assert_brokers_follow()


def test_a_switch_whose_response_was_lost_still_stops_the_replicas_that_leave() -> None:
    world = make()
    reassign(world, 1, 4)
    world.catch_up()

    def repeat(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.topic("t")):
            world.before_write = lambda operations: None
            world.transact(ADMIN, operations)

    world.before_write = repeat
    world.events.append(Event.WAKE_UP)
    world.settle()
    assert world.topic("t").partitions[0] == (1, 4)
    assert world.brokers[2].deleted == world.brokers[3].deleted == [("T", 0)]
    world.assert_brokers_follow()


@pytest.mark.covers("A24", "A33", "M33")
@pytest.mark.parametrize("has_joined", [False, True])
def test_a_new_controller_deletes_no_replica_that_a_reassignment_has_added(has_joined: bool) -> None:
    """Broker 4 is not assigned. Once it is in the ISR, an INIT that does not name it would cost records."""
    world = make()
    reassign(world, 1, 4)
    if has_joined:
        assert world.catch_up()
    assert (4 in world.state(T0).isr) is has_joined
    world.depose()
    controller = world.elect(CONTROLLERS[1])
    world.run(on_controller_failover(controller))
    assert world.brokers[4].deleted == []
    world.settle()
    assert world.topic("t").partitions[0] == (1, 4)


def test_a_partition_that_is_deleted_during_its_reassignment_leaves_nothing() -> None:
    world = make()
    reassign(world, 1, 4)
    assert not world.admin(delete_topic("t"))
    world.settle()
    assert world.tree.children(paths.REASSIGNED) == ()
    assert [world.brokers[b].deleted for b in (1, 4)] == [[("T", 0)], [("T", 0)]]
    world.assert_brokers_follow()


def test_many_partitions_of_a_topic_switch_in_transactions_of_a_bounded_size() -> None:
    world = World(settings=Settings(moves_per_write=2))
    world.create_topic("m", dict.fromkeys(range(5), (1, 2)))
    world.take_over()
    for index in range(5):
        assert not world.admin(request(paths.REASSIGNED, TopicPartition("m", index), (2, 1)))
    world.steps.clear()
    world.settle()
    assert set(world.topic("m").partitions.values()) == {(2, 1)}
    sizes = [len(unit) for step in world.steps if isinstance(step, Writes) for unit in step.units if len(unit) > 2]
    assert sizes == [6, 6, 4]
