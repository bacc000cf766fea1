"""What serving one request costs in a large cluster: nothing that grows with the topics it is not about.

The topics of the cluster, and the partitions of all but one of them, lie in dicts that answer questions by key and
refuse to be walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from experiments.bench.controller import cluster_records, node_of
from experiments.engines import admin_requests
from experiments.support.metadata_fetch import metadata_fetch
from protocol.contract import Send
from protocol.errors import ErrorCode
from protocol.ids import TopicIdPartition
from protocol.messages.admin import AdminRequest, AdminResponse, MetadataRequest, MetadataResponse
from protocol.messages.base import Message
from protocol.messages.configs import ConfigResourceType, DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerState,
    PartitionIsrProposal,
)
from protocol.messages.partitions import (
    ElectionType,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
)
from protocol.messages.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumRequest,
)
from protocol.messages.records import RegisterBrokerRecord
from protocol.messages.topics import DescribeTopicRequest
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, BrokerBench, config_of
from tests.unit.protocol.nodes.controller_bench import Bench

OTHERS = 300


class WalkedError(AssertionError):
    """A table was iterated in which only look-ups are allowed."""


class LookUpOnly(dict[Any, Any]):
    """A dict that cannot be iterated, copied or compared."""

    def _walked(self, *_: object) -> NoReturn:
        raise WalkedError

    __iter__ = keys = values = items = copy = __reversed__ = __eq__ = __or__ = __ror__ = _walked  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Server:
    """A controller of topic `small`, led by broker 0 and all that broker 3 has, among topics that cannot be walked."""

    def __init__(self) -> None:
        fourth = RegisterBrokerRecord(broker_id=3, broker_epoch=3, incarnation_id="incarnation-3", fenced=False)
        self.node: ControllerNode = node_of([fourth, *cluster_records(OTHERS)])
        self.node.receive(0, CLIENT, admin_requests.create_topic("small", ((0, 1, 2, 3),)))
        image = self.node.state.image
        self.small = image.topic_ids["small"]
        for topic in image.topics.values():
            if topic.name != "small":
                topic.partitions = LookUpOnly(topic.partitions)
        image.topics, image.topic_ids = LookUpOnly(image.topics), LookUpOnly(image.topic_ids)

    def answer(self, message: Message, sender: int = CLIENT) -> Message:
        """The first message sent back."""
        effects = self.node.receive(0, sender, message)
        return next(effect.message for effect in effects if isinstance(effect, Send) and effect.to == sender)


@pytest.fixture
def server() -> Server:
    return Server()


def test_iteration_over_a_large_table_is_detected(server: Server) -> None:
    with pytest.raises(WalkedError):
        list(server.node.state.image.partitions())
    with pytest.raises(WalkedError):
        server.node.state.image.to_records()
    with pytest.raises(WalkedError):
        server.answer(DescribeTopicRequest(correlation_id=1))


def test_a_heartbeat_walks_no_large_table(server: Server) -> None:
    beat = BrokerHeartbeatRequest(correlation_id=1, broker_id=0, broker_epoch=0, current_metadata_offset=9_999)
    answer = server.answer(beat, sender=0)
    assert isinstance(answer, BrokerHeartbeatResponse)
    assert (answer.error, answer.is_fenced) == (ErrorCode.NONE, False)


def test_an_isr_proposal_walks_no_large_table(server: Server) -> None:
    proposal = PartitionIsrProposal(
        topic_id=server.small,
        partition_id=0,
        leader_epoch=0,
        partition_epoch=0,
        new_isr=tuple(BrokerState(broker_id=broker, broker_epoch=broker) for broker in (0, 1)),
    )
    request = AlterPartitionRequest(correlation_id=1, broker_id=0, broker_epoch=0, partitions=(proposal,))
    answer = server.answer(request, sender=0)
    assert isinstance(answer, AlterPartitionResponse)
    assert [result.isr for result in answer.partitions] == [(0, 1)]
    state = server.node.state.image.partition(TopicIdPartition(server.small, 0))
    assert state is not None
    assert state.isr == (0, 1)


def test_a_metadata_request_walks_no_large_table(server: Server) -> None:
    answer = server.answer(MetadataRequest(correlation_id=1, topic="small"))
    assert isinstance(answer, MetadataResponse)
    assert [partition.leader for partition in answer.topics[0].partitions] == [0]


def test_a_metadata_fetch_of_few_records_walks_no_large_table(server: Server) -> None:
    end = server.node.state.image.next_offset
    answer = server.answer(metadata_fetch(server.node, 0, offset=end - 2), sender=0)
    assert isinstance(answer, QuorumFetchResponse)
    assert [batch.record_count for batch in answer.batches] == [2]


ADMINISTRATION: Mapping[str, AdminRequest] = {
    "describe a topic": DescribeTopicRequest(correlation_id=1, topics=("small",)),
    "describe its configs": DescribeConfigsRequest(
        correlation_id=1,
        resources=(DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name="small"),),
    ),
    "min ISR of a topic": admin_requests.alter_config("small", {"min.insync.replicas": 1}),
    "unclean election for a topic": admin_requests.alter_config("small", {"unclean.leader.election.enable": True}),
    "more partitions": admin_requests.add_partitions("small", 1, ((1, 2, 0, 3),)),
    "a reassignment": admin_requests.reassign("small", 0, (1, 2)),
    "reassignments of a topic": ListPartitionReassignmentsRequest(
        correlation_id=1, topics=(ListPartitionReassignmentsTopic(name="small", partition_indexes=(0,)),)
    ),
    "an election": admin_requests.elect_leader("small", 0, ElectionType.PREFERRED),
    "a new topic": admin_requests.create_topic("another", ((0, 1, 2),)),
    "the end of a topic": admin_requests.delete_topic("small"),
}


@pytest.mark.parametrize("request_", ADMINISTRATION.values(), ids=list(ADMINISTRATION))
def test_administration_of_one_topic_walks_no_large_table(server: Server, request_: AdminRequest) -> None:
    answer = server.answer(request_)
    assert isinstance(answer, AdminResponse)
    assert answer.failure()[0] in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


def test_fencing_a_broker_walks_only_its_own_partitions(server: Server) -> None:
    before = len(server.node.records)
    server.node.fire(9_000, f"{SESSION_PREFIX}3")
    state = server.node.state.image.partition(TopicIdPartition(server.small, 0))
    assert state is not None
    assert state.isr == (0, 1, 2)
    assert len(server.node.records) == before + 2, "the partition and the registration"


# -- the metadata log, in parts ----------------------------------------------------------------------------------------


def changes(node: ControllerNode, count: int) -> None:
    """Appends changes, each in a batch of its own."""
    for number in range(count):
        node.receive(0, CLIENT, admin_requests.alter_config("topic-0", {"min.insync.replicas": 1 + number % 2}))


def answer_of(node: ControllerNode, request: Message) -> Message:
    [answer] = [effect.message for effect in node.receive(0, 0, request) if isinstance(effect, Send)]
    return answer


def test_a_broker_replays_a_long_log_in_parts_and_publishes_once() -> None:
    limit = 1_000
    node = node_of(cluster_records(20))
    changes(node, 30)
    end = len(node.records)
    bench = BrokerBench(config=config_of(controller_quorum_fetch_max_bytes=limit)).start()
    fetch, sizes = bench.sent(QuorumFetchRequest), list[int]()
    bench.registered()
    while bench.node.context.image.next_offset < end:
        assert not bench.traces("metadata_published")
        answer = answer_of(node, fetch)
        assert isinstance(answer, QuorumFetchResponse)
        fetch = bench.receive(CONTROLLER, answer).sent(QuorumFetchRequest)
        sizes.append(len(answer.batches))
        assert sum(len(batch.payload) for batch in answer.batches[:-1]) < limit, "the last one goes whole"
    assert sizes.count(0) == 1, "the first response only names the leader"
    assert len(sizes) >= 4
    assert len(bench.traces("metadata_published")) == 1
    assert bench.node.context.image.to_records() == node.state.image.to_records()


@pytest.mark.parametrize("is_far_behind", [False, True])
def test_a_replica_behind_the_log_start_fetches_the_snapshot_in_parts(is_far_behind: bool) -> None:
    bench = Bench(
        config=config_of(metadata_log_max_record_bytes_between_snapshots=2_000, metadata_max_retention_bytes=0)
    ).serve()
    node = bench.node
    bench.change_until_snapshot()
    start = node.replica.log.start_offset
    assert 0 < start == node.state.image.next_offset
    bench.administer(admin_requests.alter_config("t", {"min.insync.replicas": 3}))
    fetch = metadata_fetch(node, 0, offset=0 if is_far_behind else start)
    answer = answer_of(node, fetch)
    assert isinstance(answer, QuorumFetchResponse)
    assert [batch.base_offset for batch in answer.batches] == ([] if is_far_behind else [start])
    assert (answer.snapshot_end_offset == start) == is_far_behind
    if is_far_behind:
        config = config_of(controller_quorum_fetch_snapshot_max_bytes=100)
        broker, parts = BrokerBench(config=config).start().publish(), list[int]()
        question: Message = broker.receive(CONTROLLER, numbered(answer, broker)).sent(FetchSnapshotRequest)
        assert isinstance(question, FetchSnapshotRequest)
        none = answer_of(node, replace(question, max_bytes=0))
        assert isinstance(none, FetchSnapshotResponse)
        assert (none.error, none.data) == (ErrorCode.INVALID_REQUEST, b"")
        while isinstance(question, FetchSnapshotRequest):
            assert broker.node.context.image.next_offset == 0
            part = answer_of(node, question)
            assert isinstance(part, FetchSnapshotResponse)
            parts.append(len(part.data))
            question = broker.receive(CONTROLLER, part).sent(QuorumRequest)
        assert parts[:-1] == [100] * (len(parts) - 1)
        assert len(parts) > 2
        assert isinstance(question, QuorumFetchRequest)
        assert question.fetch_offset == start == broker.node.context.image.next_offset
        broker.receive(CONTROLLER, answer_of(node, question))
        assert broker.node.context.image.to_records() == node.state.image.to_records()


def numbered(answer: QuorumFetchResponse, broker: BrokerBench) -> QuorumFetchResponse:
    """The response with the number of the broker's newest fetch."""
    return replace(answer, correlation_id=broker.node.replica.pending_fetch_id)
