"""Simulated disks: the storage port in memory, with a flushed and an unflushed part per log.

The process writes into the page cache; `flush` moves the line up to which the platter has it. A process crash keeps
the page cache. A machine crash may lose any suffix of what lies above the line (`lose_unflushed`, `lose_last`), and a
replaced disk holds nothing. Small files are written durably at once, as the port says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from experiments.engine import Loss
from protocol.errors import ProtocolInvariantError
from protocol.ids import Offset
from protocol.messages.batch import RecordBatch


class SimLog:
    """A log of batches in memory (`contract.LogStorage`)."""

    __slots__ = ("_bases", "_batches", "end_offset", "flushed_offset")

    def __init__(self) -> None:
        self._batches: list[RecordBatch] = []
        self._bases: list[Offset] = []
        self.end_offset: Offset = 0
        self.flushed_offset: Offset = 0

    def append(self, batch: RecordBatch) -> None:
        if batch.base_offset != self.end_offset:
            raise ProtocolInvariantError(f"append at {batch.base_offset} to a log that ends at {self.end_offset}")
        self._batches.append(batch)
        self._bases.append(batch.base_offset)
        self.end_offset = batch.next_offset

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        first = bisect_right(self._bases, from_offset) - 1 if from_offset < self.end_offset else len(self._bases)
        last, size = max(first, 0), 0
        while last < len(self._batches) and (size < max_bytes or last == first):
            size += self._batches[last].size_bytes
            last += 1
        return self._batches[max(first, 0) : last]

    def truncate(self, end_offset: Offset) -> None:
        index = bisect_left(self._bases, end_offset)
        while index and self._batches[index - 1].next_offset > end_offset:
            index -= 1
        del self._batches[index:], self._bases[index:]
        self.end_offset = self._batches[-1].next_offset if self._batches else 0
        self.flushed_offset = min(self.flushed_offset, self.end_offset)

    def flush(self) -> None:
        self.flushed_offset = self.end_offset


class SimStorage:
    """A node's disk (`contract.Storage`); survives the node, not its replacement."""

    def __init__(self) -> None:
        self._logs: dict[str, SimLog] = {}
        self._files: dict[str, bytes] = {}

    def open_log(self, name: str) -> SimLog:
        return self._logs.setdefault(name, SimLog())

    def log_names(self) -> Sequence[str]:
        return sorted(self._logs)

    def delete_log(self, name: str) -> None:
        self._logs.pop(name, None)

    def read_file(self, name: str) -> bytes | None:
        return self._files.get(name)

    def write_file(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def delete_file(self, name: str) -> None:
        self._files.pop(name, None)

    def apply_loss(self, loss: Loss) -> int:
        """What a crash does to this disk; the number of records lost over all logs."""
        before = sum(log.end_offset for log in self._logs.values())
        if loss.kind == "all":
            self._logs.clear()
            self._files.clear()
        elif loss.kind in ("unflushed", "records"):
            for log in self._logs.values():
                keep = log.flushed_offset if loss.kind == "unflushed" else log.end_offset - loss.count
                log.truncate(max(keep, log.flushed_offset))
        return before - sum(log.end_offset for log in self._logs.values())
