"""`isray produce`: kafka-producer-perf-test.sh without its measurements. It writes records that the client generates.

The client is an idempotent producer: it batches records, and repeats what fails with a retriable error until
`delivery.timeout.ms`. A record that is not acknowledged is exit code 1: the first error, and how many records are known
not to be written. The others may have been written (their outcome is unknown).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from experiments.cli.administer import administering
from experiments.cli.output import fail_if, option, print_result
from experiments.cli.target import Target, addresses
from experiments.explorer.values import message_fields
from protocol.client.records import MIN_RECORD_BYTES
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.messages.commands import ROUND_ROBIN, SendOutcome, SendRecords

FAILING = "Error while producing"
MAX_RECORDS = 1_000_000
MAX_RECORD_BYTES = 1_000_000


class Acks(StrEnum):
    """How many copies the producer waits for."""

    ALL = "all"
    ONE = "1"
    NONE = "0"

    @property
    def wire(self) -> int:
        """The value in a request: -1 is all."""
        return -1 if self is Acks.ALL else int(self.value)


@addresses("bootstrap_server", "name", "as_json")
def produce(
    target: Target,
    topic: Annotated[str, option("TOPIC", "The topic to write to.")],
    num_records: Annotated[int, option("N", "How many records.", min=1, max=MAX_RECORDS)] = 1,
    record_size: Annotated[
        int, option("BYTES", "Bytes of a record.", min=MIN_RECORD_BYTES, max=MAX_RECORD_BYTES)
    ] = 100,
    partition: Annotated[
        int | None, option("N", "The partition. Default: batches go round the partitions.", min=0, max=INT_MAX)
    ] = None,
    acks: Annotated[Acks, option(None, "The copies to wait for.")] = Acks.ALL,
) -> None:
    """Write records to a topic of a running cluster, and wait until they are acknowledged."""
    records = SendRecords(
        command_id=0,
        topic=topic,
        partition=ROUND_ROBIN if partition is None else partition,
        acks=acks.wire,
        record_count=num_records,
        record_bytes=record_size,
    )
    with administering(target, FAILING) as admin:
        outcome = admin.send_records(records)
    print_result(target.as_json, message_fields(outcome), typer.echo, summary(outcome))
    fail_if(outcome.error is not ErrorCode.NONE)


def summary(outcome: SendOutcome) -> str:
    """The outcome of all records as one line."""
    counts = {"acknowledged": 0, "failed": 0, "unknown": 0}
    for sent in outcome.ranges:
        kind = "unknown" if sent.unknown else "acknowledged" if sent.error is ErrorCode.NONE else "failed"
        counts[kind] += sent.count
    reason = "" if outcome.error is ErrorCode.NONE else f" ({outcome.error.name})"
    shown = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind == "acknowledged")
    return f"records: {shown}{reason}"
