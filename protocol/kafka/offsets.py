"""ListOffsets and OffsetForLeaderEpoch: where a partition's log begins, ends, and where an epoch of it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH
from protocol.kafka.calls import BROKER, Call, Calls, Handler
from protocol.kafka.view import Client, View, epoch_error
from protocol.kafka.wire import KafkaRequest, Values
from protocol.messages.base import ClientRequest, Response
from protocol.messages.data import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

WAIT_MS = 30_000


def list_offsets(view: View, client: Client, request: KafkaRequest) -> Handler:
    """The offset of each partition by timestamp: -2 the log start, -1 the high watermark, -3 the newest timestamp, a
    time in ms the first record that is as new.
    """

    def ask(topic: str, item: Any) -> ClientRequest:
        return ListOffsetsRequest(
            correlation_id=0,
            principal=client.principal,
            topic=topic,
            partition=item.partition_index,
            timestamp=_ms_of(item.timestamp),
        )

    def result(item: Any, error: ErrorCode, answer: Response | None) -> Values:
        found = answer if isinstance(answer, ListOffsetsResponse) else ListOffsetsResponse(correlation_id=0)
        return {
            "partition_index": item.partition_index,
            "error_code": error,
            "timestamp": found.timestamp_ms,
            "offset": found.offset,
            "leader_epoch": found.leader_epoch,
        }

    topics = yield from _each(view, request.body.topics, "name", "partition_index", ask, result)
    return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics]}


def offset_for_leader_epoch(view: View, client: Client, request: KafkaRequest) -> Handler:
    """For each partition the largest epoch up to the requested one, and its end in the leader's log (KIP-101)."""

    def ask(topic: str, item: Any) -> ClientRequest:
        return OffsetForLeaderEpochRequest(
            correlation_id=0,
            principal=client.principal,
            topic=topic,
            partition=item.partition,
            leader_epoch=item.leader_epoch,
        )

    def result(item: Any, error: ErrorCode, answer: Response | None) -> Values:
        none = OffsetForLeaderEpochResponse(correlation_id=0)
        found = answer if isinstance(answer, OffsetForLeaderEpochResponse) else none
        return {
            "error_code": error,
            "partition": item.partition,
            "leader_epoch": found.leader_epoch,
            "end_offset": found.end_offset,
        }

    topics = yield from _each(view, request.body.topics, "topic", "partition", ask, result)
    return {"topics": [{"topic": name, "partitions": partitions} for name, partitions in topics]}


def _ms_of(timestamp: Any) -> int:
    return int(timestamp)


def _each(
    view: View,
    topics: Any,
    name_field: str,
    index_field: str,
    ask: Callable[[str, Any], ClientRequest],
    result: Callable[[Any, ErrorCode, Response | None], Values],
) -> Any:
    """Asks the broker about every partition of a request, and returns (topic, results) of each topic. A leader epoch
    of the client that is not the broker's is an error before anything is asked.
    """
    places: list[tuple[str, Any, ErrorCode]] = []
    calls = []
    for topic in topics:
        name = getattr(topic, name_field)
        found = view.image.topic_named(name)
        for item in topic.partitions:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if found is not None:
                expected = getattr(item, "current_leader_epoch", NO_EPOCH)
                error = epoch_error(view.image, found, getattr(item, index_field), expected)
            places.append((name, item, error))
            if error is ErrorCode.NONE:
                calls.append(Call(BROKER, ask(name, item)))
    answers = iter((yield Calls(calls, view.now_ms + WAIT_MS)))
    results: dict[str, list[Values]] = {getattr(topic, name_field): [] for topic in topics}
    for name, item, error in places:
        answer = next(answers) if error is ErrorCode.NONE else None
        if answer is not None:
            error = answer.error
        elif error is ErrorCode.NONE:
            error = ErrorCode.REQUEST_TIMED_OUT
        results[name].append(result(item, error, answer))
    return results.items()
