"""The history of clients, built from the commands that they were given and the outcomes that they reported.

| outcome | result |
|---|---|
| error NONE, acks=all | `acknowledged` |
| error NONE, acks=1 | `appended`: by the leader alone, which promises nothing |
| error NONE, acks=0 | `unknown`: the producer did not ask |
| an error after which the records may be in the log | `unknown` |
| any other error | `failed` |

What a batch holds is read by a function that knows how the client writes its records: `ranges_of` here for those of
`protocol/client/records.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from experiments.check.history import NO_TIME, Ended, RecordOutcome, RecordRange, Seen
from protocol.client.records import named_runs, values_of
from protocol.errors import ErrorCode
from protocol.ids import TimeMs, TopicPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.commands import ConsumeOutcome, ProduceOutcome, SendOutcome, SentRange

ACKS_ALL = -1
RangesOf = Callable[[RecordBatch], Iterator[RecordRange]]


def result_of(part: SentRange | ProduceOutcome, acks: int = ACKS_ALL) -> RecordOutcome:
    """The result of records that were sent with these `acks` (-1: all)."""
    if part.error is ErrorCode.NONE:
        return "acknowledged" if acks == ACKS_ALL else "appended" if acks == 1 else "unknown"
    return "unknown" if part.unknown else "failed"


def ended(outcome: SendOutcome | ProduceOutcome, acks: int = ACKS_ALL, at_ms: TimeMs = NO_TIME) -> Iterator[Ended]:
    """The ends of the records of a command, which came at `at_ms`. A ProduceOutcome is that of one record."""
    if isinstance(outcome, ProduceOutcome):
        yield Ended(outcome.command_id, 0, 1, result_of(outcome, acks), outcome.base_offset, at_ms)
        return
    for part in outcome.ranges:
        yield Ended(outcome.command_id, part.first, part.count, result_of(part, acks), part.base_offset, at_ms)


def ranges_of(batch: RecordBatch) -> Iterator[RecordRange]:
    """The generated records of a batch (`protocol.client.records`), the values of its records where a client of Kafka's
    has written it, as runs of consecutive ones.
    """
    offset = batch.base_offset
    for send, first, count in named_runs(values_of(batch)):
        yield RecordRange(offset, batch.leader_epoch, send, first, count)
        offset += count


def seen(reader: int, partition: TopicPartition, outcome: ConsumeOutcome, ranges: RangesOf = ranges_of) -> Seen:
    """What a reader has seen by an outcome without an error; nothing if it has no runs."""
    runs = tuple(run for batch in outcome.batches for run in ranges(batch))
    return Seen(reader, partition, runs, outcome.high_watermark)
