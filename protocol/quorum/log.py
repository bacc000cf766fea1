"""The metadata log of a replica: record batches, the newest snapshot, and the voter sets recorded in both.

The log keeps one snapshot (KIP-630): the state below its end offset, as opaque bytes of the state machine, and the
voter set at that offset (D7). It deletes the records that it covers if the log is larger than
`metadata.max.retention.bytes`, so that replicas that lag a little still fetch records; Kafka limits their age, too. The
snapshot is written before the records are deleted, so after a crash it covers every record that the log lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import msgpack

from protocol.contract import BATCH_OVERHEAD_BYTES, LogStorage, Storage
from protocol.errors import CorruptLogError, MalformedMessageError, ProtocolInvariantError
from protocol.ids import NO_EPOCH, Epoch, Offset
from protocol.log.epochs import LeaderEpochCache
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records, unpack_records
from protocol.messages.quorum import AddVoterRecord, ControlRecord, LeaderChangeRecord, RemoveVoterRecord
from protocol.messages.records import MetadataRecord
from protocol.quorum.election import LogEnd
from protocol.quorum.kafka_rules import TRUNCATED_VOTERS_MISSED
from protocol.quorum.voters import VoterHistory, VoterSet
from protocol.values import immutable

SNAPSHOT_FILE = "checkpoint"
_ALL_BYTES = 2**62
_CRC_BYTES = 4
_CONTROL: frozenset[type[MetadataRecord]] = frozenset({LeaderChangeRecord, AddVoterRecord, RemoveVoterRecord})


@immutable
class Snapshot:
    """The state machine's state `data` and the voters after all records below `end_offset`, the last of `epoch`."""

    epoch: Epoch
    end_offset: Offset
    voters: VoterSet
    data: bytes

    def encode(self) -> bytes:
        """The bytes of the snapshot, on disk and in FetchSnapshot: a CRC-32 and a msgpack array."""
        voters = pack_records(self.voters.to_records())
        packed: bytes = msgpack.packb([self.epoch, self.end_offset, voters, self.data])
        return crc32(packed).to_bytes(_CRC_BYTES, "big") + packed


def decode_snapshot(raw: bytes) -> Snapshot:
    """Parses a snapshot. Raises CorruptLogError for bytes that fail the checksum or are not a snapshot."""
    body = memoryview(raw)[_CRC_BYTES:]
    if crc32(body) != int.from_bytes(raw[:_CRC_BYTES], "big"):
        raise CorruptLogError(f"{SNAPSHOT_FILE}: found {len(raw)} bytes that fail their checksum")
    try:
        epoch, end_offset, packed, data = msgpack.unpackb(body)
        voters = VoterSet()
        for record in unpack_records(packed):
            if not isinstance(record, AddVoterRecord):
                raise CorruptLogError(f"{SNAPSHOT_FILE}: found {type(record).__name__}; allowed: AddVoterRecord")
            voters = voters.after(record)
        if not (type(epoch) is int and type(end_offset) is int and type(data) is bytes):
            raise CorruptLogError(f"{SNAPSHOT_FILE}: found fields of other types")
    except (ValueError, TypeError, MalformedMessageError, ProtocolInvariantError, msgpack.UnpackException) as error:
        raise CorruptLogError(f"{SNAPSHOT_FILE}: found {len(raw)} bytes that are no snapshot") from error
    return Snapshot(epoch, end_offset, voters, data)


@immutable
class DivergingEpoch:
    """The leader's largest epoch up to the requested one and its end offset; a follower truncates to it (KIP-595)."""

    epoch: Epoch
    end_offset: Offset


class QuorumLog:
    """The log `name` with its snapshot and voter history; `voters` are the static ones, used until the log contains
    others. With `retention_bytes` below 0 snapshots delete no records. Raises CorruptLogError.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        voters: VoterSet,
        retention_bytes: int = 0,
        kafka_rules: frozenset[str] = frozenset(),
    ) -> None:
        self._storage = storage
        self._retention_bytes = retention_bytes
        self._kafka_rules = kafka_rules
        self._voters_from: Offset = 0
        raw = storage.read_file(SNAPSHOT_FILE)
        self.raw_snapshot = raw or b""
        """The encoded snapshot, empty if there is none."""
        self.snapshot = None if raw is None else decode_snapshot(raw)
        covered = 0 if self.snapshot is None else self.snapshot.end_offset
        self._log: LogStorage = storage.open_log(name)
        if self._log.start_offset > covered:
            raise CorruptLogError(f"{name} begins at {self._log.start_offset}, its snapshot ends at {covered}")
        if self._log.end_offset < covered:
            self._log.reset(covered)
        self.end_offset: Offset = self._log.end_offset
        """The log end offset: the offset of the next record."""
        self.bytes_since_snapshot = 0
        """Payload bytes of the batches that the snapshot does not cover."""
        self._size_bytes = self._stored_bytes()
        self.voters = VoterHistory(voters if self.snapshot is None else self.snapshot.voters)
        self._epochs = LeaderEpochCache(self._log.epoch_starts())
        for batch in self.read(covered, _ALL_BYTES):
            self.bytes_since_snapshot += len(batch.payload)
            for offset, record in _control_records(batch):
                if offset >= covered:
                    self.voters.append(offset, record)

    @property
    def start_offset(self) -> Offset:
        return self._log.start_offset

    @property
    def last_epoch(self) -> Epoch:
        """The epoch of the last record; that of the snapshot if the log is empty, -1 without a snapshot."""
        if self.end_offset > self._log.start_offset:
            return self._epochs.latest_epoch
        return NO_EPOCH if self.snapshot is None else self.snapshot.epoch

    @property
    def end(self) -> LogEnd:
        return self.last_epoch, self.end_offset

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Batches from the one that contains `from_offset` on, about `max_bytes` in all; none at the log end."""
        return self._log.read(from_offset, max_bytes) if from_offset < self.end_offset else ()

    def end_offset_for_epoch(self, epoch: Epoch) -> DivergingEpoch:
        """The largest epoch in the log up to `epoch`, with its end offset; the snapshot's if the log has none."""
        found, end = self._epochs.end_offset_for(epoch, self.end_offset)
        if found == NO_EPOCH and self.snapshot is not None and epoch >= self.snapshot.epoch:
            return DivergingEpoch(self.snapshot.epoch, self.snapshot.end_offset)
        return DivergingEpoch(found, end)

    def validate_fetch_position(self, fetch_offset: Offset, last_epoch: Epoch) -> DivergingEpoch | Snapshot | None:
        """None if the follower's log is a prefix of this one; else the end to truncate to, or the snapshot to fetch."""
        if NO_EPOCH < last_epoch == self._epochs.latest_epoch and self.start_offset <= fetch_offset <= self.end_offset:
            return None
        snapshot = self.snapshot
        if snapshot is not None and (fetch_offset, last_epoch) == (snapshot.end_offset, snapshot.epoch):
            return None
        if fetch_offset == 0 and self.start_offset == 0:
            return None
        if snapshot is not None and self.start_offset > 0:
            oldest = min([snapshot.epoch, *(epoch for epoch, _ in self._epochs.entries()[:1])])
            if fetch_offset < self.start_offset or last_epoch < oldest:
                return snapshot
        end = self.end_offset_for_epoch(last_epoch)
        return None if end.epoch == last_epoch and end.end_offset >= fetch_offset else end

    def append(self, batch: RecordBatch, records: Sequence[MetadataRecord] | None = None) -> None:
        """Appends a batch (`records`, if decoded already) without flushing; its voter changes apply at once (D8)."""
        self._log.append(batch)
        self.end_offset = self._log.end_offset
        self._epochs.assign(batch.leader_epoch, batch.base_offset)
        self.bytes_since_snapshot += len(batch.payload)
        self._size_bytes += BATCH_OVERHEAD_BYTES + len(batch.payload)
        for offset, record in _control_records(batch, records):
            if offset >= self._voters_from:
                self.voters.append(offset, record)

    def flush(self) -> None:
        if self._log.flushed_offset < self.end_offset:
            self._log.flush()

    def truncate(self, end_offset: Offset) -> None:
        """Removes the records from `end_offset` on, durably. Raises ProtocolInvariantError below the snapshot's end."""
        if self.snapshot is not None and end_offset < self.snapshot.end_offset:
            raise ProtocolInvariantError(f"truncation to {end_offset}, below the snapshot's {self.snapshot.end_offset}")
        if TRUNCATED_VOTERS_MISSED in self._kafka_rules:
            self._voters_from = max(self._voters_from, self.end_offset)
        self._log.truncate(end_offset)
        self.end_offset = self._log.end_offset
        self._epochs.truncate(end_offset)
        self.voters.truncate(end_offset)
        self._size_bytes = self._stored_bytes()
        self._log.flush()

    def epoch_at(self, offset: Offset) -> Epoch:
        found = [epoch for epoch, start in self._epochs.entries() if start < offset]
        if found:
            return found[-1]
        return NO_EPOCH if self.snapshot is None else self.snapshot.epoch

    def take_snapshot(self, end_offset: Offset, data: bytes) -> None:
        """Stores the state below `end_offset` as the snapshot; deletes what it covers if the log is too large."""
        self._write(Snapshot(self.epoch_at(end_offset), end_offset, self.voters.before(end_offset), data))
        self.voters.forget_before(end_offset)
        if 0 <= self._retention_bytes < self._size_bytes:
            self._log.roll()
            self._log.delete_segments_before(end_offset)
            self._epochs.forget_before(self._log.start_offset)
            self._size_bytes = self._stored_bytes()

    def install_snapshot(self, snapshot: Snapshot) -> None:
        self._write(snapshot)
        self._log.reset(snapshot.end_offset)
        self.end_offset = snapshot.end_offset
        self._epochs.clear()
        self._size_bytes = 0
        self.voters = VoterHistory(snapshot.voters)

    def _stored_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._log.segments())

    def _write(self, snapshot: Snapshot) -> None:
        self.raw_snapshot = snapshot.encode()
        self.bytes_since_snapshot = 0
        self._storage.write_file(SNAPSHOT_FILE, self.raw_snapshot)
        self.snapshot = snapshot


def _control_records(
    batch: RecordBatch, records: Sequence[MetadataRecord] | None = None
) -> Sequence[tuple[Offset, ControlRecord]]:
    found = unpack_records(batch.payload) if records is None else records
    if _CONTROL.isdisjoint(map(type, found)):
        return ()
    numbered = enumerate(found, batch.base_offset)
    return [(offset, record) for offset, record in numbered if isinstance(record, ControlRecord)]
