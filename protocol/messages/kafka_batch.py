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

import struct
import zlib
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
_GZIP_WINDOW = 31
"""For zlib: the largest window, with the header of gzip."""
_VARINT_BITS = 70


MAX_UNPACKED_BYTES = 64 * 1_048_576


class UnreadableBatch(ValueError):
    """The records of a batch are not what its header says, or compressed with a codec that is not read here."""


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


def records_of(batch: RecordBatch) -> list[KafkaRecord]:
    """The records of a stored batch of Kafka's. Brokers check none of them, so they may be anything: UnreadableBatch
    for what is no record, and for a codec other than gzip, which needs a library.
    """
    covered = memoryview(batch.payload)[len(MARK) + CRC.size :]
    attributes, _, base_ms, _, _, _, _, count = COVERED.unpack_from(covered)
    data, codec = bytes(covered[COVERED.size :]), attributes & _CODEC
    if codec not in (0, _GZIP):
        raise UnreadableBatch(f"found codec {CODECS.get(codec, codec)}; allowed: none, gzip")
    try:
        return list(_records(_unpacked(data) if codec else data, count, batch.base_offset, base_ms))
    except (IndexError, zlib.error) as error:
        raise UnreadableBatch(f"found records that cannot be read: {error}") from error


def _unpacked(data: bytes) -> bytes:
    reader = zlib.decompressobj(_GZIP_WINDOW)
    unpacked = reader.decompress(data, MAX_UNPACKED_BYTES)
    if not reader.eof:
        raise UnreadableBatch("found compressed records that are cut off or too large")
    return unpacked


def _records(data: bytes, count: int, base_offset: int, base_ms: int) -> Iterator[KafkaRecord]:
    place = 0
    for number in range(count):
        length, place = _read_varint(data, place)
        if not 0 < length <= len(data) - place:
            raise UnreadableBatch(f"found a record of {length} bytes; {len(data) - place} are left")
        record = _read_record(data[place : place + length], base_offset, base_ms)
        if record.offset != base_offset + number:
            raise UnreadableBatch(f"found offset {record.offset} in place {number} from offset {base_offset} on")
        yield record
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
    return unsigned_varint(((number << 1) ^ (number >> 63)) & ((1 << 64) - 1))


def unsigned_varint(number: int) -> bytes:
    """A number from 0 on, seven bits to a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_record(data: bytes, base_offset: int, base_ms: int) -> KafkaRecord:
    timestamp_delta, place = _read_varint(data, 1)
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
    if length > len(data) - place:
        raise UnreadableBatch(f"found a field of {length} bytes; {len(data) - place} are left")
    return (None, place) if length < 0 else (data[place : place + length], place + length)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while shift < _VARINT_BITS:
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
        shift += 7
    raise UnreadableBatch("found a number of more than 64 bits")
