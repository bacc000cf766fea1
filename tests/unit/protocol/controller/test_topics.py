"""Results of requests for topics and partitions: the records, or the error and no record."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from experiments.engines import admin_requests
from protocol.config import Generation
from protocol.controller.administration import handle
from protocol.controller.topic_names import name_error
from protocol.errors import ErrorCode
from protocol.messages.admin import AdminRequest
from protocol.messages.records import (
    ConfigRecord,
    PartitionRecord,
    RemovePartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    ReplicaAssignment,
)
from tests.unit.protocol.controller.topic_helpers import (
    BAD_ASSIGNMENT,
    BAD_NAME,
    BAD_REQUEST,
    NO_TOPIC,
    NONE,
    add,
    another,
    assigned,
    bench,
    create,
    delete,
    errors_of,
    fewer,
    more,
    named,
    new,
    partitions_in,
    remove,
    topic,
    with_id,
)
from tests.unit.protocol.node_helpers import config_of, fencing

# -- what is refused ---------------------------------------------------------------------------------------------------

EXISTS = ErrorCode.TOPIC_ALREADY_EXISTS
LONGEST = "n" * 249
TWO_OF_ONE_INDEX = (*assigned((0,)), *assigned((1,)))
REFUSED_TOPICS: dict[str, tuple[CreatableTopic, ErrorCode]] = {
    "topic exists": (new("t", (0,)), EXISTS),
    "no name": (new("", (0,)), BAD_NAME),
    "a dot": (new(".", (0,)), BAD_NAME),
    "two dots": (new("..", (0,)), BAD_NAME),
    "name too long": (new(LONGEST + "n", (0,)), BAD_NAME),
    "a slash": (new("a/b", (0,)), BAD_NAME),
    "a blank": (new("a b", (0,)), BAD_NAME),
    "a line feed": (new("a\n", (0,)), BAD_NAME),
    "not ASCII": (new("tôpic", (0,)), BAD_NAME),
    "collides with a topic": (new("w_x.y", (0,)), BAD_NAME),
    "the metadata log": (new("__cluster_metadata", (0,)), BAD_REQUEST),
    "no partitions": (new(num_partitions=0, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
    "fewer than no partitions": (new(num_partitions=-2, replication_factor=1), ErrorCode.INVALID_PARTITIONS),
    "no replicas by count": (new(num_partitions=1, replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "-2 replicas": (new(num_partitions=1, replication_factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
    "more replicas than brokers": (new(num_partitions=1, replication_factor=6), ErrorCode.INVALID_REPLICATION_FACTOR),
    "both counts wrong": (new(num_partitions=0, replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "assignment and partition count": (new("new", (0,), num_partitions=1), BAD_REQUEST),
    "assignment and replica count": (new("new", (0,), replication_factor=1), BAD_REQUEST),
    "assignment and counts of 0": (new("new", (9,), num_partitions=0), BAD_REQUEST),
    "no replicas": (new("new", ()), BAD_ASSIGNMENT),
    "a replica twice": (new("new", (0, 1, 0)), BAD_ASSIGNMENT),
    "unknown broker": (new("new", (0, 7)), BAD_ASSIGNMENT),
    "negative broker": (new("new", (0, -1)), BAD_ASSIGNMENT),
    "replicas fenced or shutting down": (new("new", (4, 5)), BAD_ASSIGNMENT),
    "second partition wrong": (new("new", (0,), (7,)), BAD_ASSIGNMENT),
    "second partition has more replicas": (new("new", (0,), (1, 2)), BAD_ASSIGNMENT),
    "a partition twice": (new(assignments=TWO_OF_ONE_INDEX), BAD_ASSIGNMENT),
    "partition 0 missing": (new(assignments=assigned((0,), (1,))[1:]), BAD_ASSIGNMENT),
    "a gap": (new(assignments=(assigned((0,), (1,), (2,))[0::2])), BAD_ASSIGNMENT),
    "negative index": (new(assignments=(ReplicaAssignment(partition_index=-1, broker_ids=(0,)),)), BAD_ASSIGNMENT),
    "unknown config": (new("new", (0,), configs={"no_such": "1"}), ErrorCode.INVALID_CONFIG),
    "min ISR of 0": (new("new", (0,), configs={"min_insync_replicas": "0"}), ErrorCode.INVALID_CONFIG),
    "misspelt strategy": (
        new("new", (0,), configs={"unclean_recovery_strategy": "pro-active"}),
        ErrorCode.INVALID_CONFIG,
    ),
    "config without a value": (new("new", (0,), configs={"flush_ms": None}), ErrorCode.INVALID_CONFIG),
    "cluster-wide config": (new("new", (0,), configs={"broker_session_timeout_ms": "1"}), ErrorCode.INVALID_CONFIG),
    "topic exists, and all else is wrong": (
        new("t", (9,), num_partitions=3, configs={"no_such": "1"}),
        ErrorCode.TOPIC_ALREADY_EXISTS,
    ),
    "name before config": (new("a b", (9,), configs={"no_such": "1"}), BAD_NAME),
    "config before assignment": (new("new", (9,), configs={"no_such": "1"}), ErrorCode.INVALID_CONFIG),
}


@pytest.mark.covers("J19")
@pytest.mark.parametrize(("wanted", "error"), REFUSED_TOPICS.values(), ids=REFUSED_TOPICS)
def test_an_invalid_topic_is_refused(wanted: CreatableTopic, error: ErrorCode) -> None:
    """Asserts that it is refused with this error and a message, without records; a topic beside it is created."""
    controller = bench(*another("w.x_y", "W"))
    found = handle(controller.state, create(wanted, new("beside", (0,))))
    [result, beside] = found.response.parts()
    assert (result.error, beside.error, found.response.error) == (error, NONE, NONE)
    assert result.message
    assert isinstance(result, CreatableTopicResult)
    assert (result.name, result.topic_id, result.num_partitions) == (wanted.name, "", -1)
    assert [record.name for record in found.records if isinstance(record, TopicRecord)] == ["beside"]


def moving(target: tuple[int, ...]) -> dict[str, Any]:
    """`t-0` on its way from 0, 1, 2 to `target`."""
    adding = tuple(broker for broker in target if broker not in (0, 1, 2))
    removing = tuple(broker for broker in (0, 1, 2) if broker not in target)
    return {"replicas": (*target, *removing), "adding_replicas": adding, "removing_replicas": removing}


REFUSED_PARTITIONS: dict[str, tuple[AdminRequest, ErrorCode]] = {
    "unknown topic": (add(more(2, (0, 1, 2), name="u")), NO_TOPIC),
    "as many as there are": (add(more(1)), ErrorCode.INVALID_PARTITIONS),
    "as many as there are, assigned": (add(more(1, (0, 1, 2))), ErrorCode.INVALID_PARTITIONS),
    "fewer than there are": (add(more(0)), ErrorCode.INVALID_PARTITIONS),
    "a negative count": (add(more(-(2**31))), ErrorCode.INVALID_PARTITIONS),
    "fewer assignments": (add(more(3, (0, 1, 2))), BAD_ASSIGNMENT),
    "more assignments": (add(more(2, (0, 1, 2), (0, 1, 2))), BAD_ASSIGNMENT),
    "no assignments but some asked for": (
        add(CreatePartitionsTopic(name="t", count=2, assignments=())),
        BAD_ASSIGNMENT,
    ),
    "new partition on an unknown broker": (add(more(2, (0, 1, 9))), BAD_ASSIGNMENT),
    "new partition on a broker twice": (add(more(2, (0, 1, 1))), BAD_ASSIGNMENT),
    "new partition without replicas": (add(more(2, ())), BAD_ASSIGNMENT),
    "new partition has fewer replicas": (add(more(2, (0, 1))), BAD_ASSIGNMENT),
    "new partition has more replicas": (add(more(2, (0, 1, 2, 3))), BAD_ASSIGNMENT),
    "second new partition has fewer replicas": (add(more(3, (0, 1, 2), (0, 1))), BAD_ASSIGNMENT),
    "remove from an unknown topic": (remove(fewer(1, name="u")), NO_TOPIC),
    "remove nothing": (remove(fewer(name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove all": (remove(fewer(0, 1, 2, name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove the only one": (remove(fewer(0)), ErrorCode.INVALID_PARTITIONS),
    "remove from the middle": (remove(fewer(1, name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove with a gap": (remove(fewer(0, 2, name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove one twice": (remove(fewer(2, 2, name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove a negative one": (remove(fewer(-1, name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove one that is not there": (remove(fewer(3, name="w")), ErrorCode.INVALID_PARTITIONS),
    "remove more than there are": (remove(fewer(0, 1, 2, 3, name="w")), ErrorCode.INVALID_PARTITIONS),
    "delete an unknown topic": (delete(*named("u")), NO_TOPIC),
    "delete an unknown id": (delete(*with_id("U")), ErrorCode.UNKNOWN_TOPIC_ID),
    "delete by name and id": (delete(DeleteTopicState(name="t", topic_id="T")), BAD_REQUEST),
    "delete nothing": (delete(DeleteTopicState()), BAD_REQUEST),
}


@pytest.mark.covers("J19")
@pytest.mark.parametrize(("request_", "error"), REFUSED_PARTITIONS.values(), ids=REFUSED_PARTITIONS)
def test_refused_with_a_reason_and_without_records(request_: AdminRequest, error: ErrorCode) -> None:
    found = handle(bench(*another("w", "W", 3)).state, request_)
    [result] = found.response.parts()
    assert (result.error, found.response.error, list(found.records)) == (error, NONE, [])
    assert result.message


TWICE: dict[str, tuple[AdminRequest, list[ErrorCode]]] = {
    "create": (create(new("a", (0,)), new("t", (0,)), new("a", (1,))), [BAD_REQUEST, EXISTS, BAD_REQUEST]),
    "delete by name": (delete(*named("t", "w", "t")), [BAD_REQUEST, NONE, BAD_REQUEST]),
    "delete by id": (delete(*with_id("T", "W", "T")), [BAD_REQUEST, NONE, BAD_REQUEST]),
    "delete by name and by id": (delete(*named("t", "w"), *with_id("T")), [BAD_REQUEST, NONE, BAD_REQUEST]),
    "delete an unknown one twice": (delete(*named("u", "u", "w")), [BAD_REQUEST, BAD_REQUEST, NONE]),
    "add": (add(more(2), more(4, name="w"), more(2)), [BAD_REQUEST, NONE, BAD_REQUEST]),
    "remove": (remove(fewer(2, name="w"), fewer(2, name="w")), [BAD_REQUEST, BAD_REQUEST]),
}


@pytest.mark.parametrize(("request_", "errors"), TWICE.values(), ids=TWICE)
def test_a_topic_that_is_named_twice_is_refused_both_times(request_: AdminRequest, errors: list[ErrorCode]) -> None:
    controller = bench(*another("w", "W", 3))
    found = handle(controller.state, request_)
    assert errors_of(found) == errors
    assert len(found.records) == errors.count(NONE)


TOO_MUCH: dict[str, AdminRequest] = {
    "one topic by count": create(new(num_partitions=10_001, replication_factor=1)),
    "the largest number": create(new(num_partitions=2**31 - 1, replication_factor=1)),
    "two topics": create(new("a", num_partitions=10_000), new("b")),
    "by assignment": create(new("a", *[(0,)] * 10_001)),
    "beside one that is wrong": create(new("a b", num_partitions=10_001), new("c", (0,))),
    "added": add(more(10_002)),
    "the largest number added": add(more(2**31 - 1)),
    "added to two": add(more(6_001), more(4_002, name="w")),
    "removed": remove(fewer(*range(10_001))),
    "deleted": delete(*named(*(f"v{index}" for index in range(10_001)))),
}


@pytest.mark.parametrize("request_", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_request_over_the_limit_is_refused_as_a_whole(request_: AdminRequest) -> None:
    names = request_.topics if isinstance(request_, DeleteTopicsRequest) else ()
    topics = [record for index, item in enumerate(names) for record in another(str(item.name), f"V{index}")]
    found = handle(bench(*another("w", "W"), *topics).state, request_)
    assert (found.response.error, list(found.records)) == (ErrorCode.POLICY_VIOLATION, [])


def test_ten_thousand_partitions_are_within_the_limit() -> None:
    found = handle(bench().state, create(new(num_partitions=10_000, replication_factor=3)))
    assert errors_of(found) == [NONE]
    assert len(partitions_in(found.records)) == 10_000
    assert errors_of(handle(bench().state, add(more(10_001)))) == [NONE]


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", LONGEST, "A-Z_0.9", "-", "_", "...", ".a"])
def test_valid_topic_names(name: str) -> None:
    assert name_error(name) is None
    controller = bench()
    controller.apply(handle(controller.state, create(new(name, (0,)))).records)
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", topic(controller, name).topic_id)


@pytest.mark.parametrize(
    ("present", "wanted", "collides"),
    [("a.b", "a_b", True), ("a_b", "a.b", True), ("a.b_c", "a_b.c", True), ("a.b", "a-b", False), ("ab", "a.b", False)],
)
def test_names_that_differ_only_in_dots_and_underscores_collide(present: str, wanted: str, collides: bool) -> None:
    controller = bench(*another(present, "P"))
    found = handle(controller.state, create(new(wanted, (0,))))
    assert errors_of(found) == [BAD_NAME if collides else NONE]
    controller.apply([RemoveTopicRecord(topic_id="P")])
    assert errors_of(handle(controller.state, create(new(wanted, (0,))))) == [NONE]


# -- created -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("A19")
def test_a_new_topic_is_led_by_its_first_active_replica_and_all_active_ones_are_in_sync() -> None:
    controller = bench()
    wanted = new("new", (1, 0, 2), (4, 3, 5), configs={"min_insync_replicas": "2"})
    found = handle(controller.state, create(wanted))
    [first_record, config, first, second] = found.records
    assert isinstance(first_record, TopicRecord)
    topic_id = first_record.topic_id
    assert config == ConfigRecord(topic_id=topic_id, name="min.insync.replicas", value="2")
    assert first == PartitionRecord(topic_id=topic_id, partition_id=0, replicas=(1, 0, 2), isr=(1, 0, 2), leader=1)
    assert second == PartitionRecord(topic_id=topic_id, partition_id=1, replicas=(4, 3, 5), isr=(3,), leader=3)
    expected = CreatableTopicResult(name="new", topic_id=topic_id, num_partitions=2, replication_factor=3)
    assert isinstance(found.response, CreateTopicsResponse)
    assert found.response.topics == (expected,)
    assert found.response.correlation_id == 1


def test_assignments_may_come_in_any_order() -> None:
    found = handle(bench().state, create(new(assignments=assigned((0,), (1,), (2,))[::-1])))
    assert [(item.partition_id, item.replicas) for item in partitions_in(found.records)] == [
        (0, (0,)),
        (1, (1,)),
        (2, (2,)),
    ]


def test_of_a_config_that_is_named_twice_the_last_value_counts() -> None:
    twice = tuple(CreatableTopicConfig(name="flush.ms", value=value) for value in ("1", "2"))
    found = handle(bench().state, create(replace(new("new", (0,), configs={}), configs=twice)))
    assert [record.value for record in found.records if isinstance(record, ConfigRecord)] == ["2"]


COUNTS: dict[str, tuple[tuple[int, int], dict[str, Any], tuple[int, int]]] = {
    "both given": ((4, 3), {}, (4, 3)),
    "both left to the cluster's defaults": ((-1, -1), {}, (1, 1)),
    "both left to static configs": ((-1, -1), {"num_partitions": 5, "default_replication_factor": 2}, (5, 2)),
    "partitions left": ((-1, 3), {"num_partitions": 2}, (2, 3)),
    "replicas left": ((3, -1), {"default_replication_factor": 3}, (3, 3)),
}


@pytest.mark.parametrize(("asked", "static", "expected"), COUNTS.values(), ids=COUNTS)
def test_counts(asked: tuple[int, int], static: dict[str, Any], expected: tuple[int, int]) -> None:
    controller = bench(config=config_of(**static))
    found = handle(controller.state, create(new(num_partitions=asked[0], replication_factor=asked[1])))
    [result] = found.response.parts()
    assert isinstance(result, CreatableTopicResult)
    assert (result.num_partitions, result.replication_factor) == expected
    placed = partitions_in(found.records)
    assert [(item.partition_id, len(item.replicas)) for item in placed] == [
        (i, expected[1]) for i in range(expected[0])
    ]
    assert all(item.leader == item.replicas[0] in item.isr for item in placed)
    assert all(item.isr == tuple(b for b in item.replicas if controller.state.image.is_active(b)) for item in placed)


def test_dynamic_defaults_take_precedence_over_static_ones() -> None:
    dynamic = [
        ConfigRecord(topic_id=None, name="num.partitions", value="4"),
        ConfigRecord(topic_id=None, name="default.replication.factor", value="2"),
    ]
    found = handle(bench(*dynamic, config=config_of(num_partitions=9)).state, create(new()))
    assert [len(item.replicas) for item in partitions_in(found.records)] == [2, 2, 2, 2]


def test_placement_prefers_active_brokers_and_excludes_those_in_controlled_shutdown() -> None:
    placed = partitions_in(handle(bench().state, create(new(num_partitions=50, replication_factor=4))).records)
    assert all(set(item.replicas) == {0, 1, 2, 3} for item in placed)
    placed = partitions_in(handle(bench().state, create(new(num_partitions=50, replication_factor=5))).records)
    assert all(item.replicas[-1] == 4 and set(item.isr) == {0, 1, 2, 3} for item in placed)


def test_nothing_is_placed_where_all_brokers_are_fenced() -> None:
    controller = bench(*(fencing(broker, broker, True) for broker in (0, 1, 2, 3, 5)))
    for request in (create(new()), add(more(2))):
        assert errors_of(handle(controller.state, request)) == [ErrorCode.INVALID_REPLICATION_FACTOR]


@pytest.mark.covers("N11")
def test_a_topic_created_again_is_another_topic() -> None:
    controller = bench()
    seen = {"T"}
    for _ in range(3):
        controller.apply(handle(controller.state, delete(*named("t"))).records)
        assert controller.state.image.topic_named("t") is None
        controller.apply(handle(controller.state, create(new("t", (0,)))).records)
        seen.add(topic(controller).topic_id)
    assert len(seen) == 4


def test_topics_of_one_request_have_ids_of_their_own() -> None:
    names = [f"n{index}" for index in range(5)]
    found = handle(bench().state, create(*(new(name, (0,), (1,)) for name in names)))
    ids = [record.topic_id for record in found.records if isinstance(record, TopicRecord)]
    assert len(set(ids)) == 5
    assert [item.topic_id for item in partitions_in(found.records)] == [topic_id for topic_id in ids for _ in range(2)]


ONLY_VALIDATED: dict[str, tuple[AdminRequest, AdminRequest]] = {
    "create": (create(new("a", (0,)), new("a b", (0,)), validate_only=True), create(new("a", (0,)), new("a b", (0,)))),
    "add": (add(more(2), more(0, name="w"), validate_only=True), add(more(2), more(0, name="w"))),
}


@pytest.mark.parametrize(("asked", "done"), ONLY_VALIDATED.values(), ids=ONLY_VALIDATED)
def test_validation_gives_the_same_answer_and_no_records(asked: AdminRequest, done: AdminRequest) -> None:
    controllers = [bench(*another("w", "W")) for _ in range(2)]
    validated, result = handle(controllers[0].state, asked), handle(controllers[1].state, done)
    assert validated.response == result.response
    assert (bool(validated.records), bool(result.records)) == (False, True)


# -- deleted -----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("A20")
@pytest.mark.parametrize("wanted", [*named("t"), *with_id("T")], ids=["by name", "by id"])
def test_deleting_a_topic_is_one_record_and_removes_all_its_state(wanted: DeleteTopicState) -> None:
    controller = bench()
    found = handle(controller.state, delete(wanted))
    assert found.records == [RemoveTopicRecord(topic_id="T")]
    assert isinstance(found.response, DeleteTopicsResponse)
    assert found.response.topics == (DeletableTopicResult(name="t", topic_id="T"),)
    controller.apply(found.records)
    assert controller.state.partitions_with(0) == []
    assert not controller.state.has_leaderships(0)


def test_results_come_in_the_order_of_the_request() -> None:
    found = handle(bench(*another("w", "W")).state, delete(*named("u"), *with_id("W"), *named("t"), *with_id("X")))
    assert isinstance(found.response, DeleteTopicsResponse)
    assert [(item.name, item.topic_id, item.error) for item in found.response.topics] == [
        ("u", None, NO_TOPIC),
        ("w", "W", NONE),
        ("t", "T", NONE),
        (None, "X", ErrorCode.UNKNOWN_TOPIC_ID),
    ]


# -- more and fewer partitions -----------------------------------------------------------------------------------------


@pytest.mark.covers("A21", "J19")
def test_new_partitions_are_numbered_from_the_last() -> None:
    controller = bench()
    controller.apply(handle(controller.state, add(more(3, (1, 2, 0), (4, 2, 3)))).records)
    found = topic(controller).partitions
    assert {index: state.replicas for index, state in found.items()} == {0: (0, 1, 2), 1: (1, 2, 0), 2: (4, 2, 3)}
    assert (found[2].isr, found[2].leader, found[2].leader_epoch) == ((2, 3), 2, 0)


@pytest.mark.parametrize("target", [(0, 1, 2), (0, 1, 3), (0, 1), (0, 1, 2, 3)], ids=str)
def test_the_controller_places_as_many_replicas_as_partition_0_will_have(target: tuple[int, ...]) -> None:
    controller = bench(**moving(target))
    placed = partitions_in(handle(controller.state, add(more(4))).records)
    assert [item.partition_id for item in placed] == [1, 2, 3]
    assert {len(item.replicas) for item in placed} == {len(target)}
    assert errors_of(handle(controller.state, add(more(2, target)))) == [NONE]
    assert errors_of(handle(controller.state, add(more(2, target[:-1])))) == [BAD_ASSIGNMENT]


@pytest.mark.covers("A21", "J19")
def test_the_last_partitions_are_removed_and_come_again_in_a_later_leader_epoch() -> None:
    controller = bench(*another("w", "W", 3))
    elected = PartitionRecord(
        topic_id="W", partition_id=3, replicas=(0, 1), isr=(1,), leader=1, leader_epoch=7, first_leader_epoch=2
    )
    controller.apply([elected])
    found = handle(controller.state, remove(fewer(3, 1, 2, name="w")))
    assert errors_of(found) == [NONE]
    assert found.records == [RemovePartitionRecord(topic_id="W", partition_id=index) for index in (3, 2, 1)]
    controller.apply(found.records)
    assert list(topic(controller, "w").partitions) == [0]
    assert controller.state.partitions_led_by(1) == []
    for epoch in (8, 9):
        again = partitions_in(controller.apply(handle(controller.state, add(more(2, (1, 2), name="w"))).records))
        assert [(item.partition_id, item.leader_epoch, item.first_leader_epoch) for item in again] == [
            (1, epoch, epoch)
        ]
        controller.apply(handle(controller.state, remove(fewer(1, name="w"))).records)


def test_a_repeated_request_is_refused() -> None:
    """A client that got no answer may send it once more (M45): the indexes say what it meant."""
    controller = bench(*another("w", "W", 3))
    for request in (remove(fewer(2, name="w")), add(more(3, name="w"))):
        controller.apply(handle(controller.state, request).records)
        again = handle(controller.state, request)
        assert (errors_of(again), list(again.records)) == ([ErrorCode.INVALID_PARTITIONS], [])


def test_the_request_builders_of_experiments_make_the_same_requests() -> None:
    controller = bench()
    controller.apply(handle(controller.state, admin_requests.add_partitions("t", 1, ((1, 2, 3),))).records)
    controller.apply(handle(controller.state, admin_requests.remove_partitions("t", (1,))).records)
    assert list(topic(controller).partitions) == [0]
    controller.apply(handle(controller.state, admin_requests.delete_topic("t")).records)
    controller.apply(handle(controller.state, admin_requests.create_topic("t", ((0,),), {"flush.ms": 5})).records)
    assert controller.state.image.config(topic(controller).topic_id, "flush.ms") == 5


@pytest.mark.covers("H6", "H8")
@pytest.mark.parametrize(
    ("generation", "enable", "configs", "strategy"),
    [
        (Generation.KIP_966, "TRUE", {}, "proactive"),
        (Generation.KIP_966, "false", {}, None),
        (Generation.KIP_966, "true", {"unclean_recovery_strategy": "manual"}, "manual"),
        (Generation.KIP_966_ELR, "true", {}, None),
    ],
    ids=["allowed", "as it is", "both", "recovery is off"],
)
def test_a_new_topic_with_unclean_leader_election_gets_the_strategy_that_it_implies(
    generation: Generation, enable: str, configs: dict[str, str], strategy: str | None
) -> None:
    controller = bench(config=config_of(generation))
    wanted = new("new", (0,), configs={"unclean_leader_election_enable": enable} | configs)
    controller.apply(handle(controller.state, create(wanted)).records)
    found = controller.state.image.configs[topic(controller, "new").topic_id]
    assert found.get("unclean.recovery.strategy") == strategy
