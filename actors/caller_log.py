"""What the callers of a client had it do with records, for the recording of a cluster (`docs/check.md`).

A client's callers are the commands of users (`isray produce`, `console-producer`, `console-consumer`). Their calls are
kept until the supervisor takes them with the next poll, without the payloads: a record is named by the send that wrote
it and its place in that send. A generated record carries both (`protocol/client/records.py`). The records of a
`ProduceCommand` are the caller's own bytes; its batch is never split or merged, so a log shows which batch it is by a
digest of the payload, and where several are equal by the offset (`experiments/check/names.py`).

A command for no particular partition becomes one send per partition once its outcome is known: a record that went to
another partition has failed in this one.

Kept are at most `MAX_CALLS` entries. Dropping one weakens a check and cannot make it fail: an end without a beginning
is ignored, a beginning without an end is a write with an unknown outcome.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from protocol.client.records import BY_DIGEST, MIN_RECORD_BYTES, named_runs, split
from protocol.errors import ErrorCode
from protocol.ids import NodeId, Offset, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import (
    ROUND_ROBIN,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
    SendOutcome,
    SendRecords,
    SentRange,
)
from protocol.messages.kafka_batch import is_kafka

MAX_CALLS = 100_000
_COUNT_BITS, _PARTITION_BITS = 32, 17
_DIGEST_BYTES, _LENGTH_BYTES, _NEGATIVE = 6, 4, 0xFF
Run = tuple[Offset, int, int, int, int]
"""Records that follow each other: offset, leader epoch, send, place of the first in the send, count."""


class SendBegan(NamedTuple):
    """A caller sends `size` records with these `acks`; `digest` is 0 where the records carry their names. `producer`
    is a number of the producer that keeps the order of its sends.
    """

    time_ms: TimeMs
    send: int
    producer: int
    partition: TopicPartition
    size: int
    acks: int
    digest: int


class SendEnded(NamedTuple):
    """Records of a send have their outcome, `part`."""

    time_ms: TimeMs
    send: int
    acks: int
    part: SentRange


class RecordsRead(NamedTuple):
    """A caller has read these records."""

    time_ms: TimeMs
    reader: NodeId
    partition: TopicPartition
    runs: tuple[Run, ...]
    high_watermark: Offset


CallerCall = SendBegan | SendEnded | RecordsRead


def first_command(incarnation: int) -> int:
    """The number before that of the first command of a client's incarnation; no other incarnation has these numbers."""
    return incarnation << _COUNT_BITS


def send_number(command_id: int, partition: int) -> int:
    """The number of the send that a caller's command (a negative id) makes to a partition."""
    return -command_id << _PARTITION_BITS | partition


def digest_of(payload: bytes) -> int:
    """A digest of a batch's payload, never 0."""
    return int.from_bytes(blake2b(payload, digest_size=_DIGEST_BYTES).digest()) + 1


def runs_of(batch: RecordBatch, partition: int) -> Iterator[Run]:
    """The records of a batch. One whose records no client has generated for a caller is one run, whose send is
    `BY_DIGEST` less the digest.
    """
    offset, epoch = batch.base_offset, batch.leader_epoch
    runs = _generated(batch.payload)
    is_foreign = any(command > -first_command(1) for command, _, _ in runs)
    if is_foreign or sum(count for _, _, count in runs) != batch.record_count:
        yield offset, epoch, BY_DIGEST - digest_of(batch.payload), 0, batch.record_count
        return
    for command, first, count in runs:
        yield offset, epoch, send_number(command, partition), first, count
        offset += count


def _generated(payload: bytes) -> list[tuple[int, int, int]]:
    """`named_runs` of a payload whose first record may have the id of a caller's command, which is negative and not
    small; empty for other bytes.
    """
    if len(payload) > MIN_RECORD_BYTES and payload[_LENGTH_BYTES] == _NEGATIVE and not is_kafka(payload):
        with suppress(struct.error):  # bytes of a user's that do not have the form of generated records
            return list(named_runs(split(payload)))
    return []


class CallerLog:
    """The calls to one incarnation of a client, until `take`."""

    def __init__(self, client: NodeId, incarnation: int, now_ms: Callable[[], TimeMs]) -> None:
        self._client = client
        self._now_ms = now_ms
        self._incarnation = incarnation
        self._calls: deque[CallerCall] = deque(maxlen=MAX_CALLS)
        self._principals: dict[str, int] = {}

    def take(self) -> list[CallerCall]:
        calls = list(self._calls)
        self._calls.clear()
        return calls

    def began(self, command: Message) -> None:
        """A caller's command is passed to the client."""
        if isinstance(command, ProduceCommand):
            self._begin(command, command.partition, self._producer(command), digest_of(command.payload))
        elif isinstance(command, SendRecords) and command.partition != ROUND_ROBIN:
            self._begin(command, command.partition, self._producer(command), 0)

    def ended(self, command: Message, outcome: Message) -> None:
        """The client has answered a caller's command."""
        if isinstance(command, ProduceCommand) and isinstance(outcome, ProduceOutcome):
            size, partition = command.record_count, command.partition
            part = SentRange.unchecked(
                first=0,
                count=size,
                partition=partition,
                error=outcome.error,
                base_offset=outcome.base_offset,
                unknown=outcome.unknown,
            )
            self._end(command, partition, part)
        elif isinstance(command, SendRecords) and isinstance(outcome, SendOutcome):
            if command.partition != ROUND_ROBIN:
                for part in outcome.ranges:
                    self._end(command, command.partition, part)
                return
            for partition in sorted({part.partition for part in outcome.ranges if part.partition != ROUND_ROBIN}):
                number = send_number(command.command_id, partition)
                self._begin(command, partition, number, 0)
                for part in parts_in(outcome.ranges, partition):
                    self._end(command, partition, part)
        elif isinstance(command, ConsumeCommand) and isinstance(outcome, ConsumeOutcome):
            self._read(command, outcome)

    def _begin(self, command: ProduceCommand | SendRecords, partition: int, producer: int, digest: int) -> None:
        name, number = TopicPartition(command.topic, partition), send_number(command.command_id, partition)
        self._calls.append(
            SendBegan(self._now_ms(), number, producer, name, command.record_count, command.acks, digest)
        )

    def _end(self, command: ProduceCommand | SendRecords, partition: int, part: SentRange) -> None:
        self._calls.append(SendEnded(self._now_ms(), send_number(command.command_id, partition), command.acks, part))

    def _producer(self, command: ProduceCommand | SendRecords) -> int:
        """The number of the command's producer: of this incarnation, and of its principal."""
        return self._incarnation << 16 | self._principals.setdefault(command.principal, len(self._principals))

    def _read(self, command: ConsumeCommand, outcome: ConsumeOutcome) -> None:
        partition = TopicPartition(command.topic, command.partition)
        runs = tuple(run for batch in outcome.batches for run in runs_of(batch, command.partition))
        if runs:
            self._calls.append(RecordsRead(self._now_ms(), self._client, partition, runs, outcome.high_watermark))


def parts_in(ranges: Sequence[SentRange], partition: int) -> Iterator[SentRange]:
    """The outcome of a command's records as that of a send to one partition: those that went elsewhere have failed.
    Neighbouring ranges of records elsewhere are one.
    """
    first = count = 0
    for part in ranges:
        if part.partition != partition:
            first = first if count else part.first
            count += part.count
            continue
        if count:
            yield _elsewhere(first, count, partition)
            count = 0
        yield part
    if count:
        yield _elsewhere(first, count, partition)


def _elsewhere(first: int, count: int, partition: int) -> SentRange:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return SentRange.unchecked(
        first=first, count=count, partition=partition, error=error, base_offset=-1, unknown=False
    )
