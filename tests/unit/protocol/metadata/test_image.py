"""The metadata image: replay of each record, configs in force, and the delta."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.controller.context import ControllerState
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.features import Generation
from protocol.ids import NO_LEADER, TopicIdPartition
from protocol.messages.admin import MetadataRequest
from protocol.messages.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.metadata.image import BrokerRegistration, MetadataImage
from protocol.metadata.partition import LeaderRecoveryState, PartitionState, replay_change
from protocol.metadata.queries import metadata_response
from tests.unit.protocol.node_helpers import T0, config_of, fencing, registrations, topic_records

MIN_ISR = "min.insync.replicas"


def image_of(*records: MetadataRecord, generation: Generation = Generation.KIP_966) -> MetadataImage:
    image = MetadataImage(config_of(generation))
    for record in records:
        image.replay(record)
    return image


def config(topic_id: str | None, value: str | None, name: str = MIN_ISR) -> ConfigRecord:
    return ConfigRecord(topic_id=topic_id, name=name, value=value)


def test_a_registration_is_fenced_until_a_record_says_otherwise() -> None:
    image = image_of(*registrations((0, 1), fenced=(0, 1)))
    assert (image.is_active(0), image.broker_epoch(0), image.broker_epoch(7)) == (False, 0, None)
    image.replay(fencing(0, 0, False))
    assert image.is_active(0)
    image.replay(BrokerRegistrationChangeRecord(broker_id=0, broker_epoch=0, in_controlled_shutdown=True))
    assert not image.is_active(0)
    assert not image.brokers[0].fenced, "one flag leaves the other alone"
    image.replay(RegisterBrokerRecord(broker_id=0, broker_epoch=4, incarnation_id="next", rack="r"))
    registration = image.brokers[0]
    assert (registration.broker_epoch, registration.fenced, registration.in_controlled_shutdown) == (4, True, False)


UNFIT = {
    "change of an unknown broker": fencing(7, 7, False),
    "change of an earlier incarnation": fencing(1, 0, False),
    "removal of an unknown topic": RemoveTopicRecord(topic_id="U"),
    "partition of an unknown topic": PartitionRecord(topic_id="U", partition_id=0, replicas=(0,), isr=(0,), leader=0),
    "change of an unknown topic": PartitionChangeRecord(topic_id="U", partition_id=0, leader=0),
    "change of an unknown partition": PartitionChangeRecord(topic_id="T", partition_id=1, leader=0),
    "a record without a meaning": MetadataRecord(),
}


@pytest.mark.parametrize("record", UNFIT.values(), ids=UNFIT)
def test_an_invalid_record_is_a_broken_invariant(record: MetadataRecord) -> None:
    image = image_of(*registrations(), *topic_records())
    offset = image.next_offset
    with pytest.raises(ProtocolInvariantError):
        image.replay(record)
    assert image.next_offset == offset


@pytest.mark.covers("K3", "G34")
def test_a_partition_record_without_elr_fields_loads_with_none() -> None:
    state = image_of(*registrations(), *topic_records()).partition(T0)
    assert state is not None
    assert (state.elr, state.last_known_elr, state.last_known_leader) == ((), (), NO_LEADER)


STATE = PartitionState(
    replicas=(0, 1, 2),
    isr=(0,),
    elr=(1,),
    last_known_elr=(2,),
    leader=0,
    leader_epoch=5,
    partition_epoch=9,
    leader_recovery_state=LeaderRecoveryState.RECOVERING,
    last_known_leader=2,
)
CHANGES = {
    "nothing": ({}, {}),
    "isr": ({"isr": (0, 1)}, {"isr": (0, 1)}),
    "empty isr": ({"isr": ()}, {"isr": ()}),
    "elr": ({"eligible_leader_replicas": ()}, {"elr": ()}),
    "last known elr": ({"last_known_elr": ()}, {"last_known_elr": ()}),
    "no last known leader": ({"last_known_leader": -1}, {"last_known_leader": -1}),
    "leader": ({"leader": 1}, {"leader": 1, "leader_epoch": 6}),
    "no leader": ({"leader": -1}, {"leader": -1, "leader_epoch": 6}),
    "the same leader": ({"leader": 0}, {"leader_epoch": 6}),
    "recovered": ({"leader_recovery_state": 0}, {"leader_recovery_state": LeaderRecoveryState.RECOVERED}),
    "replicas": ({"replicas": (1, 0)}, {"replicas": (1, 0)}),
    "reassignment": ({"adding_replicas": (3,)}, {"adding_replicas": (3,)}),
    "end of it": ({"removing_replicas": ()}, {"removing_replicas": ()}),
}


@pytest.mark.covers("G20", "G22", "E18", "C6")
@pytest.mark.parametrize(("fields", "changed"), CHANGES.values(), ids=CHANGES)
def test_a_change_record_changes_what_it_names(fields: dict[str, object], changed: dict[str, object]) -> None:
    record = PartitionChangeRecord(**({"topic_id": "T", "partition_id": 0} | fields))
    after = replay_change(STATE, record)
    expected = {name: getattr(STATE, name) for name in PartitionState.__slots__} | {"partition_epoch": 10} | changed
    assert {name: getattr(after, name) for name in PartitionState.__slots__} == expected


@pytest.mark.covers("H1")
def test_the_config_in_force_is_the_topics_then_the_clusters_then_the_static_one() -> None:
    image = image_of(*registrations(), TopicRecord(name="t", topic_id="T"))
    steps: list[tuple[ConfigRecord, int]] = [
        (config(None, "2"), 2),
        (config("T", "3"), 3),
        (config(None, "1"), 3),
        (config("T", None), 1),
        (config("T", None), 1),
        (config(None, None), 1),
    ]
    for record, expected in steps:
        image.replay(record)
        assert image.config("T", MIN_ISR) == expected
    assert image.config("T", "unclean.leader.election.enable") is False


@pytest.mark.covers("E8", "H1", "N31")
@pytest.mark.parametrize(
    ("generation", "replicas", "expected"),
    [
        (Generation.KIP_966, 1, 1),
        (Generation.KIP_966, 2, 2),
        (Generation.KIP_966, 3, 3),
        (Generation.KIP_966, 5, 3),
        (Generation.KIP_966_ELR, 2, 2),
        (Generation.KIP_497, 1, 3),
    ],
)
def test_effective_min_isr(generation: Generation, replicas: int, expected: int) -> None:
    image = image_of(*registrations(), *topic_records(min_isr=3), generation=generation)
    assert image.min_isr("T", MIN_ISR, replicas) == expected


@pytest.mark.covers("N11")
def test_removing_a_topic_removes_its_partitions_and_configs() -> None:
    image = image_of(*registrations(), *topic_records(min_isr=2))
    image.replay(RemoveTopicRecord(topic_id="T"))
    assert image.partition(T0) is None
    assert image.topic_named("t") is None
    assert image.configs == {}
    image.replay(TopicRecord(name="t", topic_id="T2"))
    topic = image.topic_named("t")
    assert topic is not None
    assert (topic.topic_id, topic.partitions, image.config("T2", MIN_ISR)) == ("T2", {}, 1)


def test_the_delta_names_what_changed_since_it_was_taken() -> None:
    image = image_of(*registrations(), *topic_records())
    delta = image.take_delta()
    assert list(delta.brokers) == [0, 1, 2]
    assert (list(delta.partitions), list(delta.configs)) == ([T0], ["T"])
    assert not image.take_delta().partitions
    image.replay(PartitionChangeRecord(topic_id="T", partition_id=0, isr=(0,)))
    image.replay(RemoveTopicRecord(topic_id="T"))
    delta = image.take_delta()
    assert list(delta.deleted_topics) == ["T"]
    assert list(delta.deleted_topics["T"].partitions) == [0]


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-1, 2), st.sets(st.integers(0, 2)), st.sets(st.integers(0, 2))),
    max_size=12,
)


@given(STEPS)
def test_the_controllers_indexes_agree_with_the_image(steps: list[tuple[int, int, set[int], set[int]]]) -> None:
    state = ControllerState(config_of(), Random(0))
    for record in [*registrations(), TopicRecord(name="t", topic_id="T")]:
        state.replay(record)
    for partition, leader, isr, elr in steps:
        known = state.image.partition(TopicIdPartition("T", partition))
        fields = {"topic_id": "T", "partition_id": partition, "isr": tuple(isr), "leader": leader}
        fields |= {"eligible_leader_replicas": tuple(elr - isr)}
        model = PartitionRecord if known is None else PartitionChangeRecord
        state.replay(model(**(fields | ({"replicas": (0, 1, 2)} if known is None else {}))))
        stored = dict(state.image.partitions())
        for broker in (-1, 0, 1, 2):
            led = sorted(key for key, value in stored.items() if value.leader == broker)
            assert state.partitions_led_by(broker) == led
            assert state.has_leaderships(broker) == bool(led)
            member = sorted(key for key, value in stored.items() if broker in (*value.isr, *value.elr))
            assert state.partitions_with(broker) == member
        assert state.leaderless() == state.partitions_led_by(-1)
    state.replay(RemoveTopicRecord(topic_id="T"))
    assert not any(state.partitions_with(broker) or state.has_leaderships(broker) for broker in (-1, 0, 1, 2))


def test_a_registration_is_fenced_until_it_is_said_to_be_not() -> None:
    registration = BrokerRegistration(broker_id=0, broker_epoch=1, incarnation_id="one")
    assert (registration.fenced, registration.in_controlled_shutdown, registration.rack) == (True, False, None)


def test_a_partition_that_is_created_again_is_indexed_again() -> None:
    state = ControllerState(config_of(), Random(0))
    *before, partition = [*registrations(), *topic_records()]
    for record in [*before, partition, RemovePartitionRecord(topic_id="T", partition_id=0)]:
        state.replay(record)
    assert not any(state.partitions_with(broker) or state.has_leaderships(broker) for broker in (0, 1, 2))
    state.replay(partition)
    assert state.partitions_led_by(0) == state.partitions_with(2) == [T0]


def test_a_topic_is_described_as_the_image_has_it() -> None:
    image = image_of(*registrations(), *topic_records(leader=1, leader_epoch=4))
    [topic] = metadata_response(image, MetadataRequest(correlation_id=3, topic="t")).topics
    [partition] = topic.partitions
    assert (topic.topic_id, partition.partition, partition.leader, partition.leader_epoch) == ("T", 0, 1, 4)
    unknown = metadata_response(image, MetadataRequest(correlation_id=3, topic="u"))
    assert (unknown.correlation_id, unknown.error, unknown.topics) == (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ())
