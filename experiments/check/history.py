"""Checks a client history against the final logs: what clients did and which outcomes they recorded.

A *history* is a sequence of operations in the order in which the experiment saw them: a send was invoked, records of it
came to their end (acknowledged at an offset, definitely failed, unknown), a reader saw records. A record is identified
by the number of its send and its place in it, `SEND/PLACE`, which it carries in its payload
(`protocol.client.records`). So a log is a sequence of such names, and since it has one record per offset, one pass over
history and logs is enough: the judge is linear in both but for sorting and searching in sorted arrays (`tables.py`). It
looks at single records only where something is wrong with a run of records; of reads that agree with the final log it
keeps which offsets they covered.

The *final log* of a partition is its leader's, once the cluster is whole and idle. Against it there may be the findings
of this module. Records below the final log's start were deleted by retention and are not checked. How many acknowledged
ones that are, and how many are missing, is counted by acks (`losses.py`); a record that its leader alone had
acknowledged may go missing without a finding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Literal, NamedTuple

from experiments.check.commits import Committed as Committed
from experiments.check.commits import GroupCommits
from experiments.check.commits import OffsetShown as OffsetShown
from experiments.check.losses import ALL, Acks, Losses, LostRange, total
from experiments.check.tables import Record as Record
from experiments.check.tables import RecordRange as RecordRange
from experiments.check.tables import RunLog, SendTable, Spans
from protocol.ids import NO_OFFSET, BrokerId, Offset, TimeMs, TopicPartition

RecordOutcome = Literal["acknowledged", "appended", "failed", "unknown"]
"""`acknowledged` with acks=all; `appended`: acknowledged with acks=1, by the leader alone, which promises nothing."""


NO_TIME: TimeMs = -1


class Invoked(NamedTuple):
    """`producer` sent `size` records. Sends of an idempotent producer are invoked in the order in which it has to keep
    them; one that is not idempotent promises neither order nor that nothing is there twice. `digest`: the records are
    one batch, which logs show by this digest of its payload (`names.py`); 0 where they carry their names.
    """

    send: int
    producer: int
    partition: TopicPartition
    size: int
    idempotent: bool = True
    at_ms: TimeMs = NO_TIME
    digest: int = 0


class Ended(NamedTuple):
    """`size` records of a send from `first` on came to their end; `offset` is that of the first where acknowledged."""

    send: int
    first: int
    size: int
    result: RecordOutcome
    offset: Offset = NO_OFFSET
    at_ms: TimeMs = NO_TIME


class Seen(NamedTuple):
    """`reader` saw these records, below the high watermark in the same response."""

    reader: int
    partition: TopicPartition
    runs: tuple[RecordRange, ...]
    high_watermark: Offset
    at_ms: TimeMs = NO_TIME


Operation = Invoked | Ended | Seen | Committed | OffsetShown
ACKS_OF: Mapping[RecordOutcome, Acks] = {"acknowledged": ALL, "appended": "1"}
"""The acks with which records of an outcome were acknowledged."""


@dataclass(frozen=True, slots=True)
class FinalPartition:
    """What the in-sync replicas of a partition hold in the end, `leader` among them, in order of offsets from `start`
    on. Below `settled` the replicas must be equal (None: everywhere); replication of the rest may be in progress.
    """

    partition: TopicPartition
    leader: BrokerId
    replicas: Mapping[BrokerId, Iterable[RecordRange]]
    start: Offset = 0
    settled: Offset | None = None


@dataclass(frozen=True, slots=True, order=True)
class Finding(ABC):
    partition: TopicPartition

    @property
    @abstractmethod
    def words(self) -> str:
        """What is wrong, without the partition and with fields in braces."""

    @property
    def text(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        shown = {name: ", ".join(map(str, it)) if type(it) is tuple else it for name, it in values}
        return f"{self.partition}: {self.words.format(**shown)}"


@dataclass(frozen=True, slots=True, order=True)
class LostRecord(Finding):
    words = "record {record}, acknowledged at offset {offset}, is not in the log"

    record: Record
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class MovedRecord(Finding):
    words = "record {record}, acknowledged at offset {offset}, is at {found}"

    record: Record
    offset: Offset
    found: tuple[Offset, ...]


@dataclass(frozen=True, slots=True, order=True)
class DuplicatedRecord(Finding):
    record: Record
    found: tuple[Offset, ...]

    @property
    def words(self) -> str:
        return f"record {{record}} is in the log {len(self.found)} times, at offsets {{found}}"


@dataclass(frozen=True, slots=True, order=True)
class FailedRecordStored(Finding):
    words = "record {record}, which definitely failed, is in the log at offset {offset}"

    record: Record
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class StrayRecord(Finding):
    words = "record {record} at offset {offset} was never sent to this partition"

    record: Record
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class ReorderedRecords(Finding):
    words = "producer {producer} sent record {record} before {later}; it is in the log behind that, at offset {offset}"

    producer: int
    record: Record
    offset: Offset
    later: Record


@dataclass(frozen=True, slots=True, order=True)
class VanishedRead(Finding):
    reader: int
    offset: Offset
    record: Record
    found: Record | None

    @property
    def words(self) -> str:
        there = "nothing" if self.found is None else "record {found}"
        return f"reader {{reader}} saw record {{record}} at offset {{offset}}, where the log has {there}"


@dataclass(frozen=True, slots=True, order=True)
class ReadBeyondHighWatermark(Finding):
    words = "reader {reader} saw offset {offset} with a high watermark of {high_watermark}"

    reader: int
    offset: Offset
    high_watermark: Offset


@dataclass(frozen=True, slots=True, order=True)
class ReadsDiffer(Finding):
    words = "at offset {offset} different records were seen: {records}"

    offset: Offset
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, order=True)
class ReplicasDiffer(Finding):
    words = "the log of broker {replica} differs from leader {leader}'s from offset {offset} on"

    leader: BrokerId
    replica: BrokerId
    offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class WrongCommit(Finding):
    words = "group {group} has committed offset {offset}, {reason}"

    group: str
    offset: Offset
    reason: str


@dataclass(frozen=True, slots=True, order=True)
class Unanswered(Finding):
    words = "of send {send}, {count} records never came to an end"

    send: int
    count: int


def breaks_promise(finding: Finding, is_promised: bool, *, has_store_metadata: bool) -> bool:
    """Whether a finding breaks a promise. What acks=all and idempotence promise holds within tolerance (`is_promised`):
    beyond it a leader may be elected that knows neither the records nor the producer. Every command has an outcome, and
    replicas are equal in any case; beyond tolerance those of `v3` may differ at equal offsets (M42).
    """
    may_differ = has_store_metadata and isinstance(finding, ReplicasDiffer)
    return is_promised or (isinstance(finding, ReplicasDiffer | Unanswered) and not may_differ)


def judge(operations: Iterable[Operation], finals: Iterable[FinalPartition]) -> list[Finding]:
    """All findings, by type and within it in order. ValueError where the history speaks of a partition of which there
    is no final log, invokes a send twice, or ends one that was not invoked.
    """
    return judge_and_count(operations, finals)[0]


def judge_and_count(
    operations: Iterable[Operation], finals: Iterable[FinalPartition], *, others_write: bool = False
) -> tuple[list[Finding], Losses]:
    """As `judge`, and what has become of the acknowledged records. With `others_write` logs hold records of others,
    too, about which nothing is said.
    """
    sends, ordered = SendTable(), sorted(finals, key=lambda final: final.partition)
    judges = [_PartitionJudge(number, final, sends, others_write) for number, final in enumerate(ordered)]
    numbers = {final.partition: number for number, final in enumerate(ordered)}
    for operation in operations:
        if isinstance(operation, Ended):
            judges[sends.groups[sends.end(operation.send, operation.size)]].ended(operation)
            continue
        number = numbers.get(operation.partition)
        if number is None:
            raise ValueError(f"there is no final log of {operation.partition}")
        if isinstance(operation, Seen):
            judges[number].seen(operation)
        elif isinstance(operation, Committed):
            judges[number].group(operation.group).committed(operation)
        elif isinstance(operation, OffsetShown):
            judges[number].shown(operation)
        else:
            sends.add(operation.send, number, operation.producer, operation.size, operation.idempotent)
    for row, left in sends.unanswered():
        judges[sends.groups[row]].unanswered(sends.numbers[row], left)
    findings = [finding for of_partition in judges for finding in of_partition.findings()]
    losses = total(of_partition.losses for of_partition in judges)
    return sorted(findings, key=lambda finding: type(finding).__name__), losses


class _PartitionJudge:
    """Judges one partition, the group `number` of the sends. `log` is the final log; `early` is what readers saw below
    its start, as the first of them saw it. Reads that agree with either are kept as the offsets that they covered.
    """

    def __init__(self, number: int, final: FinalPartition, sends: SendTable, others_write: bool) -> None:
        self._others_write = others_write
        self._number = number
        self._final = final
        self._name = final.partition
        self._sends = sends
        self._log = RunLog(final.replicas[final.leader])
        self._early = RunLog()
        self._early_end = min(final.start, self._log.start_offset(final.start))
        self._agreed = Spans()
        self._others: dict[Offset, dict[Record, None]] = {}
        self._found: dict[Finding, None] = {}
        self._groups: dict[str, GroupCommits] = {}
        self.losses = Losses()

    def _find(self, finding: Finding) -> None:
        self._found[finding] = None

    def ended(self, end: Ended) -> None:
        if end.result in ACKS_OF:
            run = RecordRange(end.offset, 0, end.send, end.first, end.size)
            if not self._log.holds(run):
                self._not_as_acknowledged(run, ACKS_OF[end.result], end.at_ms)
        elif end.result == "failed":
            for place in range(end.first, end.first + end.size):
                for offset in self._log.places(Record(end.send, place)):
                    self._find(FailedRecordStored(self._name, Record(end.send, place), offset))

    def _not_as_acknowledged(self, run: RecordRange, acks: Acks, at_ms: TimeMs) -> None:
        for offset, record in run.records():
            if self._log.at(offset) == record:
                continue
            places = self._log.places(record)
            if not places and offset < self._final.start:
                self.losses.deleted[acks] += 1
            elif not places:
                self.losses.add_lost(LostRange(self._name, acks, offset, 1, at_ms))
            if offset >= self._final.start and acks == ALL:
                lost = LostRecord(self._name, record, offset)
                self._find(MovedRecord(self._name, record, offset, places) if places else lost)

    def seen(self, read: Seen) -> None:
        for run in read.runs:
            end = run.offset + run.size
            for offset in range(max(run.offset, read.high_watermark), end):
                self._find(ReadBeyondHighWatermark(self._name, read.reader, offset, read.high_watermark))
            early = end <= self._early_end and (self._early.holds(run) or self._early.take(run))
            if early or self._log.holds(run):
                self._agreed.add(run.offset, end)
            else:
                self._seen_otherwise(read.reader, run)

    def _seen_otherwise(self, reader: int, run: RecordRange) -> None:
        for offset, record in run.records():
            below = offset < self._final.start
            there = self._log.at(offset) or (self._early.at(offset) if below else None)
            if there == record:
                self._agreed.add(offset, offset + 1)
                continue
            self._others.setdefault(offset, {})[record] = None
            if not below:
                self._find(VanishedRead(self._name, reader, offset, record, there))

    def group(self, name: str) -> GroupCommits:
        return self._groups.setdefault(name, GroupCommits())

    def shown(self, shown: OffsetShown) -> None:
        if reason := self.group(shown.group).shown(shown.offset):
            self._find(WrongCommit(self._name, shown.group, shown.offset, reason))

    def unanswered(self, send: int, left: int) -> None:
        self._find(Unanswered(self._name, send, left))

    def findings(self) -> list[Finding]:
        repeated = self._log.repeated()
        self._judge_records(repeated)
        self._judge_order(repeated)
        self._judge_replicas()
        end = self._log.end_offset(self._final.start)
        for name, group in self._groups.items():
            for offset in group.beyond(end):
                self._find(WrongCommit(self._name, name, offset, f"beyond the end of the log, {end}"))
        for offset, others in self._others.items():
            known = self._log.at(offset) or self._early.at(offset)
            seen = {*others, *([known] if known is not None and offset in self._agreed else [])}
            if len(seen) > 1:
                self._find(ReadsDiffer(self._name, offset, tuple(sorted(seen))))
        return list(self._found)

    def _row(self, send: int) -> int | None:
        row = self._sends.row(send)
        return row if row is not None and self._sends.groups[row] == self._number else None

    def _judge_records(self, repeated: Mapping[Record, tuple[Offset, ...]]) -> None:
        for record, places in repeated.items():
            row = self._row(record.send)
            if self._sends.idempotent[row] if row is not None else not self._others_write:
                self._find(DuplicatedRecord(self._name, record, places))
        for run in self._log.runs():
            row = self._row(run.send)
            is_known = row is not None and run.first >= 0 and run.first + run.size <= self._sends.sizes[row]
            if is_known or (row is None and self._others_write):
                continue
            for offset, record in run.records():
                known = row is not None and 0 <= record.place < self._sends.sizes[row]
                if not known and repeated.get(record, (offset,))[0] == offset:
                    self._find(StrayRecord(self._name, record, offset))

    def _judge_order(self, repeated: Mapping[Record, tuple[Offset, ...]]) -> None:
        """The first places of an idempotent producer's records rise with their order."""
        again = {record.send for record in repeated}
        latest: dict[int, tuple[int, int]] = {}
        for run in self._log.runs():
            row = self._row(run.send)
            if row is None or not self._sends.idempotent[row]:
                continue
            producer = self._sends.producers[row]
            if run.send not in again and latest.get(producer, _BEFORE_ALL) < (row, run.first):
                latest[producer] = row, run.first + run.size - 1
                continue
            for offset, record in run.records():
                before = latest.get(producer, _BEFORE_ALL)
                if repeated.get(record, (offset,))[0] != offset:
                    continue
                if before > (row, record.place):
                    later = Record(self._sends.numbers[before[0]], before[1])
                    self._find(ReorderedRecords(self._name, producer, record, offset, later))
                else:
                    latest[producer] = row, record.place

    def _judge_replicas(self) -> None:
        leader, replicas = self._final.leader, self._final.replicas
        settled = self._final.settled
        for replica, runs in sorted(replicas.items()):
            pairs = zip_longest(_below(replicas[leader], settled), _below(runs, settled))
            unlike = next((pair for pair in pairs if pair[0] != pair[1]), ()) if replica != leader else ()
            if unlike:  # from here on the logs differ, in records or in leader epochs
                offset = min(run.offset for run in unlike if run is not None)
                self._find(ReplicasDiffer(self._name, leader, replica, offset))


_BEFORE_ALL = (-1, -1)


def _below(runs: Iterable[RecordRange], end: Offset | None) -> Iterator[RecordRange]:
    """The runs as far as they lie below an offset."""
    for run in runs:
        if end is None or run.offset + run.size <= end:
            yield run
        elif run.offset < end:
            yield run._replace(size=end - run.offset)
