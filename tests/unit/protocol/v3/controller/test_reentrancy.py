"""The controller dies before every single effect of every procedure, and the next one completes what it had begun."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol.ids import TopicPartition
from protocol.v3.controller.administration import cancel_reassignment, delete_topic, request
from protocol.v3.controller.broker_changes import controlled_shutdown
from protocol.v3.controller.context import Settings
from protocol.v3.controller.procedure import Event
from protocol.v3.store import paths
from tests.unit.protocol.v3.controller.procedure_helpers import CONTROLLERS, CrashError, World

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MODES = {"leader": Settings(), "controller": Settings(leaders_write_isr=False)}


def prepared(settings: Settings) -> World:
    """Two topics on four brokers, under the first controller."""
    world = World(settings=settings)
    world.create_topic("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    world.create_topic("u", {0: (3, 4)})
    world.take_over()
    return world


def fail_over(world: World) -> None:
    world.stop_broker(2)


def lose_all(world: World) -> None:
    for broker in (3, 4):
        world.stop_broker(broker)


def lose_in_sync(world: World) -> None:
    world.set_isr(T0, (1,))
    world.handle_events()
    world.stop_broker(1)


def create(world: World) -> None:
    world.create_topic("v", {0: (4, 1), 1: (1, 2)})


def delete(world: World) -> None:
    assert not world.admin(delete_topic("t"))


def recreate(world: World) -> None:
    delete(world)
    world.create_topic("t", {0: (1, 2, 3)}, topic_id="T2")


def reassign(world: World) -> None:
    assert not world.admin(request(paths.REASSIGNED, T0, (4, 2)))
    assert not world.admin(request(paths.REASSIGNED, U0, (4, 3)))


def cancel(world: World) -> None:
    assert not world.admin(request(paths.REASSIGNED, T0, (4, 2)))
    world.handle_events()
    world.catch_up()
    assert not world.admin(cancel_reassignment(T0))


def add(world: World) -> None:
    assert not world.admin(request(paths.ADDED, TopicPartition("u", 1), (4, 1)))
    assert not world.admin(request(paths.ADDED, TopicPartition("t", 2), (1, 3)))


def remove(world: World) -> None:
    assert not world.admin(request(paths.REMOVED, T1))
    assert not world.admin(request(paths.REMOVED, U0))


def lead_over(world: World) -> None:
    """The controller of `prepared` dies; that of `check` fails over twice."""
    world.depose()
    world.elect(CONTROLLERS[1])
    world.events.append(Event.FAILOVER)


CASES: dict[str, Callable[[World], None]] = {
    case.__name__: case
    for case in (
        *(fail_over, lose_all, lose_in_sync, create, delete, recreate),
        *(reassign, cancel, add, remove, lead_over),
    )
}


def effects(case: Callable[[World], None], settings: Settings) -> tuple[World, int]:
    """The world after a case that no controller dies in, and how many effects its procedures had."""
    world = prepared(settings)
    case(world)
    world.budget = 10**6
    world.settle()
    used = 10**6 - world.budget
    world.budget = None
    return world, used


@pytest.mark.covers("A22", "A33", "A36", "M33", "M45")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_failover_completes_what_the_former_controller_had_begun(case: str, mode: str) -> None:
    whole, used = effects(CASES[case], MODES[mode])
    whole.assert_brokers_follow()
    assert used > 1
    for crash in range(used):
        world = prepared(MODES[mode])
        CASES[case](world)
        world.budget = crash
        with pytest.raises(CrashError):
            world.settle()
        world.budget = None
        world.depose()
        world.take_over(CONTROLLERS[crash % 2])
        assert (crash, world.summary()) == (crash, whole.summary())
        assert (crash, world.held()) == (crash, whole.held())
        world.assert_brokers_follow()


@pytest.mark.parametrize("mode", MODES)
def test_a_controlled_shutdown_is_repeated_by_its_broker(mode: str) -> None:
    """The request is the broker's, which asks the next controller."""
    whole = prepared(MODES[mode])
    assert whole.controller is not None
    assert whole.run(controlled_shutdown(whole.controller, 3, whole.brokers[3].epoch)) == ()
    for crash in range(4):
        world = prepared(MODES[mode])
        assert world.controller is not None
        world.budget = crash
        with pytest.raises(CrashError):
            world.run(controlled_shutdown(world.controller, 3, world.brokers[3].epoch))
        world.budget = None
        world.depose()
        controller = world.elect(CONTROLLERS[1])
        world.events.append(Event.FAILOVER)
        world.handle_events()
        assert world.run(controlled_shutdown(controller, 3, world.brokers[3].epoch)) == ()
        assert world.summary() == whole.summary()
        assert world.held() == whole.held()
