"""Requests for topics and partitions: bounds, placement, and properties over generated requests.

Results, records and rights: `testdata/topics.txt`, `testdata/topic_names_and_assignments.txt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.controller.administration import handle
from protocol.controller.controller_result import ControllerResult
from protocol.controller.topics import name_error
from protocol.errors import ErrorCode
from protocol.messages.admin import AdminRequest
from protocol.messages.records import BrokerRegistrationChangeRecord, MetadataRecord, PartitionRecord, TopicRecord
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    RemovePartitionsRequest,
    RemovePartitionsTopic,
    ReplicaAssignment,
)
from tests.unit.protocol.node_helpers import ControllerBench, registrations, topic_records

NONE = ErrorCode.NONE


def bench(*records: MetadataRecord) -> ControllerBench:
    """Brokers 0..3 are active, 4 is fenced, 5 is shutting down; topic `t` has one partition on 0, 1, 2."""
    leaving = BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=5, in_controlled_shutdown=True)
    base = [*registrations(range(6), fenced=(4,)), leaving, *topic_records(2)]
    return ControllerBench(*base, *records)


def new(name: str = "new", *replicas: tuple[int, ...], **fields: Any) -> CreatableTopic:
    """A topic by assignment, or by count where no replicas are given."""
    assigned = tuple(ReplicaAssignment(partition_index=turn, broker_ids=ids) for turn, ids in enumerate(replicas))
    return CreatableTopic(**{"name": name, "assignments": assigned} | fields)


def create(*topics: CreatableTopic) -> CreateTopicsRequest:
    return CreateTopicsRequest(correlation_id=1, topics=topics)


def delete(*topics: DeleteTopicState) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(correlation_id=1, topics=topics)


def more(count: int, *replicas: tuple[int, ...], name: str = "t") -> CreatePartitionsTopic:
    """Partitions to add as assigned, or by count where no replicas are given."""
    return CreatePartitionsTopic(name=name, count=count, assignments=replicas or None)


def add(*topics: CreatePartitionsTopic) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(correlation_id=1, topics=topics)


def fewer(*partitions: int, name: str = "t") -> RemovePartitionsTopic:
    return RemovePartitionsTopic(name=name, partitions=partitions)


def remove(*topics: RemovePartitionsTopic) -> RemovePartitionsRequest:
    return RemovePartitionsRequest(correlation_id=1, topics=topics)


def another(name: str, topic_id: str, partitions: int = 1) -> list[MetadataRecord]:
    """One more topic, its partitions on brokers 0 and 1."""
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            PartitionRecord(topic_id=topic_id, partition_id=index, replicas=(0, 1), isr=(0, 1), leader=0)
            for index in range(partitions)
        ),
    ]


def errors_of(found: ControllerResult) -> list[ErrorCode]:
    return [result.error for result in found.response.parts()]


def partitions_in(records: Sequence[MetadataRecord]) -> list[PartitionRecord]:
    return [record for record in records if isinstance(record, PartitionRecord)]


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
    "deleted": delete(*(DeleteTopicState(name=f"v{index}") for index in range(10_001))),
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


def test_placement_prefers_active_brokers_and_excludes_those_in_controlled_shutdown() -> None:
    placed = partitions_in(handle(bench().state, create(new(num_partitions=50, replication_factor=4))).records)
    assert all(set(item.replicas) == {0, 1, 2, 3} for item in placed)
    placed = partitions_in(handle(bench().state, create(new(num_partitions=50, replication_factor=5))).records)
    assert all(item.replicas[-1] == 4 and set(item.isr) == {0, 1, 2, 3} for item in placed)


def test_the_request_builders_of_experiments_make_the_same_requests() -> None:
    controller = bench()
    image = controller.state.image
    for request, partitions in (
        (admin_requests.add_partitions("t", 1, ((1, 2, 3),)), [0, 1]),
        (admin_requests.remove_partitions("t", (1,)), [0]),
        (admin_requests.delete_topic("t"), None),
        (admin_requests.create_topic("t", ((0,),), {"flush.ms": 5}), [0]),
    ):
        controller.apply(handle(controller.state, request).records)
        found = image.topic_named("t")
        assert (found and list(found.partitions)) == partitions
    assert image.config(image.topic_ids["t"], "flush.ms") == 5


# -- any requests ------------------------------------------------------------------------------------------------------

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
