"""What the experiment asks of its clients, and what they report back.

The experiment (node `DRIVER`) speaks to client nodes only; a client does what an application with a Kafka client
library would do, retries included, and reports one outcome per command. Outcomes are one of three: acknowledged,
definitely failed, unknown.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.admin import AdminRequest
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch


class Command(Message):
    """Base of commands; `command_id` is repeated in the outcome."""

    command_id: int


class ShutdownCommand(Message):
    """Asks a broker or controller to shut down in good order, as SIGTERM does."""


class ProduceCommand(Command):
    """Sends one batch and waits for its answer. Errors in `final_errors` end it at once; others that are retriable
    are retried until `delivery.timeout.ms`.
    """

    topic: str
    partition: int
    acks: int
    record_count: int
    payload: bytes
    final_errors: tuple[ErrorCode, ...] = ()


class ConsumeCommand(Command):
    """Reads a partition from offset 0 to the high watermark that it finds."""

    topic: str
    partition: int


class AdminCommand(Command):
    """Sends an administration request to the active controller."""

    request: AdminRequest


class ProduceOutcome(Message):
    """`error` NONE: acknowledged. `unknown`: the batch may or may not be in the log."""

    command_id: int
    error: ErrorCode
    base_offset: int
    unknown: bool


class ConsumeOutcome(Message):
    command_id: int
    error: ErrorCode
    batches: tuple[RecordBatch, ...] = ()
    high_watermark: int = 0


class AdminOutcome(Message):
    command_id: int
    error: ErrorCode
    message: str
