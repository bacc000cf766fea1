"""Records that a producer makes up, and their bytes in a batch.

A record says which command it belongs to and which of its records it is, and is padded to the size that was asked for.
In a batch each record stands behind its length. Brokers never look into either.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">qi")
MIN_RECORD_BYTES = _HEAD.size


def record(command_id: int, number: int, size: int) -> bytes:
    """Record `number` of a command, of `size` bytes."""
    return _HEAD.pack(command_id, number).ljust(size, b"\0")


def identity(data: bytes) -> tuple[int, int]:
    """(command id, number) of a record."""
    command_id, number = _HEAD.unpack_from(data)
    return command_id, number


def join(records: Sequence[bytes]) -> bytes:
    """The payload of a batch."""
    parts: list[bytes] = []
    for data in records:
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


def split(payload: bytes) -> list[bytes]:
    """The records of a payload that `join` made."""
    records, place = [], 0
    while place < len(payload):
        (length,) = _LENGTH.unpack_from(payload, place)
        place += _LENGTH.size
        records.append(payload[place : place + length])
        place += length
    return records


def joined_size(record_bytes: int) -> int:
    """What a record of this size takes in a payload."""
    return _LENGTH.size + record_bytes
