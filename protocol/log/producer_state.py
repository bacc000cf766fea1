"""The producer state of a log, by which a leader recognises duplicate and missing batches of idempotent producers.

The rules are Apache Kafka's (KIP-98, KIP-360; `ProducerStateManager`, `ProducerAppendInfo`). Per producer id a log
keeps the epoch and the last five batches. A batch of that epoch is

- appended if its first sequence number follows the last one (sequence numbers wrap from 2^31 - 1 to 0);
- a duplicate if it is one of the five: the response carries the offset of the first append;
- refused with DUPLICATE_SEQUENCE_NUMBER if it ends at or before the last one but is none of the five;
- refused with OUT_OF_ORDER_SEQUENCE_NUMBER otherwise: a predecessor is missing.

An older epoch is refused with INVALID_PRODUCER_EPOCH; a newer one must begin at sequence 0.

The state is a function of the log alone, so leaders and followers agree, and a scan of the log yields the same state as
the appends did. Each append keeps the entry that it replaced until its offset is committed, and a truncation restores
these entries in reverse order. A truncation below the former high watermark (after an unclean election) needs a scan of
the log. A producer expires when its last batch is older than the newest batch of the log by more than
`producer.id.expiration.ms`, according to the timestamps of the batches. A storage keeps *snapshots* of the state at
some offsets, so that a start scans only what follows.

Departure from Kafka, which accepts any first sequence number of an unknown producer: it must be 0, otherwise the batch
is refused with UNKNOWN_PRODUCER_ID and the producer begins a new epoch. Without this rule the second batch of a
producer could be appended before the first.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from protocol.errors import ErrorCode
from protocol.ids import Offset, TimeMs
from protocol.messages.batch import NO_PRODUCER_ID, NO_TIMESTAMP, RecordBatch

BATCHES_KEPT = 5
"""As many as a producer may have in flight, so that a repetition of any of them is recognised."""
SEQUENCE_MODULUS = 2**31
MAX_PRODUCER_EPOCH = 2**15 - 1
_HEAD = struct.Struct(">qI")
_ENTRY = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiqq")
_SWEEP_FROM = 1_024
"""Number of producers from which on appends remove expired ones now and then."""


@dataclass(slots=True)
class ProducedBatch:
    first_sequence: int
    last_sequence: int
    base_offset: Offset
    next_offset: Offset


@dataclass(slots=True)
class ProducerEntry:
    """One producer in its current epoch; `batches`, its last five, oldest first, is never empty."""

    epoch: int
    batches: tuple[ProducedBatch, ...]
    last_timestamp_ms: TimeMs

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence


@dataclass(slots=True)
class _Undo:
    """The entry (None: no entry) and newest timestamp that an append at `offset` replaced."""

    offset: Offset
    producer_id: int
    entry: ProducerEntry | None
    newest_ms: TimeMs


def sequence_after(sequence: int, count: int = 1) -> int:
    return (sequence + count) % SEQUENCE_MODULUS


def last_sequence(batch: RecordBatch) -> int:
    return sequence_after(batch.base_sequence, batch.record_count - 1)


class ProducerState:
    """The producers of one log; `expiration_ms` is `producer.id.expiration.ms`."""

    __slots__ = ("_entries", "_expiration_ms", "_newest_ms", "_sweep_at", "_undo", "_undo_from")

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self._entries: dict[int, ProducerEntry] = {}
        self._newest_ms: TimeMs = NO_TIMESTAMP
        self._undo: deque[_Undo] | None = None  # an empty deque takes 760 bytes, in each log without producers
        self._undo_from: Offset = 0
        self._sweep_at = _SWEEP_FROM

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """The entry of a producer; None if it is unknown or has expired."""
        found = self._entries.get(producer_id)
        return None if found is None or self._has_expired(found) else found

    def entries(self) -> dict[int, ProducerEntry]:
        return {number: entry for number, entry in self._entries.items() if not self._has_expired(entry)}

    def check(self, batch: RecordBatch) -> tuple[ErrorCode, ProducedBatch | None]:
        """Checks a batch before its append: the error that refuses it, or NONE; for a duplicate its first append."""
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
        """Takes over a batch that has been appended or scanned. Drops the undo entries below `high_watermark`."""
        producer_id = batch.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        if self._undo is None:
            self._undo = deque()
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
        """Undoes the appends from `end_offset` on. False, and empty, if too few undo entries are kept: scan the log."""
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
        self._entries.clear()
        self._undo = None
        self._undo_from = 0
        self._newest_ms = NO_TIMESTAMP

    def to_bytes(self) -> bytes:
        """The state as bytes of a snapshot, big endian: newest timestamp (8 bytes), number of producers (4); for each,
        by id: id (8), epoch (2), last timestamp (8), number of batches (1); for each of these, oldest first: first and
        last sequence (4 each), base offset and next offset (8 each).
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
        """Replaces the state by that of a snapshot of the log up to `offset`."""
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
        """Removes expired producers that no truncation can restore."""
        assert self._undo, "an append has just added one"
        newest_ms = self._undo[0].newest_ms
        undone = {undo.producer_id for undo in self._undo}
        for number, entry in list(self._entries.items()):
            if number not in undone and self._has_expired(entry, newest_ms):
                del self._entries[number]
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self._entries))


def _check_sequence(entry: ProducerEntry, batch: RecordBatch) -> tuple[ErrorCode, ProducedBatch | None]:
    first, last = batch.base_sequence, last_sequence(batch)
    for known in entry.batches:
        if known.first_sequence == first and known.last_sequence == last:
            return ErrorCode.NONE, known
    if first == sequence_after(entry.last_sequence):
        return ErrorCode.NONE, None
    if (entry.last_sequence - last) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2:
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, None
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
