"""Administration requests as plans: the records that they come to, or the error and nothing else."""

from __future__ import annotations

import pytest

from protocol.config import Generation
from protocol.controller.administration import plan
from protocol.errors import ErrorCode
from protocol.messages.admin import (
    AdminRequest,
    AlterConfigsRequest,
    AlterPartitionReassignmentRequest,
    ConfigChange,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
)
from protocol.messages.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.metadata.partition import LeaderRecoveryState
from tests.unit.nodes_under_test import ControllerBench, config_of, fencing, registrations, topic_records

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def bench(
    *records: MetadataRecord, generation: Generation = Generation.KIP_966, **partition: object
) -> ControllerBench:
    """Brokers 0..3 are active, 4 is fenced; topic `t` has one partition on 0, 1, 2 and min ISR 2."""
    base = [*registrations((0, 1, 2, 3, 4), fenced=(4,)), *topic_records(2, **partition)]
    return ControllerBench(*base, *records, config=config_of(generation))


def create(*assignments: tuple[int, ...], name: str = "new", **configs: str) -> CreateTopicRequest:
    changes = tuple(ConfigChange(name=key.replace("_", "."), value=value) for key, value in configs.items())
    return CreateTopicRequest(correlation_id=1, name=name, assignments=assignments, configs=changes)


def add(*assignments: tuple[int, ...], name: str = "t") -> CreatePartitionsRequest:
    return CreatePartitionsRequest(correlation_id=1, name=name, assignments=assignments)


def configure(value: str | None, name: str = "min.insync.replicas", topic: str | None = "t") -> AlterConfigsRequest:
    return AlterConfigsRequest(correlation_id=1, topic=topic, configs=(ConfigChange(name=name, value=value),))


def elect(kind: ElectionType, topic: str = "t", partition: int = 0) -> ElectLeadersRequest:
    return ElectLeadersRequest(correlation_id=1, topic=topic, partition=partition, election_type=kind)


def reassign(*replicas: int, topic: str = "t", partition: int = 0) -> AlterPartitionReassignmentRequest:
    return AlterPartitionReassignmentRequest(correlation_id=1, topic=topic, partition=partition, replicas=replicas)


CANCEL = AlterPartitionReassignmentRequest(correlation_id=1, topic="t", partition=0, replicas=None)
NO_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
BAD_ASSIGNMENT = ErrorCode.INVALID_REPLICA_ASSIGNMENT
REFUSED = {
    "topic exists": (create((0,), name="t"), ErrorCode.TOPIC_ALREADY_EXISTS),
    "topic without partitions": (create(), ErrorCode.INVALID_PARTITIONS),
    "no replicas": (create(()), BAD_ASSIGNMENT),
    "a replica twice": (create((0, 1, 0)), BAD_ASSIGNMENT),
    "unknown broker": (create((0, 7)), BAD_ASSIGNMENT),
    "all replicas fenced": (create((4,)), BAD_ASSIGNMENT),
    "second partition wrong": (create((0,), (7,)), BAD_ASSIGNMENT),
    "unknown config": (create((0,), no_such="1"), ErrorCode.INVALID_CONFIG),
    "min ISR of 0": (create((0,), min_insync_replicas="0"), ErrorCode.INVALID_CONFIG),
    "cluster-wide config on a topic": (create((0,), broker_session_timeout_ms="1"), ErrorCode.INVALID_CONFIG),
    "delete an unknown topic": (DeleteTopicRequest(correlation_id=1, name="u"), NO_TOPIC),
    "partitions for an unknown topic": (add((0,), name="u"), NO_TOPIC),
    "no partitions to add": (add(), ErrorCode.INVALID_PARTITIONS),
    "new partition on an unknown broker": (add((9,)), BAD_ASSIGNMENT),
    "config of an unknown topic": (configure("1", topic="u"), NO_TOPIC),
    "bad config value": (configure("many"), ErrorCode.INVALID_CONFIG),
    "bad cluster-wide value": (configure("0", topic=None), ErrorCode.INVALID_CONFIG),
    "elect on an unknown topic": (elect(PREFERRED, topic="u"), NO_TOPIC),
    "elect on an unknown partition": (elect(PREFERRED, partition=1), NO_TOPIC),
    "preferred leader leads": (elect(PREFERRED), ErrorCode.ELECTION_NOT_NEEDED),
    "unclean with a leader": (elect(UNCLEAN), ErrorCode.ELECTION_NOT_NEEDED),
    "reassign an unknown partition": (reassign(0, 1, partition=1), NO_TOPIC),
    "reassign to nobody": (reassign(), BAD_ASSIGNMENT),
    "reassign to one broker twice": (reassign(1, 1), BAD_ASSIGNMENT),
    "reassign to an unknown broker": (reassign(0, 1, 9), BAD_ASSIGNMENT),
    "cancel what is not under way": (CANCEL, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
}


@pytest.mark.covers("G33", "J2", "J3")
@pytest.mark.parametrize(("request_", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_with_a_reason_and_without_records(request_: AdminRequest, error: ErrorCode) -> None:
    found = plan(bench().state, request_)
    assert found.error is error
    assert found.message
    assert not found.records


def test_a_new_topic_is_led_by_its_first_active_replica_and_all_active_ones_are_in_sync() -> None:
    controller = bench()
    found = plan(controller.state, create((1, 0), (4, 3, 2), min_insync_replicas="2"))
    [topic, config, first, second] = found.records
    assert isinstance(topic, TopicRecord)
    assert config == ConfigRecord(topic_id=topic.topic_id, name="min.insync.replicas", value="2")
    assert isinstance(first, PartitionRecord)
    assert isinstance(second, PartitionRecord)
    assert (first.partition_id, first.replicas, first.isr, first.leader) == (0, (1, 0), (1, 0), 1)
    assert (second.partition_id, second.replicas, second.isr, second.leader) == (1, (4, 3, 2), (3, 2), 3)


@pytest.mark.covers("N11")
def test_a_topic_created_again_is_another_topic() -> None:
    controller = bench()
    controller.apply(plan(controller.state, DeleteTopicRequest(correlation_id=1, name="t")).records)
    assert controller.state.image.topic_named("t") is None
    [topic, *_] = controller.apply(plan(controller.state, create((0,), name="t")).records)
    assert isinstance(topic, TopicRecord)
    assert topic.topic_id != "T"


def test_deleting_a_topic_is_one_record_and_nothing_of_it_is_left() -> None:
    controller = bench()
    found = plan(controller.state, DeleteTopicRequest(correlation_id=1, name="t"))
    assert found.records == [RemoveTopicRecord(topic_id="T")]
    controller.apply(found.records)
    assert controller.state.partitions_with(0) == []
    assert not controller.state.has_leaderships(0)


def test_new_partitions_are_numbered_from_the_last() -> None:
    controller = bench()
    controller.apply(plan(controller.state, add((1,), (2, 3))).records)
    topic = controller.state.image.topic_named("t")
    assert topic is not None
    assert {index: state.replicas for index, state in topic.partitions.items()} == {0: (0, 1, 2), 1: (1,), 2: (2, 3)}


@pytest.mark.covers("E19", "M6")
@pytest.mark.parametrize("topic", ["t", None], ids=["of the topic", "of the cluster"])
def test_a_min_isr_that_falls_to_the_isr_empties_the_elr_first_in_the_same_batch(topic: str | None) -> None:
    override = ConfigRecord(topic_id="T", name="min.insync.replicas", value=None)
    wide = ConfigRecord(topic_id=None, name="min.insync.replicas", value="2")
    state = {"isr": (0,), "eligible_leader_replicas": (1,), "last_known_elr": (2,)}
    controller = bench(*((wide, override) if topic is None else ()), **state)
    found = plan(controller.state, configure("1", topic=topic))
    [clearing, config] = found.records
    assert clearing == PartitionChangeRecord(
        topic_id="T", partition_id=0, eligible_leader_replicas=(), last_known_elr=()
    )
    assert config == ConfigRecord(topic_id="T" if topic else None, name="min.insync.replicas", value="1")
    for record in found.records:
        controller.apply([record])
        state_after, min_isr = controller.partition(), controller.state.image.min_isr("T", "min.insync.replicas", 3)
        assert len(state_after.isr) < min_isr or not state_after.elr, "at no offset of the log"
    assert controller.partition().leader_epoch == 0


UNTOUCHED = {
    "min ISR stays above the ISR": ({"isr": (0,), "eligible_leader_replicas": (1, 2)}, configure("2")),
    "min ISR rises": ({"isr": (0,), "eligible_leader_replicas": (1, 2)}, configure("3")),
    "the ISR is empty": ({"isr": (), "leader": -1, "eligible_leader_replicas": (1, 2)}, configure("1")),
    "the topic has its own min ISR": ({"isr": (0,), "eligible_leader_replicas": (1,)}, configure("1", topic=None)),
    "another config": ({"isr": (0,), "eligible_leader_replicas": (1,)}, configure("7", "flush.messages")),
}


@pytest.mark.covers("E19")
@pytest.mark.parametrize(("partition", "request_"), UNTOUCHED.values(), ids=UNTOUCHED)
def test_otherwise_the_elr_stays(partition: dict[str, object], request_: AdminRequest) -> None:
    [record] = plan(bench(**partition).state, request_).records
    assert isinstance(record, ConfigRecord)


@pytest.mark.covers("E8", "E19", "N31")
def test_a_min_isr_above_the_replica_count_counts_as_the_replica_count() -> None:
    controller = bench(replicas=(0, 1), isr=(0,), eligible_leader_replicas=(1,))
    assert [type(record) for record in plan(controller.state, configure("5")).records] == [ConfigRecord]
    lone = bench(replicas=(0,), isr=(0,), last_known_elr=(0,))
    assert [type(r) for r in plan(lone.state, configure("5")).records] == [PartitionChangeRecord, ConfigRecord]


@pytest.mark.covers("E19")
def test_removing_the_override_brings_back_the_wider_min_isr() -> None:
    controller = bench(isr=(0,), eligible_leader_replicas=(1,))
    assert [type(r) for r in plan(controller.state, configure(None)).records] == [PartitionChangeRecord, ConfigRecord]
    wide = ConfigRecord(topic_id=None, name="min.insync.replicas", value="2")
    kept = bench(wide, isr=(0,), eligible_leader_replicas=(1,))
    assert [type(r) for r in plan(kept.state, configure(None)).records] == [ConfigRecord]


@pytest.mark.covers("H2", "C3")
@pytest.mark.parametrize("topic", ["t", None])
def test_enabling_unclean_election_elects_for_leaderless_partitions(topic: str | None) -> None:
    leaderless = {"isr": (0,), "leader": -1, "leader_epoch": 3}
    controller = bench(fencing(0, 0, True), generation=Generation.KIP_497, **leaderless)
    request = configure("true", "unclean.leader.election.enable", topic=topic)
    controller.apply(plan(controller.state, request).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_epoch) == (1, (1,), 4)
    assert found.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert plan(bench().state, request).records[1:] == [], "whoever has a leader keeps it"


@pytest.mark.covers("J2", "G33")
def test_preferred_election_moves_the_leadership_back() -> None:
    controller = bench(leader=1)
    [record] = controller.apply(plan(controller.state, elect(PREFERRED)).records)
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
    found = plan(bench(*records, **partition).state, elect(PREFERRED))
    assert (found.error, list(found.records)) == (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, [])


@pytest.mark.covers("J3", "G33", "C12")
def test_unclean_election_takes_any_active_replica_of_a_leaderless_partition() -> None:
    controller = bench(fencing(0, 0, True), isr=(), leader=-1, last_known_elr=(0,))
    controller.apply(plan(controller.state, elect(UNCLEAN)).records)
    found = controller.partition()
    assert (found.leader, found.isr, found.leader_recovery_state) == (1, (1,), LeaderRecoveryState.RECOVERING)
    nobody = bench(*(fencing(broker, broker, True) for broker in (0, 1, 2)), isr=(), leader=-1)
    assert plan(nobody.state, elect(UNCLEAN)).error is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_a_reassignment_grows_first() -> None:
    controller = bench()
    controller.apply(plan(controller.state, reassign(0, 1, 3)).records)
    found = controller.partition()
    assert found.replicas == (0, 1, 3, 2)
    assert (found.adding_replicas, found.removing_replicas) == ((3,), (2,))
    assert (found.isr, found.leader, found.leader_epoch) == ((0, 1, 2), 0, 0)


@pytest.mark.covers("N8")
def test_a_reassignment_whose_replicas_are_in_sync_completes_at_once() -> None:
    controller = bench()
    controller.apply(plan(controller.state, reassign(1, 2)).records)
    found = controller.partition()
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((1, 2), (1, 2), 1, 1)
    assert (found.adding_replicas, found.removing_replicas) == ((), ())


def under_way(isr: tuple[int, ...], leader: int = 0) -> ControllerBench:
    """`t-0` moves from 0, 1, 2 to 0, 1, 3."""
    moving = {"replicas": (0, 1, 3, 2), "adding_replicas": (3,), "removing_replicas": (2,)}
    return bench(isr=isr, leader=leader, **moving)


def test_cancelling_goes_back_to_the_original_replicas() -> None:
    controller = under_way((0, 1, 2, 3))
    controller.apply(plan(controller.state, CANCEL).records)
    found = controller.partition()
    assert (set(found.replicas), found.isr) == ({0, 1, 2}, (0, 1, 2))
    assert (found.adding_replicas, found.removing_replicas, found.elr) == ((), (), ())


@pytest.mark.covers("E33")
@pytest.mark.parametrize(("isr", "leader", "refused"), [((3,), 3, True), ((0, 3), 0, True), ((0, 1, 3), 0, False)])
def test_cancelling_is_refused_where_fewer_than_min_isr_original_replicas_are_in_sync(
    isr: tuple[int, ...], leader: int, refused: bool
) -> None:
    found = plan(under_way(isr, leader=leader).state, CANCEL)
    assert (found.error is BAD_ASSIGNMENT, not found.records) == (refused, refused)


def test_a_reassignment_that_replaces_another_keeps_someone_in_sync() -> None:
    controller = under_way((3,), leader=3)
    found = plan(controller.state, reassign(0, 1, 2))
    controller.apply(found.records)
    assert controller.partition().leader == 3 or found.error is BAD_ASSIGNMENT
    assert controller.partition().isr == (3,)
