"""The producer: takes batches and records from commands, gathers records into batches, and bounds what it holds.

Records for one partition gather in an open batch, which leaves when the next record does not fit `batch.size`, or
`linger.ms` after its first record (Apache Kafka's RecordAccumulator). Records that may go anywhere stay with one
partition until its batch leaves, then go to the next one (KIP-480). A gathered batch that turns out to be too large for
its topic is parted (`batch.size` may be more than `max.message.bytes`). A command that brings a batch of its own has it
sent as it is, behind what is there.

Everything between a command and its outcome counts against `buffer.memory`. What does not fit is held back, commands in
the order of their arrival: that is how a slow cluster slows its producer down. A command that is held for
`max.block.ms` without getting any further fails with REQUEST_TIMED_OUT, as far as it has not been taken; so does, at
once, one that comes when `MAX_HELD` are held. What then happens to each batch is its lane's business (`lane.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from protocol.client.context import ClientContext
from protocol.client.identity import ProducerIdentity
from protocol.client.lane import ACKS_ALL, BatchResult, Lane, ProducerBatch
from protocol.client.metadata import Findings, LeaderFinder
from protocol.client.records import MIN_RECORD_BYTES, join, joined_size, record
from protocol.config import BATCH_SIZE, BUFFER_MEMORY, ENABLE_IDEMPOTENCE, LINGER_MS, MAX_BLOCK_MS
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import (
    ROUND_ROBIN,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
    SentRange,
)
from protocol.messages.trusted import trusted

_BATCH: Final = trusted(RecordBatch)
_RANGE: Final = trusted(SentRange)
_OUTCOME: Final = trusted(SendOutcome)
BLOCK_TIMER = "max-block"
LINGER_PREFIX = "linger/"
PARTITIONS_PREFIX = "partitions/"
LOOK_AGAIN_MS = 1_000
"""How often a producer that does not know a topic's partitions asks for them."""
MAX_HELD = 1_000
"""Commands that may be held back."""

LaneKey = tuple[TopicPartition, int]
"""A partition and the `acks` of what is sent to it."""


@dataclass(slots=True, eq=False)
class _Job:
    """A command under way. Records below `taken` have been taken into batches, `open` of them have no end yet."""

    command: ProduceCommand | SendRecords
    driver: NodeId
    blocked_ms: TimeMs
    taken: int = 0
    open: int = 0
    ranges: list[_Range] = field(default_factory=list)


@dataclass(slots=True)
class _Range:
    """What `SentRange` says, while more of the kind may join it."""

    first: int
    count: int
    partition: int
    end: BatchResult

    def takes(self, other: _Range) -> bool:
        """Puts another one to this one, if it follows in the command and in the log."""
        mine, its = self.end, other.end
        offset = mine.base_offset if mine.base_offset < 0 else mine.base_offset + self.count
        follows = self.first + self.count == other.first and offset == its.base_offset
        if not follows or self.partition != other.partition:
            return False
        if mine.error is not its.error or mine.unknown != its.unknown:
            return False
        self.count += other.count
        return True

    def told(self) -> SentRange:
        return _RANGE(
            first=self.first,
            count=self.count,
            partition=self.partition,
            error=self.end.error,
            base_offset=self.end.base_offset,
            unknown=self.end.unknown,
        )


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """Records that gather. `parts` says whose they are: job, number of the first record, how many."""

    records: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    parts: list[tuple[_Job, int, int]] = field(default_factory=list)

    def add(self, job: _Job, number: int, data: bytes) -> None:
        self.records.append(data)
        self.size_bytes += joined_size(len(data))
        if self.parts and self.parts[-1][0] is job:
            _, first, count = self.parts[-1]
            self.parts[-1] = (job, first, count + 1)
        else:
            self.parts.append((job, number, 1))

    def halves(self) -> tuple[_OpenBatch, _OpenBatch]:
        """The first and the second half of the records, of which there are two or more."""
        found = _OpenBatch(), _OpenBatch()
        numbered = [(job, number) for job, first, count in self.parts for number in range(first, first + count)]
        for place, ((job, number), data) in enumerate(zip(numbered, self.records, strict=True)):
            found[place >= len(self.records) // 2].add(job, number, data)
        return found


class Producer:
    """See the module docstring. `buffered_bytes` is what counts against `buffer.memory`."""

    def __init__(self, context: ClientContext, finder: LeaderFinder) -> None:
        config = context.config
        self.buffered_bytes = 0
        self._context = context
        self._finder = finder
        self._identity = ProducerIdentity(context) if config.values[ENABLE_IDEMPOTENCE] else None
        self._batch_bytes = config.int_value(BATCH_SIZE)
        self._buffer_bytes = config.int_value(BUFFER_MEMORY)
        self._linger_ms = config.int_value(LINGER_MS)
        self._max_block_ms = config.int_value(MAX_BLOCK_MS)
        self._lanes: dict[LaneKey, Lane] = {}
        self._gathering: dict[LaneKey, _OpenBatch] = {}
        self._held: deque[_Job] = deque()
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._turns: dict[str, int] = {}

    def take(self, now_ms: TimeMs, driver: NodeId, command: ProduceCommand | SendRecords) -> None:
        """Takes a command, of which `settle` takes in what there is room for; it will have exactly one outcome."""
        job = _Job(command, driver, now_ms)
        error = self._why_not(command)
        if error is not ErrorCode.NONE:
            self._drop(now_ms, job, error)
            return
        self._held.append(job)

    def settle(self, now_ms: TimeMs) -> None:
        """Takes in what was held back, as far as there is room; to be called at the end of each input."""
        if not self._held:
            return
        while self._held and self._feed(now_ms, self._held[0]):
            self._held.popleft()
        if self._held:
            self._close(now_ms, list(self._gathering))
            deadline_ms = min(job.blocked_ms for job in self._held) + self._max_block_ms
            self._context.set_timer(BLOCK_TIMER, max(now_ms, deadline_ms), self._give_up)
        else:
            self._context.cancel_timer(BLOCK_TIMER)

    # -- taking records in ---------------------------------------------------------------------------------------------

    def _why_not(self, command: ProduceCommand | SendRecords) -> ErrorCode:
        """NONE, or why the command is not even held."""
        size = len(command.payload) if isinstance(command, ProduceCommand) else joined_size(command.record_bytes)
        if isinstance(command, SendRecords) and (command.record_bytes < MIN_RECORD_BYTES or command.record_count < 1):
            return ErrorCode.INVALID_RECORD
        if size > self._buffer_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        return ErrorCode.REQUEST_TIMED_OUT if len(self._held) >= MAX_HELD else ErrorCode.NONE

    def _feed(self, now_ms: TimeMs, job: _Job) -> bool:
        """Takes in what there is room for; whether that was all."""
        command = job.command
        if isinstance(command, ProduceCommand):
            if not self._reserve(len(command.payload)):
                return False
            self._put_batch(now_ms, job, command)
            return True
        if command.partition == ROUND_ROBIN and not self._knows_partitions(now_ms, command.topic):
            return False
        command_id, count, record_bytes = command.command_id, command.record_count, command.record_bytes
        size = joined_size(record_bytes)
        gathered, key = None, self._next_lane(command)
        while job.taken < count:
            if not self._reserve(size):
                return False
            if gathered is None:
                gathered = self._gathering.get(key)
            if gathered is not None and gathered.size_bytes + size > self._batch_bytes:
                self._close(now_ms, [key])
                key = self._next_lane(command)
                gathered = self._gathering.get(key)
            if gathered is None:
                gathered = self._open(now_ms, key)
            gathered.add(job, job.taken, record(command_id, job.taken, record_bytes))
            job.taken, job.open, job.blocked_ms = job.taken + 1, job.open + 1, now_ms
            if gathered.size_bytes >= self._batch_bytes or not self._linger_ms:
                self._close(now_ms, [key])
                gathered, key = None, self._next_lane(command)
        return True

    def _reserve(self, size: int) -> bool:
        if self.buffered_bytes + size > self._buffer_bytes:
            return False
        self.buffered_bytes += size
        return True

    def _knows_partitions(self, now_ms: TimeMs, topic: str) -> bool:
        if topic in self._partitions:
            return True
        who = f"{PARTITIONS_PREFIX}{topic}"
        if who not in self._context.timers:
            self._look(now_ms, topic)
        return False

    def _look(self, now_ms: TimeMs, topic: str) -> None:
        who = f"{PARTITIONS_PREFIX}{topic}"
        if any(job.command.topic == topic for job in self._held):
            self._finder.search(now_ms, topic, who, lambda at_ms, found: self._found(at_ms, topic, found))
            self._context.set_timer(who, now_ms + LOOK_AGAIN_MS, lambda at_ms: self._look(at_ms, topic))
        else:
            self._finder.leave(topic, who)

    def _found(self, now_ms: TimeMs, topic: str, findings: Findings) -> None:
        if findings.partitions:
            self._partitions[topic] = tuple(sorted(findings.partitions))
            who = f"{PARTITIONS_PREFIX}{topic}"
            self._finder.leave(topic, who)
            self._context.cancel_timer(who)

    def _next_lane(self, command: SendRecords) -> LaneKey:
        topic, partition = command.topic, command.partition
        if partition == ROUND_ROBIN:
            partitions = self._partitions[topic]
            partition = partitions[self._turns.get(topic, 0) % len(partitions)]
        return TopicPartition(topic, partition), command.acks

    # -- batches -------------------------------------------------------------------------------------------------------

    def _open(self, now_ms: TimeMs, key: LaneKey) -> _OpenBatch:
        gathered = self._gathering[key] = _OpenBatch()
        if self._linger_ms:
            self._context.set_timer(_linger(key), now_ms + self._linger_ms, lambda at_ms: self._close(at_ms, [key]))
        return gathered

    def _close(self, now_ms: TimeMs, keys: Iterable[LaneKey]) -> None:
        """The open batches are complete and go their way."""
        for key in keys:
            gathered = self._gathering.pop(key, None)
            if gathered is None:
                continue
            self._context.cancel_timer(_linger(key))
            topic = key[0].topic
            self._turns[topic] = self._turns.get(topic, 0) + 1
            self._lane(key).put(now_ms, self._batch_of(key[0], gathered, now_ms))

    def _batch_of(self, partition: TopicPartition, gathered: _OpenBatch, timestamp_ms: TimeMs) -> ProducerBatch:
        content = _BATCH(record_count=len(gathered.records), payload=join(gathered.records), timestamp_ms=timestamp_ms)
        batch = ProducerBatch(content, self._ender(partition.partition, partition.topic, gathered))
        if content.record_count > 1:
            batch.halves = lambda: [self._batch_of(partition, half, timestamp_ms) for half in gathered.halves()]
        return batch

    def _ender(self, partition: int, topic: str, gathered: _OpenBatch) -> Callable[[TimeMs, BatchResult], None]:
        def ended(now_ms: TimeMs, end: BatchResult) -> None:
            self.buffered_bytes -= gathered.size_bytes
            if end.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._partitions.pop(topic, None)
            self._ended(partition, gathered, end)

        return ended

    def _put_batch(self, now_ms: TimeMs, job: _Job, command: ProduceCommand) -> None:
        key = (TopicPartition(command.topic, command.partition), command.acks)
        self._close(now_ms, [key])
        content = _BATCH(record_count=command.record_count, payload=command.payload, timestamp_ms=now_ms)
        batch = ProducerBatch(content, lambda at_ms, end: self._produced(job, command, end))
        batch.final_errors = command.final_errors
        self._lane(key).put(now_ms, batch, afresh=True)

    def _lane(self, key: LaneKey) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            identity = self._identity if key[1] == ACKS_ALL else None
            lane = self._lanes[key] = Lane(self._context, self._finder, identity, *key)
        return lane

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, partition: int, gathered: _OpenBatch, end: BatchResult) -> None:
        """A gathered batch has come to its end, and with it the parts of commands that are in it."""
        offset = end.base_offset
        for job, first, count in gathered.parts:
            job.ranges.append(_Range(first, count, partition, BatchResult(end.error, offset, end.unknown)))
            job.open -= count
            offset = offset if offset < 0 else offset + count
            self._report(job)

    def _report(self, job: _Job) -> None:
        """Tells the outcome of a command of which all records have come to their end."""
        command = job.command
        assert isinstance(command, SendRecords)
        if job.open or job.taken < command.record_count:
            return
        ranges = [part.told() for part in merged(sorted(job.ranges, key=lambda part: part.first))]
        error = next((part.error for part in ranges if part.error is not ErrorCode.NONE), ErrorCode.NONE)
        self._context.out.send(job.driver, _OUTCOME(command_id=command.command_id, error=error, ranges=tuple(ranges)))

    def _produced(self, job: _Job, command: ProduceCommand, end: BatchResult) -> None:
        """A command's own batch has come to its end."""
        self.buffered_bytes -= len(command.payload)
        self._tell(job, command, end)

    def _tell(self, job: _Job, command: ProduceCommand, end: BatchResult) -> None:
        self._context.out.trace(
            "produced",
            TopicPartition(command.topic, command.partition),
            command_id=command.command_id,
            acks=command.acks,
            error=end.error.name,
            unknown=end.unknown,
            base_offset=end.base_offset,
        )
        outcome = ProduceOutcome(
            command_id=command.command_id, error=end.error, base_offset=end.base_offset, unknown=end.unknown
        )
        self._context.out.send(job.driver, outcome)

    def _give_up(self, now_ms: TimeMs) -> None:
        """Commands that were held for too long fail, as far as they have not been taken in."""
        late = [job for job in self._held if job.blocked_ms + self._max_block_ms <= now_ms]
        self._held = deque(job for job in self._held if job not in late)
        for job in late:
            self._drop(now_ms, job, ErrorCode.REQUEST_TIMED_OUT)

    def _drop(self, now_ms: TimeMs, job: _Job, error: ErrorCode) -> None:
        """The rest of a command is not taken in: it has definitely failed."""
        command = job.command
        if isinstance(command, ProduceCommand):
            self._tell(job, command, BatchResult(error))
            return
        rest = max(0, command.record_count - job.taken)
        job.ranges.append(_Range(job.taken, rest, command.partition, BatchResult(error)))
        job.taken = max(job.taken, command.record_count)
        self._report(job)


def merged(ranges: Iterable[_Range]) -> list[_Range]:
    """Ranges in order, those put together that follow each other in the command and in the log."""
    found: list[_Range] = []
    for part in ranges:
        if not (found and found[-1].takes(part)):
            found.append(part)
    return found


def _linger(key: LaneKey) -> str:
    partition, acks = key
    return f"{LINGER_PREFIX}{partition.topic}/{partition.partition}/{acks}"
