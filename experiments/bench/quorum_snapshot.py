"""The snapshot of the metadata of many partitions: written to a disk, and loaded from it.

The baselines are the minimum: msgpack packs the plain values of all records, which are written with an fsync, and
unpacks the same bytes, without checksums, models and image.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from experiments.bench.controller import cluster_records, config, state_of
from experiments.bench.report import measure_ms, medians_ms
from experiments.engines.ray.directories import open_storage
from protocol.config import record_version
from protocol.contract import Storage
from protocol.ids import METADATA_LOG
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import forget_unpacked, pack_records, unpack_records
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.quorum.log import QuorumLog
from protocol.quorum.voters import VoterSet

BATCH_RECORDS = 1_000
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """Times are medians in milliseconds; `bytes` is the size of the file."""

    partitions: int
    records: int
    bytes: int
    write_ms: float
    load_ms: float
    bare_write_ms: float
    bare_load_ms: float

    def document(self) -> dict[str, object]:
        return asdict(self) | {
            "write_ratio": round(self.write_ms / self.bare_write_ms, 2),
            "load_ratio": round(self.load_ms / self.bare_load_ms, 2),
        }


def measure(partitions: int, repeats: int) -> SnapshotRow:
    """Measures the metadata of `partitions` partitions, in topics of 100 with three replicas each."""
    records = cluster_records(partitions)
    runs = [_times_once(records) for _ in range(repeats)]
    write_ms, load_ms, bare_write_ms, bare_load_ms = medians_ms([times_ms for _, times_ms in runs])
    return SnapshotRow(partitions, len(records), runs[0][0], write_ms, load_ms, bare_write_ms, bare_load_ms)


def _times_once(records: Sequence[MetadataRecord]) -> tuple[int, list[float]]:
    """(bytes of the snapshot; milliseconds of writing, loading, bare writing and bare loading) of one run."""
    image = state_of(records).image
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "node"
        with open_storage(directory) as storage:
            log = _fill_log(storage, records)
            write_ms, _ = measure_ms(lambda: write(log, image))
            raw = log.raw_snapshot
        forget_unpacked()
        load_ms, loaded = measure_ms(lambda: load(directory))
        assert loaded.partition_count == image.partition_count
        bare = Path(folder) / "bare"
        bare.write_bytes(raw)
        bare_load_ms, values = measure_ms(lambda: _bare_load(bare))
        bare_write_ms, _ = measure_ms(lambda: _bare_write(bare, values))
    forget_unpacked()
    return len(raw), [write_ms, load_ms, bare_write_ms, bare_load_ms]


def _fill_log(storage: Storage, records: Sequence[MetadataRecord]) -> QuorumLog:
    """A flushed log with the records, in batches of `BATCH_RECORDS`."""
    log = QuorumLog(storage, METADATA_LOG, VoterSet())
    for first in range(0, len(records), BATCH_RECORDS):
        part = records[first : first + BATCH_RECORDS]
        payload = pack_records(part, _version())
        log.append(RecordBatch(base_offset=first, leader_epoch=1, record_count=len(part), payload=payload), part)
    log.flush()
    return log


def _version() -> int:
    return record_version(config().generation.feature_levels)


def write(log: QuorumLog, image: MetadataImage) -> None:
    """Takes the image as the snapshot of the whole log."""
    log.take_snapshot(log.end_offset, pack_records(image.to_records(), _version()))


def load(directory: Path) -> MetadataImage:
    """Builds the image from the snapshot in a directory."""
    with open_storage(directory) as storage:
        snapshot = QuorumLog(storage, METADATA_LOG, VoterSet()).snapshot
        assert snapshot is not None
        image = MetadataImage(config())
        image.load(unpack_records(snapshot.data), snapshot.end_offset)
        return image


def _bare_load(path: Path) -> list[object]:
    """The plain values of all records of a snapshot file."""
    _, _, _, data = msgpack.unpackb(memoryview(path.read_bytes())[_CRC_BYTES:])
    return [msgpack.unpackb(msgpack.unpackb(frame[_CRC_BYTES:]).data) for frame in msgpack.unpackb(data)]


def _bare_write(path: Path, values: Sequence[object]) -> None:
    frames = [msgpack.packb(msgpack.ExtType(1, msgpack.packb(value))) for value in values]
    with path.open("wb", buffering=0) as file:
        file.write(msgpack.packb(frames))
        os.fsync(file.fileno())
