"""What a node that builds a state from the metadata log takes from its replica of it, and gives back.

Controllers and brokers alike pull: they ask what their state lacks of the log below some offset. That is batches, whole
ones in their order, after a snapshot where the log begins behind what they have. When enough has been appended since
the last snapshot, and the state is exactly that of what is committed, it becomes the next one.
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
    """Records of the log, or those of a snapshot that stands for all of it so far, up to `next_offset`."""

    records: Sequence[MetadataRecord]
    next_offset: Offset
    is_snapshot: bool = False


def log_entries(replica: QuorumReplica, next_offset: Offset, end_offset: Offset) -> Iterator[LogEntries]:
    """What a state that stands at `next_offset` lacks of the log below `end_offset`, both between batches."""
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
    """Whether a snapshot was taken: enough has been appended, and `image` holds what is committed and nothing else."""
    is_due = replica.log.bytes_since_snapshot >= every_bytes and image.next_offset == replica.high_watermark
    if is_due:
        version = record_version(image.feature_levels)
        replica.take_snapshot(image.next_offset, pack_records(image.to_records(), version))
    return is_due
