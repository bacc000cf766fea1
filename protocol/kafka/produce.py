"""Produce and InitProducerId.

A request's batches go to the broker's own replicas one by one, as batches of the project's clients do: authorization,
sequence numbers, min ISR and the wait for the high watermark are decided in `protocol/broker`. Kafka allows one batch
per partition. With acks=0 there is no response; where a batch is refused, Kafka closes the connection so that the
client learns of it, and so does `REFUSED_WITHOUT_ACKS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET
from protocol.kafka.batches import InvalidBatch, read_produced
from protocol.kafka.calls import BROKER, CONTROLLER, Call, Calls, Handler
from protocol.kafka.cluster import INTERNAL_TOPICS
from protocol.kafka.view import NO_UUID, Client, View, leader_fields
from protocol.kafka.wire import KafkaRequest, Values, ms_of
from protocol.messages.admin import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.data import ProduceRequest, ProduceResponse
from protocol.metadata.image import TopicImage

NO_RESPONSE = object()
"""What a handler returns for a request that gets no response."""
REFUSED_WITHOUT_ACKS = object()
"""What a handler returns where the connection must end instead."""
PRODUCER_ID_WAIT_MS = 30_000
_NOT_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def produce(view: View, client: Client, request: KafkaRequest) -> Handler:
    """Appends the batches of all partitions, and answers when all of them have an outcome or the timeout is over."""
    body = request.body
    timeout_ms = ms_of(body.timeout)
    topics = [view.topic(getattr(topic, "name", None), getattr(topic, "topic_id", None)) for topic in body.topic_data]
    if getattr(body, "transactional_id", None) is not None:
        return _response(view, body, topics, lambda *_: {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
    refused: dict[tuple[int, int], InvalidBatch] = {}
    calls: dict[tuple[int, int], Call] = {}
    for t, (topic, found) in enumerate(zip(body.topic_data, topics, strict=True)):
        for p, item in enumerate(topic.partition_data):
            try:
                if found is None:
                    unknown = (
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if hasattr(topic, "name") else ErrorCode.UNKNOWN_TOPIC_ID
                    )
                    raise InvalidBatch(unknown, "")
                if found.name in INTERNAL_TOPICS:
                    raise InvalidBatch(ErrorCode.INVALID_TOPIC_EXCEPTION, "only brokers write to internal topics")
                batch = read_produced(item.records, view.checksum)
            except InvalidBatch as error:
                refused[t, p] = error
                continue
            calls[t, p] = Call(
                BROKER,
                ProduceRequest.unchecked(
                    correlation_id=0,
                    principal=client.principal,
                    topic=found.name,
                    partition=item.index,
                    acks=body.acks,
                    batch=batch,
                ),
            )
    if body.acks == 0:
        for call in calls.values():
            view.tasks.send_to_broker(call.request)
        return REFUSED_WITHOUT_ACKS if refused else NO_RESPONSE
    answers = yield Calls(list(calls.values()), view.now_ms + timeout_ms)
    outcomes = dict(zip(calls, answers, strict=True))

    def outcome(place: tuple[int, int]) -> Values:
        if place in refused:
            return {"error_code": refused[place].error, "error_message": str(refused[place]) or None}
        answer = outcomes[place]
        if not isinstance(answer, ProduceResponse):
            return {"error_code": ErrorCode.REQUEST_TIMED_OUT}
        offset = answer.base_offset if answer.error is ErrorCode.NONE else NO_OFFSET
        return {"error_code": answer.error, "base_offset": offset}

    return _response(view, body, topics, outcome)


def _response(view: View, body: Any, known: Sequence[TopicImage | None], outcome: Any) -> Values:
    """The outcomes of all partitions. `known` are the topics as they were found, in the order of the request; they show
    the leaders of now.
    """
    leaders: list[int] = []
    topics = []
    for t, (topic, found) in enumerate(zip(body.topic_data, known, strict=True)):
        partitions = []
        for p, item in enumerate(topic.partition_data):
            fields = {"base_offset": NO_OFFSET, **outcome((t, p))}
            if fields["error_code"] in _NOT_LEADER and found is not None:
                leader = leader_fields(found.partitions.get(item.index))
                fields["current_leader"] = leader
                leaders.append(leader["leader_id"])
            log_start = _log_start(view, found, item.index)
            partitions.append(
                {
                    "index": item.index,
                    "log_append_time": None,
                    "log_start_offset": log_start,
                    "record_errors": (),
                    "error_message": None,
                    **fields,
                }
            )
        topics.append(
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", NO_UUID),
                "partition_responses": partitions,
            }
        )
    return {"responses": topics, "node_endpoints": view.node_endpoints(leaders)}


def _log_start(view: View, topic: TopicImage | None, partition: int) -> int:
    replica = None if topic is None else view.context.replica_named(topic.name, partition)
    return NO_OFFSET if replica is None or replica.leadership is None else replica.log.start_offset


def init_producer_id(view: View, client: Client, request: KafkaRequest) -> Handler:
    """A new producer id from the active controller. Transactional producers are refused: there are no transactions."""
    if request.body.transactional_id is not None:
        return {"error_code": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "producer_id": -1, "producer_epoch": -1}
    call = Call(CONTROLLER, InitProducerIdRequest(correlation_id=0, principal=client.principal))
    (answer,) = yield Calls([call], view.now_ms + PRODUCER_ID_WAIT_MS)
    if not isinstance(answer, InitProducerIdResponse):
        return {"error_code": ErrorCode.REQUEST_TIMED_OUT, "producer_id": -1, "producer_epoch": -1}
    return {
        "error_code": answer.error,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }
