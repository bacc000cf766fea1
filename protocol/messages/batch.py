"""Record batches: the unit that is produced, stored, replicated and consumed.

The payload is opaque to brokers. Offsets are per record; a batch covers `base_offset .. base_offset + record_count -
1`. The leader stamps `base_offset` and `leader_epoch` when it appends (N1), followers store what they fetch
unchanged. The producer sets everything else: its id and epoch, the batch's sequence number in the partition (by which
brokers refuse gaps and duplicates of idempotent producers), and the checksum of these fields and the payload, which
stays valid from the producer to the last disk.
"""

from __future__ import annotations

from protocol.messages.base import Int16, Int32, Int64, Message

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_CRC = -1


class RecordBatch(Message):
    """`record_count` records, encoded as `payload`. `timestamp_ms` is that of the newest record, by the producer's
    clock. `crc` is the CRC-32C (`protocol.log.checksum`), -1 if the producer computes none.
    """

    base_offset: Int64 = 0
    leader_epoch: Int32 = 0
    record_count: Int32
    payload: bytes
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16 = -1
    base_sequence: Int32 = NO_SEQUENCE
    timestamp_ms: Int64 = NO_TIMESTAMP
    crc: Int64 = NO_CRC

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.record_count

    @property
    def size_bytes(self) -> int:
        return len(self.payload)
