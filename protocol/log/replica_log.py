"""The log of one replica: append, truncate, high watermark, and agreement with a leader's log.

Rules (KIP-101, KIP-279, KIP-595; requirements N1, N6):

- the leader stamps each batch with its offset and its leader epoch; a follower stores batches as fetched;
- a follower says with each fetch the epoch of its last record; if the leader's log does not hold that epoch up to
  that offset, the leader answers with the last epoch that both may share and its end, and the follower drops what
  lies behind the smaller of the two ends;
- the high watermark never moves back, except that it cannot lie behind the end of a truncated log.

Bytes are the storage's business (`contract.LogStorage`); this class knows offsets and epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.contract import LogStorage
from protocol.ids import Epoch, Offset
from protocol.log.epochs import LeaderEpochCache
from protocol.messages.batch import RecordBatch
from protocol.messages.data import EpochEndOffset

_SCAN_BYTES = 8 * 1_048_576


class ReplicaLog:
    """A replica's log on top of its storage. `high_watermark` is the offset behind the last record known to be
    committed.
    """

    __slots__ = ("epochs", "high_watermark", "storage")

    def __init__(self, storage: LogStorage, high_watermark: Offset = 0) -> None:
        self.storage = storage
        self.epochs = LeaderEpochCache()
        offset = 0
        while offset < storage.end_offset:
            for batch in storage.read(offset, _SCAN_BYTES):
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
                offset = batch.next_offset
        self.high_watermark = min(high_watermark, storage.end_offset)

    @property
    def end_offset(self) -> Offset:
        """Log end offset: the offset that the next record gets."""
        return self.storage.end_offset

    @property
    def latest_epoch(self) -> Epoch:
        return self.epochs.latest_epoch

    def append_as_leader(self, batch: RecordBatch, leader_epoch: Epoch) -> RecordBatch:
        """Stamps and appends a produced batch; the batch as stored."""
        stamped = RecordBatch(
            base_offset=self.storage.end_offset,
            leader_epoch=leader_epoch,
            record_count=batch.record_count,
            payload=batch.payload,
        )
        self.append_as_follower((stamped,))
        return stamped

    def append_as_follower(self, batches: Sequence[RecordBatch]) -> None:
        """Appends batches as they are; the first must begin at the log end."""
        for batch in batches:
            self.storage.append(batch)
            self.epochs.assign(batch.leader_epoch, batch.base_offset)

    def divergence(self, fetch_offset: Offset, last_fetched_epoch: Epoch) -> EpochEndOffset | None:
        """Leader's side: None if the follower's log is a prefix of this one as far as it says, else what they may
        share (M43).
        """
        if fetch_offset == 0 and last_fetched_epoch < 0:
            return None
        epoch, end_offset = self.epochs.end_offset_for(last_fetched_epoch, self.end_offset)
        if epoch == last_fetched_epoch and fetch_offset <= end_offset:
            return None
        return EpochEndOffset(leader_epoch=epoch, end_offset=end_offset)

    def truncation_offset(self, diverging: EpochEndOffset) -> Offset:
        """Follower's side: the offset to truncate to, given the leader's answer."""
        epoch, end_offset = self.epochs.end_offset_for(diverging.leader_epoch, self.end_offset)
        if epoch == diverging.leader_epoch:
            return min(end_offset, diverging.end_offset)
        return end_offset

    def truncate(self, end_offset: Offset) -> None:
        """Drops everything from `end_offset` on."""
        self.storage.truncate(end_offset)
        self.epochs.truncate(self.end_offset)
        self.high_watermark = min(self.high_watermark, self.end_offset)

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Moves the high watermark up to `offset` (at most the log end); whether it moved."""
        offset = min(offset, self.end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True
