"""The Broker Request Sender: batching, one request in flight, timeouts and back-off."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.ids import TopicIdPartition
from protocol.messages.recovery import (
    MAX_PARTITIONS_PER_REQUEST,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
)
from protocol.recovery.sender import MAX_BACKOFF_MS, REQUEST_TIMEOUT_MS, Answered, RequestSender, Unanswered, by_topic

BACKOFF_MS = 100


def key(partition: int, topic: str = "T") -> TopicIdPartition:
    return TopicIdPartition(topic, partition)


def asked(request: GetReplicaLogInfoRequest) -> list[TopicIdPartition]:
    assert request.topic_partitions is not None
    return [key(index, topic.topic_id) for topic in request.topic_partitions for index in topic.partitions]


def answer(request: GetReplicaLogInfoRequest, *missing: TopicIdPartition) -> GetReplicaLogInfoResponse:
    """The response of the broker; it omits `missing`."""
    answers = [
        ReplicaLogInfo(topic_id=each.topic_id, partition_id=each.partition)
        for each in asked(request)
        if each not in missing
    ]
    return GetReplicaLogInfoResponse(
        correlation_id=request.correlation_id, broker_epoch=5, log_info_list=tuple(answers)
    )


def one(sender: RequestSender, now_ms: int = 0) -> GetReplicaLogInfoRequest:
    [(broker, request)] = sender.requests(now_ms)
    assert request.broker_id == broker
    return request


@pytest.mark.covers("F18", "F20", "M71", "G31")
def test_queued_partitions_are_queried_in_requests_of_at_most_two_thousand_one_at_a_time() -> None:
    sender = RequestSender(BACKOFF_MS)
    for number in range(5_000):
        sender.query(1, key(number))
        sender.query(1, key(number))
    sizes = []
    for _ in range(3):
        request = one(sender)
        assert sender.requests(0) == [], "one is on its way"
        sizes.append(len(asked(request)))
        events = sender.answered(1, answer(request))
        assert [event.key for event in events] == asked(request)
    assert (sizes, sender.requests(0)) == ([MAX_PARTITIONS_PER_REQUEST, MAX_PARTITIONS_PER_REQUEST, 1_000], [])


def test_brokers_do_not_wait_for_each_other() -> None:
    sender = RequestSender(BACKOFF_MS)
    sender.query(2, key(0))
    sender.query(1, key(0))
    assert [broker for broker, _ in sender.requests(0)] == [1, 2]
    sender.query(1, key(1))
    assert sender.requests(0) == []


def test_a_request_names_each_topic_once() -> None:
    found = by_topic([key(3), key(0, "U"), key(1)])
    assert found == (
        ReplicaLogInfoTopic(topic_id="T", partitions=(3, 1)),
        ReplicaLogInfoTopic(topic_id="U", partitions=(0,)),
    )


@pytest.mark.covers("F19", "F21", "M69")
def test_errors_omissions_and_timeouts_become_events() -> None:
    sender = RequestSender(BACKOFF_MS)
    for number in (0, 1):
        sender.query(1, key(number))
    request = one(sender)
    events = sender.answered(1, answer(request, key(1)))
    assert [type(event) for event in events] == [Answered, Unanswered]
    sender.query(1, key(1))
    request = one(sender)
    refusal = GetReplicaLogInfoResponse(correlation_id=request.correlation_id, error=ErrorCode.INVALID_REQUEST)
    assert sender.answered(1, refusal) == [Unanswered(1, key(1))]
    sender.query(1, key(1))
    request = one(sender)
    assert sender.next_due_ms() == REQUEST_TIMEOUT_MS
    assert sender.expire(REQUEST_TIMEOUT_MS - 1) == []
    assert sender.expire(REQUEST_TIMEOUT_MS) == [Unanswered(1, key(1))]
    late = sender.answered(1, answer(request))
    assert [event.key for event in late] == [key(1)], "late, but an answer"
    assert sender.expire(REQUEST_TIMEOUT_MS * 9) == []


@pytest.mark.covers("F10", "F21")
def test_the_backoff_of_a_failing_broker_grows() -> None:
    sender = RequestSender(BACKOFF_MS)
    now_ms, pauses = 0, []
    for _ in range(6):
        sender.query(1, key(0))
        sender.back_off(1, now_ms)
        sender.back_off(1, now_ms)
        assert sender.requests(now_ms) == []
        next_ms = sender.next_due_ms()
        assert next_ms is not None
        pauses.append(next_ms - now_ms)
        now_ms = next_ms
        sender.answered(1, answer(one(sender, now_ms)))
    assert pauses == [100, 200, 400, 800, MAX_BACKOFF_MS, MAX_BACKOFF_MS]
    sender.reset_backoff(1)
    sender.query(1, key(0))
    sender.back_off(1, now_ms)
    assert sender.next_due_ms() == now_ms + BACKOFF_MS


def test_a_forgotten_partition_is_not_queried() -> None:
    sender = RequestSender(BACKOFF_MS)
    sender.query(1, key(0))
    sender.forget(key(0))
    assert (sender.requests(0), sender.next_due_ms()) == ([], None)
