"""A cache of the most recently appended batches: followers and consumers that keep up read nothing from the disk.

All logs of a node share one budget, in bytes and in batches; the oldest batches are evicted first. A read that begins
at the base offset of a cached batch is answered from the cache, as far as it reaches.
"""

from __future__ import annotations

from collections import deque

from protocol.ids import Offset
from protocol.messages.batch import RecordBatch

MAX_BYTES = 64 * 1_048_576
MAX_BATCHES = 16_384

RecentBatches = dict[Offset, RecordBatch]
"""The cached batches of one log, by base offset."""


class RecentPool:
    """The shared budget. Each log has a `RecentBatches` of its own and passes it to the methods."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_batches: int = MAX_BATCHES) -> None:
        self._max_bytes = max_bytes
        self._max_batches = max_batches
        self._bytes = 0
        self._order: deque[tuple[RecentBatches, Offset]] = deque()

    def add(self, batches: RecentBatches, batch: RecordBatch) -> None:
        """Caches an appended batch, and evicts the oldest ones where the budget is exceeded."""
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
