"""Record batches: the unit that is produced, stored, replicated and consumed.

The payload is opaque to brokers. Offsets are per record; a batch covers `base_offset .. base_offset + record_count -
1`. The leader stamps `base_offset` and `leader_epoch` when it appends (N1), followers store what they fetch
unchanged. Everything else is the producer's: which incarnation of which producer sent it, where it stands in that
producer's sequence for the partition (an idempotent producer's batches have no gaps and no doubles), and the checksum
of all this and the payload, which is good from the producer to the last disk.
"""

from __future__ import annotations

from protocol.messages.base import Int16, Int32, Int64, Message

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_CRC = -1


class RecordBatch(Message):
    """`record_count` records whose encoded form is `payload`; `timestamp_ms` is that of the newest, by the producer's
    clock. `crc` is -1 where the producer has none (`protocol.log.checksum`).
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
        """The offset behind the last record."""
        return self.base_offset + self.record_count

    @property
    def size_bytes(self) -> int:
        return len(self.payload)
