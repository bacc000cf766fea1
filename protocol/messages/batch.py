"""Record batches: the unit that is produced, stored, replicated and consumed.

The payload is opaque to brokers. Offsets are per record; a batch covers `base_offset .. base_offset + record_count -
1`. The leader stamps `base_offset` and `leader_epoch` when it appends (N1), followers store what they fetch
unchanged.
"""

from __future__ import annotations

from protocol.ids import Offset
from protocol.messages.base import Int32, Int64, Message


class RecordBatch(Message):
    """`record_count` records whose encoded form is `payload`."""

    base_offset: Int64 = 0
    leader_epoch: Int32 = 0
    record_count: Int32
    payload: bytes

    @property
    def next_offset(self) -> Offset:
        """The offset behind the last record."""
        return self.base_offset + self.record_count

    @property
    def size_bytes(self) -> int:
        return len(self.payload)
