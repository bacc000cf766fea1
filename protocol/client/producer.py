"""The producer: batches records, sends the batches by partition, and bounds its memory (Kafka's `RecordAccumulator`).

Records for one partition are added to its open batch, which is sent when the next record would exceed `batch.size`, or
`linger.ms` after the first record. Records without a partition go to one partition until its batch is sent, then to the
next (KIP-480). A batch that is too large for its topic is split (`batch.size` may exceed `max.message.bytes`). The
batch of a ProduceCommand is sent as it is, after the records that came before it.

All records without an outcome count against `buffer.memory`. Commands whose records do not fit are held back, in the
order of their arrival, so that a slow cluster slows its producer down. A held command that makes no progress for
`max.block.ms` fails with REQUEST_TIMED_OUT, except for the records that were admitted; so does a further one while
`MAX_HELD` are held. One whose principal may not describe the topic fails at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.client.context import ClientContext, LeaderFinder, TopicLeaders
from protocol.client.partition_sender import ACKS_ALL, BatchResult, PartitionSender, ProducerBatch, ProducerIdentity
from protocol.client.records import MIN_RECORD_BYTES, join, joined_size, record
from protocol.config import BATCH_SIZE, BUFFER_MEMORY, ENABLE_IDEMPOTENCE, LINGER_MS, MAX_BLOCK_MS
from protocol.errors import ErrorCode
from protocol.events.node import ProduceCompleted
from protocol.ids import NO_OFFSET, NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import changed
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ROUND_ROBIN, ProduceCommand, ProduceOutcome, SendOutcome, SendRecords, SentRange

BLOCK_TIMER = "max-block"
LINGER_PREFIX = "linger/"
PARTITIONS_PREFIX = "partitions/"
SEARCH_AGAIN_MS = 1_000
"""How often a producer that does not know the partitions of a topic asks for them."""
MAX_HELD = 1_000
"""Commands that may be held back."""

SenderKey = tuple[TopicPartition, int]
"""A partition and the `acks` of its batches."""


@dataclass(slots=True, eq=False)
class _Pending:
    """Records below `taken` are in batches, `open` of them have no result. `blocked_ms`: when it made progress last."""

    command: ProduceCommand | SendRecords
    driver: NodeId
    blocked_ms: TimeMs
    taken: int = 0
    open: int = 0
    ranges: list[SentRange] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """Records that are being batched. `parts` lists their origin: command, number of the first record, count."""

    records: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    parts: list[tuple[_Pending, int, int]] = field(default_factory=list)

    def add(self, job: _Pending, number: int, data: bytes) -> None:
        self.records.append(data)
        self.size_bytes += joined_size(len(data))
        if self.parts and self.parts[-1][0] is job:
            _, first, count = self.parts[-1]
            self.parts[-1] = (job, first, count + 1)
        else:
            self.parts.append((job, number, 1))

    def split(self) -> tuple[_OpenBatch, _OpenBatch]:
        """Two batches with the first and second half of the records, of which there are at least two."""
        found = _OpenBatch(), _OpenBatch()
        numbered = [(job, number) for job, first, count in self.parts for number in range(first, first + count)]
        for place, ((job, number), data) in enumerate(zip(numbered, self.records, strict=True)):
            found[place >= len(self.records) // 2].add(job, number, data)
        return found


class Producer:
    """The producer of one client. `buffered_bytes` counts against `buffer.memory`."""

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
        self._senders: dict[SenderKey, PartitionSender] = {}
        self._gathering: dict[SenderKey, _OpenBatch] = {}
        self._held: deque[_Pending] = deque()
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._next_partition: dict[str, int] = {}

    def submit(self, now_ms: TimeMs, driver: NodeId, command: ProduceCommand | SendRecords) -> None:
        """Accepts a command, which will have exactly one outcome; `admit_held` admits its records."""
        job, error = _Pending(command, driver, now_ms), self._command_error(command)
        if error is not ErrorCode.NONE:
            self._fail_rest(job, error)
        else:
            self._held.append(job)

    def admit_held(self, now_ms: TimeMs) -> None:
        """Admits the records of held commands as far as memory allows; call at the end of every input."""
        if not self._held:
            return
        while self._held and self._admit(now_ms, self._held[0]):
            self._held.popleft()
        if self._held:
            self._send_open_batches(now_ms, list(self._gathering))
            deadline_ms = min(job.blocked_ms for job in self._held) + self._max_block_ms
            self._context.set_timer(BLOCK_TIMER, max(now_ms, deadline_ms), self._expire_held)
        else:
            self._context.cancel_timer(BLOCK_TIMER)

    # -- taking records in ---------------------------------------------------------------------------------------------

    def _command_error(self, command: ProduceCommand | SendRecords) -> ErrorCode:
        size = len(command.payload) if isinstance(command, ProduceCommand) else joined_size(command.record_bytes)
        if isinstance(command, SendRecords) and (command.record_bytes < MIN_RECORD_BYTES or command.record_count < 1):
            return ErrorCode.INVALID_RECORD
        if size > self._buffer_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        return ErrorCode.REQUEST_TIMED_OUT if len(self._held) >= MAX_HELD else ErrorCode.NONE

    def _admit(self, now_ms: TimeMs, job: _Pending) -> bool:
        """Adds the records of a command to batches as far as memory allows; returns whether all were added."""
        command = job.command
        if isinstance(command, ProduceCommand):
            if not self._reserve(len(command.payload)):
                return False
            self._send_own_batch(now_ms, job, command)
            return True
        if command.partition == ROUND_ROBIN and not self._knows_partitions(now_ms, command.topic):
            return False
        command_id, count, record_bytes = command.command_id, command.record_count, command.record_bytes
        size = joined_size(record_bytes)
        gathered, key = None, self._next_key(command)
        while job.taken < count:
            if not self._reserve(size):
                return False
            if gathered is None:
                gathered = self._gathering.get(key)
            if gathered is not None and gathered.size_bytes + size > self._batch_bytes:
                self._send_open_batches(now_ms, [key])
                key = self._next_key(command)
                gathered = self._gathering.get(key)
            if gathered is None:
                gathered = self._open_batch(now_ms, key)
            gathered.add(job, job.taken, record(command_id, job.taken, record_bytes))
            job.taken, job.open, job.blocked_ms = job.taken + 1, job.open + 1, now_ms
            if gathered.size_bytes >= self._batch_bytes or not self._linger_ms:
                self._send_open_batches(now_ms, [key])
                gathered, key = None, self._next_key(command)
        return True

    def _reserve(self, size: int) -> bool:
        if self.buffered_bytes + size > self._buffer_bytes:
            return False
        self.buffered_bytes += size
        return True

    def _knows_partitions(self, now_ms: TimeMs, topic: str) -> bool:
        is_known = topic in self._partitions
        if not is_known and f"{PARTITIONS_PREFIX}{topic}" not in self._context.timers:
            self._search_partitions(now_ms, topic)
        return is_known

    def _search_partitions(self, now_ms: TimeMs, topic: str) -> None:
        who = f"{PARTITIONS_PREFIX}{topic}"
        if any(job.command.topic == topic for job in self._held):
            self._finder.search(now_ms, topic, who, lambda at_ms, found: self._receive_partitions(at_ms, topic, found))
            self._context.set_timer(who, now_ms + SEARCH_AGAIN_MS, lambda at_ms: self._search_partitions(at_ms, topic))
        else:
            self._finder.cancel(topic, who)

    def _receive_partitions(self, now_ms: TimeMs, topic: str, leaders: TopicLeaders) -> None:
        if leaders.partitions:
            self._partitions[topic] = tuple(sorted(leaders.partitions))
        elif leaders.error is not ErrorCode.NONE:
            refused = [job for job in self._held if job.command.topic == topic and job.command.partition == ROUND_ROBIN]
            self._held = deque(job for job in self._held if job not in refused)
            for job in refused:
                self._fail_rest(job, leaders.error)
            if not self._held:
                self._context.cancel_timer(BLOCK_TIMER)
        else:
            return
        who = f"{PARTITIONS_PREFIX}{topic}"
        self._finder.cancel(topic, who)
        self._context.cancel_timer(who)

    def _next_key(self, command: SendRecords) -> SenderKey:
        topic, partition = command.topic, command.partition
        if partition == ROUND_ROBIN:
            partitions = self._partitions[topic]
            partition = partitions[self._next_partition.get(topic, 0) % len(partitions)]
        return TopicPartition(topic, partition), command.acks

    # -- batches -------------------------------------------------------------------------------------------------------

    def _open_batch(self, now_ms: TimeMs, key: SenderKey) -> _OpenBatch:
        gathered = self._gathering[key] = _OpenBatch()
        if self._linger_ms:
            self._context.set_timer(
                _linger(key), now_ms + self._linger_ms, lambda at_ms: self._send_open_batches(at_ms, [key])
            )
        return gathered

    def _send_open_batches(self, now_ms: TimeMs, keys: Iterable[SenderKey]) -> None:
        for key in keys:
            gathered = self._gathering.pop(key, None)
            if gathered is None:
                continue
            self._context.cancel_timer(_linger(key))
            topic = key[0].topic
            self._next_partition[topic] = self._next_partition.get(topic, 0) + 1
            self._sender(key).enqueue(now_ms, self._batch_of(key[0], gathered, now_ms))

    def _batch_of(self, partition: TopicPartition, gathered: _OpenBatch, timestamp_ms: TimeMs) -> ProducerBatch:
        content = RecordBatch.unchecked(
            record_count=len(gathered.records), payload=join(gathered.records), timestamp_ms=timestamp_ms
        )
        batch = ProducerBatch(content, lambda _, end: self._ended(partition, gathered, end))
        if content.record_count > 1:
            batch.split = lambda: [self._batch_of(partition, half, timestamp_ms) for half in gathered.split()]
        return batch

    def _send_own_batch(self, now_ms: TimeMs, job: _Pending, command: ProduceCommand) -> None:
        key = (TopicPartition(command.topic, command.partition), command.acks)
        self._send_open_batches(now_ms, [key])
        content = RecordBatch.unchecked(record_count=command.record_count, payload=command.payload, timestamp_ms=now_ms)
        batch = ProducerBatch(
            content, lambda _, end: self._produced(job, command, end), final_errors=command.final_errors
        )
        self._sender(key).enqueue(now_ms, batch, new_search=True)

    def _sender(self, key: SenderKey) -> PartitionSender:
        partition_sender = self._senders.get(key)
        if partition_sender is None:
            identity = self._identity if key[1] == ACKS_ALL else None
            partition_sender = self._senders[key] = PartitionSender(self._context, self._finder, identity, *key)
        return partition_sender

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, partition: TopicPartition, gathered: _OpenBatch, end: BatchResult) -> None:
        self.buffered_bytes -= gathered.size_bytes
        if end.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._partitions.pop(partition.topic, None)
        offset = end.base_offset
        for job, first, count in gathered.parts:
            job.ranges.append(_sent_range(first, count, partition.partition, end, offset))
            job.open -= count
            offset = offset if offset < 0 else offset + count
            self._report_if_complete(job)

    def _report_if_complete(self, job: _Pending) -> None:
        command = job.command
        assert isinstance(command, SendRecords)
        if job.open or job.taken < command.record_count:
            return
        ranges = merged(sorted(job.ranges, key=lambda part: part.first))
        error = next((part.error for part in ranges if part.error is not ErrorCode.NONE), ErrorCode.NONE)
        self._context.out.send(
            job.driver, SendOutcome.unchecked(command_id=command.command_id, error=error, ranges=tuple(ranges))
        )

    def _produced(self, job: _Pending, command: ProduceCommand, end: BatchResult) -> None:
        self.buffered_bytes -= len(command.payload)
        self._report_produce(job, command, end)

    def _report_produce(self, job: _Pending, command: ProduceCommand, end: BatchResult) -> None:
        partition, number = TopicPartition(command.topic, command.partition), command.command_id
        error, unknown, offset = end.error, end.unknown, end.base_offset
        self._context.out.trace(ProduceCompleted(partition, number, command.acks, error.name, unknown, offset))
        outcome = ProduceOutcome.unchecked(command_id=number, error=error, base_offset=offset, unknown=unknown)
        self._context.out.send(job.driver, outcome)

    def _expire_held(self, now_ms: TimeMs) -> None:
        late = [job for job in self._held if job.blocked_ms + self._max_block_ms <= now_ms]
        self._held = deque(job for job in self._held if job not in late)
        for job in late:
            self._fail_rest(job, ErrorCode.REQUEST_TIMED_OUT)

    def _fail_rest(self, job: _Pending, error: ErrorCode) -> None:
        command = job.command
        if isinstance(command, ProduceCommand):
            self._report_produce(job, command, BatchResult(error))
            return
        rest = max(0, command.record_count - job.taken)
        job.ranges.append(_sent_range(job.taken, rest, command.partition, BatchResult(error), NO_OFFSET))
        job.taken = max(job.taken, command.record_count)
        self._report_if_complete(job)


def _sent_range(first: int, count: int, partition: int, end: BatchResult, base_offset: Offset) -> SentRange:
    return SentRange.unchecked(
        first=first, count=count, partition=partition, error=end.error, base_offset=base_offset, unknown=end.unknown
    )


def merged(ranges: Iterable[SentRange]) -> list[SentRange]:
    """Ranges in order; those with one result that follow each other, in the command and in the log, are merged."""
    found: list[SentRange] = []
    for part in ranges:
        last = found[-1] if found else part
        offset = last.base_offset if last.base_offset < 0 else last.base_offset + last.count
        if found and part == changed(last, first=last.first + last.count, count=part.count, base_offset=offset):
            found[-1] = changed(last, count=last.count + part.count)
        else:
            found.append(part)
    return found


def _linger(key: SenderKey) -> str:
    partition, acks = key
    return f"{LINGER_PREFIX}{partition.topic}/{partition.partition}/{acks}"
