"""Requests and responses of Kafka's protocol as bytes, by the schemas of `kio`, which are generated from Kafka's own.

A frame is four bytes of length and a body. The body of a request is a header (API key, version, correlation id, client
id) and a payload; the versions of header and payload follow from the first four bytes. The body of a response is a
header with the correlation id of the request, and a payload of the request's version.

Handlers read requests as kio's objects and give responses as plain mappings, in which a field has the name that kio
gives it, nested entities are mappings, and fields that the version lacks are left out. `encode_response` makes the
typed entity of the version; a missing field has the default of the schema, or none, in which case the handler is wrong
and KeyError says which. So one handler serves every version of its API.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError

from protocol.errors import MalformedMessageError
from protocol.kafka.lengths import known_header, known_part

_LENGTH = struct.Struct(">i")
_KEY_AND_VERSION = struct.Struct(">hh")
_CORRELATION_ID = struct.Struct(">i")
_CLIENT_ID_LENGTH = struct.Struct(">h")
_HEAD_BYTES = _KEY_AND_VERSION.size + _CORRELATION_ID.size
API_VERSIONS = 18
"""Its response has the oldest header at every version, so that a client can read it whatever it knows (KIP-511)."""
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KafkaRequest:
    """A decoded request; `body` is kio's object."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the first eight bytes of every request say, whatever its version."""

    api_key: int
    version: int
    correlation_id: int


def ms_of(duration: timedelta) -> int:
    """A duration of a request in milliseconds."""
    return round(duration.total_seconds() * 1000)


class FrameReader:
    """Cuts a stream of bytes into the bodies of frames of at most `max_bytes` (`socket.request.max.bytes`)."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def waiting_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """The body of the next frame, None until all of it has arrived. MalformedMessageError for a length that is
        negative or above the limit.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= self.max_bytes:
            raise MalformedMessageError(f"found a frame of {length} bytes; allowed: 0 to {self.max_bytes}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
        del self._buffer[:end]
        return body


def request_head(body: bytes) -> RequestHead:
    """The head of a request. MalformedMessageError for a body that is too short for one."""
    if len(body) < _HEAD_BYTES:
        raise MalformedMessageError(f"found a request of {len(body)} bytes; allowed: at least 8")
    key, version = _KEY_AND_VERSION.unpack_from(body)
    (correlation_id,) = _CORRELATION_ID.unpack_from(body, _KEY_AND_VERSION.size)
    return RequestHead(key, version, correlation_id)


def decode_request(head: RequestHead, body: bytes) -> KafkaRequest:
    """The request, of an API and version that kio has. Bytes that follow it are ignored, as in Kafka: librdkafka's
    Metadata has some. MalformedMessageError for bytes that do not fit the schema.
    """
    read_header, read_payload = _request_readers(head.api_key, head.version)
    try:
        schema: Any = load_request_schema(head.api_key, head.version)
        if schema.__header_schema__.__flexible__:
            body = known_header(body, _client_id_end(body))
        header, size = read_header(body, 0)
        payload, _ = read_payload(known_part(schema, body, size), size)
        kind: Any = type(payload)
        _null_check(kind)(payload)
    except (DecodeError, ValueError, LookupError, OverflowError, struct.error) as error:
        raise MalformedMessageError(f"API {head.api_key} version {head.version}: {error}") from error
    return KafkaRequest(head.api_key, head.version, head.correlation_id, header.client_id or "", payload)


def _client_id_end(body: bytes) -> int:
    """Where the client id of a header ends, which is of the oldest form in every version."""
    (length,) = _CLIENT_ID_LENGTH.unpack_from(body, _HEAD_BYTES)
    return _HEAD_BYTES + _CLIENT_ID_LENGTH.size + max(int(length), 0)


def encode_response(api_key: int, version: int, correlation_id: int, values: Values) -> bytes:
    """The frame of a response. KeyError where `values` lacks a field that the version needs."""
    schema = load_response_schema(api_key, version)
    buffer = BytesIO()
    buffer.write(_LENGTH.pack(0))
    buffer.write(_CORRELATION_ID.pack(correlation_id))
    if schema.__header_schema__.__flexible__ and api_key != API_VERSIONS:
        buffer.write(b"\0")  # no tagged fields
    _writer(api_key, version)(buffer, entity_builder(schema)(values))
    frame = buffer.getbuffer()
    _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
    return bytes(frame)


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str, values: Values) -> bytes:
    """The frame of a request, as clients write it. KeyError where `values` lacks a field that the version needs."""
    schema = load_request_schema(api_key, version)
    kind: Any = schema.__header_schema__
    fields = {"request_api_key": api_key, "request_api_version": version, "correlation_id": correlation_id}
    buffer = BytesIO()
    entity_writer(kind)(buffer, kind(**fields, client_id=client_id))
    entity_writer(schema)(buffer, entity_builder(schema)(values))
    body = buffer.getvalue()
    return _LENGTH.pack(len(body)) + body


def decode_response(head: RequestHead, body: bytes) -> Any:
    """kio's object of the response to a request, from the body of its frame. DecodeError or ValueError for bytes that
    do not fit the schema.
    """
    read, start = _response_reader(head.api_key, head.version)
    return read(body, start)[0]


@cache
def _response_reader(api_key: int, version: int) -> tuple[Callable[..., Any], int]:
    """The reader of a response, and where it begins behind its header."""
    schema = load_response_schema(api_key, version)
    is_flexible = schema.__header_schema__.__flexible__ and api_key != API_VERSIONS
    return entity_reader(schema), _CORRELATION_ID.size + is_flexible


@cache
def _request_readers(api_key: int, version: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    schema = load_request_schema(api_key, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


@cache
def _writer(api_key: int, version: int) -> Callable[[BytesIO, Any], None]:
    writer: Callable[[BytesIO, Any], None] = entity_writer(load_response_schema(api_key, version))
    return writer


@cache
def _null_check(schema: type[Any]) -> Callable[[Any], None]:
    """A function that raises ValueError for an entity with a null array where the schema has none, which kio reads."""
    hints = get_type_hints(schema)
    plan = []
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        nested, is_many = _nested(hint)
        may_be_null = type(None) in get_args(hint)
        if is_many or nested is not None:
            plan.append((field.name, None if nested is None else _null_check(nested), is_many, may_be_null))

    def check(entity: Any) -> None:
        for name, check_item, is_many, may_be_null in plan:
            value = getattr(entity, name)
            if value is None:
                if not may_be_null:
                    raise ValueError(f"{name} is null")
            elif check_item is not None:
                for item in value if is_many else (value,):
                    check_item(item)

    return check


@cache
def entity_builder(schema: type[Any]) -> Callable[[Values], Any]:
    """A function that builds an entity of a schema from a mapping; KeyError for a field that is missing."""
    hints = get_type_hints(schema)
    plan: list[tuple[str, Callable[[Any], Any], bool]] = []
    for field in dataclasses.fields(schema):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        plan.append((field.name, _converter(field.metadata.get("kafka_type"), hints[field.name]), has_default))

    def build(values: Values) -> Any:
        given = {}
        for name, convert, has_default in plan:
            if name in values:
                given[name] = convert(values[name])
            elif name == "throttle_time":
                given[name] = timedelta(0)
            elif not has_default:
                raise KeyError(f"{schema.__module__}.{schema.__name__} needs {name}")
        return schema(**given)

    return build


def _converter(kafka_type: str | None, hint: Any) -> Callable[[Any], Any]:
    if kafka_type == "error_code":
        return KioErrorCode
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return lambda ms: timedelta(milliseconds=ms)
    if kafka_type == "uuid":
        return lambda value: value if isinstance(value, UUID) else UUID(int=0)
    nested, is_many = _nested(hint)
    if nested is None:
        return (lambda items: None if items is None else tuple(items)) if is_many else (lambda value: value)
    build = entity_builder(nested)
    if is_many:
        return lambda items: None if items is None else tuple([build(item) for item in items])
    return lambda item: None if item is None else build(item)


def _nested(hint: Any) -> tuple[Any, bool]:
    """(the entity that a field holds or None, whether it holds any number of items)."""
    kinds: Sequence[Any] = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for kind in kinds:
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            return (item if dataclasses.is_dataclass(item) else None), True
        if dataclasses.is_dataclass(kind):
            return kind, False
    return None, False
