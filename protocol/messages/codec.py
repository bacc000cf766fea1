"""Messages as bytes: `encode` and `decode`.

A frame is a CRC-32 of the body and the body; the body is one msgpack value. A message is msgpack extension type 1
around `[type name, value of each field in order of declaration]`, values being nil, booleans, integers, strings,
bytes, arrays, and messages again. So nested messages and records of several types in one list need no schema beside
the models themselves. Bytes that are no message are refused with a `CodecError`: the CRC catches what was damaged on
its way, the models what does not fit their fields.
"""

from __future__ import annotations

import zlib
from enum import Enum

import msgpack
from pydantic import ValidationError

from protocol.errors import MalformedMessageError, UnknownMessageTypeError
from protocol.messages.base import Message

_MESSAGE_EXT = 1
_CRC_BYTES = 4
_MAX_DEPTH = 8


def encode(message: Message) -> bytes:
    """The frame of a message."""
    body: bytes = msgpack.packb(_pack_value(message), use_bin_type=True)
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "big") + body


def decode(frame: bytes) -> Message:
    """The message of a frame; MalformedMessageError or UnknownMessageTypeError where it is none."""
    body = frame[_CRC_BYTES:]
    if len(frame) <= _CRC_BYTES or zlib.crc32(body) != int.from_bytes(frame[:_CRC_BYTES], "big"):
        raise MalformedMessageError(f"a frame of {len(frame)} bytes fails its checksum")
    value = _unpack(body, 0)
    if not isinstance(value, Message):
        raise MalformedMessageError(f"found {type(value).__name__}; allowed: a message")
    return value


def _unpack(data: bytes, depth: int) -> object:
    if depth > _MAX_DEPTH:
        raise MalformedMessageError(f"messages nested deeper than {_MAX_DEPTH}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=True,
            ext_hook=lambda code, inner: _unpack_message(code, inner, depth + 1),
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise MalformedMessageError(f"not a message: {error}") from error


def _pack_value(value: object) -> object:
    if isinstance(value, Message):
        fields = [_pack_value(getattr(value, name)) for name in type(value).model_fields]
        return msgpack.ExtType(_MESSAGE_EXT, msgpack.packb([type(value).__name__, *fields], use_bin_type=True))
    if isinstance(value, tuple):
        return [_pack_value(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


def _unpack_message(code: int, data: bytes, depth: int) -> Message:
    if code != _MESSAGE_EXT:
        raise MalformedMessageError(f"found extension type {code}; allowed: {_MESSAGE_EXT}")
    parts = _unpack(data, depth)
    if not isinstance(parts, tuple) or not parts or not isinstance(parts[0], str):
        raise MalformedMessageError("a message without a type name")
    name, *values = parts
    model = Message.REGISTRY.get(name)
    if model is None:
        raise UnknownMessageTypeError(
            f"found message type {name!r}; allowed: one of {len(Message.REGISTRY)} known types"
        )
    fields = list(model.model_fields)
    if len(values) != len(fields):
        raise MalformedMessageError(f"{name}: found {len(values)} fields; allowed: {len(fields)}")
    try:
        return model.model_validate(dict(zip(fields, values, strict=True)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedMessageError(f"{name}.{where}: found {first['input']!r}; {first['msg']}") from error
