"""The log of one replica: append, truncate, high watermark, and agreement with a leader's log.

Rules (KIP-101, KIP-279, KIP-595; requirements N1, N6):

- the leader stamps each batch with its offset and its leader epoch; a follower stores batches as fetched;
- a follower says with each fetch the epoch of its last record; if the leader's log does not hold that epoch up to
  that offset, the leader answers with the last epoch that both may share and its end, and the follower drops what
  lies behind the smaller of the two ends;
- the high watermark never moves back, except that it cannot lie behind the end of a truncated log;
- a log that no longer has its first records says so by its log start offset. Of an epoch that ended before it nothing
  is known but that its records lay below, so a consumer that stands at or below the start may go on from there. A
  follower whose last record is of such an epoch cannot be told how far it agrees: it begins anew at the leader's log
  start. Kafka has it keep what lies below, which its own log start, exact to the offset, then hides; here a log starts
  with a segment, and what has parted would be left in it. A log that is to end below its start begins anew at that end
  (as in Apache Kafka's `UnifiedLog` and `LeaderEpochFileCache`).

Bytes are the storage's business (`contract.LogStorage`); this class knows offsets and epochs. When segments are closed
and deleted is told by `retention.py`; closing one flushes it, so that a crash leaves at most a segment to be read
through at the next start (Kafka flushes it in the background). At that moment, and at a clean shutdown, the storage is
given a snapshot of the producer state, from which the next start goes on; without one the log is scanned.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.config import CONFIGS, PRODUCER_ID_EXPIRATION_MS, SEGMENT_BYTES
from protocol.contract import BATCH_OVERHEAD_BYTES, LogStorage
from protocol.ids import Epoch, Offset
from protocol.log.epochs import LeaderEpochCache
from protocol.log.producer_state import ProducerState
from protocol.log.retention import should_roll
from protocol.messages.batch import RecordBatch
from protocol.messages.data import EpochEndOffset
from protocol.messages.trusted import changed

_SCAN_BYTES = 8 * 1_048_576
_EXPIRATION_MS = int(CONFIGS[PRODUCER_ID_EXPIRATION_MS].default)
_SEGMENT_BYTES = int(CONFIGS[SEGMENT_BYTES].default)


class ReplicaLog:
    """A replica's log on top of its storage. `high_watermark` is the offset behind the last record known to be
    committed. A segment is closed before it gets larger than `segment_bytes`; `has_closed_segments` says whether
    any is.
    """

    __slots__ = ("epochs", "has_closed_segments", "high_watermark", "producers", "segment_bytes", "storage")

    def __init__(
        self, storage: LogStorage, high_watermark: Offset = 0, producer_expiration_ms: int = _EXPIRATION_MS
    ) -> None:
        self.storage = storage
        self.segment_bytes = _SEGMENT_BYTES
        self.has_closed_segments = len(storage.segments()) > 1
        self.high_watermark = min(max(high_watermark, storage.start_offset), storage.end_offset)
        self.epochs = LeaderEpochCache()
        for epoch, start_offset in storage.epoch_starts():
            self.epochs.assign(epoch, start_offset)
        self.producers = ProducerState(producer_expiration_ms)
        self._scan_producers()

    @property
    def start_offset(self) -> Offset:
        """Log start offset: the first offset that the log still has, or would have."""
        return self.storage.start_offset

    @property
    def end_offset(self) -> Offset:
        """Log end offset: the offset that the next record gets."""
        return self.storage.end_offset

    @property
    def latest_epoch(self) -> Epoch:
        return self.epochs.latest_epoch

    def append_as_leader(self, batch: RecordBatch, leader_epoch: Epoch) -> RecordBatch:
        """Stamps and appends a produced batch; the batch as stored."""
        stamped = changed(batch, base_offset=self.storage.end_offset, leader_epoch=leader_epoch)
        self.append_as_follower((stamped,))
        return stamped

    def append_as_follower(self, batches: Sequence[RecordBatch]) -> None:
        """Appends batches as they are; the first must begin at the log end. StorageError where one could not be
        stored; those before it are.
        """
        storage, high_watermark = self.storage, self.high_watermark
        for batch in batches:
            if should_roll(storage.active_bytes, BATCH_OVERHEAD_BYTES + len(batch.payload), self.segment_bytes):
                storage.flush()
                storage.roll()
                storage.write_snapshot(self.producers.to_bytes())
                self.has_closed_segments = True
            storage.append(batch)
            self.epochs.assign(batch.leader_epoch, batch.base_offset)
            self.producers.appended(batch, high_watermark)

    def divergence(self, fetch_offset: Offset, last_fetched_epoch: Epoch) -> EpochEndOffset | None:
        """Leader's side: None if the follower's log is a prefix of this one as far as it says, else what they may
        share (M43).
        """
        if last_fetched_epoch < 0 and self.start_offset <= fetch_offset <= self.end_offset:
            return None
        epoch, end_offset = self._end_offset_for(last_fetched_epoch)
        if epoch == last_fetched_epoch and fetch_offset <= end_offset:
            return None
        return EpochEndOffset(leader_epoch=epoch, end_offset=end_offset)

    def has_forgotten(self, epoch: Epoch) -> bool:
        """Whether all records of this epoch, and of those before it, are deleted, so that nobody knows where they
        ended.
        """
        return epoch >= 0 and self.start_offset > 0 and self.epochs.end_offset_for(epoch, self.end_offset)[0] < 0

    def truncation_offset(self, diverging: EpochEndOffset) -> Offset:
        """Follower's side: the offset to truncate to, given the leader's answer."""
        epoch, end_offset = self._end_offset_for(diverging.leader_epoch)
        if epoch == diverging.leader_epoch:
            return min(end_offset, diverging.end_offset)
        return end_offset

    def _end_offset_for(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Where the records up to `epoch` end here: the largest epoch that is known of them, and the offset."""
        found, end_offset = self.epochs.end_offset_for(epoch, self.end_offset)
        if found < 0 <= epoch and self.start_offset > 0:
            return epoch, self.start_offset
        return found, end_offset

    def truncate(self, end_offset: Offset) -> None:
        """Drops everything from `end_offset` on; a log that starts behind it begins anew there."""
        if end_offset < self.start_offset:
            self.reset(end_offset)
            return
        before = self.end_offset
        self.storage.truncate(end_offset)
        if self.end_offset == before:
            return
        self.epochs.truncate(self.end_offset)
        self.high_watermark = min(self.high_watermark, self.end_offset)
        if not self.producers.truncate(self.end_offset):
            self._scan_producers()

    def reset(self, offset: Offset) -> None:
        """Drops everything; the log begins anew at `offset`, all below which counts as committed."""
        self.storage.reset(offset)
        self.epochs.clear()
        self.producers.clear()
        self.has_closed_segments = False
        self.high_watermark = offset

    def delete_segments_before(self, offset: Offset) -> bool:
        """Deletes the closed segments that end at or below `offset`, at most up to the high watermark; whether the log
        starts later than before.
        """
        before = self.start_offset
        self.storage.delete_segments_before(min(offset, self.high_watermark))
        self.epochs.forget_before(self.start_offset)
        self.has_closed_segments = len(self.storage.segments()) > 1
        return self.start_offset > before

    def save_producers(self) -> None:
        """Leaves a snapshot of the producer state at the log end, which must be flushed; for a clean shutdown."""
        self.storage.write_snapshot(self.producers.to_bytes())

    def _scan_producers(self) -> None:
        """Learns from the log what it says of its producers, from the newest snapshot on."""
        offset = self.storage.start_offset
        snapshot = self.storage.snapshot()
        if snapshot is not None:
            offset, data = snapshot
            self.producers.from_bytes(data, offset)
        while offset < self.storage.end_offset:
            for batch in self.storage.read(offset, _SCAN_BYTES):
                self.producers.appended(batch, self.high_watermark)
                offset = batch.next_offset

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Moves the high watermark up to `offset` (at most the log end); whether it moved."""
        offset = min(offset, self.end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True
