"""The page of a run (`experiments/explorer`), with a lane for the application's host.

What goes through connections is shown as the requests and responses of Kafka's protocol: the piece of a stream that
completes a frame is the message of the request or response. A frame that is not Kafka's is shown by its length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from kio.index import load_request_schema
from kio.serial.errors import DecodeError

from experiments.explorer.assemble import run_of_journal
from experiments.explorer.page import write_page
from experiments.explorer.recorder import Call, SimRecorder
from experiments.explorer.values import plain
from experiments.scenarios.runner import Runner
from experiments.virtual.broker import crc32c
from experiments.virtual.engine import VirtualEngine
from experiments.virtual.observer import MAX_BYTES, readable
from protocol.errors import MalformedMessageError
from protocol.ids import NodeId, TimeMs, is_application
from protocol.kafka.batches import InvalidBatch, read_produced
from protocol.kafka.wire import FrameReader, RequestHead, decode_request, decode_response, ms_of, request_head
from protocol.messages.base import Message
from protocol.messages.connections import ClientBytes

_PARTITION_FIELDS = ("partition_index", "partition", "index")
_TOPIC_FIELDS = ("name", "topic", "topic_id")
_SHOWN_VALUES = 5


class CallRecorder(SimRecorder):
    """Records a run with the requests and responses of its connections."""

    def __init__(self, engine: VirtualEngine, runner: Runner) -> None:
        super().__init__(engine.cluster, runner.headings, engine.suite.violations)
        self._engine = engine
        self._frames: dict[tuple[int, bool], FrameReader] = {}
        self._heads: dict[tuple[int, int], RequestHead] = {}
        self._pieces: dict[int, tuple[ClientBytes, list[Call]]] = {}
        engine.connections.record_to(self)

    def sent(
        self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message | Call, arrivals: Sequence[TimeMs]
    ) -> None:
        if not isinstance(message, ClientBytes):
            super().sent(time_ms, source, target, message, arrivals)
            return
        calls = [*self._calls(message, is_request=is_application(source))]
        self._pieces[id(message)] = (message, calls)
        for call in calls:
            super().sent(time_ms, source, target, call, arrivals)

    def delivered(self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message | Call) -> None:
        if not isinstance(message, ClientBytes):
            super().delivered(time_ms, source, target, message)
            return
        for call in self._pieces.pop(id(message), (message, []))[1]:
            super().delivered(time_ms, source, target, call)

    def write(self, path: Path, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """Writes the page. InputError where the file cannot be written."""
        engine = self._engine
        write_page(path, run_of_journal(self.journal(), title, facts, engine.spec, engine.metadata_log()))

    def _calls(self, message: ClientBytes, is_request: bool) -> Iterator[Call]:
        """The requests or responses that are complete with this piece of a stream."""
        reader = self._frames.setdefault((message.connection, is_request), FrameReader(MAX_BYTES))
        read = self._request if is_request else self._response
        reader.feed(message.data)
        try:
            while (body := reader.next()) is not None:
                yield read(message.connection, body)
        except (MalformedMessageError, DecodeError, ValueError, LookupError):
            yield Call("Bytes", {"connection": message.connection, "bytes": len(message.data)})

    def _request(self, connection: int, body: bytes) -> Call:
        head = request_head(body)
        self._heads[connection, head.correlation_id] = head
        return _call(connection, head, "request", decode_request(head, body).body, body)

    def _response(self, connection: int, body: bytes) -> Call:
        head = self._heads.pop((connection, int.from_bytes(body[:4], "big", signed=True)), None)
        if head is None:
            raise MalformedMessageError("found a response to no request; allowed: one to each request")
        return _call(connection, head, "response", decode_response(head, body), body)


def _call(connection: int, head: RequestHead, what: str, entity: Any, body: bytes) -> Call:
    name = load_request_schema(head.api_key, head.version).__name__.removesuffix("Request")
    fields: dict[str, object] = {
        "connection": connection,
        "correlation_id": head.correlation_id,
        "version": head.version,
        "bytes": len(body),
    }
    partitions = [*_partitions(entity, "")]
    return Call(f"Kafka {name} {what}", fields | _scalars(entity) | {"partitions": partitions})


def _entities(value: Any) -> Iterator[Any]:
    """The entities in the fields of an entity."""
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        for item in found if isinstance(found, tuple) else (found,):
            if dataclasses.is_dataclass(item):
                yield item


def _partitions(entity: Any, topic: str) -> Iterator[Mapping[str, object]]:
    """The partitions that an entity is about, each with its topic and its own fields."""
    topic = next((str(getattr(entity, name)) for name in _TOPIC_FIELDS if getattr(entity, name, None)), topic)
    number = next((getattr(entity, name) for name in _PARTITION_FIELDS if hasattr(entity, name)), None)
    if isinstance(number, int):
        yield {"topic": topic, "partition": int(number), **_scalars(entity)}
    for inner in _entities(entity):
        yield from _partitions(inner, topic)


def _scalars(entity: Any) -> dict[str, object]:
    """The fields of an entity that have no entities in them, as plain values."""
    values = {field.name: getattr(entity, field.name) for field in dataclasses.fields(entity)}
    return {name: _shown(value) for name, value in values.items() if not _is_nested(value)}


def _is_nested(value: object) -> bool:
    return any(dataclasses.is_dataclass(item) for item in (value if isinstance(value, tuple) else (value,)))


def _shown(value: Any) -> object:
    """A plain value; of records their values, as far as they can be read."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            values = [record.value for record in readable(read_produced(bytes(value), crc32c))]
        except InvalidBatch:  # several batches, or none
            return plain(bytes(value))
        return [repr(it) for it in values[:_SHOWN_VALUES]] + ["..."] * (len(values) > _SHOWN_VALUES)
    if isinstance(value, timedelta):
        return ms_of(value)
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    return plain(value) if isinstance(value, Enum | str | int | float | bool | None) else str(value)
