"""The log of one replica (Kafka's `UnifiedLog`): append, truncate, high watermark, divergence from a leader's log.

Rules (KIP-101, KIP-279, KIP-595; requirements N1, N6):

- The leader stamps each batch with its offset and its leader epoch; a follower stores batches as fetched.
- A fetch carries the epoch of the follower's last record. If the leader's log does not contain that epoch up to the
  fetch offset, the leader answers with the last epoch that both may share and its end offset, and the follower
  truncates to the smaller of the two logs' end offsets of that epoch.
- The high watermark never moves back, unless the log is truncated below it.
- After retention the end offsets of epochs before the log start are unknown, except that they are at or below it. So a
  consumer at or below the log start may go on from there. A follower whose last record is of such an epoch empties its
  log and restarts at the leader's log start; Kafka's keeps the records below it, hidden by its own log start offset,
  but here a log starts with a segment, in which diverged records would remain.
- A log that is truncated below its start is emptied and starts at that offset.

Closing a segment flushes it, so that after a crash at most one segment has to be verified (Kafka flushes in the
background). Then, and at a clean shutdown, the storage gets a snapshot of the producer state.

The active segment is closed when the next batch would make it larger than `segment.bytes`. Closed segments are deleted
as a whole, from the oldest on, when the newest timestamp in one is older than `retention.ms`, or the log without it
still has `retention.bytes`. The active segment and records at or above the high watermark are never deleted: they may
still be truncated, and no consumer has read them. Every replica decides for itself, by its own high watermark.

Timestamps are those of producers. A segment without timestamps is as old as the next one that has some; without such a
segment, it does not expire. Departures from Kafka: the active segment is not closed by age; Kafka uses the modification
time of the file for a segment without timestamps, which is not a property of the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.config import CONFIGS, PRODUCER_ID_EXPIRATION_MS, SEGMENT_BYTES
from protocol.contract import BATCH_OVERHEAD_BYTES, LogStorage, SegmentInfo
from protocol.ids import Epoch, Offset, TimeMs
from protocol.log.epochs import LeaderEpochCache
from protocol.log.producer_state import ProducerState
from protocol.messages.base import changed
from protocol.messages.batch import NO_TIMESTAMP, RecordBatch
from protocol.messages.data import EpochEndOffset

UNLIMITED = -1
"""The value of `retention.ms` and `retention.bytes` that disables them."""


def should_roll(active_bytes: int, batch_bytes: int, segment_bytes: int) -> bool:
    """Whether to close the active segment, unless empty, before a batch of `batch_bytes` (with its overhead)."""
    return active_bytes > 0 and active_bytes + batch_bytes > segment_bytes


def retained_from(
    segments: Sequence[SegmentInfo], high_watermark: Offset, now_ms: TimeMs, retention_ms: int, retention_bytes: int
) -> Offset:
    """The base offset of the oldest segment that is kept, of `segments`, oldest first, the last one active.
    `retention_ms` and `retention_bytes` may be UNLIMITED.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    kept = 0
    for segment, newest_ms in zip(segments[:-1], _ages(segments)[:-1], strict=True):
        is_old = NO_TIMESTAMP < newest_ms < now_ms - retention_ms
        is_excess = excess_bytes >= segment.size_bytes
        may_go = (retention_ms != UNLIMITED and is_old) or (retention_bytes != UNLIMITED and is_excess)
        if not may_go or segment.end_offset > high_watermark:
            break
        excess_bytes -= segment.size_bytes
        kept += 1
    return segments[kept].base_offset


def _ages(segments: Sequence[SegmentInfo]) -> list[TimeMs]:
    """The timestamp by which each segment expires, -1 for one that does not."""
    ages: list[TimeMs] = []
    for segment in reversed(segments):
        has_own = segment.newest_ms > NO_TIMESTAMP or not ages
        ages.append(segment.newest_ms if has_own else ages[-1])
    return ages[::-1]


_SCAN_BYTES = 8 * 1_048_576
_EXPIRATION_MS = int(CONFIGS[PRODUCER_ID_EXPIRATION_MS].default)
_SEGMENT_BYTES = int(CONFIGS[SEGMENT_BYTES].default)


class ReplicaLog:
    """A replica's log on its storage. `high_watermark`: the offset after the last record known to be committed; a
    segment is closed before it exceeds `segment_bytes`. StorageError where the disk fails.
    """

    __slots__ = ("epochs", "has_closed_segments", "high_watermark", "producers", "segment_bytes", "storage")

    def __init__(
        self, storage: LogStorage, high_watermark: Offset = 0, producer_expiration_ms: int = _EXPIRATION_MS
    ) -> None:
        self.storage = storage
        self.segment_bytes = _SEGMENT_BYTES
        self.has_closed_segments = len(storage.segments()) > 1
        self.high_watermark = min(max(high_watermark, storage.start_offset), storage.end_offset)
        self.epochs = LeaderEpochCache(storage.epoch_starts())
        self.producers = ProducerState(producer_expiration_ms)
        self._scan_producers()

    @property
    def start_offset(self) -> Offset:
        """Log start offset: that of the first record that is not deleted; the log end offset of an empty log."""
        return self.storage.start_offset

    @property
    def end_offset(self) -> Offset:
        """Log end offset: the offset that the next record gets."""
        return self.storage.end_offset

    @property
    def latest_epoch(self) -> Epoch:
        return self.epochs.latest_epoch

    def append_as_leader(self, batch: RecordBatch, leader_epoch: Epoch) -> RecordBatch:
        """Stamps a produced batch with offset and leader epoch, appends it, and returns it as stored."""
        stamped = changed(batch, base_offset=self.storage.end_offset, leader_epoch=leader_epoch)
        self.append_as_follower((stamped,))
        return stamped

    def append_as_follower(self, batches: Sequence[RecordBatch]) -> None:
        """Appends batches as they are; the first must begin at the log end. Those before a StorageError are stored."""
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
        """As leader: None if this log begins with the follower's, else the last epoch that both may share (M43)."""
        if last_fetched_epoch < 0 and self.start_offset <= fetch_offset <= self.end_offset:
            return None
        epoch, end_offset = self.end_offset_for(last_fetched_epoch)
        if epoch == last_fetched_epoch and fetch_offset <= end_offset:
            return None
        return EpochEndOffset(leader_epoch=epoch, end_offset=end_offset)

    def has_forgotten(self, epoch: Epoch) -> bool:
        """Whether all records of this epoch and of older ones are deleted, so that its end offset is unknown."""
        return epoch >= 0 and self.start_offset > 0 and self.epochs.end_offset_for(epoch, self.end_offset)[0] < 0

    def truncation_offset(self, diverging: EpochEndOffset) -> Offset:
        """As follower: the offset to truncate to for the leader's diverging epoch."""
        epoch, end_offset = self.end_offset_for(diverging.leader_epoch)
        return min(end_offset, diverging.end_offset) if epoch == diverging.leader_epoch else end_offset

    def end_offset_for(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The largest known epoch <= `epoch` and its end offset; `epoch` and the log start if all such are deleted."""
        found, end_offset = self.epochs.end_offset_for(epoch, self.end_offset)
        is_deleted = found < 0 <= epoch and self.start_offset > 0
        return (epoch, self.start_offset) if is_deleted else (found, end_offset)

    def truncate(self, end_offset: Offset) -> None:
        """Removes the records from `end_offset` on; a log that starts above it is emptied and starts there."""
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
        """Removes all records; the log starts at `offset`, which becomes its high watermark."""
        self.storage.reset(offset)
        self.epochs.clear()
        self.producers.clear()
        self.has_closed_segments = False
        self.high_watermark = offset

    def delete_segments_before(self, offset: Offset) -> bool:
        """Deletes the closed segments below `offset` and the high watermark; returns whether the log start moved."""
        before = self.start_offset
        self.storage.delete_segments_before(min(offset, self.high_watermark))
        self.epochs.forget_before(self.start_offset)
        self.has_closed_segments = len(self.storage.segments()) > 1
        return self.start_offset > before

    def save_producers(self) -> None:
        """Writes a snapshot of the producer state at the log end, in a clean shutdown; the log must be flushed."""
        self.storage.write_snapshot(self.producers.to_bytes())

    def _scan_producers(self) -> None:
        """Builds the producer state from the newest snapshot and the batches after it."""
        offset = self.storage.start_offset
        snapshot = self.storage.snapshot()
        if snapshot is not None:
            offset, data = snapshot
            self.producers.from_bytes(data, offset)
        while offset < self.storage.end_offset:
            for batch in self.storage.read(offset, _SCAN_BYTES):
                self.producers.appended(batch, self.high_watermark)
                offset = batch.next_offset

    def set_high_watermark(self, offset: Offset) -> bool:
        """Moves the high watermark to `offset`, also back, within the log; returns whether it has moved (N6)."""
        before, self.high_watermark = self.high_watermark, min(max(offset, self.start_offset), self.end_offset)
        return self.high_watermark != before

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Moves the high watermark up to `offset`, at most the log end; returns whether it has moved."""
        offset = min(offset, self.end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True
