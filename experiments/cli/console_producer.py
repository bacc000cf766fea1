"""`isray console-producer`: kafka-console-producer.sh. Writes the lines of standard input, each as one record.

On a terminal every line is a batch of its own; otherwise up to `BATCH_LINES` lines are. The batches go round the
partitions of the topic unless `--partition` is given. The records have no keys. A batch that is not acknowledged is one
line on standard error; the command goes on with the next lines, and ends with exit code 1. If the cluster is lost, it
ends at once, and still prints its counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Annotated

import typer

from experiments.cli.output import fail_if, option, print_result
from experiments.cli.produce import Acks
from experiments.cli.target import Target, administering, require, with_target
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.client.records import join
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.messages.commands import ProduceCommand

FAILING = "Error while producing"
BATCH_LINES = 200


@with_target(principal=None, command_config=None)
def console_producer(
    target: Target,
    topic: Annotated[str, option("TOPIC", "The topic to write to.")],
    partition: Annotated[
        int | None, option("N", "The partition. Default: batches go round the partitions.", min=0, max=INT_MAX)
    ] = None,
    acks: Annotated[Acks, option(None, "The copies to wait for.", "--request-required-acks", "--acks")] = Acks.ALL,
) -> None:
    """Write the lines of standard input to a topic of a running cluster."""
    counts = {"acknowledged": 0, "failed": 0, "unknown": 0}
    with administering(target, FAILING) as admin:
        partitions = cycle(partitions_of(admin, topic, partition))
        for lines in _batches():
            command = ProduceCommand(
                command_id=0,
                topic=topic,
                partition=next(partitions),
                acks=acks.wire,
                record_count=len(lines),
                payload=join(lines),
            )
            try:
                outcome = admin.produce(command)
            except AdminError as error:
                counts["unknown"] += len(lines)
                typer.echo(f"{FAILING}: {error}", err=True)
                break
            is_done = outcome.error is ErrorCode.NONE
            counts["unknown" if outcome.unknown else "acknowledged" if is_done else "failed"] += len(lines)
            if not is_done:
                text = f"{len(lines)} records to {topic}-{command.partition}: {outcome.error.name}"
                typer.echo(f"{FAILING}: {text}", err=True)
        print_result(target.as_json, counts, lambda: None)
    fail_if(counts["failed"] or counts["unknown"])


def partitions_of(admin: AdminClient, topic: str, partition: int | None) -> list[int]:
    """The partitions that a command addresses: the given one, or all. AdminError where the topic does not exist,
    InputError where it has no such partition.
    """
    [described] = admin.describe_topics([topic])
    require(described)
    known = [item.partition_index for item in described.partitions]
    if partition is not None and partition not in known:
        raise InputError("--partition", "", partition, f"{known[0]} to {known[-1]}")
    return known if partition is None else [partition]


def _batches() -> Iterator[list[bytes]]:
    """The lines of standard input without their ends, in batches."""
    is_terminal = sys.stdin.isatty()
    lines = _prompted() if is_terminal else iter(sys.stdin.buffer)
    while batch := [line.rstrip(b"\r\n") for line in islice(lines, 1 if is_terminal else BATCH_LINES)]:
        yield batch


def _prompted() -> Iterator[bytes]:
    """The lines that a user types at a prompt, until the end of input."""
    while True:
        typer.echo(">", nl=False)
        line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line
