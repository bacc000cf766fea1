"""Requests for topics: authorization, and properties over generated requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.controller.administration import handle
from protocol.controller.topic_names import name_error
from protocol.errors import ErrorCode
from protocol.messages.acls import AclEntry, AclOperation, AclPermissionType, AclResourceType
from protocol.messages.admin import AdminRequest
from protocol.messages.records import AccessControlEntryRecord
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsTopic,
    DeleteTopicsResponse,
    DeleteTopicState,
    RemovePartitionsTopic,
    ReplicaAssignment,
)
from tests.unit.protocol.controller.topic_helpers import (
    BAD_NAME,
    NO_TOPIC,
    NONE,
    UNAUTHORIZED,
    add,
    another,
    bench,
    create,
    delete,
    errors_of,
    fewer,
    more,
    named,
    new,
    remove,
    with_id,
)
from tests.unit.protocol.node_helpers import ControllerBench, config_of

# -- who may -----------------------------------------------------------------------------------------------------------

ALICE = "User:alice"
Op = AclOperation


def entry(operation: AclOperation, topic_name: str | None = "t") -> AccessControlEntryRecord:
    """Alice may do this to the topic, or to the cluster (None)."""
    kind = AclResourceType.CLUSTER if topic_name is None else AclResourceType.TOPIC
    found = AclEntry(
        resource_type=kind,
        resource_name=topic_name or "kafka-cluster",
        principal=ALICE,
        operation=operation,
        permission_type=AclPermissionType.ALLOW,
    )
    return AccessControlEntryRecord(entry=found)


def guarded(*allowed: AccessControlEntryRecord) -> ControllerBench:
    return bench(*another("w", "W", 3), *allowed, config=config_of(authorizer_class_name="standard"))


CREATES = create(new("a", (0,)), new("b", (0,)), new("a b", (0,)), new("t", (0,)), principal=ALICE)
DELETES = delete(*named("t"), *with_id("W"), *named("u"), *with_id("U"), principal=ALICE)
GONE = ErrorCode.UNKNOWN_TOPIC_ID
EXISTS = ErrorCode.TOPIC_ALREADY_EXISTS
PERMISSIONS: dict[str, tuple[AdminRequest, list[AccessControlEntryRecord], list[ErrorCode]]] = {
    "create: nothing": (CREATES, [], [UNAUTHORIZED] * 4),
    "create: on the cluster": (CREATES, [entry(Op.CREATE, None)], [NONE, NONE, BAD_NAME, EXISTS]),
    "create: on one topic": (CREATES, [entry(Op.CREATE, "b")], [UNAUTHORIZED, NONE, UNAUTHORIZED, UNAUTHORIZED]),
    "create: another operation": (CREATES, [entry(Op.ALTER, None), entry(Op.DELETE, "a")], [UNAUTHORIZED] * 4),
    "delete: nothing": (DELETES, [], [UNAUTHORIZED, UNAUTHORIZED, UNAUTHORIZED, GONE]),
    "delete: on the cluster": (DELETES, [entry(Op.DELETE, None)], [NONE, NONE, NO_TOPIC, GONE]),
    "delete: on topics": (DELETES, [entry(Op.DELETE), entry(Op.DELETE, "u")], [NONE, UNAUTHORIZED, NO_TOPIC, GONE]),
    "delete: described only": (
        DELETES,
        [entry(Op.DESCRIBE, name) for name in ("t", "w", "u")],
        [UNAUTHORIZED, UNAUTHORIZED, NO_TOPIC, GONE],
    ),
    "add: nothing": (add(more(2), more(2, name="u"), principal=ALICE), [], [UNAUTHORIZED, UNAUTHORIZED]),
    "add: ALTER": (
        add(more(2), more(4, name="w"), more(2, name="u"), principal=ALICE),
        [entry(Op.ALTER), entry(Op.ALTER, "u")],
        [NONE, UNAUTHORIZED, NO_TOPIC],
    ),
    "add: on the cluster is not enough": (add(more(2), principal=ALICE), [entry(Op.ALTER, None)], [UNAUTHORIZED]),
    "remove: nothing": (remove(fewer(2, name="w"), principal=ALICE), [], [UNAUTHORIZED]),
    "remove: ALTER": (
        remove(fewer(2, name="w"), fewer(0), principal=ALICE),
        [entry(Op.ALTER, "w")],
        [NONE, UNAUTHORIZED],
    ),
}


@pytest.mark.covers("G32")
@pytest.mark.parametrize(("request_", "allowed", "errors"), PERMISSIONS.values(), ids=PERMISSIONS)
def test_permissions(request_: AdminRequest, allowed: list[AccessControlEntryRecord], errors: list[ErrorCode]) -> None:
    found = handle(guarded(*allowed).state, request_)
    assert errors_of(found) == errors
    assert bool(found.records) == (NONE in errors)


@pytest.mark.covers("G32")
def test_the_response_does_not_disclose_topics_without_describe() -> None:
    asked = delete(*with_id("W"), principal=ALICE)
    hidden = handle(guarded().state, asked).response
    assert isinstance(hidden, DeleteTopicsResponse)
    assert hidden.topics[0].name is None
    assert "'w'" not in hidden.topics[0].message
    described = handle(guarded(entry(Op.DESCRIBE, "w")).state, asked).response
    assert isinstance(described, DeleteTopicsResponse)
    assert (described.topics[0].name, described.topics[0].error) == ("w", UNAUTHORIZED)
    asked = delete(*named("t", "no-such"), principal=ALICE)
    [present, absent] = handle(guarded().state, asked).response.parts()
    assert (present.error, present.message) == (absent.error, absent.message)


@pytest.mark.covers("G32")
def test_the_counts_of_a_new_topic_need_describe_configs() -> None:
    for extra, counts in (((), (-1, -1)), ((entry(Op.DESCRIBE_CONFIGS, "a"),), (2, 1))):
        controller = guarded(entry(Op.CREATE, "a"), *extra)
        [result] = handle(controller.state, create(new("a", (0,), (1,)), principal=ALICE)).response.parts()
        assert isinstance(result, CreatableTopicResult)
        assert result.topic_id
        assert (result.num_partitions, result.replication_factor) == counts


@pytest.mark.covers("G32")
def test_unauthorized_topics_do_not_count_towards_the_limit() -> None:
    asked = create(new("a", num_partitions=10_001), new("b", (0,)), principal=ALICE)
    assert errors_of(handle(guarded(entry(Op.CREATE, "b")).state, asked)) == [UNAUTHORIZED, NONE]


# -- anything at all ---------------------------------------------------------------------------------------------------

NAMES = st.one_of(st.sampled_from(["t", "w", "x", "a.b", "a_b", "", "__cluster_metadata"]), st.text(max_size=4))
BROKERS = st.one_of(st.integers(0, 5), st.integers(-(2**31), 2**31 - 1))
REPLICAS = st.lists(BROKERS, max_size=4).map(tuple)
INDEXES = st.one_of(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1))
COUNT = st.one_of(st.integers(-2, 5), st.integers(-(2**31), 2**31 - 1))
FACTOR = st.one_of(st.integers(-2, 5), st.integers(-(2**15), 2**15 - 1))
CONFIGS = st.builds(
    CreatableTopicConfig,
    name=st.sampled_from(["min.insync.replicas", "flush.ms", "no.such"]),
    value=st.one_of(st.none(), st.sampled_from(["1", "0", "many"])),
)
ASSIGNMENTS = st.lists(st.builds(ReplicaAssignment, partition_index=INDEXES, broker_ids=REPLICAS), max_size=3)
REQUESTS = st.one_of(
    st.lists(
        st.one_of(
            st.builds(
                CreatableTopic,
                name=NAMES,
                num_partitions=COUNT,
                replication_factor=FACTOR,
                assignments=ASSIGNMENTS.map(tuple),
                configs=st.lists(CONFIGS, max_size=2).map(tuple),
            ),
            st.builds(new, NAMES, num_partitions=st.integers(1, 4), replication_factor=st.integers(1, 4)),
        ),
        max_size=3,
    ).map(lambda topics: create(*topics)),
    st.lists(
        st.builds(
            DeleteTopicState,
            name=st.one_of(st.none(), NAMES),
            topic_id=st.one_of(st.none(), st.sampled_from(["T", "W", "U"])),
        ),
        max_size=2,
    ).map(lambda topics: delete(*topics)),
    st.lists(
        st.builds(
            CreatePartitionsTopic,
            name=NAMES,
            count=COUNT,
            assignments=st.one_of(st.none(), st.lists(REPLICAS, max_size=3).map(tuple)),
        ),
        max_size=2,
    ).map(lambda topics: add(*topics)),
    st.lists(
        st.builds(RemovePartitionsTopic, name=NAMES, partitions=st.lists(INDEXES, max_size=3).map(tuple)), max_size=2
    ).map(lambda topics: remove(*topics)),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(REQUESTS, max_size=8))
def test_every_part_of_a_request_is_answered_and_topics_stay_complete(asked: list[AdminRequest]) -> None:
    controller = bench(*another("w", "W", 3))
    image = controller.state.image
    for request in asked:
        found = handle(controller.state, request)
        if found.response.error is NONE:
            assert len(found.response.parts()) == len(request.topics)  # type: ignore[attr-defined]
        assert all(result.message for result in found.response.parts() if result.error is not NONE)
        assert bool(found.records) == (NONE in errors_of(found))
        controller.apply(found.records)
        for name, topic_id in image.topic_ids.items():
            partitions = image.topics[topic_id].partitions
            assert name_error(name) is None
            assert list(partitions) == list(range(len(partitions))) != []
            assert len({len(state.replicas) for state in partitions.values()}) == 1
            for state in partitions.values():
                assert set(state.isr) <= set(state.replicas) <= set(image.brokers)
                assert state.leader in state.isr
                assert len(set(state.replicas)) == len(state.replicas)
