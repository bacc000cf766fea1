"""Topics are created and deleted, partitions added and removed; what is damaged is left alone."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
from protocol.messages.store import Create, Delete, SetData, WriteOperation
from protocol.v3.controller.administration import create_topic, delete_topic, request
from protocol.v3.controller.context import Settings
from protocol.v3.controller.isr_updates import alter_isr, read_overtaken, write_isrs
from protocol.v3.controller.procedure import Commands, Event, Later
from protocol.v3.store import paths
from protocol.v3.store.records import REMOVED, LeaderAndIsr, ReplicasNode, Stored
from tests.unit.protocol.v3.controller.procedure_helpers import ADMIN, CONTROLLERS, World, changes

T0, T1, T2, U0 = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("u", 0))


def make(settings: Settings | None = None) -> World:
    world = World(settings=settings)
    world.create_topic("t", {0: (1, 2, 3), 1: (2, 3, 1)})
    world.create_topic("u", {0: (3, 4)})
    world.take_over()
    world.steps.clear()
    return world


@pytest.mark.covers("A18", "A19", "A53")
def test_a_new_topic_is_initialised_with_its_live_replicas() -> None:
    world = make()
    world.stop_broker(1)
    world.handle_events()
    world.steps.clear()
    world.create_topic("v", {0: (1, 2), 1: (4, 2), 2: (1,)})
    world.handle_events()
    found = {index: world.state(TopicPartition("v", index)) for index in (0, 1)}
    assert {index: (state.leader, state.isr) for index, state in found.items()} == {0: (2, (2,)), 1: (4, (4, 2))}
    (sent,) = (step for step in world.steps if isinstance(step, Commands) and step.commands)
    assert [(command.broker, len(command.leader_and_isr)) for command in sent.commands] == [(2, 2), (4, 1)]
    assert world.alerts == ["1 new partitions, v-2 first: no replica is alive"]
    world.start_broker(1)
    world.handle_events()
    assert world.leader(TopicPartition("v", 2)) == 1
    world.assert_brokers_follow()


def test_a_first_state_whose_response_was_lost_is_found_and_sent() -> None:
    """The write takes effect, and is repeated as the runner repeats it."""
    world, key = make(), TopicPartition("v", 0)

    def repeat(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.partition(key)):
            world.before_write = lambda operations: None
            world.transact(ADMIN, operations)

    world.before_write = repeat
    world.create_topic("v", {0: (1, 2)})
    world.handle_events()
    assert world.controller is not None
    assert world.controller.states[key] == world.stored(key)
    world.assert_brokers_follow()


@pytest.mark.covers("A20")
def test_a_deleted_topic_is_stopped_on_its_live_brokers() -> None:
    world = make()
    world.stop_broker(2)
    world.handle_events()
    world.admin(delete_topic("t"))
    world.steps.clear()
    world.handle_events()
    (sent,) = (step for step in world.steps if isinstance(step, Commands) and step.commands)
    assert [(command.broker, len(command.stop_replica)) for command in sent.commands] == [(1, 2), (3, 2)]
    assert world.brokers[1].deleted == [("T", 0), ("T", 1)]
    world.start_broker(2)
    world.handle_events()
    assert world.brokers[2].deleted == [("T", 0), ("T", 1)]
    world.assert_brokers_follow()


@pytest.mark.covers("A53", "M36", "N11")
def test_a_topic_that_is_deleted_and_created_again_between_two_reads_gets_new_replicas() -> None:
    world = make()
    world.admin(delete_topic("t"))
    world.create_topic("t", {0: (1, 2)}, topic_id="T2")
    world.handle_events()
    assert world.brokers[1].deleted == [("T", 0), ("T", 1)]
    assert set(world.brokers[1].replicas) == {("T2", 0)}
    world.assert_brokers_follow()


def _recreated_before(world: World, path: str) -> None:
    """Topic t is deleted and created again, on other brokers, just before the next change of a node."""

    def recreate(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, path):
            world.before_write = lambda operations: None
            assert not world.admin(delete_topic("t"))
            world.create_topic("t", {0: (4, 3)}, topic_id="T2")

    world.before_write = recreate


def _assert_recreated(world: World) -> None:
    world.settle()
    assert (world.topic("t").topic_id, world.topic("t").partitions) == ("T2", {0: (4, 3)})
    assert (world.state(T0).leader, world.state(T0).isr, world.stored(T0).version) == (4, (4, 3), 0)
    assert set(world.brokers[2].replicas) == set()
    world.assert_brokers_follow()


@pytest.mark.covers("M36", "N11")
def test_a_first_state_is_not_written_for_a_later_topic_of_the_same_name() -> None:
    world = make()
    assert not world.admin(delete_topic("t"))
    world.create_topic("t", {0: (1, 2)}, topic_id="T1")
    _recreated_before(world, paths.leader_and_isr(T0))
    _assert_recreated(world)


@pytest.mark.covers("M36", "N11")
@pytest.mark.parametrize("leaders_write_isr", [True, False])
def test_a_decision_is_not_written_for_a_later_topic_of_the_same_name(leaders_write_isr: bool) -> None:
    """Both topics have nodes of version 0, so the version does not tell them apart."""
    world = make(Settings(leaders_write_isr=leaders_write_isr))
    controller = world.controller
    assert controller is not None

    def recreate(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.leader_and_isr(T0)):
            world.before_write = lambda operations: None
            assert not world.admin(delete_topic("t"))
            world.create_topic("t", {0: (4, 3)}, topic_id="T2")
            first = LeaderAndIsr(leader=4, leader_epoch=0, isr=(4, 3), controller=8, controller_epoch=1)
            world.transact(ADMIN, (Create(path=paths.partition(T0)),
                                   Create(path=paths.leader_and_isr(T0), data=first.encode())))  # fmt: skip

    world.before_write = recreate
    world.stop_broker(1)
    _assert_recreated(world)


@pytest.mark.covers("M36", "N11")
@pytest.mark.parametrize("root", [paths.ADDED, paths.REMOVED])
def test_an_assignment_is_not_written_for_a_later_topic_of_the_same_name(root: str) -> None:
    world = make()
    key = T2 if root == paths.ADDED else T1
    assert not world.admin(request(root, key, (1, 2)))
    _recreated_before(world, paths.topic("t"))
    _assert_recreated(world)
    assert world.tree.children(root) == (), "the request was one about the deleted topic"


@pytest.mark.covers("M36", "N11")
def test_a_leader_does_not_write_the_isr_of_a_later_topic_of_the_same_name() -> None:
    world = make()
    before = world.stored(T0)
    change = {T0: Stored(before.state.model_copy(update={"isr": (1, 2)}), before.version)}
    assert not world.admin(delete_topic("t"))
    world.create_topic("t", {0: (1, 2, 3)}, topic_id="T2")
    world.settle()
    after = world.stored(T0)
    assert after.version == before.version
    assert world.admin(write_isrs(change, {"t": "T"})) == {}
    assert world.stored(T0) == after
    world.set_isr(T0, (1, 2))
    assert world.admin(read_overtaken({T0: before}, {"t": "T"})) == {}
    assert world.admin(read_overtaken({T0: before}, {"t": "T2"})) == {T0: world.stored(T0)}


@pytest.mark.covers("M30")
def test_a_leader_of_a_removed_partition_does_not_write_the_isr_of_one_that_was_added_again() -> None:
    world = make()
    before = world.stored(T1)
    change = {T1: Stored(before.state.model_copy(update={"isr": (2,)}), before.version)}
    assert not world.admin(request(paths.REMOVED, T1))
    world.handle_events()
    assert world.admin(write_isrs(change, world.topic_ids())) == {}
    world.alerts.clear()
    assert world.admin(read_overtaken(change, world.topic_ids())) == {}
    assert world.alerts == []
    assert not world.admin(request(paths.ADDED, T1, (2, 3, 1)))
    world.handle_events()
    again = world.stored(T1)
    assert again.version > before.version
    assert world.admin(write_isrs(change, world.topic_ids())) == {}
    assert world.stored(T1) == again
    world.assert_brokers_follow()


@pytest.mark.parametrize("leaders_write_isr", [True, False])
def test_a_lost_node_of_a_topic_id_is_reported_and_waited_for(leaders_write_isr: bool) -> None:
    world = make(Settings(leaders_write_isr=leaders_write_isr))
    path = paths.incarnation("t", "T")
    world.transact(ADMIN, (Delete(path=path),))
    damage = f"damaged node {path}: found b''; allowed: a node, since the topic has this id"
    world.stop_broker(1)
    world.handle_events()
    assert damage in world.alerts
    assert world.leader(T0) == 1
    before = world.stored(T0)
    change = {T0: Stored(before.state.model_copy(update={"isr": (1, 2)}), before.version)}
    assert world.admin(write_isrs(change, world.topic_ids())) == {}
    world.alerts.clear()
    assert world.admin(read_overtaken(change, world.topic_ids())) == {}
    assert world.alerts == [damage]
    if not leaders_write_isr:
        assert world.controller is not None
        world.controller.damaged.clear()
        world.alerts.clear()
        answer = world.run(alter_isr(world.controller, world.proposal(T1, (2, 3))))
        assert answer.partitions[0].error is ErrorCode.INVALID_UPDATE_VERSION
        assert world.alerts == [damage]
    world.transact(ADMIN, (Create(path=path),))
    world.events.append(Event.BROKER_CHANGE)
    world.settle()
    assert world.leader(T0) == 2
    assert world.controller is not None
    assert world.controller.damaged == set()
    world.start_broker(1)
    world.settle()
    world.assert_brokers_follow()


def test_a_first_state_waits_for_a_lost_node_of_the_topic_id() -> None:
    world, key = make(), TopicPartition("v", 0)
    world.create_topic("v", {0: (1, 2)})
    world.transact(ADMIN, (Delete(path=paths.incarnation("v", "V")),))
    world.handle_events()
    assert world.tree.find(paths.leader_and_isr(key)) is None
    assert any(paths.incarnation("v", "V") in alert for alert in world.alerts)
    world.transact(ADMIN, (Create(path=paths.incarnation("v", "V")),))
    world.events.append(Event.BROKER_CHANGE)
    world.settle()
    assert world.leader(key) == 1
    assert world.controller is not None
    assert (world.controller.unsettled, world.controller.damaged) == (set(), set())


@pytest.mark.covers("N11")
def test_a_topic_is_deleted_with_the_requests_about_it() -> None:
    world = make()
    for root, key in ((paths.ADDED, T2), (paths.REMOVED, T1), (paths.REASSIGNED, T0), (paths.REASSIGNED, U0)):
        assert not world.admin(request(root, key, (1, 2)))
    assert not world.admin(delete_topic("t"))
    assert [world.tree.children(root) for root in paths.REQUESTS] == [("u",), (), ()]


@pytest.mark.covers("A21", "A53")
def test_a_partition_is_added_after_the_one_below_it() -> None:
    world = make()
    world.stop_broker(4)
    world.handle_events()
    for key, replicas in ((T2, (4, 1)), (TopicPartition("t", 3), (1, 2))):
        assert not world.admin(request(paths.ADDED, key, replicas))
    world.handle_events()
    assert sorted(world.topic("t").partitions) == [0, 1], "the brokers of partition 2 are not all alive"
    world.start_broker(4)
    world.events.append(Event.ADDED)
    world.handle_events()
    assert sorted(world.topic("t").partitions) == [0, 1, 2, 3]
    assert world.tree.children(paths.ADDED) == ()


@pytest.mark.covers("A9", "A21", "M45")
def test_partitions_are_added() -> None:
    world = make()
    assert not world.admin(request(paths.ADDED, T2, (4, 1)))
    world.handle_events()
    assert world.topic("t").partitions == {0: (1, 2, 3), 1: (2, 3, 1), 2: (4, 1)}
    assert (world.leader(T2), world.state(T2).isr) == (4, (4, 1))
    assert world.tree.children(paths.ADDED) == ()
    world.assert_brokers_follow()


@pytest.mark.covers("A53")
def test_a_partition_is_not_added_to_dead_brokers_until_they_are_back() -> None:
    world = make()
    world.stop_broker(4)
    world.handle_events()
    assert not world.admin(request(paths.ADDED, T2, (4, 1)))
    world.handle_events()
    assert "t-2 is to be added on brokers [4], which are not alive" in world.alerts
    assert any(isinstance(step, Later) for step in world.steps)
    assert 2 not in world.topic("t").partitions
    world.start_broker(4)
    world.handle_events()
    world.depose()
    world.take_over(CONTROLLERS[1])
    assert world.leader(T2) == 4


@pytest.mark.covers("A9", "A21", "M45")
def test_partitions_are_removed_and_may_be_added_again_in_higher_epochs() -> None:
    world = make()
    world.stop_broker(2)
    world.handle_events()
    epoch = world.state(T1).leader_epoch
    assert epoch == 1
    assert not world.admin(request(paths.REMOVED, T1))
    world.handle_events()
    assert world.topic("t").partitions == {0: (1, 2, 3)}
    removed = world.tree.find(paths.leader_and_isr(T1))
    assert removed is not None
    assert removed.data == REMOVED
    assert world.tree.children(paths.REMOVED) == ()
    assert world.brokers[3].deleted == [("T", 1)]
    assert not world.admin(request(paths.ADDED, T1, (3, 4)))
    world.handle_events()
    assert (world.leader(T1), world.state(T1).leader_epoch) == (3, 2)
    (stop,) = (part for step in world.steps if isinstance(step, Commands) for c in step.commands if c.broker == 3
               for part in c.stop_replica)  # fmt: skip
    assert stop.leader_epoch == epoch
    world.assert_brokers_follow()


def test_a_change_of_an_assignment_that_meets_another_one_is_decided_again() -> None:
    world = make()

    def interfere(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.topic("t")):
            world.before_write = lambda operations: None
            node = world.topic("t")
            changed = node.model_copy(update={"partitions": {**node.partitions, 7: (4,)}})
            world.transact(ADMIN, (SetData(path=paths.topic("t"), data=changed.encode()),))

    world.before_write = interfere
    assert not world.admin(request(paths.ADDED, T2, (4, 1)))
    world.handle_events()
    assert set(world.topic("t").partitions) == {0, 1, 2, 7}
    assert world.leader(T2) == 4


def test_a_storm_of_changes_of_an_assignment_ends_with_an_alert_and_the_request_stays() -> None:
    world = make(Settings(attempts=3, retry_ms=700))

    def interfere(operations: tuple[WriteOperation, ...]) -> None:
        if changes(operations, paths.topic("t")):
            world.transact(ADMIN, (SetData(path=paths.topic("t"), data=world.topic("t").encode()),))

    world.before_write = interfere
    assert not world.admin(request(paths.ADDED, T2, (4, 1)))
    world.handle_events()
    assert "topic t: 3 writes of its assignment found another version each" in world.alerts
    assert world.tree.children(f"{paths.ADDED}/t") == ("2",)
    assert any(isinstance(step, Later) and step.after_ms == 700 for step in world.steps)


@pytest.mark.parametrize(
    ("root", "name", "data", "alert"),
    [
        (paths.ADDED, "2", b"{}", "damaged node /admin/partitions_add/t/2: found b'{}'; allowed: JSON of replicas"),
        (paths.ADDED, "2", ReplicasNode(replicas=()).encode(), "allowed: different brokers, one at least"),
        (paths.ADDED, "2", ReplicasNode(replicas=(1, 1)).encode(), "allowed: different brokers, one at least"),
        (paths.ADDED, "two", b"", "unknown path in the store: found '/admin/partitions_add/t/two'"),
        (paths.REMOVED, "-1", b"", "unknown path in the store: found '/admin/partitions_remove/t/-1'"),
        (paths.REASSIGNED, "0", b"?", "damaged node /admin/partitions_reassigned/t/0: found b'?'"),
    ],
)
def test_a_request_that_cannot_be_read_is_left_alone_with_an_alert(
    root: str, name: str, data: bytes, alert: str
) -> None:
    world = make()
    before = world.summary()
    world.transact(ADMIN, (Create(path=f"{root}/t"), Create(path=f"{root}/t/{name}", data=data)))
    world.handle_events()
    assert alert in world.alerts[0]
    assert {path: value for path, value in world.summary().items() if not path.startswith(f"{root}/t")} == before
    assert world.tree.find(f"{root}/t/{name}") is not None


@pytest.mark.parametrize("root", [paths.ADDED, paths.REASSIGNED])
def test_a_request_for_a_topic_that_does_not_exist_is_removed_with_an_alert(root: str) -> None:
    world = make()
    world.transact(
        ADMIN, (Create(path=f"{root}/x"), Create(path=f"{root}/x/0", data=ReplicasNode(replicas=(1,)).encode()))
    )
    world.handle_events()
    assert world.tree.children(root) == ()
    assert "exist" in world.alerts[0]


@pytest.mark.parametrize("damaged", [paths.leader_and_isr(T0), paths.topic("t")], ids=["a state", "an assignment"])
def test_while_a_node_is_damaged_nothing_is_deleted_and_the_rest_goes_on(damaged: str) -> None:
    world = make()
    held = set(world.brokers[2].replicas)
    world.damage(damaged)
    world.depose()
    world.take_over(CONTROLLERS[1])
    assert [alert for alert in world.alerts if alert.startswith(f"damaged node {damaged}: found b'?'")] == world.alerts
    assert set(world.brokers[2].replicas) == held
    assert not world.brokers[2].deleted
    node = world.tree.find(damaged)
    assert node is not None
    assert node.data == b"?"
    world.stop_broker(3)
    world.handle_events()
    assert world.leader(U0) == 4


def test_a_damaged_partition_is_not_removed() -> None:
    world = make()
    world.damage(paths.leader_and_isr(T1))
    world.depose()
    world.take_over(CONTROLLERS[1])
    world.admin(request(paths.REMOVED, T1))
    world.handle_events()
    assert world.tree.find(paths.leader_and_isr(T1)) is not None
    assert world.tree.find(paths.request(paths.REMOVED, T1)) is not None


def test_a_broker_whose_registration_is_damaged_does_not_count_as_alive() -> None:
    world = make()
    world.damage(paths.broker(1))
    world.depose()
    world.take_over(CONTROLLERS[1])
    assert world.leader(T0) == 2
    assert set(world.alerts) == {
        "damaged node /brokers/ids/1: found b'?'; allowed: JSON of broker_epoch, host, port, version"
    }


def test_what_an_admin_cannot_do() -> None:
    world = make()
    before = world.summary()
    assert world.admin(create_topic("t", "T3", {0: (1,)})) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert world.admin(create_topic("a/b", "T3", {0: (1,)})) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert world.admin(delete_topic("x")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.admin(request(paths.ADDED, T0, (4,))) is ErrorCode.INVALID_PARTITIONS
    assert world.admin(request(paths.REASSIGNED, T2, (4,))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.admin(request(paths.REMOVED, T2)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.admin(request(paths.REMOVED, TopicPartition("x", 0))) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.summary() == before
