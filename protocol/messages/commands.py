"""The commands of the experiment to its clients, and the outcomes that the clients report.

The experiment (node `DRIVER`) sends messages to client nodes only. A client behaves like an application with a Kafka
client library, retries included, and reports one outcome per command: acknowledged, definitely failed, or unknown. A
load generator (`actors/load.py`) measures a cluster: it neither batches records nor repeats a batch without a response.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import ANONYMOUS, Int16, Int32, Int64, Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import EARLIEST


class Command(Message):
    """Base of commands; the outcome carries the same `command_id`."""

    command_id: Int64


class ShutdownCommand(Message):
    """Starts the controlled shutdown of a broker or controller, like SIGTERM."""


class RecordsCommand(Command):
    """Base of commands that write or read records: on behalf of `principal`, by default the client's own."""

    principal: str = ANONYMOUS


class ProduceCommand(RecordsCommand):
    """Sends one batch, which is never split or merged. Errors in `final_errors` end the command at once; other
    retriable errors are retried until `delivery.timeout.ms`.
    """

    topic: str
    partition: Int32
    acks: Int16
    record_count: Int32
    payload: bytes
    final_errors: tuple[ErrorCode, ...] = ()


ROUND_ROBIN = -1
"""Partition of records that the producer assigns itself: each batch goes to the next partition of the topic."""


class SendRecords(RecordsCommand):
    """Sends `record_count` records of `record_bytes` each (at least 12: `protocol/client/records.py`), numbered from 0.
    The producer batches them with those of other commands. `partition` may be ROUND_ROBIN.
    """

    topic: str
    partition: Int32
    acks: Int16
    record_count: Int32
    record_bytes: Int32


class ConsumeCommand(RecordsCommand):
    """Reads a partition from `offset` (EARLIEST: log start, LATEST: high watermark) to the high watermark of the first
    response, or `max_bytes`. Waits `max_wait_ms` for a first record. Errors as in ProduceCommand.
    """

    topic: str
    partition: Int32
    offset: Int64 = EARLIEST
    max_bytes: Int64 = 2**63 - 1
    max_wait_ms: Int32 = 0
    final_errors: tuple[ErrorCode, ...] = ()


class AdminCommand(Command):
    """Sends an administration request: a change to the active controller, a query to any node."""

    request: AdminRequest


class ProduceOutcome(Message):
    """`error` NONE: acknowledged. `unknown`: the batch may or may not be in the log."""

    command_id: Int64
    error: ErrorCode
    base_offset: Int64
    unknown: bool


class SentRange(Message):
    """The outcome of records `first` to `first + count - 1`; if acknowledged, their offsets begin at `base_offset`."""

    first: Int32
    count: Int32
    partition: Int32
    error: ErrorCode
    base_offset: Int64 = NO_OFFSET
    unknown: bool = False


class SendOutcome(Message):
    """The outcome of all records of a command, in their order; `error` is the first error, or NONE."""

    command_id: Int64
    error: ErrorCode
    ranges: tuple[SentRange, ...]


class ConsumeOutcome(Message):
    """`batches` have no gap; the first one contains the requested offset. `next_offset` is the one to read on from, -1
    after an error. `high_watermark`: of all responses. Both ends of the log are set with OFFSET_OUT_OF_RANGE.
    """

    command_id: Int64
    error: ErrorCode
    batches: tuple[RecordBatch, ...] = ()
    high_watermark: Int64 = 0
    log_start_offset: Int64 = 0
    next_offset: Int64 = NO_OFFSET


class AdminOutcome(Message):
    """`error` and `message` are the first failure of `response`. `response` is None if none came in time
    (REQUEST_TIMED_OUT: the request may have been carried out), or only NOT_CONTROLLER (it was not carried out).
    """

    command_id: Int64
    error: ErrorCode
    message: str
    response: AdminResponse | None = None


class LoadCommand(Command):
    """Keeps `in_flight` batches in flight, round robin over `partitions`, for `duration_ms` after a warm-up."""

    topic: str
    partitions: tuple[Int32, ...]
    acks: Int16
    record_count: Int32
    payload_bytes: Int32
    in_flight: Int32
    warm_up_ms: Int64
    duration_ms: Int64


class LoadOutcome(Message):
    """The batches that were `acknowledged`, `refused` and still `unanswered` after `elapsed_us` microseconds.
    `p50_us` and `p99_us` are latencies from request to response of the acknowledged ones, 0 if there are none.
    """

    command_id: Int64
    acknowledged: Int64
    refused: Int64
    unanswered: Int64
    elapsed_us: Int64
    p50_us: Int64
    p99_us: Int64
    last_error: ErrorCode = ErrorCode.NONE


class ProbeCommand(Command):
    """Sends one record to each partition until a broker acknowledges it: to all of `brokers`, and again `retry_ms`
    after all have refused it. At most `in_flight` partitions at once, in the order given. The first `ahead` partitions
    are probed alone; then one metadata request finds the leaders of the others, each of which is sent the record first.
    """

    topic: str
    partitions: tuple[Int32, ...]
    brokers: tuple[Int32, ...]
    acks: Int16
    payload_bytes: Int32
    in_flight: Int32
    retry_ms: Int64
    ahead: Int32 = 0


class ProbeOutcome(Message):
    """When each partition of the command was first acknowledged, in milliseconds of the generator's clock."""

    command_id: Int64
    acknowledged_ms: tuple[Int64, ...]
