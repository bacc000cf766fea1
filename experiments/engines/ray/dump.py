"""The logs on a node's disk, batch by batch, as JSON documents for `isray dump-log`; read without the directory's lock.

A fault below the mark of the flushed part is damage: a start refuses the log, or a read fails. The same fault above the
mark was left by a crash, or by a node that is writing at the moment; the next start drops it. Segments below the log
start are left over from an interrupted deletion and do not belong to the log any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgpack

from actors.log.checkpoints import Mark, read_mark
from actors.log.dump import FoundBatch, Rest, read_segment, segment_files
from actors.log.files import typed_errors
from experiments.support.record_text import record_text, topic_names
from protocol.client.records import join, values_of
from protocol.errors import CodecError, CorruptLogError, ProtocolInvariantError
from protocol.ids import METADATA_LOG, NO_OFFSET, Offset
from protocol.log.producer_state import sequence_after
from protocol.messages.base import json_values
from protocol.messages.batch import RecordBatch
from protocol.messages.kafka_batch import is_kafka
from protocol.messages.metadata_batch import unpack_records
from protocol.messages.quorum import ControlRecord
from protocol.messages.records import MetadataRecord
from protocol.quorum.log import SNAPSHOT_FILE, decode_snapshot

Names = dict[str, str]
"""Topic names by topic id."""
Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The segments of the log `TOPIC_ID/N` in order; not `is_whole`: only one of them. `fault` describes a damaged
    mark, in which case `flushed_offset` is -1.
    """

    name: str
    segments: Sequence[Path]
    start_offset: Offset
    flushed_offset: Offset
    fault: str
    is_whole: bool = True


def log_names(directory: Path) -> list[str]:
    """The names of the logs in a node's directory, `TOPIC_ID/N`, sorted."""
    with typed_errors(directory):
        found = [path for path in (directory / "logs").glob("*/*") if path.name.isdecimal()]
    return sorted(f"{path.parent.name}/{path.name}" for path in found)


def log_files(directory: Path, name: str) -> LogFiles:
    """The segments of one log. StorageError where its directory cannot be read."""
    folder = directory / "logs" / name
    mark, fault = _mark(folder)
    segments = [path for path in segment_files(folder) if int(path.stem) >= mark.start_offset]
    return LogFiles(name, segments, mark.start_offset, mark.flushed_offset, fault)


def segment_alone(path: Path) -> LogFiles:
    """The segment file `OFFSET.log` alone, with the mark of its log. StorageError where it cannot be read."""
    folder = path.resolve().parent
    mark, fault = _mark(folder)
    name = f"{folder.parent.name}/{folder.name}"
    return LogFiles(name, [path], int(path.stem), mark.flushed_offset, fault, is_whole=False)


def _mark(folder: Path) -> tuple[Mark, str]:
    """(mark, fault) of the log in a folder; the fault is empty for a sound mark."""
    try:
        with typed_errors(folder):
            return read_mark(folder), ""
    except CorruptLogError as error:
        return Mark(flushed_offset=NO_OFFSET), str(error)


def dump_log(log: LogFiles, topics: Names, with_values: bool = False) -> Iterator[Document]:
    """Yields a document for every batch of a log, and for bytes that are no batch, in order. Faulty ones have a
    `fault`, and `is_damage` where that is in the flushed part. `topics` names the topic ids in metadata records.
    `with_values`: also the records of producers.
    """
    if log.fault:
        yield {"fault": log.fault, "is_damage": True}
    end = log.start_offset
    for path in log.segments:
        for found in read_segment(path, end):
            if isinstance(found, Rest):
                yield {"file": str(path)} | asdict(found) | {"is_damage": found.end_offset < log.flushed_offset}
                continue
            document = {"file": str(path)} | _batch(found, log.name == METADATA_LOG, topics)
            if with_values and log.name != METADATA_LOG and found.is_intact:
                document["records"] = _data_records(found.batch)
            if "fault" in document:
                document["is_damage"] = end < log.flushed_offset
            yield document
            end = found.batch.next_offset
    if log.is_whole and end < log.flushed_offset:
        yield {"fault": f"ends at offset {end}, flushed were {log.flushed_offset}", "is_damage": True}


def _batch(found: FoundBatch, is_metadata: bool, topics: Names) -> Document:
    batch, fault = found.batch, found.fault
    document: Document = {"base_offset": batch.base_offset, "last_offset": batch.next_offset - 1}
    document["count"] = batch.record_count
    producer = ("leader_epoch", "producer_id", "producer_epoch", "base_sequence", "timestamp_ms")
    document |= {name: getattr(batch, name) for name in producer}
    document |= {"position": found.position, "size": found.size, "crc": found.crc, "crc_ok": found.is_intact}
    if is_metadata and found.is_intact:
        records, unreadable = _unpack(batch.payload)
        fault = fault or unreadable
        numbered = enumerate(records, batch.base_offset)
        document["records"] = [{"offset": offset} | _record(record, topics) for offset, record in numbered]
    return document | {"fault": fault} if fault else document


def _data_records(batch: RecordBatch) -> list[Document]:
    """The records of a producer's batch. A payload that is not a producer's list of records counts as one value."""
    try:
        values = values_of(batch)
    except struct.error:
        values = []
    if len(values) != batch.record_count or not (is_kafka(batch.payload) or join(values) == batch.payload):
        values = [batch.payload]
    first = batch.base_sequence
    return [
        {
            "offset": batch.base_offset + place,
            "timestamp_ms": batch.timestamp_ms,
            "value_size": len(value),
            "sequence": first if first < 0 else sequence_after(first, place),
            "value": value.decode(errors="backslashreplace"),
        }
        for place, value in enumerate(values)
    ]


def _record(record: MetadataRecord, topics: Names) -> Document:
    return {
        "type": type(record).__name__,
        "is_control": isinstance(record, ControlRecord),
        "fields": json_values(record),
        "text": record_text(record, topics),
    }


def metadata_batches(directory: Path) -> Iterator[FoundBatch | Rest]:
    """The batches of the metadata log in a node's directory, segment by segment; none where it has no such log."""
    if METADATA_LOG in log_names(directory):
        for segment in log_files(directory, METADATA_LOG).segments:
            yield from read_segment(segment)


def records_of(found: FoundBatch) -> Sequence[MetadataRecord]:
    """The records of a batch of the metadata log; none where they cannot be read."""
    return _unpack(found.batch.payload)[0] if found.is_intact else ()


def _unpack(payload: bytes) -> tuple[Sequence[MetadataRecord], str]:
    """(records, fault) of a metadata batch; the fault is empty where the records can be read."""
    try:
        return unpack_records(payload), ""
    except (CodecError, ProtocolInvariantError, ValueError, TypeError, msgpack.UnpackException) as error:
        return [], f"its records cannot be read: {error}"


def snapshot_file(directory: Path) -> Path | None:
    """The snapshot of the metadata log in a node's directory, None where there is none."""
    path = directory / SNAPSHOT_FILE
    return path if path.exists() else None


def dump_snapshot(path: Path, topics: Names) -> Document:
    """A metadata log's snapshot: its end, the voters, and the records of the image. StorageError where unreadable."""
    with typed_errors(path):
        raw = path.read_bytes()
    document: Document = {"file": str(path), "size": len(raw)}
    try:
        snapshot = decode_snapshot(raw)
    except CorruptLogError as error:
        return document | {"fault": str(error), "is_damage": True}
    records, fault = _unpack(snapshot.data) if snapshot.data else ([], "")
    document |= {
        "end_offset": snapshot.end_offset,
        "last_epoch": snapshot.epoch,
        "voters": [_record(record, topics) for record in snapshot.voters.to_records()],
        "records": [_record(record, topics) for record in records],
    }
    return document | {"fault": fault, "is_damage": True} if fault else document


def known_topics(directory: Path) -> Names:
    """The names of all topics in a metadata log and its snapshot, as far as sound. StorageError where unreadable."""
    records: list[MetadataRecord] = []
    path = snapshot_file(directory)
    if path is not None:
        with suppress(CorruptLogError), typed_errors(path):
            records += _unpack(decode_snapshot(path.read_bytes()).data)[0]
    for found in metadata_batches(directory):
        records += records_of(found) if isinstance(found, FoundBatch) else ()
    return topic_names(records)
