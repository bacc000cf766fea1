"""The batches that were appended last, in memory: followers and consumers that keep up read nothing from the disk.

One budget serves all logs of a node, in bytes and in batches; what was appended first goes first. A read that begins
where one of these batches begins is answered from here, as far as they go.
"""

from __future__ import annotations

from collections import deque

from protocol.ids import Offset
from protocol.messages.batch import RecordBatch

MAX_BYTES = 64 * 1_048_576
MAX_BATCHES = 16_384

RecentBatches = dict[Offset, RecordBatch]
"""Of one log: batches by base offset."""


class RecentPool:
    """The budget; each log has its own `RecentBatches` and passes them in."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_batches: int = MAX_BATCHES) -> None:
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._bytes = 0
        self._order: deque[tuple[RecentBatches, Offset]] = deque()

    def add(self, batches: RecentBatches, batch: RecordBatch) -> None:
        """Keeps a batch that was appended, and lets go of others where the budget is spent."""
        batches[batch.base_offset] = batch
        self._bytes += len(batch.payload)
        self._order.append((batches, batch.base_offset))
        while self._bytes > self._max_bytes or len(self._order) > self._max_batches:
            self._drop(*self._order.popleft())

    def keep_only(self, batches: RecentBatches, start: Offset, end: Offset) -> None:
        """Forgets what the log does not hold any more: only `start .. end - 1` is left of it."""
        for base in [base for base in batches if not start <= base < end]:
            self._drop(batches, base)

    def _drop(self, batches: RecentBatches, base: Offset) -> None:
        batch = batches.pop(base, None)
        if batch is not None:
            self._bytes -= len(batch.payload)
