"""`isray console-producer`: kafka-console-producer.sh. Writes the lines of standard input, each as one record.

On a terminal every line is a batch of its own. Otherwise a batch begins with a line and takes the lines that come while
it lingers, as the batches of Kafka's producer do: it is sent `--timeout` milliseconds after its first line, or as soon
as it is full or the input ends. Kafka's tool lingers 1,000 ms by default; this one sends sooner. One batch is under way
at a time, and the next one grows meanwhile. The batches go round the partitions of the topic unless `--partition` is
given. The records have no keys. A batch that is not acknowledged is one line on standard error; the command goes on
with the next lines, and ends with exit code 1. If the cluster is lost, it ends at once, and still prints its counts.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from select import select
from typing import Annotated

import typer

from experiments.cli.administer import administering, require
from experiments.cli.output import fail_if, option, print_result
from experiments.cli.produce import Acks
from experiments.cli.target import Target, addresses
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError
from protocol.client.records import join
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.messages.commands import ProduceCommand

FAILING = "Error while producing"
BATCH_LINES = 200
BATCH_BYTES = 16_384
"""The size from which on a batch is full; a longer line is a batch of its own."""
LINGER_MS = 100
_IDLE_S = 1.0


@addresses("bootstrap_server", "name", "as_json")
def console_producer(
    target: Target,
    topic: Annotated[str, option("TOPIC", "The topic to write to.")],
    partition: Annotated[
        int | None, option("N", "The partition. Default: batches go round the partitions.", min=0, max=INT_MAX)
    ] = None,
    acks: Annotated[Acks, option(None, "The copies to wait for.", "--request-required-acks", "--acks")] = Acks.ALL,
    timeout: Annotated[
        int, option("MS", "How long a batch waits for more lines, unless it is full.", min=0, max=INT_MAX)
    ] = LINGER_MS,
) -> None:
    """Write the lines of standard input to a topic of a running cluster."""
    counts = Counter({"acknowledged": 0, "failed": 0, "unknown": 0})
    with administering(target, FAILING) as admin:
        partitions = cycle(partitions_of(admin, topic, partition))
        is_lost = False
        try:
            for lines in _batches(timeout, admin.require_reachable):
                _write(admin, topic, next(partitions), acks, lines, counts)
        except AdminError as error:
            is_lost = True
            typer.echo(f"{FAILING}: {error}", err=True)
        print_result(target.as_json, counts, lambda: None)
    fail_if(is_lost or counts["failed"] or counts["unknown"])


def _write(
    admin: AdminClient, topic: str, partition: int, acks: Acks, lines: Sequence[bytes], counts: Counter[str]
) -> None:
    """Writes lines as one batch and counts them by outcome, as `unknown` also where AdminError is raised."""
    command = ProduceCommand(
        command_id=0, topic=topic, partition=partition, acks=acks.wire, record_count=len(lines), payload=join(lines)
    )
    counts["unknown"] += len(lines)
    outcome = admin.produce(command)
    is_done = outcome.error is ErrorCode.NONE
    counts["unknown"] -= len(lines)
    counts["unknown" if outcome.unknown else "acknowledged" if is_done else "failed"] += len(lines)
    if not is_done:
        typer.echo(f"{FAILING}: {len(lines)} records to {topic}-{partition}: {outcome.error.name}", err=True)


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


def _batches(linger_ms: int, while_idle: Callable[[], None]) -> Iterator[list[bytes]]:
    """The lines of standard input in batches; on a terminal one by one, each at a prompt."""
    is_terminal, lines = sys.stdin.isatty(), InputLines(sys.stdin.fileno(), while_idle)
    while True:
        if is_terminal:
            typer.echo(">", nl=False)
        batch = lines.take(1, 0) if is_terminal else lines.take(BATCH_LINES, linger_ms)
        if not batch:
            return
        yield batch


class InputLines:
    """The lines that come from an open file, a pipe or a terminal, without their ends; the last one may have none.
    While no line comes, `while_idle` is called about once a second.
    """

    def __init__(self, descriptor: int, while_idle: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._while_idle = while_idle
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._begun = b""
        self._has_ended = False

    def take(self, most: int, linger_ms: int) -> list[bytes]:
        """Waits for a line, then for up to `linger_ms` for more lines; returns at most `most` of them, of `BATCH_BYTES`
        together unless the first one is longer. Empty at the end of the input.
        """
        while not (self._lines or self._has_ended):
            if not self._read(_IDLE_S):
                self._while_idle()
        deadline_s = time.monotonic() + linger_ms / 1000
        while len(self._lines) < most and self._waiting_bytes < BATCH_BYTES and not self._has_ended:
            if not self._read(max(0.0, deadline_s - time.monotonic())):
                break
        batch: list[bytes] = []
        size = 0
        while self._lines and len(batch) < most and (not batch or size + len(self._lines[0]) <= BATCH_BYTES):
            batch.append(self._lines.popleft())
            size += len(batch[-1])
        self._waiting_bytes -= size
        return batch

    def _read(self, wait_s: float) -> bool:
        """Reads what has come, waiting up to `wait_s` for it; returns whether anything has."""
        if not select([self._descriptor], [], [], wait_s)[0]:
            return False
        chunk = os.read(self._descriptor, BATCH_BYTES)
        self._has_ended = not chunk
        *whole, self._begun = (self._begun + chunk).split(b"\n")
        if self._has_ended and self._begun:
            whole, self._begun = [self._begun], b""
        lines = [line.rstrip(b"\r") for line in whole]
        self._lines += lines
        self._waiting_bytes += sum(map(len, lines))
        return True
