"""A log on disk: segments, a cache of the newest batches, and recovery after a crash (docs/log-format.md).

The order of writes makes it crash safe. An append is one write at the end of the active segment; if it fails the file
is cut back to the previous end. A flush syncs the segments, then the leader-epoch checkpoint if it has changed, and
only then raises the mark. An operation that removes records first lowers the mark, or raises the log start, durably,
and then removes files: a truncation from the newest segment back, so that the rest is always a prefix of the log, and a
deletion from the oldest segment on.

Opening a log does not read the part below the mark; after a clean shutdown that is the whole log. The part above is
read batch by batch, checksums included, and ends by the rules of `protocol/log/tail.py`; the rest is dropped and
reported (`Dropped`). A mark beyond the end of the files means that flushed records are lost: CorruptLogError. Damage
below the mark is found when the batch is read, which raises CorruptLogError instead of returning it.

After a failed sync, or a failed write that could not be undone, the content of the disk is unknown: until the node
restarts, the log accepts no further write (StorageError) and can still be read.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from actors.log.checkpoints import Mark, MarkFile, read_epochs, write_epochs
from actors.log.files import OpenFiles, storage_error, sync_directory, typed_errors
from actors.log.format import header_of
from actors.log.segment import LOG_SUFFIX, Segment
from actors.log.snapshots import Snapshots
from protocol.contract import SegmentInfo
from protocol.errors import CorruptLogError, ProtocolInvariantError, StorageError
from protocol.ids import NO_OFFSET, Epoch, Offset
from protocol.log.epochs import LeaderEpochCache
from protocol.log.tail import Dropped
from protocol.messages.batch import RecordBatch

MAX_RECENT_BYTES = 64 * 1_048_576
MAX_RECENT_BATCHES = 16_384
_LOG = logging.getLogger(__name__)

RecentBatches = dict[Offset, RecordBatch]
"""The cached batches of one log, by base offset."""


class RecentPool:
    """A cache of the most recently appended batches: followers and consumers that keep up read nothing from the disk.

    All logs of a node share one budget, in bytes and in batches; the oldest batches are evicted first. Each log has a
    `RecentBatches` of its own and passes it to the methods.
    """

    def __init__(self, max_bytes: int = MAX_RECENT_BYTES, max_batches: int = MAX_RECENT_BATCHES) -> None:
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._bytes = 0
        self._order: deque[tuple[RecentBatches, Offset]] = deque()

    def add(self, batches: RecentBatches, batch: RecordBatch) -> None:
        batches[batch.base_offset] = batch
        self._bytes += len(batch.payload)
        self._order.append((batches, batch.base_offset))
        while self._bytes > self._max_bytes or len(self._order) > self._max_batches:
            self._drop(*self._order.popleft())

    def keep_only(self, batches: RecentBatches, start: Offset, end: Offset) -> None:
        """Evicts the batches outside `start .. end - 1`, the range that the log still has."""
        for base in [base for base in batches if not start <= base < end]:
            self._drop(batches, base)

    def _drop(self, batches: RecentBatches, base: Offset) -> None:
        batch = batches.pop(base, None)
        if batch is not None:
            self._bytes -= len(batch.payload)


class DiskLog:
    """One log in a directory (`contract.LogStorage`), which must not be open twice at a time.

    `is_new`: the directory is empty. A new log creates no file before its first batch, since a broker may create
    thousands of logs at once. `dropped` is what recovery dropped when the log was opened. CorruptLogError where the
    flushed part is damaged or incomplete.
    """

    def __init__(
        self, directory: Path, files: OpenFiles, pool: RecentPool, index_interval_bytes: int, is_new: bool = False
    ) -> None:
        self._directory = directory
        self._files = files
        self._pool = pool
        self._interval = index_interval_bytes
        self._recent: RecentBatches = {}
        self._segments: list[Segment] = []
        self._epochs = LeaderEpochCache()
        self._saved_epochs: list[tuple[Epoch, Offset]] = []
        self._truncated = False
        self._directory_synced = True
        self._broken: str | None = None
        self.flushed_offset: Offset = 0
        self.dropped: list[Dropped] = []
        with typed_errors(directory):
            is_new = is_new or not os.listdir(directory)  # an idle partition has a directory and no file
            self._mark_file = MarkFile(directory, files, is_new)
            self._snapshots = Snapshots(directory, is_new)
            if is_new:
                self._segments.append(self._segment(0))
                self._segments[0].begin()
                self._directory_synced = False
            else:
                self._open()
            self._active = self._segments[-1]
            self._snapshots.keep_only(self.start_offset, self.end_offset)

    # -- contract ------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> Offset:
        return self._segments[0].base_offset

    @property
    def end_offset(self) -> Offset:
        return self._active.end_offset

    @property
    def active_bytes(self) -> int:
        return self._active.size

    def append(self, batch: RecordBatch) -> None:
        """As `LogStorage.append`; CorruptLogError where the batch does not match the checksum it carries."""
        active = self._active
        if batch.base_offset != active.end_offset:
            raise ProtocolInvariantError(f"append at {batch.base_offset} to a log that ends at {active.end_offset}")
        self._require_sound()
        try:
            active.append(header_of(batch), batch)
        except OSError as error:
            try:
                active.cut()  # what the failed write may have left
            except OSError as failure:
                self._broken = f"{active.path}: {failure.strerror}"
            raise storage_error(error, active.path) from error
        if batch.leader_epoch > self._epochs.latest_epoch:
            self._epochs.assign(batch.leader_epoch, batch.base_offset)
        self._pool.add(self._recent, batch)

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        batches: list[RecordBatch] = []
        offset, end, size = max(from_offset, self.start_offset), self.end_offset, 0
        while offset < end and (size < max_bytes or not batches):
            batch = self._recent.get(offset)
            found = [batch] if batch is not None else self._read_disk(offset, max_bytes - size)
            batches += found
            size += sum(batch.size_bytes for batch in found)
            offset = batches[-1].next_offset
        return batches

    def truncate(self, end_offset: Offset) -> None:
        end_offset = max(end_offset, self.start_offset)
        if end_offset >= self.end_offset:
            return
        self._require_sound()
        kept = self._segment_at(end_offset)
        with self._changing():
            segment = self._segments[kept]
            position, end_offset, newest_ms = segment.place_of(end_offset)
            self._snapshots.keep_only(self.start_offset, end_offset)
            if end_offset < self.flushed_offset:
                self._lower(Mark(self.start_offset, end_offset, segment.base_offset, position, newest_ms))
            for gone in reversed(self._segments[kept + 1 :]):
                gone.remove()
            del self._segments[kept + 1 :]
            segment.truncate(end_offset)
            self._epochs.truncate(end_offset)
            if end_offset == self.start_offset:
                self._save_epochs()  # otherwise the mark shows which of the saved epochs still apply
        self._active = segment
        self._truncated = True
        self._pool.keep_only(self._recent, self.start_offset, end_offset)

    def flush(self) -> None:
        active = self._active
        if self.flushed_offset == active.end_offset and not self._truncated:
            return
        self._require_sound()
        unflushed = self._segments[self._segment_at(self.flushed_offset) :]
        for segment in unflushed:
            try:
                self._files.sync(segment.path)
            except OSError as error:
                self._broken = f"{segment.path}: {error.strerror}"
                raise StorageError(self._broken) from error
        with typed_errors(self._directory):
            for segment in unflushed:
                segment.save_index()
            self._sync_directory()
            self._save_epochs()
            mark = Mark(self.start_offset, active.end_offset, active.base_offset, active.size, active.newest_ms)
            self._mark_file.raise_to(mark)
        self.flushed_offset = active.end_offset
        self._truncated = False

    def segments(self) -> Sequence[SegmentInfo]:
        with typed_errors(self._directory):
            return [segment.info for segment in self._segments]

    def roll(self) -> None:
        if self._active.size:
            self._require_sound()
            with typed_errors(self._directory):
                self._begin_segment(self.end_offset)

    def delete_segments_before(self, offset: Offset) -> None:
        kept = self._segment_at(offset)
        if kept <= 0:
            return
        self._require_sound()
        gone, start, mark = self._segments[:kept], self._segments[kept].base_offset, self._mark_file.mark
        with self._changing():
            self._sync_directory()
            self._save_epochs()
            self._lower(replace(mark, start_offset=start) if mark.flushed_offset > start else Mark(start, start, start))
            del self._segments[:kept]
            self._snapshots.keep_only(start, self.end_offset)
            for segment in gone:
                segment.remove()
        self._epochs.forget_before(start)
        self._pool.keep_only(self._recent, start, self.end_offset)

    def reset(self, offset: Offset) -> None:
        self._require_sound()
        with self._changing():
            self._snapshots.keep_only(0, NO_OFFSET)
            self._lower(Mark(offset, offset, offset))
            self._epochs.clear()
            self._save_epochs()
            for segment in reversed(self._segments):
                segment.remove()
            self._segments.clear()
            self._begin_segment(offset)
            self._sync_directory()
        self._pool.keep_only(self._recent, offset, offset)

    def write_snapshot(self, data: bytes) -> None:
        with typed_errors(self._directory):
            self._snapshots.write(self.end_offset, data, [segment.base_offset for segment in self._segments])

    def snapshot(self) -> tuple[Offset, bytes] | None:
        with typed_errors(self._directory):
            found = self._snapshots.newest()
        if found is None and len(self._segments) > 1:
            _LOG.warning("%s: no snapshot of the log; all of it is read", self._directory)
        return found

    def epoch_starts(self) -> Sequence[tuple[Epoch, Offset]]:
        return self._epochs.entries()

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
        self._mark_file.close()
        self._pool.keep_only(self._recent, 0, 0)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Finds the segments, and recovers the batches above the mark."""
        mark = self._mark_file.mark
        self.flushed_offset = mark.flushed_offset
        self._saved_epochs = read_epochs(self._directory)
        for epoch, start in self._saved_epochs:
            if start < mark.flushed_offset or start <= mark.start_offset:
                self._epochs.assign(epoch, start)
        names = [path.stem for path in self._directory.glob(f"*{LOG_SUFFIX}")]
        bases = sorted(int(name) for name in names if name.isdecimal())
        while bases and bases[0] < mark.start_offset:  # a deletion that was not finished
            self._segment(bases.pop(0)).remove()
        if mark.start_offset not in bases and mark.flushed_offset == mark.start_offset:
            self._drop_segments(bases, mark.start_offset, "the segments before it are missing")
            self._begin_segment(mark.start_offset)
        else:
            self._open_segments(mark, bases)
        self._epochs.forget_before(self.start_offset)

    def _open_segments(self, mark: Mark, bases: list[Offset]) -> None:
        trusted = [base for base in bases if base <= mark.segment_base]
        if not trusted or (trusted[0], trusted[-1]) != (mark.start_offset, mark.segment_base):
            raise CorruptLogError(f"{self._directory}: lacks a segment of {mark.start_offset} to {mark.segment_base}")
        for base, end in pairwise(trusted):
            segment = self._segment(base)
            segment.known_to(end, segment.file_size(), None)
            self._segments.append(segment)
        last = self._segment(mark.segment_base)
        if last.file_size() < mark.position:
            raise CorruptLogError(f"{last.path}: ends at byte {last.file_size()}, flushed were {mark.position}")
        last.known_to(mark.flushed_offset, mark.position, mark.newest_ms)
        self._segments.append(last)
        self._scan(last, bases[len(trusted) :])

    def _scan(self, segment: Segment, later: list[Offset]) -> None:
        """Recovers the batches above the mark, in its segment and in the `later` ones (base offsets)."""
        while True:
            why = segment.scan(lambda header: self._epochs.assign(header.leader_epoch, header.base_offset))
            if why is not None:
                size = segment.file_size() - segment.size
                self.dropped.append(Dropped(str(segment.path), segment.end_offset, segment.size, size, why))
                segment.cut()
            if why is not None or not later or later[0] != segment.end_offset:
                break
            segment = self._segment(later.pop(0))
            segment.known_to(segment.base_offset, 0, None)
            self._segments.append(segment)
        self._drop_segments(later, segment.end_offset, "the log ends before it")

    def _drop_segments(self, bases: list[Offset], end_offset: Offset, why: str) -> None:
        for base in reversed(bases):
            segment = self._segment(base)
            self.dropped.append(Dropped(str(segment.path), end_offset, 0, segment.file_size(), why))
            segment.remove()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _segment(self, base_offset: Offset) -> Segment:
        return Segment(self._directory, base_offset, self._files, self._interval)

    def _segment_at(self, offset: Offset) -> int:
        """The index of the segment whose range contains an offset."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

    def _read_disk(self, offset: Offset, max_bytes: int) -> list[RecordBatch]:
        with typed_errors(self._directory):
            return self._segments[self._segment_at(offset)].read(offset, max_bytes)

    def _begin_segment(self, base_offset: Offset) -> None:
        segment = self._segment(base_offset)
        segment.create()
        self._segments.append(segment)
        self._active = segment
        self._directory_synced = False

    def _lower(self, mark: Mark) -> None:
        self._mark_file.lower_to(mark)
        self.flushed_offset = mark.flushed_offset

    def _save_epochs(self) -> None:
        entries = self._epochs.entries()
        if entries != self._saved_epochs:
            write_epochs(self._directory, entries)
            self._saved_epochs = entries

    def _sync_directory(self) -> None:
        """Makes the existence of the segment files durable, and that of the log's directory."""
        if not self._directory_synced:
            for directory in (self._directory, *self._directory.parents[:2]):
                sync_directory(directory)
            self._directory_synced = True

    def _require_sound(self) -> None:
        if self._broken is not None:
            raise StorageError(self._broken)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Marks the log as broken if the block fails between two states; the next start completes the change."""
        try:
            with typed_errors(self._directory):
                yield
        except StorageError as error:
            self._broken = str(error)
            raise
