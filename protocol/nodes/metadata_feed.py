"""How controllers and brokers build a metadata image from their replica of the metadata log, and make snapshots of it.

A node reads the records between the offset of its image and an end offset: whole batches in order, after a snapshot
where the log begins behind the image. When enough bytes have been appended since the last snapshot, and the image
contains exactly the committed records, the image becomes the next snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.config import record_version
from protocol.ids import Offset
from protocol.messages.metadata_batch import pack_records, unpack_records
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.quorum.replica import QuorumReplica

_READ_BYTES = 8 * 1_048_576


@dataclass(frozen=True, slots=True)
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
            if batch.next_offset > end_offset:
                return
            next_offset = batch.next_offset
            yield LogEntries(unpack_records(batch.payload), next_offset)


def snapshot_if_due(replica: QuorumReplica, image: MetadataImage, every_bytes: int) -> bool:
    """Takes a snapshot of exactly the committed records, every `every_bytes` of the log; returns whether it has."""
    is_due = replica.log.bytes_since_snapshot >= every_bytes and image.next_offset == replica.high_watermark
    if is_due:
        version = record_version(image.feature_levels)
        replica.take_snapshot(image.next_offset, pack_records(image.to_records(), version))
    return is_due
