"""What an application's requests and their responses say, read off the bytes of its connections.

The library under test is not asked: a record counts as acknowledged when a response without an error for its batch has
arrived at the application's host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from experiments.virtual.broker import crc32c
from protocol.errors import ErrorCode, MalformedMessageError
from protocol.ids import TimeMs, TopicPartition
from protocol.kafka.apis import PRODUCE
from protocol.kafka.batches import read_produced
from protocol.kafka.wire import FrameReader, RequestHead, decode_request, decode_response, request_head
from protocol.messages.batch import RecordBatch
from protocol.messages.kafka_batch import KafkaRecord, UnreadableBatch, records_of

MAX_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that a leader has acknowledged: when, where, and its content. `offset` is -1 where the response of a
    retry gives none.
    """

    time_ms: TimeMs
    place: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request of the application; `answered_ms` is None where no response came."""

    sent_ms: TimeMs
    connection: int
    broker: int
    api_key: int
    answered_ms: TimeMs | None


class Connection(Protocol):
    """The application's end of a connection to a broker, of those that the observer sees under a number of its own."""

    @property
    def number(self) -> int: ...

    @property
    def broker(self) -> int: ...


class _Wire:
    """The two directions of one connection."""

    def __init__(self) -> None:
        self.requests = FrameReader(MAX_BYTES)
        self.responses = FrameReader(MAX_BYTES)
        self.open: dict[int, tuple[TimeMs, RequestHead, bytes]] = {}


class Observer:
    """Collects `acknowledged` records and `exchanges`, in the order of the responses."""

    def __init__(self) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.exchanges: list[Exchange] = []
        self._wires: dict[int, _Wire] = {}
        self._foreign: set[int] = set()

    def observe(self, now_ms: TimeMs, connection: Connection, what: str, data: bytes) -> None:
        """Something has gone through the application's end of a connection. A connection that does not speak Kafka's
        protocol is not looked at any more.
        """
        if connection.number not in self._foreign:
            try:
                self._observe(now_ms, connection, what, data)
            except MalformedMessageError:
                self._foreign.add(connection.number)

    def _observe(self, now_ms: TimeMs, connection: Connection, what: str, data: bytes) -> None:
        wire = self._wires.setdefault(connection.number, _Wire())
        if what == "sends":
            wire.requests.feed(data)
            while (body := wire.requests.next()) is not None:
                head = request_head(body)
                wire.open[head.correlation_id] = (now_ms, head, body)
        elif what == "receives":
            wire.responses.feed(data)
            while (body := wire.responses.next()) is not None:
                self._answer(now_ms, connection, wire, body)
        elif what == "ends":
            for sent_ms, head, _ in wire.open.values():
                self.exchanges.append(Exchange(sent_ms, connection.number, connection.broker, head.api_key, None))
            wire.open.clear()

    def _answer(self, now_ms: TimeMs, connection: Connection, wire: _Wire, body: bytes) -> None:
        asked = wire.open.pop(int.from_bytes(body[:4], "big", signed=True), None)
        if asked is None:
            return
        sent_ms, head, request = asked
        self.exchanges.append(Exchange(sent_ms, connection.number, connection.broker, head.api_key, now_ms))
        if head.api_key == PRODUCE:
            self._acknowledge(now_ms, head, request, body)

    def _acknowledge(self, now_ms: TimeMs, head: RequestHead, request: bytes, response: bytes) -> None:
        answer = decode_response(head, response)
        offsets = {
            (_topic(topic), partition.index): partition.base_offset
            for topic in answer.responses
            for partition in topic.partition_responses
            if partition.error_code == ErrorCode.NONE
        }
        for topic in decode_request(head, request).body.topic_data:
            for partition in topic.partition_data:
                name = (_topic(topic), partition.index)
                if name in offsets:
                    for record in readable(read_produced(partition.records, crc32c)):
                        offset = offsets[name] + record.offset if offsets[name] >= 0 else -1
                        place = TopicPartition(*name)
                        self.acknowledged.append(Acknowledged(now_ms, place, offset, record.key, record.value))


def _topic(topic: Any) -> str:
    name = getattr(topic, "name", None)
    return str(topic.topic_id) if name is None else str(name)


def readable(batch: RecordBatch) -> list[KafkaRecord]:
    """The records of a stored batch of Kafka's; those in a codec that is not read here have neither key nor value."""
    try:
        return [*records_of(batch)]
    except UnreadableBatch:
        offsets = range(batch.base_offset, batch.base_offset + batch.record_count)
        return [KafkaRecord(offset, batch.timestamp_ms, None, None) for offset in offsets]
