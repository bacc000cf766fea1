"""Simulated disks: the storage port in memory, with a flushed and an unflushed part per log.

The process writes into the page cache; `flush` moves the line up to which the platter has it. A process crash keeps
the page cache. A machine crash may lose any suffix of what lies above the line (`lose_unflushed`, `lose_last`), and a
replaced disk holds nothing. Small files are written durably at once, as the port says. A full disk takes nothing more
until it has room again.

The segments of a log are the offsets at which they begin; sizes and timestamps are counted when they are asked for,
which is only where a log has been rolled.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random

from experiments.engine import Loss
from protocol.contract import BATCH_OVERHEAD_BYTES, SegmentInfo
from protocol.errors import ProtocolInvariantError, StorageFullError
from protocol.ids import NO_EPOCH, Epoch, Offset
from protocol.log.epochs import LeaderEpochCache
from protocol.messages.batch import NO_TIMESTAMP, RecordBatch


class SimLog:
    """A log of batches in memory (`contract.LogStorage`)."""

    __slots__ = (
        "_bases",
        "_batches",
        "_deleted_epoch",
        "_rolls",
        "_snapshots",
        "active_bytes",
        "end_offset",
        "flushed_offset",
        "full",
    )

    def __init__(self) -> None:
        self._batches: list[RecordBatch] = []
        self._bases: list[Offset] = []
        self._rolls: list[Offset] = [0]
        self._snapshots: dict[Offset, bytes] = {}
        self._deleted_epoch: Epoch = NO_EPOCH
        self.active_bytes = 0
        self.end_offset: Offset = 0
        self.flushed_offset: Offset = 0
        self.full = False

    @property
    def start_offset(self) -> Offset:
        return self._rolls[0]

    def append(self, batch: RecordBatch) -> None:
        if batch.base_offset != self.end_offset:
            raise ProtocolInvariantError(f"append at {batch.base_offset} to a log that ends at {self.end_offset}")
        if self.full:
            raise StorageFullError("no space left")
        self._batches.append(batch)
        self._bases.append(batch.base_offset)
        self.active_bytes += BATCH_OVERHEAD_BYTES + len(batch.payload)
        self.end_offset = batch.next_offset

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        first = bisect_right(self._bases, from_offset) - 1 if from_offset < self.end_offset else len(self._bases)
        last, size = max(first, 0), 0
        while last < len(self._batches) and (size < max_bytes or last == max(first, 0)):
            size += self._batches[last].size_bytes
            last += 1
        return self._batches[max(first, 0) : last]

    def truncate(self, end_offset: Offset) -> None:
        index = bisect_left(self._bases, end_offset)
        while index and self._batches[index - 1].next_offset > end_offset:
            index -= 1
        if index == len(self._batches):
            return
        del self._batches[index:], self._bases[index:]
        self.end_offset = self._batches[-1].next_offset if self._batches else self.start_offset
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        self._keep_snapshots(self.start_offset, self.end_offset)
        while self._rolls[-1] > self.end_offset:
            self._rolls.pop()
        self._count_active()

    def flush(self) -> None:
        self.flushed_offset = self.end_offset

    def segments(self) -> Sequence[SegmentInfo]:
        ends = [*self._rolls[1:], self.end_offset]
        return [self._segment(base, end) for base, end in zip(self._rolls, ends, strict=True)]

    def _segment(self, base_offset: Offset, end_offset: Offset) -> SegmentInfo:
        batches = self._batches[bisect_left(self._bases, base_offset) : bisect_left(self._bases, end_offset)]
        size = sum(BATCH_OVERHEAD_BYTES + batch.size_bytes for batch in batches)
        newest_ms = max((batch.timestamp_ms for batch in batches), default=NO_TIMESTAMP)
        return SegmentInfo(base_offset, end_offset, size, newest_ms)

    def roll(self) -> None:
        if self.active_bytes:
            self._rolls.append(self.end_offset)
            self.active_bytes = 0

    def delete_segments_before(self, offset: Offset) -> None:
        kept = max(0, bisect_right(self._rolls, offset) - 1)
        if not kept:
            return
        del self._rolls[:kept]
        index = bisect_left(self._bases, self.start_offset)
        self._deleted_epoch = self._batches[index - 1].leader_epoch
        del self._batches[:index], self._bases[:index]
        self.flushed_offset = max(self.flushed_offset, self.start_offset)
        self._keep_snapshots(self.start_offset, self.end_offset)

    def reset(self, offset: Offset) -> None:
        self._batches.clear()
        self._bases.clear()
        self._rolls = [offset]
        self._snapshots.clear()
        self._deleted_epoch = NO_EPOCH
        self.active_bytes = 0
        self.end_offset = self.flushed_offset = offset

    def write_snapshot(self, data: bytes) -> None:
        rolls = set(self._rolls)
        self._snapshots = {offset: old for offset, old in self._snapshots.items() if offset in rolls}
        self._snapshots[self.end_offset] = data

    def snapshot(self) -> tuple[Offset, bytes] | None:
        return max(self._snapshots.items(), default=None)

    def _keep_snapshots(self, start: Offset, end: Offset) -> None:
        self._snapshots = {offset: data for offset, data in self._snapshots.items() if start <= offset <= end}

    def unflushed(self) -> list[Offset]:
        """Base offsets of the batches that a crash of the machine may take."""
        return self._bases[bisect_left(self._bases, self.flushed_offset) :]

    def epoch_starts(self) -> Sequence[tuple[Epoch, Offset]]:
        cache = LeaderEpochCache()
        for batch in self._batches:
            cache.assign(batch.leader_epoch, batch.base_offset)
        if not self._batches and self._deleted_epoch != NO_EPOCH:
            cache.assign(self._deleted_epoch, self.start_offset)
        return cache.entries()

    def _count_active(self) -> None:
        """Sets what `truncate` may have changed."""
        self.active_bytes = self._segment(self._rolls[-1], self.end_offset).size_bytes
        if not self._batches:
            self._deleted_epoch = NO_EPOCH


class SimStorage:
    """A node's disk (`contract.Storage`); survives the node, not its replacement."""

    def __init__(self) -> None:
        self._logs: dict[str, SimLog] = {}
        self._files: dict[str, bytes] = {}
        self._full = False

    def open_log(self, name: str) -> SimLog:
        log = self._logs.setdefault(name, SimLog())
        log.full = self._full
        return log

    def log_names(self) -> Sequence[str]:
        return sorted(self._logs)

    def log_end(self, name: str) -> Offset | None:
        """Where a log on this disk ends, None where there is no such log; for observers."""
        log = self._logs.get(name)
        return None if log is None else log.end_offset

    def delete_log(self, name: str) -> None:
        self._logs.pop(name, None)

    def read_file(self, name: str) -> bytes | None:
        return self._files.get(name)

    def write_file(self, name: str, data: bytes) -> None:
        if self._full:
            raise StorageFullError("no space left")
        self._files[name] = data

    def delete_file(self, name: str) -> None:
        self._files.pop(name, None)

    def apply_loss(self, loss: Loss) -> int:
        """What a crash does to this disk; the number of records lost over all logs."""
        before = self._count_records()
        if loss.kind == "all":
            self._logs.clear()
            self._files.clear()
        elif loss.kind in ("suffix", "torn"):
            for name, log in self._logs.items():
                log.truncate(_cut(log, loss, name))
        elif loss.kind in ("unflushed", "records"):
            for log in self._logs.values():
                keep = log.flushed_offset if loss.kind == "unflushed" else log.end_offset - loss.count
                log.truncate(max(keep, log.flushed_offset))
        return before - self._count_records()

    def set_full(self, full: bool) -> None:
        """Whether there is no room for anything more."""
        self._full = full
        for log in self._logs.values():
            log.full = full

    def _count_records(self) -> int:
        return sum(log.end_offset - log.start_offset for log in self._logs.values())


def _cut(log: SimLog, loss: Loss, name: str) -> Offset:
    """Where a log ends after it has lost the end of its unflushed part."""
    tail = [*log.unflushed(), log.end_offset]
    if loss.kind == "torn":
        return tail[-2:][0]
    return Random(f"{loss.count}/{name}").choice(tail)
