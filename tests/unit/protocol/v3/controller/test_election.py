"""The race for `/controller`, and what fences a deposed controller."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.ids import TopicPartition
from protocol.messages.store import Check, Create, Delete, SetData
from protocol.v3.controller.broker_changes import controlled_shutdown
from protocol.v3.controller.election import DAMAGE_RETRY_MS, Elected, Lost, elect
from protocol.v3.controller.procedure import Event, Pause, Procedure, Writes
from protocol.v3.store import paths
from tests.unit.protocol.v3.controller.procedure_helpers import ADMIN, CONTROLLERS, DeposedError, World

KEY = TopicPartition("t", 0)


def race(world: World, *brokers: int) -> list[Elected | Lost]:
    """Carries elections out in turn, step by step."""
    running: dict[int, tuple[Procedure[Any], Any]] = {b: (elect(b, world.brokers[b].epoch), None) for b in brokers}
    outcomes: dict[int, Elected | Lost] = {}
    while running:
        for broker, (procedure, result) in list(running.items()):
            world.session = world.brokers[broker].epoch
            try:
                running[broker] = (procedure, world.carry_out(procedure.send(result)))
            except StopIteration as end:
                outcomes[broker] = end.value
                del running[broker]
    return [outcomes[broker] for broker in brokers]


@pytest.mark.covers("A1", "A4", "A32", "M34")
def test_one_of_all_that_race_is_elected_and_the_others_know_it() -> None:
    world = World()
    first, second, third = race(world, 3, 1, 2)
    assert isinstance(first, Elected)
    assert (first.epoch, first.fence.version) == (1, 1)
    assert second == third == Lost(3)
    assert world.tree.ephemerals(world.brokers[3].epoch) == ("/brokers/ids/3", "/controller")


@pytest.mark.covers("A32", "A35")
def test_each_controller_has_an_epoch_of_its_own() -> None:
    world = World()
    for epoch in (1, 2, 3):
        controller = world.elect(CONTROLLERS[epoch % 2])
        assert controller.author.controller_epoch == epoch
        world.depose()


@pytest.mark.covers("A32")
def test_a_loser_hears_of_a_winner_that_dies_before_the_loser_reads_who_it_is() -> None:
    world = World()
    world.session = session = world.brokers[2].epoch
    procedure, result = elect(2, session), None
    while not isinstance(step := procedure.send(result), Writes):
        result = world.carry_out(step)
    world.elect(1)
    world.depose()
    world.session = session
    assert world.run(procedure, world.carry_out(step)) == Lost()
    assert (session, paths.CONTROLLER) in world.fired


@pytest.mark.covers("A32")
def test_a_loser_watches_the_controller() -> None:
    world = World()
    race(world, 1, 2)
    world.fired.clear()
    world.depose()
    assert (world.brokers[2].epoch, paths.CONTROLLER) in world.fired


def test_a_controller_whose_response_was_lost_goes_on_as_controller() -> None:
    world = World()
    world.session = world.brokers[1].epoch
    procedure = elect(1, world.session)
    result = None
    while not isinstance(step := procedure.send(result), Writes):
        result = world.carry_out(step)
    world.carry_out(step)
    procedure.close()
    assert world.run(elect(1, world.session)) == Elected(1, Check(path=paths.CONTROLLER_EPOCH, version=1))


def test_a_restarted_broker_is_not_taken_for_its_former_incarnation() -> None:
    world = World()
    world.elect(1)
    world.stop_broker(1)
    world.start_broker(1)
    world.session = world.brokers[1].epoch
    assert world.run(elect(1, world.session)) == Lost(1)


@pytest.mark.covers("A35", "M34")
def test_a_deposed_controller_writes_nothing() -> None:
    world = World()
    world.create_topic("t", {0: (1, 2)})
    old = world.take_over(CONTROLLERS[0])
    fence, before = world.fence, world.stored(KEY)
    world.depose()
    world.elect(CONTROLLERS[1])
    world.fence = fence
    with pytest.raises(DeposedError):
        world.run(controlled_shutdown(old, 1, world.brokers[1].epoch))
    assert world.stored(KEY) == before


@pytest.mark.covers("A35")
def test_brokers_refuse_the_commands_of_a_deposed_controller() -> None:
    world = World()
    world.create_topic("t", {0: (1, 2)})
    old = world.take_over(CONTROLLERS[0])
    late = old.init([1]).commands[0]
    world.depose()
    world.take_over(CONTROLLERS[1])
    world.create_topic("u", {0: (1, 2)})
    world.settle()
    world.brokers[1].obey(late, old.author.controller_epoch)
    assert set(world.brokers[1].replicas) == {("T", 0), ("U", 0)}


def test_a_damaged_epoch_holds_the_election_up_until_it_is_repaired_and_nothing_is_written() -> None:
    world = World()
    world.transact(ADMIN, (SetData(path=paths.CONTROLLER_EPOCH, data=b"many"),))
    procedure, steps = elect(1, world.brokers[1].epoch), []
    step = procedure.send(None)
    while len(steps) < 8:
        steps.append(step)
        step = procedure.send(world.carry_out(step))
    assert [step for step in steps if isinstance(step, Pause)] == 2 * [Pause(DAMAGE_RETRY_MS)]
    assert world.alerts == ["damaged node /controller_epoch: found b'many'; allowed: a number"]
    assert world.tree.find(paths.CONTROLLER) is None
    world.transact(ADMIN, (SetData(path=paths.CONTROLLER_EPOCH, data=b"7"),))
    elected = world.run(procedure, world.carry_out(step))
    assert isinstance(elected, Elected)
    assert elected.epoch == 8


@pytest.mark.covers("A11", "K12")
@pytest.mark.parametrize("leaders_write_isr", [True, False])
def test_a_controller_watches_brokers_topics_and_requests_and_isr_changes_only_if_leaders_write_them(
    leaders_write_isr: bool,
) -> None:
    world = World()
    world.settings = type(world.settings)(leaders_write_isr=leaders_write_isr)
    world.take_over()
    for path, event in (
        ("/brokers/ids/4", Event.BROKER_CHANGE),
        ("/isr_change_notification/x", Event.ISR_CHANGE),
        ("/brokers/topics/x", Event.TOPIC_CHANGE),
        ("/admin/partitions_reassigned/x", Event.REASSIGNED),
        ("/admin/partitions_add/x", Event.ADDED),
        ("/admin/partitions_remove/x", Event.REMOVED),
    ):
        world.transact(ADMIN, (Delete(path=path) if event is Event.BROKER_CHANGE else Create(path=path),))
        expected = leaders_write_isr or event is not Event.ISR_CHANGE
        assert (event in world.events) is expected, event
