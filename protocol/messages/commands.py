"""What the experiment asks of its clients, and what they report back.

The experiment (node `DRIVER`) speaks to client nodes only; a client does what an application with a Kafka client
library would do, retries included, and reports one outcome per command. Outcomes are one of three: acknowledged,
definitely failed, unknown.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Int16, Int32, Int64, Message
from protocol.messages.batch import RecordBatch
from protocol.messages.data import EARLIEST


class Command(Message):
    """Base of commands; `command_id` is repeated in the outcome."""

    command_id: Int64


class ShutdownCommand(Message):
    """Asks a broker or controller to shut down in good order, as SIGTERM does."""


class ProduceCommand(Command):
    """Sends one batch, as it is, and waits for its answer. Errors in `final_errors` end it at once; others that are
    retriable are retried until `delivery.timeout.ms`.
    """

    topic: str
    partition: Int32
    acks: Int16
    record_count: Int32
    payload: bytes
    final_errors: tuple[ErrorCode, ...] = ()


ROUND_ROBIN = -1
"""Partition of records that go to one partition after the other, changing with each batch."""


class SendRecords(Command):
    """Sends `record_count` records of `record_bytes` each (at least 12: `protocol/client/records.py`), numbered from 0,
    which the producer gathers into batches with those of other commands. `partition` is -1 for ROUND_ROBIN.
    """

    topic: str
    partition: Int32
    acks: Int16
    record_count: Int32
    record_bytes: Int32


class ConsumeCommand(Command):
    """Reads a partition from `offset` on (EARLIEST: its log start offset, LATEST: its high watermark) to the high
    watermark that it finds, or until it has `max_bytes`. Where there is nothing to read it waits, at most
    `max_wait_ms`.
    """

    topic: str
    partition: Int32
    offset: Int64 = EARLIEST
    max_bytes: Int64 = 2**63 - 1
    max_wait_ms: Int32 = 0


class AdminCommand(Command):
    """Sends an administration request: one that changes something to the active controller, one that only asks to any
    node (`protocol/client/administration.py`).
    """

    request: AdminRequest


class ProduceOutcome(Message):
    """`error` NONE: acknowledged. `unknown`: the batch may or may not be in the log."""

    command_id: Int64
    error: ErrorCode
    base_offset: Int64
    unknown: bool


class SentRange(Message):
    """What became of `count` records of a SendRecords command from `first` on: all in one batch, at offsets from
    `base_offset` on where they are acknowledged (`error` NONE).
    """

    first: Int32
    count: Int32
    partition: Int32
    error: ErrorCode
    base_offset: Int64 = NO_OFFSET
    unknown: bool = False


class SendOutcome(Message):
    """What became of all records of a command, in their order; `error` is the first there was."""

    command_id: Int64
    error: ErrorCode
    ranges: tuple[SentRange, ...]


class ConsumeOutcome(Message):
    """`batches` follow each other without a gap; the first one holds the offset that was asked for. `next_offset` is
    where to read on, -1 where nothing was found out. `high_watermark` is the highest that a leader told, which a later
    leader may not know yet. With OFFSET_OUT_OF_RANGE, `log_start_offset` and `high_watermark` say what there is.
    """

    command_id: Int64
    error: ErrorCode
    batches: tuple[RecordBatch, ...] = ()
    high_watermark: Int64 = 0
    log_start_offset: Int64 = 0
    next_offset: Int64 = NO_OFFSET


class AdminOutcome(Message):
    """`response` is None where no answer came in time, or none but NOT_CONTROLLER; `error` and `message` are then, as
    always, the first thing that went wrong. NOT_CONTROLLER: nothing was done; REQUEST_TIMED_OUT: it may have been.
    """

    command_id: Int64
    error: ErrorCode
    message: str
    response: AdminResponse | None = None
