"""Simulated disks: `contract.Storage` in memory, with a flushed and an unflushed part per log.

Appends go to the page cache, which a process crash keeps; `flush` makes everything so far durable. A machine crash may
lose a part of the unflushed batches, or leave a torn or damaged one there (`port.Loss`): the simulator truncates the
log at the crash to what recovery would keep (`protocol/log/tail.py`), and reports the dropped records at the next
start. Small files are durable at once, as the contract says. A full disk accepts no write until it has room again. A
disk may also fail one write, to a log or of a file, and then be sound again.

A log's segments are kept as their base offsets; sizes and timestamps of closed segments are computed on request.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random

from experiments.engines.port import Loss
from protocol.contract import BATCH_OVERHEAD_BYTES, SegmentInfo
from protocol.errors import ProtocolInvariantError, StorageError, StorageFullError
from protocol.ids import CLUSTER_ID, FIRST_CONTROLLER, Epoch, NodeId, Offset, TimeMs
from protocol.log.epochs import LeaderEpochCache
from protocol.log.tail import DAMAGED, TORN, Dropped, ReadBack, end_reason
from protocol.messages.batch import NO_TIMESTAMP, RecordBatch
from protocol.quorum.state_file import format_voters
from protocol.quorum.voters import ReplicaKey, VoterSet


class SimLog:
    """A log of batches in memory (`contract.LogStorage`); `failing` is asked before each append whether it fails, and
    `clock` for the time of the append."""

    __slots__ = (
        "_appended_ms",
        "_bases",
        "_batches",
        "_clock",
        "_epochs",
        "_newest_ms",
        "_rolls",
        "_sizes",
        "_snapshots",
        "_times_ms",
        "active_bytes",
        "end_offset",
        "failing",
        "flushed_offset",
        "full",
        "start_offset",
    )

    def __init__(self, failing: Callable[[], bool] = lambda: False, clock: Callable[[], TimeMs] = lambda: 0) -> None:
        self.failing = failing
        self._clock = clock
        self._appended_ms: list[TimeMs] = []
        self._batches: list[RecordBatch] = []
        self._bases: list[Offset] = []
        self._sizes: list[int] = []
        self._times_ms: list[TimeMs] = []
        self._rolls: list[Offset] = [0]
        self._snapshots: dict[Offset, bytes] = {}
        self._epochs = LeaderEpochCache()
        self._newest_ms: TimeMs = NO_TIMESTAMP
        self.active_bytes = 0
        self.end_offset: Offset = 0
        self.flushed_offset: Offset = 0
        self.start_offset: Offset = 0
        self.full = False

    def append(self, batch: RecordBatch) -> None:
        base_offset = batch.base_offset
        if base_offset != self.end_offset:
            raise ProtocolInvariantError(f"append at {base_offset} to a log that ends at {self.end_offset}")
        if self.full:
            raise StorageFullError("no space left")
        if self.failing():
            raise StorageError("a write failed")
        self._batches.append(batch)
        self._epochs.assign(batch.leader_epoch, base_offset)
        size_bytes, timestamp_ms = len(batch.payload), batch.timestamp_ms
        self._bases.append(base_offset)
        self._sizes.append(size_bytes)
        self._times_ms.append(timestamp_ms)
        self._appended_ms.append(self._clock())
        self.active_bytes += BATCH_OVERHEAD_BYTES + size_bytes
        if timestamp_ms > self._newest_ms:
            self._newest_ms = timestamp_ms
        self.end_offset = base_offset + batch.record_count

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        batches, bases = self._batches, self._bases
        if not bases or from_offset >= self.end_offset:
            return []
        if bases[-1] <= from_offset:
            return batches[-1:]
        first = last = max(bisect_right(bases, from_offset) - 1, 0)
        size = 0
        while last < len(batches) and (size < max_bytes or last == first):
            size += self._sizes[last]
            last += 1
        return batches[first:last]

    def truncate(self, end_offset: Offset) -> None:
        index = bisect_left(self._bases, end_offset)
        while index and self._batches[index - 1].next_offset > end_offset:
            index -= 1
        if index == len(self._batches):
            return
        for part in self._parts():
            del part[index:]
        self.end_offset = self._batches[-1].next_offset if self._batches else self.start_offset
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        self._keep_snapshots(self.start_offset, self.end_offset)
        while self._rolls[-1] > self.end_offset:
            self._rolls.pop()
        active = self._segment(self._rolls[-1], self.end_offset)
        self.active_bytes, self._newest_ms = active.size_bytes, active.newest_ms
        self._epochs.truncate(self.end_offset)

    def flush(self) -> None:
        self.flushed_offset = self.end_offset

    def segments(self) -> Sequence[SegmentInfo]:
        closed = [self._segment(base, end) for base, end in pairwise(self._rolls)]
        return [*closed, SegmentInfo(self._rolls[-1], self.end_offset, self.active_bytes, self._newest_ms)]

    def _segment(self, base_offset: Offset, end_offset: Offset) -> SegmentInfo:
        first, last = bisect_left(self._bases, base_offset), bisect_left(self._bases, end_offset)
        size = BATCH_OVERHEAD_BYTES * (last - first) + sum(self._sizes[first:last])
        newest_ms = max(self._times_ms[first:last], default=NO_TIMESTAMP)
        return SegmentInfo(base_offset, end_offset, size, newest_ms)

    def roll(self) -> None:
        if self.active_bytes:
            self._rolls.append(self.end_offset)
            self.active_bytes, self._newest_ms = 0, NO_TIMESTAMP

    def delete_segments_before(self, offset: Offset) -> None:
        kept = max(0, bisect_right(self._rolls, offset) - 1)
        if not kept:
            return
        del self._rolls[:kept]
        self.start_offset = self._rolls[0]
        index = bisect_left(self._bases, self.start_offset)
        self._epochs.forget_before(self.start_offset)
        for part in self._parts():
            del part[:index]
        self.flushed_offset = max(self.flushed_offset, self.start_offset)
        self._keep_snapshots(self.start_offset, self.end_offset)

    def reset(self, offset: Offset) -> None:
        for part in self._parts():
            part.clear()
        self._rolls = [offset]
        self._snapshots.clear()
        self._epochs.clear()
        self.active_bytes, self._newest_ms = 0, NO_TIMESTAMP
        self.start_offset = self.end_offset = self.flushed_offset = offset

    def write_snapshot(self, data: bytes) -> None:
        rolls = set(self._rolls)
        self._snapshots = {offset: old for offset, old in self._snapshots.items() if offset in rolls}
        self._snapshots[self.end_offset] = data

    def snapshot(self) -> tuple[Offset, bytes] | None:
        return max(self._snapshots.items(), default=None)

    def _keep_snapshots(self, start: Offset, end: Offset) -> None:
        self._snapshots = {offset: data for offset, data in self._snapshots.items() if start <= offset <= end}

    def _parts(self) -> tuple[list[RecordBatch], list[Offset], list[int], list[TimeMs], list[TimeMs]]:
        """The lists with an element per batch."""
        return self._batches, self._bases, self._sizes, self._times_ms, self._appended_ms

    def durable_end(self, writeback_ms: TimeMs | None) -> Offset:
        """The end of what a machine crash keeps: flushed records, and those appended `writeback_ms` ago or earlier."""
        if writeback_ms is None:
            return self.flushed_offset
        index = bisect_right(self._appended_ms, self._clock() - writeback_ms)
        return max(self.flushed_offset, self._batches[index - 1].next_offset) if index else self.flushed_offset

    def unflushed(self) -> list[Offset]:
        """Base offsets of the unflushed batches."""
        return self._bases[bisect_left(self._bases, self.flushed_offset) :]

    def epoch_starts(self) -> Sequence[tuple[Epoch, Offset]]:
        return self._epochs.entries()


class SimStorage:
    """A node's disk (`contract.Storage`), which all incarnations of the node share; `clock`: the time."""

    def __init__(self, clock: Callable[[], TimeMs] = lambda: 0) -> None:
        self._clock = clock
        self._logs: dict[str, SimLog] = {}
        self._files: dict[str, bytes] = {}
        self._dropped: dict[str, Dropped] = {}
        self._full = False
        self._fails_next = False

    def open_log(self, name: str) -> SimLog:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = SimLog(self._take_failure, self._clock)
        log.full = self._full
        return log

    def log_names(self) -> Sequence[str]:
        return sorted(self._logs)

    def log_end(self, name: str) -> Offset | None:
        """The log end offset of a log, None where there is no such log; for observers."""
        log = self._logs.get(name)
        return None if log is None else log.end_offset

    def delete_log(self, name: str) -> None:
        self._logs.pop(name, None)

    def read_file(self, name: str) -> bytes | None:
        return self._files.get(name)

    def write_file(self, name: str, data: bytes) -> None:
        if self._full:
            raise StorageFullError("no space left")
        if self._take_failure():
            raise StorageError("a write failed")
        self._files[name] = data

    def delete_file(self, name: str) -> None:
        self._files.pop(name, None)

    def apply_loss(self, loss: Loss) -> int:
        """Applies the loss of a crash to this disk; returns the number of records lost over all logs."""
        before = self._count_records()
        for name, log in self._logs.items():
            if loss.kind == "suffix":
                log.truncate(_drawn([*log.unflushed(), log.end_offset], loss, name))
            elif loss.kind in ("torn", "corrupt"):
                self._recover(name, log, loss)
            elif loss.kind == "unflushed":
                log.truncate(log.durable_end(loss.writeback_ms))
                log.flush()
            elif loss.kind == "records":
                log.truncate(max(log.end_offset - loss.count, log.flushed_offset))
        if loss.kind == "all":
            self._logs.clear()
            self._files.clear()
        return before - self._count_records()

    def _recover(self, name: str, log: SimLog, loss: Loss) -> None:
        """Truncates a log to what recovery keeps if the last unflushed batch is torn, or a drawn one damaged."""
        unflushed = log.unflushed()
        if not unflushed:
            return
        is_torn = loss.kind == "torn"
        victim = unflushed[-1] if is_torn else _drawn(unflushed, loss, name)
        end_offset, why, written = log.flushed_offset, "", log.active_bytes
        for batch in log.read(log.flushed_offset, 2**62):
            fault = "" if batch.base_offset != victim else TORN if is_torn else DAMAGED
            why = end_reason(end_offset, ReadBack(batch.base_offset, batch.next_offset, fault)) or ""
            if why:
                break
            end_offset = batch.next_offset
        log.truncate(end_offset)
        position = log.active_bytes
        size = written - position - is_torn  # a torn batch lacks its last byte
        path = f"logs/{name}/{log.segments()[-1].base_offset:020d}.log"
        self._dropped[name] = Dropped(path, end_offset, position, size, why)

    def take_dropped(self) -> list[Dropped]:
        """Returns and forgets what recovery has dropped, except drops that a later loss has superseded."""
        dropped, self._dropped = self._dropped, {}
        return [found for name, found in dropped.items() if self.log_end(name) == found.end_offset]

    def set_full(self, full: bool) -> None:
        """Has the disk refuse writes (StorageFullError), or accept them again."""
        self._full = full
        for log in self._logs.values():
            log.full = full

    def fail_next_write(self, fails: bool) -> None:
        """Has the next append or file fail (StorageError), or not after all."""
        self._fails_next = fails

    def _take_failure(self) -> bool:
        fails, self._fails_next = self._fails_next, False
        return fails

    def _count_records(self) -> int:
        return sum(log.end_offset - log.start_offset for log in self._logs.values())


def _drawn(offsets: Sequence[Offset], loss: Loss, name: str) -> Offset:
    """One of the offsets, drawn with the seed of the loss and the log's name."""
    return Random(f"{loss.count}/{name}").choice(offsets)


def formatted_disk(
    controller: NodeId = FIRST_CONTROLLER, voters: VoterSet | None = None, clock: Callable[[], TimeMs] = lambda: 0
) -> SimStorage:
    """The formatted disk of a controller that is one of the first voters; by default the only one."""
    disk, key = SimStorage(clock), ReplicaKey(controller, f"disk-of-{controller}")
    found = None if voters is None else voters.key_of(controller)
    format_voters(disk, CLUSTER_ID, found or key, voters or VoterSet.of([key]), now_ms=0)
    return disk
