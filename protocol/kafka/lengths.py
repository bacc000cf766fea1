"""Whether the lengths in a request fit its bytes, before they are read; and the request without what is not known.

kio's reader makes room for as many items as an array says that it has, so that forty bytes can ask for the memory of
the whole machine, which ends the process. Like Kafka's, this broker refuses an array with more items than bytes are
left. `known_part` walks over a request by its schema without building anything; items of one size are passed over at
once. A tagged field that the schema lacks comes from a client that is newer; Kafka skips it (KIP-482), which kio does
not. So the walk notes it, and the request is read without it.

| type | before version "flexible" | from it on |
|---|---|---|
| string | length in 2 bytes, -1: null | length + 1 as unsigned varint, 0: null |
| bytes, records | length in 4 bytes, -1: null | length + 1 as unsigned varint, 0: null |
| array | number of items in 4 bytes, -1: null | number + 1 as unsigned varint, 0: null |
| entity that may be null | | a byte, negative: null |
| tagged fields | none | their number, then of each tag and length, as unsigned varints |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from protocol.messages.kafka_batch import unsigned_varint

_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint16": 2,
    "uint32": 4,
    "float64": 8,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}
_LENGTH_BYTES = {"string": 2, "bytes": 4, "records": 4}
MAX_TEXT = 2**15 - 1
MAX_BYTES = 2**31 - 1
"""The longest that Kafka's readers take."""
_MAX_VARINT_BYTES = 5
Cut = tuple[int, int, bytes]
"""Where something begins and ends that is read as other bytes."""
Pass = Callable[[bytes, int, list[Cut]], int]
"""(bytes, place) to the place behind a field, with the cuts to make in it. ValueError where a length does not fit,
IndexError at the end."""


def known_part(schema: Any, data: bytes, place: int) -> bytes:
    """The data, without tagged fields that are unknown in an entity of the schema at `place`. Raises ValueError or
    IndexError unless the lengths in the entity fit the data.
    """
    cuts: list[Cut] = []
    _pass_entity(schema)(data, place, cuts)
    return _with_cuts(data, 0, len(data), cuts) if cuts else data


def known_header(data: bytes, place: int) -> bytes:
    """The request, without the tagged fields of its header, which begin at `place`: none is known."""
    cuts: list[Cut] = []
    _pass_tagged({}, data, place, cuts)
    return _with_cuts(data, 0, len(data), cuts) if cuts else data


def _with_cuts(data: bytes, begin: int, end: int, cuts: Sequence[Cut]) -> bytes:
    parts: list[bytes] = []
    for cut_begin, cut_end, instead in cuts:
        parts += (data[begin:cut_begin], instead)
        begin = cut_end
    return b"".join((*parts, data[begin:end]))


@cache
def _pass_entity(schema: type[Any]) -> Pass:
    hints = get_type_hints(schema)
    is_flexible = bool(schema.__flexible__)
    fields = [field for field in dataclasses.fields(schema) if field.metadata.get("tag") is None]
    tagged = {field.metadata["tag"]: field for field in dataclasses.fields(schema) if field not in fields}
    steps = [_step(field.metadata.get("kafka_type"), hints[field.name], is_flexible) for field in fields]
    plan: list[int | Pass] = []
    for step in steps:  # adjacent fields of fixed sizes become one
        if isinstance(step, int) and plan and isinstance(last := plan[-1], int):
            plan[-1] = last + step
        else:
            plan.append(step)
    known = {
        tag: _step(field.metadata.get("kafka_type"), hints[field.name], is_flexible) for tag, field in tagged.items()
    }

    def pass_over(data: bytes, place: int, cuts: list[Cut]) -> int:
        for step in plan:
            place = place + step if isinstance(step, int) else step(data, place, cuts)
        if is_flexible:
            place = _pass_tagged(known, data, place, cuts)
        if place > len(data):
            raise IndexError(f"{place - len(data)} bytes are missing")
        return place

    return pass_over


def _pass_tagged(known: dict[int, int | Pass], data: bytes, place: int, cuts: list[Cut]) -> int:
    begin = place
    count, place = _varint(data, place)
    if not count:
        return place
    kept: list[bytes] = []
    is_cut = False
    for _ in range(count):
        tag, place = _varint(data, place)
        size, place = _varint(data, place)
        end, step = _within(data, place + size), known.get(tag)
        inner: list[Cut] = []
        if step is not None and not isinstance(step, int):
            step(data, place, inner)
        if step is not None:
            content = _with_cuts(data, place, end, inner)
            kept.append(b"".join((unsigned_varint(tag), unsigned_varint(len(content)), content)))
        is_cut = is_cut or step is None or bool(inner)
        place = end
    if is_cut:
        cuts.append((begin, place, b"".join((unsigned_varint(len(kept)), *kept))))
    return place


def _step(kafka_type: str | None, hint: Any, is_flexible: bool) -> int | Pass:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    many = next((kind for kind in kinds if get_origin(kind) is tuple), None)
    if many is not None:
        return _pass_array(_item(kafka_type, get_args(many)[0], is_flexible), is_flexible)
    nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
    if nested is not None and type(None) in kinds:
        return _pass_nullable(_pass_entity(nested))  # type: ignore[arg-type]
    return _item(kafka_type, nested or hint, is_flexible)


def _item(kafka_type: str | None, hint: Any, is_flexible: bool) -> int | Pass:
    if kafka_type is None:
        return _pass_entity(hint)
    if kafka_type in _SIZES:
        return _SIZES[kafka_type]
    return _pass_bytes(_LENGTH_BYTES[kafka_type], is_flexible, MAX_TEXT if kafka_type == "string" else MAX_BYTES)


def _pass_nullable(pass_entity: Pass) -> Pass:
    return lambda data, place, cuts: place + 1 if data[place] > 0x7F else pass_entity(data, place + 1, cuts)


def _pass_bytes(length_bytes: int, is_flexible: bool, most: int) -> Pass:
    if is_flexible:

        def pass_compact(data: bytes, place: int, _: list[Cut]) -> int:
            length, place = _varint(data, place)
            if length - 1 > most:
                raise ValueError(f"found a text of {length - 1} bytes; allowed: at most {most}")
            return _within(data, place + max(length - 1, 0))

        return pass_compact

    def pass_legacy(data: bytes, place: int, _: list[Cut]) -> int:
        length, place = _fixed(data, place, length_bytes)
        return _within(data, place + max(length, 0))

    return pass_legacy


def _pass_array(item: int | Pass, is_flexible: bool) -> Pass:
    def pass_over(data: bytes, place: int, cuts: list[Cut]) -> int:
        if is_flexible:
            count, place = _varint(data, place)
            count -= 1
        else:
            count, place = _fixed(data, place, 4)
        if count > len(data) - place:
            raise ValueError(f"found an array of {count} items in {len(data) - place} bytes")
        if isinstance(item, int):
            return _within(data, place + max(count, 0) * item)
        for _ in range(count):
            place = item(data, place, cuts)
        return place

    return pass_over


def _within(data: bytes, place: int) -> int:
    if place > len(data):
        raise ValueError(f"found a length {place - len(data)} bytes beyond the end")
    return place


def _fixed(data: bytes, place: int, size: int) -> tuple[int, int]:
    if place + size > len(data):
        raise IndexError("the request ends in a length")
    return int.from_bytes(data[place : place + size], "big", signed=True), place + size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = data[place]
    if number < 0x80:
        return number, place + 1
    number &= 0x7F
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        place += 1
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place + 1
    raise ValueError("found a length of more than 5 bytes")
