"""The workload of a soak: one producer and two readers per partition, whose operations are written to a history.

The producer is the cluster's client node: idempotent, acks=all. It sends batches of `RECORDS_PER_SEND` records to the
partitions in turn, at `rate` records per second, with at most `MAX_OUTSTANDING` sends under way. Sends that the limit
prevents are skipped and not made up for, so that the producer does not stay behind after an outage. The second reader
of a partition goes back at every `rewind`, so that records which were visible are read again after each fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.check.client_history import ACKS_ALL, ended, seen
from experiments.check.history import Ended, Invoked, Operation, Seen
from experiments.engines.ray.engine import PolledEngine
from experiments.explorer.day import AcknowledgementGaps
from protocol.errors import ErrorCode
from protocol.ids import Offset, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.commands import ConsumeCommand, ConsumeOutcome, SendOutcome, SendRecords

RECORDS_PER_SEND = 10
RECORD_BYTES = 100
MAX_OUTSTANDING = 300
READERS = (0, 1)
JUMP_BACK = 500
READ_EVERY_MS = 250
READ_WAIT_MS = 500
READ_BYTES = 262_144
PRODUCER = 0


@dataclass(slots=True)
class Counts:
    """Numbers of records sent, acknowledged, failed, with unknown outcome, and read; of failed reads, and of offsets of
    partitions whose commit was acknowledged.
    """

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    read: int = 0
    reads_failed: int = 0
    commits: int = 0


@dataclass(slots=True)
class _Follower:
    """One reader of one partition: its next offset and read time, and the id of the read under way (0 for none)."""

    reader: int
    partition: TopicPartition
    offset: Offset = 0
    due_ms: TimeMs = 0
    command: int = 0


class Workload:
    """The producer and the readers. `write` receives the operations of the history, `rate` is in records per second,
    and `next_id` returns new command ids. `is_reading` may be set to False; `sends` and `reads` are
    under way, and `others` are outcomes of commands that are not of the workload. `gaps` are the times in which a
    partition's records were not acknowledged. Whoever waits for the cluster calls `tick` as often as possible.
    """

    def __init__(
        self,
        clients: PolledEngine[Any],
        write: Callable[[Operation], None],
        partitions: Sequence[TopicPartition],
        rate: int,
        next_id: Callable[[], int],
    ) -> None:
        self.counts = Counts()
        self._clients = clients
        self._write = write
        self._partitions = tuple(partitions)
        self._rate = rate
        self._next_id = next_id
        self._credit_from_ms: float = clients.now_ms()
        self.gaps = AcknowledgementGaps(self._partitions, clients.now_ms())
        self._turn = 0
        self.is_sending = self.is_reading = True
        self.sends: set[int] = set()
        self.reads: dict[int, _Follower] = {}
        self.others: dict[int, Message] = {}
        self._followers = [_Follower(reader, partition) for partition in self._partitions for reader in READERS]

    def rewind(self) -> None:
        """Moves the second reader of each partition back by `JUMP_BACK` offsets."""
        for follower in self._followers:
            if follower.reader:
                follower.offset = max(0, follower.offset - JUMP_BACK)

    def has_read_to(self, ends: Mapping[TopicPartition, Offset]) -> bool:
        """Whether all readers have reached these offsets."""
        return all(follower.offset >= ends[follower.partition] for follower in self._followers)

    def tick(self) -> None:
        """Handles the outcomes of commands, and submits the sends and reads that are due."""
        now_ms = self._clients.now_ms()
        for command_id, outcome in self._clients.take_outcomes().items():
            if isinstance(outcome, SendOutcome) and command_id in self.sends:
                self.sends.remove(command_id)
                self._note_acknowledgements(now_ms, outcome)
                for end in ended(outcome, at_ms=now_ms):
                    self._end(end)
            elif isinstance(outcome, ConsumeOutcome) and command_id in self.reads:
                self._handle_read_outcome(now_ms, self.reads.pop(command_id), outcome)
            else:
                self.others[command_id] = outcome
        self._send_due()
        for follower in self._followers:
            if self.is_reading and not follower.command and follower.due_ms <= now_ms:
                self._read(follower)

    def _note_acknowledgements(self, now_ms: TimeMs, outcome: SendOutcome) -> None:
        for part in outcome.ranges:
            if part.error is ErrorCode.NONE and self.is_sending:
                self.gaps.acknowledged(TopicPartition(self._partitions[0].topic, part.partition), now_ms)

    def end_sending(self) -> None:
        """Sends nothing more; sends may be under way."""
        if self.is_sending:
            self.is_sending = False
            self.gaps.end(self._clients.now_ms())

    def close(self) -> None:
        """Ends the clients; nothing is to be called after it."""

    def _end(self, end: Ended) -> None:
        """Records of a send have come to their end."""
        self._write(end)
        setattr(self.counts, end.result, getattr(self.counts, end.result) + end.size)

    def _note_read(self, read: Seen) -> None:
        self._write(read)
        self.counts.read += sum(run.size for run in read.runs)

    def _send_due(self) -> None:
        now_ms, every_ms = self._clients.now_ms(), 1000 * RECORDS_PER_SEND / self._rate
        while now_ms - self._credit_from_ms >= every_ms:
            self._credit_from_ms += every_ms
            if self.is_sending and len(self.sends) < MAX_OUTSTANDING:
                self._send(self._partitions[self._turn % len(self._partitions)])
                self._turn += 1

    def _send(self, partition: TopicPartition) -> None:
        send = self._next_id()
        self.sends.add(send)
        self._write(Invoked(send, PRODUCER, partition, RECORDS_PER_SEND))
        self._submit(send, partition)
        self.counts.sent += RECORDS_PER_SEND

    def _submit(self, send: int, partition: TopicPartition) -> None:
        command = SendRecords(
            command_id=send,
            topic=partition.topic,
            partition=partition.partition,
            acks=ACKS_ALL,
            record_count=RECORDS_PER_SEND,
            record_bytes=RECORD_BYTES,
        )
        self._clients.submit(command)

    def _read(self, follower: _Follower) -> None:
        command = ConsumeCommand(
            command_id=self._next_id(),
            topic=follower.partition.topic,
            partition=follower.partition.partition,
            offset=follower.offset,
            max_bytes=READ_BYTES,
            max_wait_ms=READ_WAIT_MS,
        )
        follower.command = command.command_id
        self.reads[command.command_id] = follower
        self._clients.submit(command)

    def _handle_read_outcome(self, now_ms: TimeMs, follower: _Follower, outcome: ConsumeOutcome) -> None:
        follower.command, follower.due_ms = 0, now_ms + READ_EVERY_MS
        if outcome.error is not ErrorCode.NONE:
            self.counts.reads_failed += 1
            if outcome.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                follower.offset = max(follower.offset, outcome.log_start_offset)
            return
        read = seen(follower.reader, follower.partition, outcome)
        if read.runs:
            self._note_read(read)
        follower.offset = max(follower.offset, outcome.next_offset)
