"""Commands to a load generator (`actors/load.py`), and the outcomes that it reports.

A load generator measures a cluster; unlike a client, it neither batches records nor retries a batch without a response.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.base import Int16, Int32, Int64, Message
from protocol.messages.commands import Command


class LoadCommand(Command):
    """Keeps `in_flight` batches of `payload_bytes` in flight, round robin over the partitions of a topic, for
    `duration_ms` after an unmeasured warm-up of `warm_up_ms`.
    """

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
    """Sends one batch of one record to every partition until a broker acknowledges it. Leaders are not looked up: each
    batch goes to all of `brokers`, and again `retry_ms` after all have refused it. At most `in_flight` partitions are
    probed at once, in the order given.
    """

    topic: str
    partitions: tuple[Int32, ...]
    brokers: tuple[Int32, ...]
    acks: Int16
    payload_bytes: Int32
    in_flight: Int32
    retry_ms: Int64


class ProbeOutcome(Message):
    """When the first broker acknowledged, for each partition of the command, in milliseconds of the
    generator's clock."""

    command_id: Int64
    acknowledged_ms: tuple[Int64, ...]
