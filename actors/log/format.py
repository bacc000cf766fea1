"""A batch in a segment file: 52 bytes of header, then the payload as the producer sent it (docs/log-format.md).

The header has two halves of 26 bytes. The leader writes the first one, offset, leader epoch and length, with a checksum
of its own, so that a flipped bit in them is detected. The second half is the producer's part, which the batch's
checksum covers together with the payload; where the producer computed that checksum, it is kept
(`protocol.log.checksum`).

Both checksums are CRC-32C (Castagnoli), big endian like all numbers here.
"""

from __future__ import annotations

import struct

from google_crc32c import extend

from protocol.contract import BATCH_OVERHEAD_BYTES
from protocol.errors import CorruptLogError
from protocol.ids import Offset, TimeMs
from protocol.log.checksum import PRODUCER_PART, producer_part_of
from protocol.messages.batch import NO_CRC, RecordBatch

MAGIC = 1
"""The version of the batch format."""
HEADER_BYTES = BATCH_OVERHEAD_BYTES
_HAS_CRC = 1
"""The flag of a batch whose checksum the producer computed."""
_LEADER_PART = struct.Struct(">qiiBBI")
_HEADER = struct.Struct(">qiiBBIIiqhiq")
_CRC_BYTES = 4
_LEADER_HALF_BYTES = _LEADER_PART.size + _CRC_BYTES
assert _HEADER.size == HEADER_BYTES == _LEADER_HALF_BYTES + PRODUCER_PART.size


def crc32c(data: bytes, value: int) -> int:
    """CRC-32C of `data` appended to bytes whose CRC-32C is `value`: a `protocol.log.checksum.Checksum`."""
    return int(extend(value, data))


def header_of(batch: RecordBatch) -> bytes:
    """The header of a batch, 52 bytes. CorruptLogError where the batch does not match the checksum it carries."""
    producer_part = producer_part_of(batch)
    payload = batch.payload
    crc = extend(extend(0, producer_part), payload)
    flags = 0
    if batch.crc != NO_CRC:
        if batch.crc != crc:
            raise CorruptLogError(
                f"the batch at offset {batch.base_offset} has checksum {crc}, but carries {batch.crc}"
            )
        flags = _HAS_CRC
    length = PRODUCER_PART.size + len(payload)
    leader_part = _LEADER_PART.pack(batch.base_offset, length, batch.leader_epoch, MAGIC, flags, crc)
    return leader_part + crc32c(leader_part, 0).to_bytes(_CRC_BYTES, "big") + producer_part


class Header:
    """A decoded batch header: offsets, leader epoch, size in bytes, newest timestamp, expected checksum."""

    __slots__ = ("_fields", "base_offset", "crc", "leader_epoch", "next_offset", "size", "timestamp_ms")

    def __init__(self, data: bytes) -> None:
        """Decodes `HEADER_BYTES` bytes, or fewer at the end of a file. ValueError, with the reason, for no header."""
        if len(data) < HEADER_BYTES:
            raise ValueError("the file ends within a header")
        fields = _HEADER.unpack(data)
        self.base_offset: Offset = fields[0]
        self.leader_epoch: int = fields[2]
        if extend(0, data[: _LEADER_PART.size]) != fields[6]:
            raise ValueError("the header fails its checksum")
        if fields[3] != MAGIC:
            raise ValueError(f"found batch format {fields[3]}; allowed: {MAGIC}")
        self.next_offset: Offset = fields[0] + fields[7]
        self.size: int = _LEADER_HALF_BYTES + fields[1]
        """Bytes of the batch, header included."""
        self.timestamp_ms: TimeMs = fields[11]
        self.crc: int = fields[5]
        self._fields = fields

    def batch(self, payload: bytes) -> RecordBatch:
        """The batch with this payload, without a check of its checksum."""
        base_offset, _, leader_epoch, _, flags, crc, _, count, producer_id, epoch, sequence, timestamp_ms = self._fields
        return RecordBatch(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            record_count=count,
            payload=payload,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            timestamp_ms=timestamp_ms,
            crc=crc if flags & _HAS_CRC else NO_CRC,
        )

    def is_intact(self, data: bytes, payload: bytes) -> bool:
        """Whether the batch's bytes match its checksum; `data` are the header's bytes."""
        return bool(extend(extend(0, data[_LEADER_HALF_BYTES:]), payload) == self.crc)
