"""How controllers and brokers build a metadata image from their replica of the metadata log, and make snapshots of it.

A node reads whole batches in order, after a snapshot where the log begins behind the image. When enough bytes have been
appended since the last snapshot, or enough time has passed, the image becomes the next one (KIP-630). So a restarting
node replays a snapshot and a bounded part of the log, however long the cluster has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.config import METADATA_SNAPSHOT_BYTES, METADATA_SNAPSHOT_INTERVAL_MS, ClusterConfig
from protocol.features import record_version
from protocol.ids import Offset, TimeMs
from protocol.messages.metadata_batch import pack_records, remember_unpacked, unpack_records
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.quorum.log import Snapshot
from protocol.quorum.replica import QuorumReplica
from protocol.values import immutable

_READ_BYTES = 8 * 1_048_576


@immutable
class LogEntries:
    """Records of the log up to `next_offset`, or the records of a snapshot that replaces the log up to there."""

    records: Sequence[MetadataRecord]
    next_offset: Offset
    is_snapshot: bool = False


def log_entries(replica: QuorumReplica, next_offset: Offset, end_offset: Offset) -> Iterator[LogEntries]:
    """The entries that an image at `next_offset` lacks below `end_offset`; both offsets are between batches."""
    snapshot = replica.snapshot
    if snapshot is not None and next_offset < snapshot.end_offset <= end_offset:
        next_offset = snapshot.end_offset
        yield LogEntries(unpack_records(snapshot.data), next_offset, is_snapshot=True)
    while next_offset < end_offset:
        for batch in replica.log.read(next_offset, _READ_BYTES):
            batch_end = batch.next_offset
            if batch_end > end_offset:
                return
            next_offset = batch_end
            yield LogEntries(unpack_records(batch.payload), next_offset)


class SnapshotGenerator:
    """Takes the snapshots of one node (Kafka's `SnapshotGenerator`), by two rules:

    - `metadata.log.max.record.bytes.between.snapshots`: so many bytes are in the log behind the last snapshot;
    - `metadata.log.max.snapshot.interval.ms`: records are published so long after the last snapshot was taken or
      loaded, or after the node started. The rule is applied to new records only: it needs no timer, and a cluster
      whose metadata does not change takes no snapshots.
    """

    def __init__(self, replica: QuorumReplica, config: ClusterConfig) -> None:
        self._replica = replica
        self._every_bytes = config.int_value(METADATA_SNAPSHOT_BYTES)
        self._every_ms = config.int_value(METADATA_SNAPSHOT_INTERVAL_MS)
        self._since_ms: TimeMs = 0
        self._published: Offset = 0
        self._last: Snapshot | None = None

    def start(self, now_ms: TimeMs) -> None:
        """Starts the interval; called once the replica has read its disk."""
        self._since_ms, self._last = now_ms, self._replica.snapshot

    def take_if_due(self, now_ms: TimeMs, image: MetadataImage) -> bool:
        """Takes a snapshot if `image` is exactly the committed records and one is due; returns whether it has."""
        replica, end_offset = self._replica, image.next_offset
        is_large = replica.log.bytes_since_snapshot >= self._every_bytes
        if (end_offset == self._published and not is_large) or end_offset != replica.high_watermark:
            return False
        if replica.snapshot is not self._last:
            self.start(now_ms)
        is_new, self._published = end_offset > self._published, end_offset
        is_late = is_new and 0 < self._every_ms <= now_ms - self._since_ms
        is_due = is_large or is_late
        if is_due:
            records = image.to_records()
            data = pack_records(records, record_version(image.feature_levels))
            remember_unpacked(data, records)
            replica.take_snapshot(end_offset, data)
            self.start(now_ms)
        return is_due
