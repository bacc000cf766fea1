"""Encodes messages as bytes and decodes them: `encode` and `decode`.

A frame is a CRC-32 of the body, followed by the body; the body is one msgpack value. A message is msgpack extension
type 1 with `[type name, version, value of each field in order of declaration]`. Values are nil, booleans, integers,
strings, bytes, arrays and messages, so nested messages and lists of records of several types need no schema besides the
models. A version below the latest lacks the fields that were added later (`Message.SINCE`). `decode` rejects invalid
bytes with a `CodecError`: the CRC detects damage in transit, the models detect values that do not fit their fields.

Bytes fields of `DETACH_BYTES` and more are not copied into the messages around them: they follow the msgpack value, and
extension type 2 holds their length. Such a body begins with `0xc1`, which begins no msgpack value, and the length of
the value.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import msgpack
from pydantic import ValidationError

from protocol.errors import MalformedMessageError, ProtocolInvariantError, UnknownMessageTypeError
from protocol.messages.base import Message

DETACH_BYTES = 4_096
_MESSAGE_EXT = 1
_DETACHED_EXT = 2
_DETACHED = 0xC1
_CRC_BYTES = 4
_LENGTH = struct.Struct(">I")
_BEGIN = struct.Struct(">BI")
_MAX_DEPTH = 8
_PLAIN = frozenset((int, str, bool, type(None)))
"""Types whose values msgpack packs without conversion."""
_PACKER = msgpack.Packer()
"""Packs one value at a time; to construct a packer costs several times what it takes to pack a message."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """One version of a message type: its fields, a reader of their values, and the defaults of fields it lacks."""

    kind: type[Message]
    version: int
    fields: tuple[str, ...]
    values: Callable[[Message], tuple[object, ...]]
    lacking: tuple[tuple[str, object], ...]
    enumerations: tuple[tuple[str, Mapping[Any, Enum]], ...]
    """The fields whose values or items are members of an enumeration, with the members by value."""


@cache
def _latest(name: str) -> int:
    return max(Message.REGISTRY[name].SINCE.values(), default=0)


@cache
def _layout(name: str, version: int) -> _Layout:
    model = Message.REGISTRY[name]
    defaults = {field.name: field.default for field in fields_of(model)}
    fields = tuple(name for name in defaults if model.SINCE.get(name, 0) <= version)
    lacking = sorted(model.SINCE.keys() - set(fields))
    types = get_type_hints(model)
    return _Layout(
        kind=model,
        version=version,
        fields=fields,
        values=attrgetter(*fields) if len(fields) > 1 else lambda item: tuple(getattr(item, name) for name in fields),
        lacking=tuple((name, defaults[name]) for name in lacking),
        enumerations=tuple(
            (name, {member.value: member for member in kind}) for name in fields for kind in _kinds(types[name])
        ),
    )


def _kinds(annotation: object) -> Iterator[type[Enum]]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


def encode(message: Message, version: int | None = None) -> bytes:
    """The frame of a message, by default in the latest version. ProtocolInvariantError if it cannot carry a value."""
    detached: list[bytes] = []
    value: bytes = _PACKER.pack_ext_type(_MESSAGE_EXT, _pack_fields(message, version, detached))
    if not detached:
        return zlib.crc32(value).to_bytes(_CRC_BYTES, "big") + value
    parts = [_BEGIN.pack(_DETACHED, len(value)), value, *detached]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((checksum.to_bytes(_CRC_BYTES, "big"), *parts))


def _pack_fields(message: Message, wanted: int | None, detached: list[bytes]) -> bytes:
    """The content of the extension type: name, version and fields of a message."""
    name = type(message).__name__
    latest = _latest(name)
    layout = _layout(name, latest if wanted is None else min(wanted, latest))
    for field, default in layout.lacking:
        if getattr(message, field) != default:
            raise ProtocolInvariantError(f"{name} version {layout.version} cannot carry {field} of {message}")
    values = [value if type(value) in _PLAIN else _pack_value(value, detached) for value in layout.values(message)]
    packed: bytes = _PACKER.pack((name, layout.version, *values))
    return packed


def _pack_value(value: object, detached: list[bytes]) -> object:
    if isinstance(value, tuple):
        return [item if type(item) in _PLAIN else _pack_value(item, detached) for item in value]
    if isinstance(value, Message):
        return msgpack.ExtType(_MESSAGE_EXT, _pack_fields(value, None, detached))
    if isinstance(value, bytes) and len(value) >= DETACH_BYTES:
        detached.append(value)
        return msgpack.ExtType(_DETACHED_EXT, _LENGTH.pack(len(value)))
    return value.value if isinstance(value, Enum) else value


def decode(frame: bytes | memoryview) -> Message:
    """The message in a frame. Raises MalformedMessageError or UnknownMessageTypeError for invalid bytes."""
    view = memoryview(frame)
    body = view[_CRC_BYTES:]
    if len(view) <= _CRC_BYTES or zlib.crc32(body) != int.from_bytes(view[:_CRC_BYTES], "big"):
        raise MalformedMessageError(f"a frame of {len(view)} bytes fails its checksum")
    if body[0] != _DETACHED:
        return _Reader(memoryview(b"")).message(body)
    if len(body) < _BEGIN.size:
        raise MalformedMessageError(f"a frame of {len(view)} bytes has an incomplete header")
    end = _BEGIN.size + _BEGIN.unpack_from(body)[1]
    return _Reader(body[end:]).message(body[_BEGIN.size : end])


class _Reader:
    """Decodes one body with its detached bytes."""

    __slots__ = ("_depth", "_detached", "_position")

    def __init__(self, detached: memoryview) -> None:
        self._detached = detached
        self._position = 0
        self._depth = 0

    def message(self, data: memoryview) -> Message:
        value = self._unpack(data)
        if not isinstance(value, Message):
            raise MalformedMessageError(f"found {type(value).__name__}; allowed: a message")
        if self._position != len(self._detached):
            raise MalformedMessageError(f"{len(self._detached) - self._position} detached bytes belong to no field")
        return value

    def _unpack(self, data: bytes | memoryview) -> object:
        try:
            return msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=True, ext_hook=self._extension)
        except (ValueError, msgpack.UnpackException) as error:
            raise MalformedMessageError(f"not a message: {error}") from error

    def _extension(self, code: int, data: bytes) -> object:
        if code == _MESSAGE_EXT:
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise MalformedMessageError(f"messages nested deeper than {_MAX_DEPTH}")
            message = _message_of(self._unpack(data))
            self._depth -= 1
            return message
        if code == _DETACHED_EXT and len(data) == _LENGTH.size:
            begin = self._position
            self._position += _LENGTH.unpack(data)[0]
            if self._position > len(self._detached):
                raise MalformedMessageError(f"a field of {self._position - begin} bytes is truncated")
            return bytes(self._detached[begin : self._position])
        raise MalformedMessageError(f"found extension type {code}; allowed: {_MESSAGE_EXT}, {_DETACHED_EXT}")


def _message_of(parts: object) -> Message:
    if not isinstance(parts, tuple) or len(parts) < 2 or not isinstance(parts[0], str):
        raise MalformedMessageError("found a message without type name and version")
    name, version = parts[:2]
    if name not in Message.REGISTRY:
        known = len(Message.REGISTRY)
        raise UnknownMessageTypeError(f"found message type {name!r}; allowed: one of {known} known types")
    if type(version) is not int or not 0 <= version <= _latest(name):
        raise MalformedMessageError(f"{name}: found version {version!r}; allowed: 0 to {_latest(name)}")
    layout = _layout(name, version)
    if len(parts) - 2 != len(layout.fields):
        raise MalformedMessageError(f"{name}: found {len(parts) - 2} fields; allowed: {len(layout.fields)}")
    found: dict[str, object] = dict(zip(layout.fields, parts[2:], strict=True))
    for field, members in layout.enumerations:
        found[field] = _member(members, found[field], name, field)
    try:
        return layout.kind(**found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedMessageError(f"{name}.{where}: found {first['input']!r}; {first['msg']}") from error


def _member(members: Mapping[Any, Enum], value: object, name: str, field: str) -> object:
    """The enumeration member with this number; the members of a tuple; None for None."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_member(members, item, name, field) for item in value)
    member = members.get(value) if type(value) is int else None
    if member is None:
        kind = type(next(iter(members.values()))).__name__
        raise MalformedMessageError(f"{name}.{field}: found {value!r}; allowed: a number of {kind}")
    return member
