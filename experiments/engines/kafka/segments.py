"""Logs on the disks of Kafka's nodes, read while they run: a folder per partition, in it segments of record batches.

A file is read up to its last whole batch, from where the last look ended; the pages that a broker has written are seen
at once, whether they are flushed or not. A log that has become shorter, or was cut and has grown again, so that its
last batch is another, is read from its start. Checkpoints are text files of a version, a count, and one line per entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from protocol.ids import Epoch, Offset, TopicPartition
from protocol.kafka.batches import HEADER_BYTES
from protocol.messages.batch import RecordBatch
from protocol.messages.kafka_batch import COVERED, CRC, MARK, records_of

_LENGTH_END = 12
_CONTROL = 1 << 5
_READ_BYTES = 8 * 1024 * 1024
"""Bytes of a segment that are read at once, more where a batch is longer."""
_DIGEST_BYTES = 16
EPOCHS = "leader-epoch-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"


class DiskBatch(NamedTuple):
    """A batch of a log: `payload` is as that of the project's batches of Kafka's (`protocol/messages/kafka_batch.py`),
    or a digest of it; `end` is its place behind the last byte in the segment.
    """

    base_offset: Offset
    next_offset: Offset
    epoch: Epoch
    attributes: int
    payload: bytes
    segment: Path
    end: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """The keys and values of the records, empty in the place of null."""
        return [(it.key or b"", it.value or b"") for it in records_of(self.with_payload(self.payload))]

    def stored(self) -> RecordBatch:
        """The batch as the engines report it: its payload is the value of its first record."""
        found = records_of(self.with_payload(self.payload))
        return self.with_payload(found[0].value or b"" if found else b"")

    def with_payload(self, payload: bytes) -> RecordBatch:
        """The batch with another payload, or its own."""
        count = self.next_offset - self.base_offset
        return RecordBatch.unchecked(
            base_offset=self.base_offset, leader_epoch=self.epoch, record_count=count, payload=payload
        )


def batches_of(data: bytes, segment: Path, start: int = 0) -> Iterator[DiskBatch]:
    """The whole batches at the beginning of `data`, which is the content of a segment from the byte `start` on."""
    place = 0
    while place + HEADER_BYTES <= len(data):
        base = int.from_bytes(data[place : place + 8], "big")
        length = int.from_bytes(data[place + 8 : place + _LENGTH_END], "big")
        end = place + _LENGTH_END + length
        if length == 0 or end > len(data):
            return
        epoch = int.from_bytes(data[place + 12 : place + 16], "big", signed=True)
        covered = place + 17
        attributes, last_delta, *_ = COVERED.unpack_from(data, covered + CRC.size)
        payload = MARK + data[covered:end]
        yield DiskBatch(base, base + last_delta + 1, epoch, attributes, payload, segment, start + end)
        place = end


@dataclass(slots=True)
class DiskLog:
    """The log in a folder. `batches` are those of the last `refresh`, in `digests` with digests as their payloads, so
    that a log of any size fits into memory.
    """

    folder: Path
    digests: bool = False
    batches: list[DiskBatch] = field(default_factory=list)
    _read: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """By segment: its inode, and how many of its bytes were read."""
    _seen: dict[Path, tuple[int, int, int]] = field(default_factory=dict)
    """By segment: its inode, size and time of change at the last look."""

    def refresh(self) -> bool:
        """Reads what is new; returns whether anything has changed."""
        segments = sorted(self.folder.glob("*.log"))
        found = {path: stat for path in segments if (stat := _stat(path)) is not None}
        if found == self._seen:
            return False
        self._seen = found
        was_reset = any(path not in found or _is_another(found[path], of) for path, of in self._read.items())
        was_reset |= self._is_rewritten()
        if was_reset:
            self._read.clear()
            self.batches.clear()
        have_grown = [self._read_on(path, inode, size) for path, (inode, size, _) in found.items()]
        return was_reset or any(have_grown)

    def _is_rewritten(self) -> bool:
        """Whether the last batch is another than the one that was read."""
        if not self.batches:
            return False
        last, before = self.batches[-1], self.batches[-2:-1]
        begin = before[0].end if before and before[0].segment == last.segment else 0
        try:
            with last.segment.open("rb") as file:
                file.seek(begin)
                found = list(batches_of(file.read(last.end - begin), last.segment, begin))
        except FileNotFoundError:
            return True
        return (list(map(_digested, found)) if self.digests else found) != [last]

    def _read_on(self, path: Path, inode: int, size: int) -> bool:
        _, begin = self._read.get(path, (inode, 0))
        done, wanted = begin, _READ_BYTES
        try:
            with path.open("rb") as file:
                while done < size:
                    file.seek(done)
                    data = file.read(wanted)
                    fresh = list(batches_of(data, path, done))
                    if not fresh and len(data) < wanted:
                        break
                    self.batches += map(_digested, fresh) if self.digests else fresh
                    done, wanted = (fresh[-1].end, _READ_BYTES) if fresh else (done, 2 * wanted)
        except FileNotFoundError:
            return False
        if done > begin:
            self._read[path] = (inode, done)
        return done > begin

    @property
    def end_offset(self) -> Offset:
        """The log end offset: behind the last batch, or where the newest segment begins."""
        begins = [int(path.stem) for path in self.folder.glob("*.log")]
        return max([*begins, *(batch.next_offset for batch in self.batches[-1:])], default=0)

    def epoch(self) -> Epoch:
        """The newest leader epoch that the broker has entered for the log, -1 for none."""
        entries = checkpoint(self.folder / EPOCHS)
        return int(entries[-1][0]) if entries else -1


def _digested(batch: DiskBatch) -> DiskBatch:
    return batch._replace(payload=blake2b(batch.payload, digest_size=_DIGEST_BYTES).digest())


def _is_another(found: tuple[int, int, int], read: tuple[int, int]) -> bool:
    """Whether a file, by inode and size, is another than the one that was read, or has become shorter."""
    return found[0] != read[0] or found[1] < read[1]


def _stat(path: Path) -> tuple[int, int, int] | None:
    """The inode, the size and the time of the last change of a file, None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def partition_folders(disk: Path) -> Mapping[TopicPartition, Path]:
    """The folders of the partitions on a disk, those of the metadata log and of deleted topics left out."""
    found = {}
    for folder in disk.glob("*-*"):
        topic, _, index = folder.name.rpartition("-")
        if index.isdigit() and folder.is_dir() and topic != "__cluster_metadata":
            found[TopicPartition(topic, int(index))] = folder
    return found


def checkpoint(path: Path) -> list[list[str]]:
    """The fields of the lines of a checkpoint file, none where there is no whole one."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.split() for line in lines[2:]]


def recovery_points(disk: Path) -> dict[TopicPartition, Offset]:
    """The offset below which each log is flushed, as far as the broker has written it down."""
    entries = checkpoint(disk / RECOVERY_POINTS)
    return {TopicPartition(topic, int(index)): int(offset) for topic, index, offset in entries}


def truncate(folder: Path, offset: Offset) -> int:
    """Cuts the log of a broker that does not run to the batches that end at or below `offset`, as a disk has it whose
    unflushed pages were lost; returns the number of records lost. Indexes are removed: the broker makes them again.
    """
    log = DiskLog(folder)
    log.refresh()
    kept = [batch for batch in log.batches if batch.next_offset <= offset]
    lost = log.batches[len(kept) :]
    ends = {batch.segment: batch.end for batch in kept}
    for segment in {batch.segment for batch in lost}:
        if segment not in ends and int(segment.stem) > offset:
            segment.unlink()
        else:
            with segment.open("r+b") as file:
                file.truncate(ends.get(segment, 0))
        for index in ("index", "timeindex", "txnindex"):
            segment.with_suffix(f".{index}").unlink(missing_ok=True)
    for snapshot in folder.glob("*.snapshot"):
        if int(snapshot.stem) > offset:
            snapshot.unlink()
    return sum(batch.next_offset - batch.base_offset for batch in lost)
