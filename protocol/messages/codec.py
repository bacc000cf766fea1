"""Messages as bytes: `encode` and `decode`.

A frame is a CRC-32 of the body and the body; the body is one msgpack value. A message is msgpack extension type 1
around `[type name, version, value of each field in order of declaration]`, values being nil, booleans, integers,
strings, bytes, arrays, and messages again. So nested messages and records of several types in one list need no schema
beside the models themselves. A version below a type's latest lacks the fields that came later (`Message.SINCE`).
Bytes that are no message are refused with a `CodecError`: the CRC catches what was damaged on its way, the models
what does not fit their fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import get_args

import msgpack
from pydantic import ValidationError

from protocol.errors import MalformedMessageError, ProtocolInvariantError, UnknownMessageTypeError
from protocol.messages.base import Message

_MESSAGE_EXT = 1
_CRC_BYTES = 4
_MAX_DEPTH = 8
_PLAIN = frozenset((int, str, bool, bytes, type(None)))
"""Types whose values msgpack packs as they are."""


def encode(message: Message, version: int | None = None) -> bytes:
    """The frame of a message, in its latest version or an older one.

    ProtocolInvariantError if a field that the version lacks has a value that it would lose.
    """
    body: bytes = msgpack.packb(_pack_value(message, version), use_bin_type=True)
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


@cache
def _latest(model: type[Message]) -> int:
    return max(model.SINCE.values(), default=0)


@cache
def _fields(model: type[Message], version: int) -> tuple[str, ...]:
    """Names of the fields that a version of the message has."""
    return tuple(name for name in model.model_fields if model.SINCE.get(name, 0) <= version)


@cache
def _lacking(model: type[Message], version: int) -> tuple[tuple[str, object], ...]:
    """Names and defaults of the fields that later versions of the message brought."""
    lacking = sorted(model.SINCE.keys() - set(_fields(model, version)))
    return tuple((name, model.model_fields[name].default) for name in lacking)


def _pack_message(message: Message, wanted: int | None) -> object:
    model = type(message)
    version = _latest(model) if wanted is None else min(wanted, _latest(model))
    for name, default in _lacking(model, version):
        if getattr(message, name) != default:
            raise ProtocolInvariantError(f"{model.__name__} version {version} cannot carry {name} of {message}")
    values = [_pack_value(getattr(message, name)) for name in _fields(model, version)]
    return msgpack.ExtType(_MESSAGE_EXT, msgpack.packb([model.__name__, version, *values], use_bin_type=True))


def _pack_value(value: object, version: int | None = None) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Message):
        return _pack_message(value, version)
    if isinstance(value, tuple):
        return [_pack_value(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


@cache
def _enumerations(model: type[Message]) -> tuple[tuple[str, type[Enum]], ...]:
    """Fields whose values, or whose items, are members of an enumeration."""
    return tuple((name, kind) for name, info in model.model_fields.items() for kind in _kinds(info.annotation))


def _kinds(annotation: object) -> Iterator[type[Enum]]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


def _member(kind: type[Enum], value: object, place: str) -> object:
    """The member that travels as this number; nothing, and several of them, stay what they are."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_member(kind, item, place) for item in value)
    if type(value) is not int or value not in {member.value for member in kind}:
        raise MalformedMessageError(f"{place}: found {value!r}; allowed: a number of {kind.__name__}")
    return kind(value)


def _unpack_message(code: int, data: bytes, depth: int) -> Message:
    if code != _MESSAGE_EXT:
        raise MalformedMessageError(f"found extension type {code}; allowed: {_MESSAGE_EXT}")
    parts = _unpack(data, depth)
    if not isinstance(parts, tuple) or len(parts) < 2 or not isinstance(parts[0], str):
        raise MalformedMessageError("a message without a type name and a version")
    name, version, *values = parts
    model = Message.REGISTRY.get(name)
    if model is None:
        raise UnknownMessageTypeError(
            f"found message type {name!r}; allowed: one of {len(Message.REGISTRY)} known types"
        )
    if type(version) is not int or not 0 <= version <= _latest(model):
        raise MalformedMessageError(f"{name}: found version {version!r}; allowed: 0 to {_latest(model)}")
    fields = _fields(model, version)
    if len(values) != len(fields):
        raise MalformedMessageError(f"{name}: found {len(values)} fields; allowed: {len(fields)}")
    found: dict[str, object] = dict(zip(fields, values, strict=True))
    for field, kind in _enumerations(model):
        if field in found:
            found[field] = _member(kind, found[field], f"{name}.{field}")
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedMessageError(f"{name}.{where}: found {first['input']!r}; {first['msg']}") from error
