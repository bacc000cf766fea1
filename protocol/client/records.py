"""The records that a producer generates, and their encoding in a batch.

A record contains the id of its command and its number in it, padded to the requested size. In a batch each record
follows its length. Brokers parse neither.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from protocol.messages.batch import RecordBatch
from protocol.messages.kafka_batch import UnreadableBatch, is_kafka, records_of

BY_DIGEST = -(1 << 62)
"""Names of sends from here downwards stand for the digest of a batch's payload, whose records carry no names."""
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">qi")
MIN_RECORD_BYTES = _HEAD.size


def record(command_id: int, number: int, size: int) -> bytes:
    """Record `number` of a command, of `size` bytes (at least MIN_RECORD_BYTES)."""
    return _HEAD.pack(command_id, number).ljust(size, b"\0")


def identity(data: bytes) -> tuple[int, int]:
    command_id, number = _HEAD.unpack_from(data)
    return command_id, number


def join(records: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    for data in records:
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


def values_of(batch: RecordBatch) -> list[bytes]:
    """The values of a batch's records, of this client's or of one of Kafka's. Those that are compressed with a codec
    that is not read here are described instead.
    """
    if not is_kafka(batch.payload):
        return split(batch.payload)
    try:
        return [record.value or b"" for record in records_of(batch)]
    except UnreadableBatch as error:
        return [f"({error})".encode()] * batch.record_count


def split(payload: bytes) -> list[bytes]:
    records, place = [], 0
    while place < len(payload):
        (length,) = _LENGTH.unpack_from(payload, place)
        place += _LENGTH.size
        records.append(payload[place : place + length])
        place += length
    return records


def named_runs(records: Iterable[bytes]) -> Iterator[tuple[int, int, int]]:
    """Generated records in order, as (command id, number of the first, count) of consecutive ones."""
    names = [(place, *identity(data)) for place, data in enumerate(records)]
    for (command_id, _), run in groupby(names, lambda name: (name[1], name[2] - name[0])):
        (_, _, first), *others = run
        yield command_id, first, 1 + len(others)


def joined_size(record_bytes: int) -> int:
    """The bytes that a record of `record_bytes` occupies in a payload."""
    return _LENGTH.size + record_bytes
