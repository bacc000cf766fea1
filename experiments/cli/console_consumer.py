"""`isray console-consumer`: kafka-console-consumer.sh. Prints the committed records of a topic, one per line.

It begins behind the last record, or with `--from-beginning` or `--offset` elsewhere, and goes on until `--max-messages`
records, until no record has come for `--timeout-ms`, or until Ctrl-C. Order holds within a partition. Bytes other than
UTF-8 are printed as hexadecimal escapes. At the end it says on standard error how many records it has printed.

A partition without a leader is a warning on standard error. As Kafka's consumer does, the command waits for a leader,
and reads the other partitions meanwhile. One without a leader when `--timeout-ms` ends the command is exit code 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from experiments.cli.administer import administering
from experiments.cli.console_producer import partitions_of
from experiments.cli.output import fail_if, option, print_json
from experiments.cli.target import Target, addresses
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.support.errors import InputError, MissingInput
from protocol.client.records import split
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.ids import Offset
from protocol.messages.commands import ConsumeCommand, ConsumeOutcome
from protocol.messages.data import EARLIEST, LATEST

FAILING = "Error processing message, terminating consumer process"
READ_BYTES = 1_048_576
WAIT_MS = 500
"""How long one round over the partitions waits for records."""
PROPERTIES = ("print.partition", "print.offset", "print.timestamp")
LEADERLESS = ErrorCode.LEADER_NOT_AVAILABLE
_NAMED = {"earliest": EARLIEST, "latest": LATEST}


@addresses("bootstrap_server", "name", "as_json")
def console_consumer(
    target: Target,
    topic: Annotated[str, option("TOPIC", "The topic to read.")],
    partition: Annotated[
        int | None, option("N", "The partition. Default: all of the topic.", min=0, max=INT_MAX)
    ] = None,
    offset: Annotated[
        str | None, option("OFFSET", "Where to begin: earliest, latest or a number; with --partition.")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the first record.")] = False,
    max_messages: Annotated[int | None, option("N", "End after this many records.", min=1, max=INT_MAX)] = None,
    timeout_ms: Annotated[
        int | None, option("MS", "End when no record has come for this long.", min=1, max=INT_MAX)
    ] = None,
    shown: Annotated[
        list[str] | None, option("NAME=true", f"{', '.join(PROPERTIES)}; may be repeated.", "--property")
    ] = None,
) -> None:
    """Print the records of a topic of a running cluster."""
    first = _first(offset, partition, from_beginning)
    properties = [_property(text) for text in shown or ()]
    if target.as_json and max_messages is None and timeout_ms is None:
        raise MissingInput("--max-messages", "--max-messages or --timeout-ms with --json")
    printed: list[dict[str, object]] = []
    with administering(target, FAILING) as admin:
        reader = _Reader(admin, topic, dict.fromkeys(partitions_of(admin, topic, partition), first), timeout_ms)
        for record in islice(reader.records(), max_messages):
            printed.append(record if target.as_json else {})
            if not target.as_json:
                typer.echo("\t".join([*(_shown(record, name) for name in properties), str(record["value"])]))
    typer.echo(f"Processed a total of {len(printed)} messages", err=True)
    if target.as_json:
        print_json(printed)
    if len(printed) != max_messages:
        fail_if(reader.leaderless)


def _first(offset: str | None, partition: int | None, from_beginning: bool) -> Offset:
    """The offset to begin at."""
    if offset is None:
        return EARLIEST if from_beginning else LATEST
    if from_beginning or partition is None:
        found = f"{offset} {'with --from-beginning' if from_beginning else 'without --partition'}"
        raise InputError("--offset", "", found, "an offset with --partition, and without --from-beginning")
    if offset in _NAMED:
        return _NAMED[offset]
    if not offset.isdecimal():
        raise InputError("--offset", "", offset, "earliest, latest or a number from 0")
    return int(offset)


def _property(text: str) -> str:
    name, _, value = text.partition("=")
    if name not in PROPERTIES or value != "true":
        raise InputError("--property", "", text, " | ".join(f"{name}=true" for name in PROPERTIES))
    return name


def _shown(record: dict[str, object], name: str) -> str:
    """A property of a record as Kafka's tool prints it."""
    title = {"print.partition": "Partition", "print.offset": "Offset", "print.timestamp": "CreateTime"}[name]
    return f"{title}:{record[title.lower()]}"


class _Reader:
    """Reads partitions of a topic from their `positions` on; `leaderless` are those that had no leader when they were
    read last.
    """

    def __init__(self, admin: AdminClient, topic: str, positions: dict[int, Offset], timeout_ms: int | None) -> None:
        self._admin, self._topic, self._positions, self._timeout_ms = admin, topic, positions, timeout_ms
        self._wait_ms = max(1, min(WAIT_MS, timeout_ms or WAIT_MS) // len(positions))
        self.leaderless: set[int] = set()

    def records(self) -> Iterator[dict[str, object]]:
        """The records, until none has come for `timeout_ms`. AdminError where a partition cannot be read."""
        last_s = time.monotonic()
        while self._timeout_ms is None or (time.monotonic() - last_s) * 1000 < self._timeout_ms:
            for partition in self._positions:
                for record in self._next(partition):
                    yield record
                    last_s = time.monotonic()

    def _next(self, partition: int) -> Iterator[dict[str, object]]:
        """The next records of a partition; it waits for some."""
        position, name = self._positions[partition], f"{self._topic}-{partition}"
        command = ConsumeCommand(
            command_id=0,
            topic=self._topic,
            partition=partition,
            offset=position,
            max_bytes=READ_BYTES,
            max_wait_ms=self._wait_ms,
            final_errors=(LEADERLESS,),
        )
        outcome = self._admin.consume(command)
        if outcome.error is LEADERLESS:
            if partition not in self.leaderless:
                self.leaderless.add(partition)
                typer.echo(f"{name}: {LEADERLESS.name}; waiting for a leader", err=True)
            time.sleep(self._wait_ms / 1000)
            return
        if outcome.error is not ErrorCode.NONE:
            raise AdminError(outcome.error, name)
        self.leaderless.discard(partition)
        self._positions[partition] = outcome.next_offset
        yield from _of_outcome(outcome, partition, position)


def _of_outcome(outcome: ConsumeOutcome, partition: int, position: Offset) -> Iterator[dict[str, object]]:
    """The records of an outcome, without those of its first batch that are below the position."""
    for batch in outcome.batches:
        for offset, value in enumerate(split(batch.payload), batch.base_offset):
            if offset >= position:
                text = value.decode(errors="backslashreplace")
                yield {"partition": partition, "offset": offset, "createtime": batch.timestamp_ms, "value": text}
