"""ListOffsets and OffsetForLeaderEpoch: where a partition's log begins, ends, and where an epoch of it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH
from protocol.kafka.calls import BROKER, Call, Calls, Handler
from protocol.kafka.view import Client, View, epoch_error
from protocol.kafka.wire import KafkaRequest
from protocol.messages.base import ClientRequest, Response
from protocol.messages.data import (
    MAX_TIMESTAMP,
    ConsumeRequest,
    ConsumeResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from protocol.messages.kafka_batch import UnreadableBatch, is_kafka, records_of

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
            timestamp=item.timestamp,
        )

    def result(item: Any, error: ErrorCode, answer: Response | None) -> dict[str, Any]:
        found = answer if isinstance(answer, ListOffsetsResponse) else ListOffsetsResponse(correlation_id=0)
        return {
            "partition_index": item.partition_index,
            "error_code": error,
            "timestamp": found.timestamp_ms,
            "offset": found.offset,
            "leader_epoch": found.leader_epoch,
        }

    topics = yield from _each(view, request.body.topics, "name", "partition_index", ask, result)
    wanted = {(topic.name, item.partition_index): item.timestamp for topic in request.body.topics
              for item in topic.partitions}  # fmt: skip
    found = [(name, values) for name, partitions in topics for values in partitions if values["offset"] >= 0]
    by_time = [(name, values) for name, values in found if values["timestamp"] >= 0]
    yield from _find_records(view, client, by_time, wanted)
    return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics]}


def _find_records(
    view: View, client: Client, found: list[tuple[str, dict[str, Any]]], wanted: dict[tuple[str, int], int]
) -> Handler:
    """Replaces the base offset of each batch that was found by time by the offset of the record in it. A batch whose
    records cannot be read here (compressed with a codec other than gzip) keeps its base offset.
    """
    calls = [
        Call(
            BROKER,
            ConsumeRequest(
                correlation_id=0,
                principal=client.principal,
                topic=name,
                partition=values["partition_index"],
                fetch_offset=values["offset"],
                max_bytes=0,
            ),
        )
        for name, values in found
    ]
    answers = yield Calls(calls, view.now_ms + WAIT_MS)
    for (name, values), answer in zip(found, answers, strict=True):
        if not isinstance(answer, ConsumeResponse) or not answer.batches or not is_kafka(answer.batches[0].payload):
            continue
        timestamp = wanted[name, values["partition_index"]]
        timestamp = values["timestamp"] if timestamp == MAX_TIMESTAMP else timestamp
        with suppress(UnreadableBatch):
            records = records_of(answer.batches[0])
            record = next((record for record in records if record.timestamp_ms >= timestamp), None)
            if record is not None:
                values["offset"], values["timestamp"] = record.offset, record.timestamp_ms


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

    def result(item: Any, error: ErrorCode, answer: Response | None) -> dict[str, Any]:
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


def _each(
    view: View,
    topics: Any,
    name_field: str,
    index_field: str,
    ask: Callable[[str, Any], ClientRequest],
    result: Callable[[Any, ErrorCode, Response | None], dict[str, Any]],
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
    results: dict[str, list[dict[str, Any]]] = {getattr(topic, name_field): [] for topic in topics}
    for name, item, error in places:
        answer = next(answers) if error is ErrorCode.NONE else None
        if answer is not None:
            error = answer.error
        elif error is ErrorCode.NONE:
            error = ErrorCode.REQUEST_TIMED_OUT
        results[name].append(result(item, error, answer))
    return results.items()
