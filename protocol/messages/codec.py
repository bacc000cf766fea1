"""Encodes messages as bytes and decodes them: `encode` and `decode`.

A frame is a CRC-32 of the body, followed by the body; the body is one msgpack value. A message is msgpack extension
type 1 with `[type name, version, value of each field in order of declaration]`. Values are nil, booleans, integers,
strings, bytes, arrays and messages, so nested messages and lists of records of several types need no schema besides the
models. A version below the latest lacks the fields that were added later (`Message.SINCE`). `decode` rejects invalid
bytes with a `CodecError`: the CRC detects damage in transit, the models detect values that do not fit their fields.

Bytes fields of `DETACH_BYTES` and more are not copied into the messages around them: they follow the msgpack value, and
extension type 2 holds their length. Such a body begins with `0xc1`, which begins no msgpack value, the length of the
value, and that of the bytes that the frame's checksum covers behind it.

The payload of a batch that carries the producer's checksum is *sealed*: whoever appends or consumes the batch compares
that checksum, and the frame's does not cover the payload again. A sealed field of `DETACH_BYTES` and more has extension
type 3 and follows those of type 2. One of `ATTACH_BYTES` and more may be *attached*: then it is not in the frame at
all, extension type 4 holds its length, and the caller carries it beside the frame, without a copy.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import msgpack
from pydantic import ValidationError

from protocol.errors import MalformedMessageError, ProtocolInvariantError, UnknownMessageTypeError
from protocol.messages.base import Message
from protocol.messages.batch import NO_CRC, RecordBatch

DETACH_BYTES = 4_096
ATTACH_BYTES = 524_288
_MESSAGE_EXT = 1
_DETACHED_EXT = 2
_SEALED_EXT = 3
_ATTACHED_EXT = 4
_DETACHED = 0xC1
_CRC_BYTES = 4
_LENGTH = struct.Struct(">I")
_BEGIN = struct.Struct(">BII")
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


_LAYOUTS: dict[tuple[str, int], _Layout] = {}
"""The layouts that have been decoded, by name and version."""


@cache
def _latest(name: str) -> int:
    return max(Message.REGISTRY[name].SINCE.values(), default=0)


@cache
def _layout(name: str, version: int) -> _Layout:
    model = Message.REGISTRY[name]
    defaults = {each.name: each.default for each in fields_of(model)}
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


@dataclass(slots=True)
class _Parts:
    """The large bytes fields of a message that is being encoded; `attached` None: none may be attached."""

    attached: list[bytes] | None
    checked: list[bytes] = field(default_factory=list)
    sealed: list[bytes] = field(default_factory=list)


def encode(message: Message, version: int | None = None, attached: list[bytes] | None = None) -> bytes:
    """The frame of a message, by default in the latest version. Adds the fields that the frame leaves out to
    `attached`, if it is given. ProtocolInvariantError if the version cannot carry a value.
    """
    parts = _Parts(attached)
    value: bytes = _PACKER.pack_ext_type(_MESSAGE_EXT, _pack_fields(message, version, parts))
    if not (parts.checked or parts.sealed):
        return zlib.crc32(value).to_bytes(_CRC_BYTES, "big") + value
    covered = [_BEGIN.pack(_DETACHED, len(value), sum(map(len, parts.checked))), value, *parts.checked]
    checksum = 0
    for part in covered:
        checksum = zlib.crc32(part, checksum)
    return b"".join((checksum.to_bytes(_CRC_BYTES, "big"), *covered, *parts.sealed))


def _pack_fields(message: Message, wanted: int | None, parts: _Parts) -> bytes:
    """The content of the extension type: name, version and fields of a message."""
    name = type(message).__name__
    latest = _latest(name)
    layout = _layout(name, latest if wanted is None else min(wanted, latest))
    for lacking, default in layout.lacking:
        if getattr(message, lacking) != default:
            raise ProtocolInvariantError(f"{name} version {layout.version} cannot carry {lacking} of {message}")
    is_sealed = isinstance(message, RecordBatch) and message.crc != NO_CRC
    values = [
        value if type(value) in _PLAIN else _pack_value(value, parts, is_sealed) for value in layout.values(message)
    ]
    packed: bytes = _PACKER.pack((name, layout.version, *values))
    return packed


def _pack_value(value: object, parts: _Parts, is_sealed: bool = False) -> object:
    if isinstance(value, tuple):
        return [item if type(item) in _PLAIN else _pack_value(item, parts) for item in value]
    if isinstance(value, Message):
        return msgpack.ExtType(_MESSAGE_EXT, _pack_fields(value, None, parts))
    if isinstance(value, bytes) and len(value) >= DETACH_BYTES:
        kind, rest = (_SEALED_EXT, parts.sealed) if is_sealed else (_DETACHED_EXT, parts.checked)
        if is_sealed and parts.attached is not None and len(value) >= ATTACH_BYTES:
            kind, rest = _ATTACHED_EXT, parts.attached
        rest.append(value)
        return msgpack.ExtType(kind, _LENGTH.pack(len(value)))
    return value.value if isinstance(value, Enum) else value


def decode(frame: bytes | memoryview, attached: Sequence[bytes] = ()) -> Message:
    """The message in a frame, with the fields that were attached to it. Raises MalformedMessageError or
    UnknownMessageTypeError for invalid bytes.
    """
    view = memoryview(frame)
    begin, end = _CRC_BYTES, len(view)
    covered, detached = end, _NO_DETACHED
    if end > begin and view[begin] == _DETACHED:
        begin += _BEGIN.size
        if end < begin:
            raise MalformedMessageError(f"a frame of {end} bytes has an incomplete header")
        _, value_bytes, checked_bytes = _BEGIN.unpack_from(view, _CRC_BYTES)
        end = begin + value_bytes
        covered = end + checked_bytes
        detached = {_DETACHED_EXT: _Detached(view[end:covered]), _SEALED_EXT: _Detached(view[covered:])}
    if begin >= len(view) or zlib.crc32(view[_CRC_BYTES:covered]) != int.from_bytes(view[:_CRC_BYTES], "big"):
        raise MalformedMessageError(f"a frame of {len(view)} bytes fails its checksum")
    return _Reader(detached, attached).message(view[begin:end])


class _Detached:
    """The detached fields of one kind, in their order."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        begin = self._position
        self._position += size
        if self._position > len(self._data):
            raise MalformedMessageError(f"a field of {size} bytes is truncated")
        return bytes(self._data[begin : self._position])


_NO_DETACHED: Mapping[int, _Detached] = {}


class _Reader:
    """Decodes one body with its detached and attached bytes."""

    __slots__ = ("_attached", "_depth", "_detached", "_taken")

    def __init__(self, detached: Mapping[int, _Detached], attached: Sequence[bytes]) -> None:
        self._detached = detached
        self._attached = attached
        self._taken = 0
        self._depth = 0

    def message(self, data: memoryview) -> Message:
        value = self._unpack(data)
        if not isinstance(value, Message):
            raise MalformedMessageError(f"found {type(value).__name__}; allowed: a message")
        if self._detached and (left := sum(part.left for part in self._detached.values())):
            raise MalformedMessageError(f"{left} detached bytes belong to no field")
        if self._taken != len(self._attached):
            raise MalformedMessageError(f"{len(self._attached) - self._taken} attached fields belong to no field")
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
        if code not in (_DETACHED_EXT, _SEALED_EXT, _ATTACHED_EXT) or len(data) != _LENGTH.size:
            raise MalformedMessageError(f"found extension type {code}; allowed: {_MESSAGE_EXT} to {_ATTACHED_EXT}")
        size: int = _LENGTH.unpack(data)[0]
        if code == _ATTACHED_EXT:
            return self._attachment(size)
        part = self._detached.get(code)
        if part is None:
            raise MalformedMessageError(f"a field of {size} bytes is truncated")
        return part.take(size)

    def _attachment(self, size: int) -> bytes:
        if self._taken == len(self._attached) or len(self._attached[self._taken]) != size:
            raise MalformedMessageError(f"a field of {size} bytes is not attached")
        self._taken += 1
        return self._attached[self._taken - 1]


def _message_of(parts: object) -> Message:
    if not isinstance(parts, tuple) or len(parts) < 2 or not isinstance(parts[0], str):
        raise MalformedMessageError("found a message without type name and version")
    name, version = parts[:2]
    layout = _LAYOUTS.get((name, version)) if type(version) is int else None
    if layout is None:
        layout = _layout_named(name, version)
    fields = layout.fields
    if len(parts) - 2 != len(fields):
        raise MalformedMessageError(f"{name}: found {len(parts) - 2} fields; allowed: {len(fields)}")
    found: dict[str, object] = dict(zip(fields, parts[2:], strict=True))
    for wanted, members in layout.enumerations:
        value = found[wanted]
        member = members.get(value) if type(value) is int else None
        found[wanted] = _member(members, value, name, wanted) if member is None else member
    try:
        return layout.kind(**found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MalformedMessageError(f"{name}.{where}: found {first['input']!r}; {first['msg']}") from error


def _layout_named(name: str, version: object) -> _Layout:
    """The layout with a name and a version that have not been found yet; kept in `_LAYOUTS`."""
    if name not in Message.REGISTRY:
        known = len(Message.REGISTRY)
        raise UnknownMessageTypeError(f"found message type {name!r}; allowed: one of {known} known types")
    if type(version) is not int or not 0 <= version <= _latest(name):
        raise MalformedMessageError(f"{name}: found version {version!r}; allowed: 0 to {_latest(name)}")
    layout = _LAYOUTS[name, version] = _layout(name, version)
    return layout


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
