"""Kafka's record batches (message format 2) as the payload of the batches of this project's logs.

The payload of such a batch is `MARK`, then the CRC of Kafka's batch and all that the CRC covers, as the producer sent
it. `MARK` begins no payload of the project's own clients, whose first four bytes are a length. Brokers parse none of it
(`protocol/kafka/batches.py` checks what producers send).

| offset | bytes | field of a Kafka batch |
|---|---|---|
| 0 | 8 | base offset |
| 8 | 4 | length of what follows |
| 12 | 4 | leader epoch |
| 16 | 1 | magic, 2 |
| 17 | 4 | CRC-32C of what follows |
| 21 | 2 | attributes: bits 0 to 2 the codec, 3 the type of timestamps, 4 transactional, 5 control |
| 23 | 4 | last offset delta |
| 27 | 8 | base timestamp |
| 35 | 8 | max timestamp |
| 43 | 8 | producer id |
| 51 | 2 | producer epoch |
| 53 | 4 | base sequence |
| 57 | 4 | record count |
| 61 | | records |
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from protocol.messages.batch import RecordBatch

MARK = b"\xff\xff\xff\xff"
CRC = struct.Struct(">I")
COVERED = struct.Struct(">hiqqqhii")
"""The covered fields before the records."""
CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_CODEC = 0b111
_GZIP = 1


class CompressedBatch(ValueError):
    """The records of a batch are compressed with a codec that is not read here."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record of a batch. `timestamp_ms` is absolute, `offset` is that in the log."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def is_kafka(payload: bytes) -> bool:
    """Whether a payload is a batch of Kafka's."""
    return payload.startswith(MARK)


def records_of(batch: RecordBatch) -> Iterator[KafkaRecord]:
    """The records of a stored batch of Kafka's. CompressedBatch for a codec other than gzip, which needs a library."""
    covered = memoryview(batch.payload)[len(MARK) + CRC.size :]
    attributes, _, base_ms, _, _, _, _, count = COVERED.unpack_from(covered)
    data, codec = bytes(covered[COVERED.size :]), attributes & _CODEC
    if codec == _GZIP:
        data = gzip.decompress(data)
    elif codec:
        raise CompressedBatch(f"found codec {CODECS.get(codec, codec)}; allowed: none, gzip")
    place = 0
    for _ in range(count):
        length, place = _read_varint(data, place)
        yield _read_record(data, place, batch.base_offset, base_ms)
        place += length


def encode_record(offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    """A record of a batch: its length, attributes, deltas, key, value and no headers."""
    parts = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    for part in (key, value):
        parts += (varint(-1),) if part is None else (varint(len(part)), part)
    body = b"".join((*parts, varint(0)))
    return varint(len(body)) + body


def varint(number: int) -> bytes:
    """A signed number in zig-zag encoding, seven bits to a byte, the lowest first."""
    rest, encoded = (number << 1) ^ (number >> 63), bytearray()
    rest &= (1 << 64) - 1
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_record(data: bytes, place: int, base_offset: int, base_ms: int) -> KafkaRecord:
    timestamp_delta, place = _read_varint(data, place + 1)
    offset_delta, place = _read_varint(data, place)
    key, place = _read_bytes(data, place)
    value, place = _read_bytes(data, place)
    count, place = _read_varint(data, place)
    headers = []
    for _ in range(count):
        name, place = _read_bytes(data, place)
        content, place = _read_bytes(data, place)
        headers.append(((name or b"").decode(errors="replace"), content))
    return KafkaRecord(base_offset + offset_delta, base_ms + timestamp_delta, key, value, tuple(headers))


def _read_bytes(data: bytes, place: int) -> tuple[bytes | None, int]:
    length, place = _read_varint(data, place)
    return (None, place) if length < 0 else (data[place : place + length], place + length)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
        shift += 7
