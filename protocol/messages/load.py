"""What an experiment asks of a load generator (`actors/load.py`), and what it reports back.

A load generator measures a cluster; it is no client that an application would use. It neither batches records nor
repeats a batch whose answer is lost.
"""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.base import Int16, Int32, Int64, Message
from protocol.messages.commands import Command


class LoadCommand(Command):
    """Keeps `in_flight` batches of `payload_bytes` under way to the partitions of a topic, in turn, for `duration_ms`
    after a warm-up of `warm_up_ms` that does not count.
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
    """Batches that were acknowledged, and refused, within `elapsed_us`; latencies of the acknowledged ones, from the
    sending of the request to the arrival of its answer, 0 where there are none. `unanswered` are still under way.
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
    """Offers every partition one batch of one record until some broker acknowledges it. Leaders are not looked up:
    each offer goes to all of `brokers`, and again to all `retry_ms` after all have refused it. At most `in_flight`
    partitions are on offer at once, in the order given.
    """

    topic: str
    partitions: tuple[Int32, ...]
    brokers: tuple[Int32, ...]
    acks: Int16
    payload_bytes: Int32
    in_flight: Int32
    retry_ms: Int64


class ProbeOutcome(Message):
    """When the first broker acknowledged, for each partition of the command, in milliseconds of the cluster's time."""

    command_id: Int64
    acknowledged_ms: tuple[Int64, ...]
