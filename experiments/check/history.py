"""The judge of a client history: what clients did and were told, against what the replicas hold in the end.

A *history* is a sequence of operations in the order in which the experiment saw them: a send was invoked, records of
it came to their end (acknowledged at an offset, definitely failed, unknown), a reader saw records. A record is known by
the number of its send and its place in it, `SEND/PLACE`, which it carries in its payload (`protocol.client.records`).
So a log can be read as a sequence of such names, and since a log has one record per offset, one pass over history and
logs is enough: the judge is linear in both but for sorting.

The *final log* of a partition is its leader's, once the cluster is whole and idle. Against it there may be, each a
finding of its own type:

- an acknowledged record that is missing, or that is elsewhere than it was acknowledged;
- a record that is there more than once, which idempotence rules out;
- a record that definitely failed and is there, or that nobody sent;
- records of one producer in another order than they were sent;
- a read that does not agree with the final log, or with another read: what was once visible has changed or gone;
- replicas of the final in-sync set that differ;
- a record of which its client has never told the end.

Records below the final log's start were deleted by retention; nothing is said of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from protocol.ids import NO_OFFSET, BrokerId, Offset, TopicPartition

Result = Literal["acknowledged", "failed", "unknown"]


class Record(NamedTuple):
    """The name of a record: the send that it belongs to, and its place in it."""

    send: int
    place: int

    def __str__(self) -> str:
        return f"{self.send}/{self.place}"


class Run(NamedTuple):
    """Records `first .. first + size - 1` of a send, at offsets from `offset` on, appended in `leader_epoch`."""

    offset: Offset
    leader_epoch: int
    send: int
    first: int
    size: int

    def records(self) -> Iterator[tuple[Offset, Record]]:
        """Its records with their offsets."""
        for index in range(self.size):
            yield self.offset + index, Record(self.send, self.first + index)


class Invoked(NamedTuple):
    """`producer` sent `size` records; sends of a producer are invoked in the order in which it has to keep them."""

    send: int
    producer: int
    partition: TopicPartition
    size: int


class Ended(NamedTuple):
    """`size` records of a send from `first` on came to their end; `offset` is that of the first where acknowledged."""

    send: int
    first: int
    size: int
    result: Result
    offset: Offset = NO_OFFSET


class Seen(NamedTuple):
    """`reader` saw these records, below the high watermark that it was told."""

    reader: int
    partition: TopicPartition
    runs: tuple[Run, ...]
    high_watermark: Offset


Operation = Invoked | Ended | Seen


@dataclass(frozen=True, slots=True)
class FinalPartition:
    """What the in-sync replicas of a partition hold in the end, `leader` among them. Each log begins at `start`."""

    partition: TopicPartition
    leader: BrokerId
    replicas: Mapping[BrokerId, Sequence[Run]]
    start: Offset = 0


@dataclass(frozen=True, slots=True, order=True)
class Finding(ABC):
    """Something that must not be; `text` is one plain line."""

    partition: TopicPartition

    @property
    def text(self) -> str:
        return f"{self.partition}: {self._what()}"

    @abstractmethod
    def _what(self) -> str:
        """What is wrong, without the partition."""


@dataclass(frozen=True, slots=True, order=True)
class LostRecord(Finding):
    record: Record
    offset: Offset

    def _what(self) -> str:
        return f"record {self.record}, acknowledged at offset {self.offset}, is not in the log"


@dataclass(frozen=True, slots=True, order=True)
class MovedRecord(Finding):
    record: Record
    offset: Offset
    found: tuple[Offset, ...]

    def _what(self) -> str:
        return f"record {self.record}, acknowledged at offset {self.offset}, is at {_listed(self.found)}"


@dataclass(frozen=True, slots=True, order=True)
class DuplicatedRecord(Finding):
    record: Record
    found: tuple[Offset, ...]

    def _what(self) -> str:
        return f"record {self.record} is in the log {len(self.found)} times, at offsets {_listed(self.found)}"


@dataclass(frozen=True, slots=True, order=True)
class FailedRecordStored(Finding):
    record: Record
    offset: Offset

    def _what(self) -> str:
        return f"record {self.record}, which definitely failed, is in the log at offset {self.offset}"


@dataclass(frozen=True, slots=True, order=True)
class StrayRecord(Finding):
    record: Record
    offset: Offset

    def _what(self) -> str:
        return f"record {self.record} at offset {self.offset} was never sent to this partition"


@dataclass(frozen=True, slots=True, order=True)
class ReorderedRecords(Finding):
    producer: int
    record: Record
    offset: Offset
    later: Record

    def _what(self) -> str:
        return (
            f"producer {self.producer} sent record {self.record} before {self.later}; it is in the log behind that, "
            f"at offset {self.offset}"
        )


@dataclass(frozen=True, slots=True, order=True)
class VanishedRead(Finding):
    reader: int
    offset: Offset
    record: Record
    found: Record | None

    def _what(self) -> str:
        there = "nothing" if self.found is None else f"record {self.found}"
        return f"reader {self.reader} saw record {self.record} at offset {self.offset}, where the log has {there}"


@dataclass(frozen=True, slots=True, order=True)
class ReadBeyondHighWatermark(Finding):
    reader: int
    offset: Offset
    high_watermark: Offset

    def _what(self) -> str:
        return f"reader {self.reader} saw offset {self.offset} with a high watermark of {self.high_watermark}"


@dataclass(frozen=True, slots=True, order=True)
class ReadsDiffer(Finding):
    offset: Offset
    records: tuple[Record, ...]

    def _what(self) -> str:
        return f"at offset {self.offset} different records were seen: {_listed(self.records)}"


@dataclass(frozen=True, slots=True, order=True)
class ReplicasDiffer(Finding):
    leader: BrokerId
    replica: BrokerId
    offset: Offset

    def _what(self) -> str:
        return f"the log of broker {self.replica} differs from leader {self.leader}'s from offset {self.offset} on"


@dataclass(frozen=True, slots=True, order=True)
class Unanswered(Finding):
    send: int
    count: int

    def _what(self) -> str:
        return f"of send {self.send}, {self.count} records never came to an end"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def judge(operations: Iterable[Operation], finals: Sequence[FinalPartition]) -> list[Finding]:
    """All findings, by type and within it in order. ValueError where the history speaks of a partition of which there
    is no final log, or ends a send that was not invoked.
    """
    judges = {final.partition: _PartitionJudge(final) for final in finals}
    sent: dict[int, _PartitionJudge] = {}
    for operation in operations:
        if isinstance(operation, Ended):
            if operation.send not in sent:
                raise ValueError(f"send {operation.send} ended and was not invoked")
            sent[operation.send].ended(operation)
            continue
        if operation.partition not in judges:
            raise ValueError(f"there is no final log of {operation.partition}")
        found = judges[operation.partition]
        if isinstance(operation, Invoked):
            sent[operation.send] = found
            found.sent[operation.send] = operation
            found.open[operation.send] = operation.size
        else:
            found.seen(operation)
    findings = [finding for partition in sorted(judges) for finding in judges[partition].findings()]
    return sorted(findings, key=lambda finding: type(finding).__name__)


@dataclass(slots=True)
class _PartitionJudge:
    """Judges one partition. `log` is the final log by offset, `places` its offsets by record, `visible` what readers
    saw by offset; `sent` keeps the order of invocation, `open` counts records that have not come to their end.
    """

    final: FinalPartition
    log: dict[Offset, Record] = field(default_factory=dict)
    places: dict[Record, list[Offset]] = field(default_factory=dict)
    sent: dict[int, Invoked] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    visible: dict[Offset, dict[Record, None]] = field(default_factory=dict)
    found: dict[Finding, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for run in self.final.replicas[self.final.leader]:
            for offset, record in run.records():
                self.log[offset] = record
                self.places.setdefault(record, []).append(offset)

    # -- history -------------------------------------------------------------------------------------------------------

    def ended(self, end: Ended) -> None:
        """Some records of a send have come to their end."""
        self.open[end.send] -= end.size
        if end.result == "unknown":
            return
        for offset, record in Run(end.offset, 0, end.send, end.first, end.size).records():
            places = self.places.get(record, ())
            if end.result == "failed":
                for place in places:
                    self._find(FailedRecordStored(self.final.partition, record, place))
            elif offset >= self.final.start and not places:
                self._find(LostRecord(self.final.partition, record, offset))
            elif offset >= self.final.start and offset not in places:
                self._find(MovedRecord(self.final.partition, record, offset, tuple(places)))

    def seen(self, read: Seen) -> None:
        """A reader saw records."""
        for run in read.runs:
            for offset, record in run.records():
                self.visible.setdefault(offset, {})[record] = None
                there = self.log.get(offset)
                if offset >= self.final.start and there != record:
                    self._find(VanishedRead(self.final.partition, read.reader, offset, record, there))
                if offset >= read.high_watermark:
                    self._find(ReadBeyondHighWatermark(self.final.partition, read.reader, offset, read.high_watermark))

    def _find(self, finding: Finding) -> None:
        self.found[finding] = None

    # -- the final log -------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Everything that was found, once the whole history has been told."""
        name = self.final.partition
        self._judge_records()
        self._judge_order()
        self._judge_replicas()
        for offset, records in self.visible.items():
            if len(records) > 1:
                self._find(ReadsDiffer(name, offset, tuple(sorted(records))))
        for send, count in self.open.items():
            if count:
                self._find(Unanswered(name, send, count))
        return list(self.found)

    def _judge_records(self) -> None:
        for record, places in self.places.items():
            if len(places) > 1:
                self._find(DuplicatedRecord(self.final.partition, record, tuple(places)))
            sent = self.sent.get(record.send)
            if sent is None or not 0 <= record.place < sent.size:
                self._find(StrayRecord(self.final.partition, record, places[0]))

    def _judge_order(self) -> None:
        """The first places of a producer's records rise with their order; each that does not is a finding."""
        turn = {send: index for index, send in enumerate(self.sent)}
        latest: dict[int, Record] = {}
        for record, places in self.places.items():
            sent = self.sent.get(record.send)
            if sent is None:
                continue
            before = latest.get(sent.producer)
            if before is not None and (turn[before.send], before.place) > (turn[record.send], record.place):
                self._find(ReorderedRecords(self.final.partition, sent.producer, record, places[0], before))
            else:
                latest[sent.producer] = record

    def _judge_replicas(self) -> None:
        leader = self.final.leader
        expected = self.final.replicas[leader]
        for replica, runs in sorted(self.final.replicas.items()):
            at = _parting(expected, runs)
            if at is not None:
                self._find(ReplicasDiffer(self.final.partition, leader, replica, at))


def _parting(one: Sequence[Run], other: Sequence[Run]) -> Offset | None:
    """The offset from which two logs differ, in records or in leader epochs; None where they are equal."""
    for left, right in zip(one, other, strict=False):
        if left != right:
            return min(left.offset, right.offset)
    longer = max(one, other, key=len)
    return None if len(one) == len(other) else longer[min(len(one), len(other))].offset
