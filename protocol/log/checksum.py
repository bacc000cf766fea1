"""The checksum of a record batch: which bytes it covers.

It covers the fields that the producer sets and none that the leader stamps, so the producer computes it once and it
stays valid in every log. The host injects the function: Ray's hosts CRC-32C, as in Kafka; the simulator, whose disks
and links do not damage bits by themselves, none, and its batches carry -1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from protocol.messages.batch import NO_CRC, RecordBatch

Checksum = Callable[[bytes, int], int]
"""(data, checksum of the data before, initially 0) -> checksum of both, 32 bits."""

PRODUCER_PART = struct.Struct(">iqhiq")
"""The covered fields before the payload: record count, producer id, epoch and sequence, timestamp; big endian."""


def producer_part_of(batch: RecordBatch) -> bytes:
    return PRODUCER_PART.pack(
        batch.record_count, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.timestamp_ms
    )


def checksum_of(batch: RecordBatch, function: Checksum) -> int:
    """The checksum of a batch: the fields of `PRODUCER_PART`, then the payload."""
    return function(batch.payload, function(producer_part_of(batch), 0))


def is_intact(batch: RecordBatch, function: Checksum | None) -> bool:
    """Whether the batch matches its checksum; True without a checksum or a function."""
    return function is None or batch.crc == NO_CRC or batch.crc == checksum_of(batch, function)
