"""The client node, whatever the nodes answer. Examples: `tests/unit/protocol/client/testdata/client`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.client.context import DEADLINE_PREFIX, WATCH_PREFIX
from protocol.contract import CancelTimer, Effect, Send, SetTimer
from protocol.errors import RETRIABLE, ErrorCode
from protocol.events.base import Trace
from protocol.ids import DRIVER
from protocol.messages.admin import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from protocol.messages.base import Message
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    ProduceCommand,
    ProduceOutcome,
    ShutdownCommand,
)
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.messages.partitions import ElectionType, ElectLeadersRequest
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.messages.topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from protocol.nodes.client import ClientNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, config_of

BROKERS = (0, 1, 2)
DELIVERY_MS, BACKOFF_MS = 30_000, 100
DEADLINE, WATCH = DEADLINE_PREFIX, WATCH_PREFIX
M = TypeVar("M", bound=Message)


class Bench:
    """A client with command 1 in progress and its timers; the controller gives it producer id 5 when it asks."""

    def __init__(self, command: Message) -> None:
        config = config_of(delivery_timeout_ms=DELIVERY_MS, retry_backoff_ms=BACKOFF_MS)
        self.node = ClientNode(CLIENT, BROKERS, [CONTROLLER], config)
        self.now_ms = 0
        self.timers: dict[str, int] = {}
        self.outcomes: list[Message] = []
        self.effects: list[Effect] = []
        self.asked = -1
        assert self.node.start(0) == []
        self.receive(DRIVER, command)

    def receive(self, sender: int, message: Message) -> Bench:
        return self._done(self.node.receive(self.now_ms, sender, message))

    def fire(self, name: str) -> Bench:
        """Advances the time to the timer and fires it; a prefix of its name is enough."""
        [name] = [timer for timer in self.timers if timer.startswith(name)]
        self.now_ms = self.timers.pop(name)
        return self._done(self.node.fire(self.now_ms, name))

    def _done(self, effects: list[Effect]) -> Bench:
        self.effects = effects
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.name] = effect.at_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.name, None)
            elif isinstance(effect, Send) and effect.to == DRIVER:
                self.outcomes.append(effect.message)
            elif isinstance(effect, Send) and isinstance(effect.message, MetadataRequest):
                self.asked = effect.message.correlation_id
        for _, request in self.sends(InitProducerIdRequest):
            answer = InitProducerIdResponse(correlation_id=request.correlation_id, producer_id=5, producer_epoch=0)
            self.effects = [*effects, *self.receive(CONTROLLER, answer).effects]
        return self

    def sends(self, kind: type[M]) -> list[tuple[int, M]]:
        return [(e.to, e.message) for e in self.effects if isinstance(e, Send) and isinstance(e.message, kind)]

    def metadata(self, leader: int, epoch: int) -> Bench:
        """All nodes give the same response to the last metadata request."""
        partition = PartitionMetadata(partition=0, leader=leader, leader_epoch=epoch)
        topics = (TopicMetadata(name="t", topic_id="T", partitions=(partition,)),)
        for node in (*BROKERS, CONTROLLER):
            self.receive(node, MetadataResponse(correlation_id=self.asked, topics=topics))
        return self

    def attempt(self, leader: int = 0, epoch: int = 1) -> int:
        """All nodes name this leader and the request is sent; returns its correlation id."""
        self.metadata(leader, epoch)
        [(to, request)] = self.sends(ProduceRequest)
        assert to == leader
        return request.correlation_id

    def produced(self, correlation_id: int, error: ErrorCode = ErrorCode.NONE, base_offset: int = -1) -> Bench:
        return self.receive(0, ProduceResponse(correlation_id=correlation_id, error=error, base_offset=base_offset))

    def outcome(self) -> tuple[ErrorCode, int, bool]:
        [found] = self.outcomes
        assert isinstance(found, ProduceOutcome)
        assert found.command_id == 1
        assert self.timers == {}, "nothing of it is left"
        return found.error, found.base_offset, found.unknown


def produce(acks: int = -1) -> Bench:
    return Bench(ProduceCommand(command_id=1, topic="t", partition=0, acks=acks, record_count=2, payload=b"p"))


@pytest.mark.parametrize("error", sorted(RETRIABLE))
def test_a_retriable_error_is_retried_until_the_deadline(error: ErrorCode) -> None:
    bench = produce()
    for epoch in (1, 1, 2):
        request = bench.attempt(epoch=epoch)
        assert bench.produced(request, error).outcomes == []
        bench.fire(WATCH)
    assert bench.fire(DEADLINE).outcome() == (error, -1, False)


ANSWERS = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.sampled_from([0, 1, -1]), st.integers(0, 1)),
        st.tuples(st.just("answer"), st.sampled_from(ANSWERS), st.sampled_from([-1, 5])),
    ),
    max_size=12,
)


@settings(deadline=None)
@example(-1, [("look", 0, 0), ("look", 1, 1), ("answer", ErrorCode.NOT_ENOUGH_REPLICAS, -1)])
@given(st.sampled_from([-1, 1]), EVENTS)
def test_every_command_has_one_outcome_and_it_is_unknown_if_an_attempt_may_have_been_appended(
    acks: int, events: list[tuple[str, Any, int]]
) -> None:
    bench, epoch, last, may_be_applied = produce(acks), 1, -1, set[int]()
    for kind, what, number in events:
        if bench.outcomes:
            break
        if kind == "answer":
            if number < 0 and what is not ErrorCode.NONE:
                may_be_applied.discard(last)
            bench.produced(last, what, number)
            last = -1
            continue
        epoch += number
        bench.fire(WATCH).metadata(what, epoch)
        for _, request in bench.sends(ProduceRequest):
            last = request.correlation_id
            may_be_applied.add(last)
    if not bench.outcomes:
        bench.fire(DEADLINE)
    error, _, unknown = bench.outcome()
    assert unknown == (error is not ErrorCode.NONE and bool(may_be_applied))


def administer() -> Bench:
    return Bench(AdminCommand(command_id=1, request=admin_requests.delete_topic("t")))


def test_administration_goes_to_the_controller_and_returns_its_response() -> None:
    bench = administer()
    [(to, request)] = bench.sends(DeleteTopicsRequest)
    assert (to, request.topics) == (CONTROLLER, admin_requests.delete_topic("t").topics)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused = DeletableTopicResult(name="t", error=error, message="no topic")
    response = DeleteTopicsResponse(correlation_id=request.correlation_id, topics=(refused,))
    bench.receive(CONTROLLER, response)
    assert bench.outcomes == [AdminOutcome(command_id=1, error=error, message="no topic", response=response)]
    assert bench.timers == {}


@pytest.mark.covers("G27")
@pytest.mark.parametrize("timeout_ms", [1_000, 60_000])
@pytest.mark.parametrize(
    "wanted",
    [
        admin_requests.elect_leader("t", 0, ElectionType.LONGEST_LOG_PROACTIVE),
        AddVoterRequest(correlation_id=0, voter_id=1001, voter_uuid="u"),
        RemoveVoterRequest(correlation_id=0, voter_id=1001, voter_uuid="u"),
    ],
    ids=lambda wanted: type(wanted).__name__,
)
def test_long_requests_get_a_timeout_below_the_clients(
    wanted: ElectLeadersRequest | AddVoterRequest | RemoveVoterRequest, timeout_ms: int
) -> None:
    bench = Bench(AdminCommand(command_id=1, request=replace(wanted, timeout_ms=timeout_ms)))
    [(_, request)] = bench.sends(type(wanted))
    assert request.timeout_ms == min(timeout_ms, DELIVERY_MS * 9 // 10)


def test_messages_that_no_client_serves_are_dropped() -> None:
    [refused] = produce().receive(DRIVER, ShutdownCommand()).effects
    assert isinstance(refused, Trace)
    assert (refused.kind, refused.message) == ("refused", "ShutdownCommand")


def test_a_process_does_not_take_responses_to_the_process_before_it() -> None:
    """Both send the same first request, under different correlation ids."""
    command, numbers = AdminCommand(command_id=1, request=DescribeClusterRequest(correlation_id=0)), []
    for start_ms in (0, 60_000):
        node = ClientNode(CLIENT, BROKERS, [CONTROLLER], config_of())
        assert node.node_id == CLIENT
        node.start(start_ms)
        effects = node.receive(start_ms, DRIVER, command)
        numbers += [effect.message.correlation_id for effect in effects if isinstance(effect, Send)]
    assert node.receive(60_001, CONTROLLER, DescribeClusterResponse(correlation_id=numbers[0])) == []
    assert node.receive(60_002, CONTROLLER, DescribeClusterResponse(correlation_id=numbers[1])) != []
