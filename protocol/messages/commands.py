"""What the experiment asks of its clients, and what they report back.

The experiment (node `DRIVER`) speaks to client nodes only; a client does what an application with a Kafka client
library would do, retries included, and reports one outcome per command. Outcomes are one of three: acknowledged,
definitely failed, unknown.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Int16, Int32, Int64, Message
from protocol.messages.batch import RecordBatch


class Command(Message):
    """Base of commands; `command_id` is repeated in the outcome."""

    command_id: Int64


class ShutdownCommand(Message):
    """Asks a broker or controller to shut down in good order, as SIGTERM does."""


class ProduceCommand(Command):
    """Sends one batch and waits for its answer. Errors in `final_errors` end it at once; others that are retriable
    are retried until `delivery.timeout.ms`.
    """

    topic: str
    partition: Int32
    acks: Int16
    record_count: Int32
    payload: bytes
    final_errors: tuple[ErrorCode, ...] = ()


class ConsumeCommand(Command):
    """Reads a partition from offset 0 to the high watermark that it finds."""

    topic: str
    partition: Int32


class AdminCommand(Command):
    """Sends an administration request: one that changes something to the active controller, once; one that only asks
    to any node, until one answers.
    """

    request: AdminRequest


class ProduceOutcome(Message):
    """`error` NONE: acknowledged. `unknown`: the batch may or may not be in the log."""

    command_id: Int64
    error: ErrorCode
    base_offset: Int64
    unknown: bool


class ConsumeOutcome(Message):
    command_id: Int64
    error: ErrorCode
    batches: tuple[RecordBatch, ...] = ()
    high_watermark: Int64 = 0


class AdminOutcome(Message):
    """`response` is None where no answer came in time; `error` and `message` are then, as always, the first thing that
    went wrong.
    """

    command_id: Int64
    error: ErrorCode
    message: str
    response: AdminResponse | None = None
