"""Kafka's record batches (message format 2) and the batches of this project's logs.

A batch of Kafka's is stored as it came: the payload of the `RecordBatch` is `MARK`, then the batch's CRC and all that
the CRC covers. The fields that the leader stamps (base offset, leader epoch), and those that brokers read (record
count, timestamp, producer), are fields of the `RecordBatch`; offsets and epoch are written into the header again when a
client fetches. `MARK` begins no payload of the project's own clients, whose first four bytes are a length.

A batch of the project's own clients is served to Kafka's clients as an uncompressed batch whose records have no key.

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

from protocol.client.records import split
from protocol.errors import ErrorCode
from protocol.log.checksum import Checksum
from protocol.messages.batch import RecordBatch

MARK = b"\xff\xff\xff\xff"
_HEADER = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")
"""The covered fields before the records."""
_PREFIX = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_LENGTH_FROM = 12
"""The length counts from here."""
_COVERED_FROM = _HEADER.size
HEADER_BYTES = _COVERED_FROM + _COVERED.size
_MAGIC = 2
_CODEC = 0b111
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
_GZIP = 1
_NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record of a batch. `timestamp_ms` is absolute, `offset` is that in the log."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class InvalidBatch(Exception):
    """A batch that a broker refuses with `error`."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error


def read_produced(records: bytes | None, checksum: Checksum) -> RecordBatch:
    """The batch of a produce request's partition, with its fields and checksum checked. Raises InvalidBatch with the
    error that Kafka gives: INVALID_RECORD unless it is exactly one whole batch of format 2 with consistent counts,
    UNSUPPORTED_FOR_MESSAGE_FORMAT for an older format, CORRUPT_MESSAGE for a wrong length or checksum.
    """
    if not records or len(records) < HEADER_BYTES:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"found {len(records or b'')} bytes; a batch has {HEADER_BYTES}")
    _, length, _, magic, crc = _HEADER.unpack_from(records)
    if magic != _MAGIC:
        raise InvalidBatch(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"found magic {magic}; allowed: {_MAGIC}")
    if length < HEADER_BYTES - _LENGTH_FROM or length + _LENGTH_FROM > len(records):
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, f"found a batch length of {length} in {len(records)} bytes")
    if length + _LENGTH_FROM != len(records):
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "found more than one batch for a partition; allowed: one")
    covered = records[_COVERED_FROM:]
    if checksum(covered, 0) != crc:
        raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "found a batch that does not match its CRC")
    attributes, last_delta, _, newest_ms, producer, epoch, sequence, count = _COVERED.unpack_from(covered)
    if count < 1 or last_delta != count - 1:
        text = f"found {count} records and last offset delta {last_delta}"
        raise InvalidBatch(ErrorCode.INVALID_RECORD, text)
    if attributes & _CONTROL or attributes & _TRANSACTIONAL:
        kind = "control" if attributes & _CONTROL else "transactional"
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"found a {kind} batch, which clients may not send here")
    return RecordBatch.unchecked(
        record_count=count,
        payload=b"".join((MARK, _CRC.pack(crc), covered)),
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=newest_ms,
    )


def is_kafka(payload: bytes) -> bool:
    """Whether a payload is a batch of Kafka's."""
    return payload.startswith(MARK)


def to_kafka(batch: RecordBatch, checksum: Checksum) -> bytes:
    """A stored batch as Kafka's clients read it, with its offsets and its leader epoch."""
    if is_kafka(batch.payload):
        crc_and_covered: bytes | memoryview = memoryview(batch.payload)[len(MARK) :]
    else:
        covered = _covered(batch)
        crc_and_covered = _CRC.pack(checksum(covered, 0)) + covered
    length = _PREFIX.size + len(crc_and_covered) - _LENGTH_FROM
    return b"".join((_PREFIX.pack(batch.base_offset, length, batch.leader_epoch, _MAGIC), crc_and_covered))


def _covered(batch: RecordBatch) -> bytes:
    """What the CRC covers of an own batch as an uncompressed batch of Kafka's."""
    values = split(batch.payload) if batch.payload else []
    if len(values) != batch.record_count:
        values = [batch.payload] + [b""] * (batch.record_count - 1)
    head = _COVERED.pack(
        0,
        batch.record_count - 1,
        batch.timestamp_ms,
        batch.timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
    )
    return head + b"".join(encode_record(delta, 0, None, value) for delta, value in enumerate(values))


def build_batch(records: list[tuple[bytes | None, bytes | None]], timestamp_ms: int, checksum: Checksum) -> RecordBatch:
    """An uncompressed batch of Kafka's with these (key, value) pairs, for a broker's own writes."""
    covered = _COVERED.pack(0, len(records) - 1, timestamp_ms, timestamp_ms, -1, -1, -1, len(records)) + b"".join(
        encode_record(delta, 0, key, value) for delta, (key, value) in enumerate(records)
    )
    payload = b"".join((MARK, _CRC.pack(checksum(covered, 0)), covered))
    return RecordBatch.unchecked(record_count=len(records), payload=payload, timestamp_ms=timestamp_ms)


def records_of(batch: RecordBatch) -> Iterator[KafkaRecord]:
    """The records of a stored batch of Kafka's that is uncompressed or compressed with gzip. Raises InvalidBatch for
    another codec, which brokers never decompress.
    """
    covered = memoryview(batch.payload)[len(MARK) + _CRC.size :]
    attributes, _, base_ms, _, _, _, _, count = _COVERED.unpack_from(covered)
    data, codec = bytes(covered[_COVERED.size :]), attributes & _CODEC
    if codec == _GZIP:
        data = gzip.decompress(data)
    elif codec:
        raise InvalidBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"found codec {codec}; allowed: none or gzip")
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
