"""What a log knows of the producers that wrote it: enough to tell a repeated batch from one that is missing.

The rules are Apache Kafka's (KIP-98, KIP-360; `ProducerStateManager`, `ProducerAppendInfo`). Per producer id a log
keeps the epoch and the last five batches. A batch of that epoch is

- appended, where its first sequence number follows the last one (sequence numbers wrap behind 2^31 - 1 to 0);
- a duplicate, where it is one of the five: it is answered with the offset that it had the first time;
- refused with DUPLICATE_SEQUENCE_NUMBER, where it ends at or before the last one but is none of the five;
- refused with OUT_OF_ORDER_SEQUENCE_NUMBER otherwise: a predecessor is missing.

An older epoch is refused with INVALID_PRODUCER_EPOCH, a newer one must begin at sequence 0.

The state is a function of the log and of nothing else, so leaders and followers agree, and a scan gives what appends
gave. Entries are immutable and each append keeps the entry that it replaced, as long as its offset is not committed:
what a truncation takes away is taken back step by step. A truncation below the high watermark that was (an unclean
election) goes further back than that, and the log is scanned. A producer whose last batch is older than the newest
batch of the log by more than `producer.id.expiration.ms` is forgotten; the clock is that of the batches' timestamps.

So that a start need not scan the whole log, a storage keeps *snapshots* of the state at some offsets, as bytes
(`to_bytes`, `from_bytes`): a snapshot and a scan of what follows it give what appends gave. What a truncation takes
away is not known behind a snapshot either; it is scanned from an earlier one.

A departure from Kafka's present code, which lets a producer that the log does not know begin anywhere: it must begin
at sequence 0, or is refused with UNKNOWN_PRODUCER_ID and has to begin a new epoch. Otherwise, of a producer's first two
batches, the second may be appended before the first.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from protocol.errors import ErrorCode
from protocol.ids import Offset, TimeMs
from protocol.messages.batch import NO_PRODUCER_ID, NO_TIMESTAMP, RecordBatch

BATCHES_KEPT = 5
"""As many as a producer may have in flight: so the repetition of any of these is known."""
SEQUENCE_MODULUS = 2**31
MAX_PRODUCER_EPOCH = 2**15 - 1
_HEAD = struct.Struct(">qI")
_ENTRY = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiqq")
_SWEEP_FROM = 1_024
"""Producers known, from which on it is worth the while to look for those that have expired."""


@dataclass(slots=True)
class ProducedBatch:
    """One batch of a producer in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: Offset
    next_offset: Offset


@dataclass(slots=True)
class ProducerEntry:
    """One producer in its present epoch; `batches`, the last five, oldest first, is never empty."""

    epoch: int
    batches: tuple[ProducedBatch, ...]
    last_timestamp_ms: TimeMs

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence


@dataclass(slots=True)
class _Undo:
    """What an append at `offset` replaced."""

    offset: Offset
    producer_id: int
    entry: ProducerEntry | None
    newest_ms: TimeMs


def sequence_after(sequence: int, count: int = 1) -> int:
    """The sequence number `count` behind this one."""
    return (sequence + count) % SEQUENCE_MODULUS


def last_sequence(batch: RecordBatch) -> int:
    """The sequence number of a batch's last record."""
    return sequence_after(batch.base_sequence, batch.record_count - 1)


class ProducerState:
    """See the module docstring."""

    __slots__ = ("_entries", "_expiration_ms", "_newest_ms", "_sweep_at", "_undo", "_undo_from")

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self._entries: dict[int, ProducerEntry] = {}
        self._newest_ms: TimeMs = NO_TIMESTAMP
        self._undo: deque[_Undo] = deque()
        self._undo_from: Offset = 0
        self._sweep_at = _SWEEP_FROM

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """What is known of a producer; None if it is unknown or has expired."""
        found = self._entries.get(producer_id)
        return None if found is None or self._has_expired(found) else found

    def entries(self) -> dict[int, ProducerEntry]:
        """All producers that have not expired."""
        return {number: entry for number, entry in self._entries.items() if not self._has_expired(entry)}

    def check(self, batch: RecordBatch) -> tuple[ErrorCode, ProducedBatch | None]:
        """NONE, or why a produced batch cannot be appended; and, of a duplicate, what it was the first time."""
        if batch.producer_id == NO_PRODUCER_ID:
            return ErrorCode.NONE, None
        entry = self.entry(batch.producer_id)
        if entry is None:
            return (ErrorCode.UNKNOWN_PRODUCER_ID if batch.base_sequence else ErrorCode.NONE), None
        if batch.producer_epoch < entry.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if batch.producer_epoch > entry.epoch:
            return (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if batch.base_sequence else ErrorCode.NONE), None
        return _check_sequence(entry, batch)

    def appended(self, batch: RecordBatch, high_watermark: Offset) -> None:
        """A batch has been appended, or is met in a scan. What lies below the high watermark is not truncated, as a
        rule."""
        producer_id = batch.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        undo = self._undo
        while undo and undo[0].offset < high_watermark:
            undo.popleft()
        self._undo_from = max(self._undo_from, high_watermark)
        before = self._entries.get(producer_id)
        undo.append(_Undo(batch.base_offset, producer_id, before, self._newest_ms))
        timestamp_ms = batch.timestamp_ms
        self._newest_ms = max(self._newest_ms, timestamp_ms)
        self._entries[producer_id] = self._with(before, batch, timestamp_ms)
        if len(self._entries) >= self._sweep_at:
            self._sweep()

    def truncate(self, end_offset: Offset) -> bool:
        """The log ends at `end_offset`: what was appended behind it is taken back. False where that is more than is
        kept; then the state is empty, and the log must be scanned."""
        if end_offset < self._undo_from:
            self.clear()
            return end_offset == 0
        while self._undo and self._undo[-1].offset >= end_offset:
            undo = self._undo.pop()
            self._newest_ms = undo.newest_ms
            if undo.entry is None:
                del self._entries[undo.producer_id]
            else:
                self._entries[undo.producer_id] = undo.entry
        return True

    def clear(self) -> None:
        """Knows nothing, as of an empty log."""
        self._entries.clear()
        self._undo.clear()
        self._undo_from = 0
        self._newest_ms = NO_TIMESTAMP

    def to_bytes(self) -> bytes:
        """The state as a snapshot has it. Big endian: newest timestamp (8 bytes), number of producers (4); of each, by
        id: id (8), epoch (2), last timestamp (8), number of batches (1); of each of these, oldest first: first and last
        sequence (4 each), base offset and offset behind it (8 each).
        """
        entries = sorted(self.entries().items())
        parts = [_HEAD.pack(self._newest_ms, len(entries))]
        for number, entry in entries:
            parts.append(_ENTRY.pack(number, entry.epoch, entry.last_timestamp_ms, len(entry.batches)))
            parts += [
                _BATCH.pack(each.first_sequence, each.last_sequence, each.base_offset, each.next_offset)
                for each in entry.batches
            ]
        return b"".join(parts)

    def from_bytes(self, data: bytes, offset: Offset) -> None:
        """Takes over the state of a snapshot of the log up to `offset`, instead of what is known."""
        self.clear()
        self._undo_from = offset
        self._newest_ms, count = _HEAD.unpack_from(data)
        position = _HEAD.size
        for _ in range(count):
            number, epoch, last_timestamp_ms, batches = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size
            end = position + batches * _BATCH.size
            known = tuple(ProducedBatch(*fields) for fields in _BATCH.iter_unpack(data[position:end]))
            self._entries[number] = ProducerEntry(epoch, known, last_timestamp_ms)
            position = end

    def _with(self, before: ProducerEntry | None, batch: RecordBatch, timestamp_ms: TimeMs) -> ProducerEntry:
        first, count, offset = batch.base_sequence, batch.record_count, batch.base_offset
        last = ProducedBatch(first, sequence_after(first, count - 1), offset, offset + count)
        epoch = batch.producer_epoch
        if before is None or before.epoch != epoch or self._has_expired(before):
            return ProducerEntry(epoch, (last,), timestamp_ms)
        return ProducerEntry(epoch, (*before.batches[1 - BATCHES_KEPT :], last), timestamp_ms)

    def _has_expired(self, entry: ProducerEntry, newest_ms: TimeMs | None = None) -> bool:
        newest_ms = self._newest_ms if newest_ms is None else newest_ms
        return newest_ms - entry.last_timestamp_ms > self._expiration_ms

    def _sweep(self) -> None:
        """Drops producers that have expired and that no truncation brings back."""
        newest_ms = self._undo[0].newest_ms
        undone = {undo.producer_id for undo in self._undo}
        for number, entry in list(self._entries.items()):
            if number not in undone and self._has_expired(entry, newest_ms):
                del self._entries[number]
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._entries))


def _check_sequence(entry: ProducerEntry, batch: RecordBatch) -> tuple[ErrorCode, ProducedBatch | None]:
    """What to do with a batch of the producer's present epoch."""
    first, last = batch.base_sequence, last_sequence(batch)
    for known in entry.batches:
        if known.first_sequence == first and known.last_sequence == last:
            return ErrorCode.NONE, known
    if first == sequence_after(entry.last_sequence):
        return ErrorCode.NONE, None
    if (entry.last_sequence - last) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2:
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, None
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
