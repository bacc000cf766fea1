"""The client node: exactly one outcome per command, the right leader, and unknown where a batch may be in a log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.engines import admin_requests
from protocol.client.context import DEADLINE_PREFIX, GATHER_PREFIX, WATCH_PREFIX
from protocol.contract import CancelTimer, Effect, Send, SetTimer
from protocol.errors import RETRIABLE, ErrorCode
from protocol.events.base import Trace
from protocol.ids import DRIVER
from protocol.messages.admin import MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from protocol.messages.base import Message
from protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    ShutdownCommand,
)
from protocol.messages.data import ConsumeRequest, ConsumeResponse, ProduceRequest, ProduceResponse
from protocol.messages.partitions import ElectionType, ElectLeadersRequest
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.quorum import AddVoterRequest, RemoveVoterRequest
from protocol.messages.topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from protocol.nodes.client import ClientNode
from tests.unit.protocol.node_helpers import CLIENT, CONTROLLER, batch, config_of

BROKERS = (0, 1, 2)
NODES = (*BROKERS, CONTROLLER)
DELIVERY_MS, BACKOFF_MS = 30_000, 100
DEADLINE, GATHER, WATCH = DEADLINE_PREFIX, GATHER_PREFIX, WATCH_PREFIX
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

    def due_ms(self, name: str) -> int:
        """The time of the timer with this prefix."""
        [due_ms] = [due_ms for timer, due_ms in self.timers.items() if timer.startswith(name)]
        return due_ms

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

    def metadata(self, leader: int, epoch: int, nodes: tuple[int, ...] = NODES) -> Bench:
        """These nodes give the same response to the last metadata request."""
        for node in nodes:
            self.receive(node, self.described(leader, epoch))
        return self

    def described(self, leader: int, epoch: int, topic: str = "t") -> MetadataResponse:
        partition = PartitionMetadata(partition=0, leader=leader, leader_epoch=epoch)
        topics = (TopicMetadata(name=topic, topic_id="T", partitions=(partition,)),)
        return MetadataResponse(correlation_id=self.asked, topics=topics)

    def attempt(self, leader: int = 0, epoch: int = 1) -> int:
        """All nodes name this leader and the request is sent; returns its correlation id."""
        self.metadata(leader, epoch)
        [(to, request)] = [*self.sends(ProduceRequest), *self.sends(ConsumeRequest)]
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


def produce(acks: int = -1, final_errors: tuple[ErrorCode, ...] = ()) -> Bench:
    fields = {"command_id": 1, "topic": "t", "partition": 0, "acks": acks, "record_count": 2, "payload": b"p"}
    return Bench(ProduceCommand(**(fields | {"final_errors": final_errors})))


def test_an_acknowledged_produce_has_its_offset() -> None:
    bench = produce()
    assert [to for to, _ in bench.sends(MetadataRequest)] == list(NODES)
    request = bench.attempt()
    [(_, sent)] = bench.sends(ProduceRequest)
    assert (sent.topic, sent.partition, sent.acks, sent.batch.record_count, sent.batch.payload) == ("t", 0, -1, 2, b"p")
    assert bench.produced(request, base_offset=7).outcome() == (ErrorCode.NONE, 7, False)


@pytest.mark.covers("E5")
def test_acks_0_is_done_when_it_is_sent() -> None:
    bench = produce(acks=0)
    bench.attempt()
    assert bench.outcome() == (ErrorCode.NONE, -1, False)


@pytest.mark.covers("A49")
def test_the_newest_leader_epoch_of_all_nodes_wins() -> None:
    bench = produce().metadata(0, 1, (0,)).metadata(2, 3, (1,)).metadata(1, 2, (2,))
    assert bench.sends(ProduceRequest) == []
    bench.metadata(0, 1, (CONTROLLER,))
    assert [to for to, _ in bench.sends(ProduceRequest)] == [2]


def test_a_search_waits_gather_ms_for_silent_nodes() -> None:
    bench = produce().metadata(1, 4, (2,))
    assert bench.due_ms(GATHER) < bench.due_ms(WATCH) < bench.due_ms(DEADLINE) == DELIVERY_MS
    assert [to for to, _ in bench.fire(GATHER).sends(ProduceRequest)] == [1]
    assert bench.metadata(1, 4, (0, 1, CONTROLLER)).sends(ProduceRequest) == [], "sent already"


def test_a_silent_cluster_does_not_make_a_topic_unknown() -> None:
    bench = produce()
    for _ in range(3):
        bench.fire(GATHER)
        bench.fire(WATCH)
    assert bench.fire(DEADLINE).outcome() == (ErrorCode.REQUEST_TIMED_OUT, -1, False)


@pytest.mark.covers("A49", "M32")
def test_a_client_at_the_wrong_leader_searches_again_and_succeeds() -> None:
    bench = produce()
    bench.produced(bench.attempt(0, 1), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert bench.due_ms(WATCH) == BACKOFF_MS
    bench.fire(WATCH)
    request = bench.attempt(1, 2)
    assert bench.produced(request, base_offset=3).outcome() == (ErrorCode.NONE, 3, False)


def test_while_a_response_is_outstanding_only_a_newer_leader_epoch_repeats_the_batch() -> None:
    bench = produce()
    first = bench.attempt(0, 4)
    for leader, epoch in ((0, 4), (1, 3), (-1, 5)):
        assert bench.fire(WATCH).metadata(leader, epoch).sends(ProduceRequest) == []
    bench.fire(WATCH)
    second = bench.attempt(1, 6)
    assert bench.produced(first, base_offset=1).outcomes == [], "an answer to an attempt that was given up"
    assert bench.produced(second, base_offset=9).outcome() == (ErrorCode.NONE, 9, False)


@pytest.mark.parametrize("error", [ErrorCode.INVALID_REQUEST, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_a_non_retriable_error_is_final(error: ErrorCode) -> None:
    assert error not in RETRIABLE
    bench = produce()
    assert bench.produced(bench.attempt(), error).outcome() == (error, -1, False)


@pytest.mark.covers("E6")
@pytest.mark.parametrize(("base_offset", "unknown"), [(-1, False), (5, True)])
def test_a_final_error_is_definite_unless_the_records_were_appended(base_offset: int, unknown: bool) -> None:
    error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench = produce(final_errors=(error,))
    assert bench.produced(bench.attempt(), error, base_offset).outcome() == (error, -1, unknown)


@pytest.mark.parametrize("error", sorted(RETRIABLE))
def test_a_retriable_error_is_retried_until_the_deadline(error: ErrorCode) -> None:
    bench = produce()
    for epoch in (1, 1, 2):
        request = bench.attempt(epoch=epoch)
        assert bench.produced(request, error).outcomes == []
        bench.fire(WATCH)
    assert bench.fire(DEADLINE).outcome() == (error, -1, False)


def test_an_unknown_topic_is_a_definite_failure_at_the_deadline() -> None:
    bench = produce()
    for _ in range(2):
        for node in NODES:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            bench.receive(node, MetadataResponse(correlation_id=bench.asked, error=unknown))
        bench.fire(WATCH)
    assert bench.fire(DEADLINE).outcome() == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, False)


def test_a_partition_without_a_leader_is_a_definite_failure_at_the_deadline() -> None:
    bench = produce().metadata(-1, 5)
    assert bench.sends(ProduceRequest) == []
    assert bench.fire(DEADLINE).outcome() == (ErrorCode.REQUEST_TIMED_OUT, -1, False)


UNKNOWN = {
    "no answer at all": [(1, None, None)],
    "timed out at the leader": [(1, ErrorCode.REQUEST_TIMED_OUT, 4)],
    "deposed with the records in its log": [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, 4)],
    "no answer, then refused by the next leader": [(1, None, None), (2, ErrorCode.NOT_ENOUGH_REPLICAS, -1)],
    "appended, then refused": [(1, ErrorCode.REQUEST_TIMED_OUT, 4), (1, ErrorCode.NOT_ENOUGH_REPLICAS, -1)],
    "refused, then no answer": [(1, ErrorCode.NOT_ENOUGH_REPLICAS, -1), (2, None, None)],
}


@pytest.mark.parametrize("attempts", UNKNOWN.values(), ids=UNKNOWN)
def test_records_that_may_be_in_a_log_never_definitely_fail(
    attempts: list[tuple[int, ErrorCode | None, int | None]],
) -> None:
    bench = produce()
    for epoch, error, base_offset in attempts:
        request = bench.attempt(epoch=epoch)
        if error is not None and base_offset is not None:
            bench.produced(request, error, base_offset)
        bench.fire(WATCH)
    error, base_offset, unknown = bench.fire(DEADLINE).outcome()
    assert error is not ErrorCode.NONE
    assert unknown


def test_a_final_error_after_an_unanswered_attempt_is_unknown() -> None:
    error = ErrorCode.NOT_ENOUGH_REPLICAS
    bench = produce(final_errors=(error,))
    bench.attempt(0, 1)
    bench.fire(WATCH)
    assert bench.produced(bench.attempt(1, 2), error).outcome() == (error, -1, True)


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


@pytest.mark.parametrize("duplicates", [1, 2])
def test_a_duplicate_response_ends_the_command_once(duplicates: int) -> None:
    bench = produce()
    request = bench.attempt()
    for _ in range(1 + duplicates):
        bench.produced(request, base_offset=1)
    assert bench.outcome() == (ErrorCode.NONE, 1, False)


# -- consume and administration ----------------------------------------------------------------------------------------


def consume() -> Bench:
    return Bench(ConsumeCommand(command_id=1, topic="t", partition=0))


def consumed(bench: Bench, correlation_id: int, high_watermark: int, *offsets: int) -> Bench:
    batches = tuple(batch(2, offset) for offset in offsets)
    answer = ConsumeResponse(correlation_id=correlation_id, high_watermark=high_watermark, batches=batches)
    return bench.receive(0, answer)


def outcome_of(bench: Bench) -> ConsumeOutcome:
    [found] = bench.outcomes
    assert isinstance(found, ConsumeOutcome)
    assert bench.timers == {}
    return found


def test_a_consumer_reads_on_to_the_high_watermark() -> None:
    bench = consume()
    request = bench.attempt()
    assert consumed(bench, request, 6, 0, 2).outcomes == []
    [(to, second)] = bench.sends(ConsumeRequest)
    assert (to, second.fetch_offset) == (0, 4)
    found = outcome_of(consumed(bench, second.correlation_id, 6, 4))
    assert (found.error, found.high_watermark, [b.base_offset for b in found.batches]) == (ErrorCode.NONE, 6, [0, 2, 4])


def test_an_empty_partition_is_read_at_once() -> None:
    bench = consume()
    found = outcome_of(consumed(bench, bench.attempt(), 0))
    assert (found.error, found.batches, found.high_watermark) == (ErrorCode.NONE, (), 0)


@pytest.mark.covers("A49", "M32")
def test_a_consumer_at_the_wrong_leader_continues_at_the_right_one() -> None:
    bench = consume()
    consumed(bench, bench.attempt(), 6, 0, 2)
    [(_, second)] = bench.sends(ConsumeRequest)
    refused = ConsumeResponse(correlation_id=second.correlation_id, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    bench.receive(0, refused).fire(WATCH).metadata(1, 2)
    [(to, third)] = bench.sends(ConsumeRequest)
    assert (to, third.fetch_offset) == (1, 4)
    assert [b.base_offset for b in outcome_of(consumed(bench, third.correlation_id, 6, 4)).batches] == [0, 2, 4]


def test_a_consumer_that_finds_no_leader_fails_at_the_deadline() -> None:
    found = outcome_of(consume().metadata(-1, 3).fire(DEADLINE))
    assert (found.error, found.batches) == (ErrorCode.LEADER_NOT_AVAILABLE, ())


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


def test_a_controller_that_does_not_answer_is_a_timeout() -> None:
    bench = administer().fire(DEADLINE)
    [found] = bench.outcomes
    assert isinstance(found, AdminOutcome)
    assert found.error is ErrorCode.REQUEST_TIMED_OUT


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


def test_a_query_goes_to_one_node_after_the_other_until_one_answers() -> None:
    bench = Bench(AdminCommand(command_id=1, request=DescribeClusterRequest(correlation_id=0)))
    asked = [to for to, _ in bench.sends(DescribeClusterRequest)]
    for _ in range(3):
        asked += [to for to, _ in bench.fire(WATCH).sends(DescribeClusterRequest)]
    assert asked == [CONTROLLER, 0, 1, 2]
    [(to, request)] = bench.fire(WATCH).sends(DescribeClusterRequest)
    assert to == CONTROLLER
    bench.receive(2, DescribeClusterResponse(correlation_id=request.correlation_id - 1))
    assert bench.outcomes == [], "an answer to an earlier question"
    bench.receive(CONTROLLER, DescribeClusterResponse(correlation_id=request.correlation_id))
    [found] = bench.outcomes
    assert isinstance(found, AdminOutcome)
    assert isinstance(found.response, DescribeClusterResponse)
    assert bench.timers == {}


def test_concurrent_commands_are_independent() -> None:
    bench = produce()
    first = bench.attempt()
    bench.receive(DRIVER, ConsumeCommand(command_id=2, topic="t", partition=0)).metadata(0, 1)
    [(_, read)] = bench.sends(ConsumeRequest)
    bench.produced(first, base_offset=5)
    consumed(bench, read.correlation_id, 0)
    assert [type(found) for found in bench.outcomes] == [ProduceOutcome, ConsumeOutcome]
    assert bench.timers == {}


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
