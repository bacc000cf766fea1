"""The checksum of a record batch: which bytes it covers, whatever the function.

It covers what the producer decides and nothing that the leader stamps, so that it is computed once, by the producer,
and stays right on every log. The function is a port: ray's hosts pass CRC-32C, as Kafka has it; the simulator, whose
disks and links do not damage bits by themselves, passes none, and its batches carry -1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from protocol.messages.batch import NO_CRC, RecordBatch

Checksum = Callable[[bytes, int], int]
"""(data, value so far) -> value; 0 to begin with, 32 bits."""

PRODUCER_PART = struct.Struct(">iqhiq")
"""The fields before the payload, as they are covered: record count, producer id, epoch and sequence, timestamp."""


def producer_part_of(batch: RecordBatch) -> bytes:
    """The fields of `PRODUCER_PART` of a batch."""
    return PRODUCER_PART.pack(
        batch.record_count, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.timestamp_ms
    )


def checksum_of(batch: RecordBatch, function: Checksum) -> int:
    """The checksum of what the producer decides: the fields before the payload, and the payload."""
    return function(batch.payload, function(producer_part_of(batch), 0))


def is_intact(batch: RecordBatch, function: Checksum | None) -> bool:
    """Whether the batch is what its producer made, as far as it has a checksum and there is a function."""
    return function is None or batch.crc == NO_CRC or batch.crc == checksum_of(batch, function)
