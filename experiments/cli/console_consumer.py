"""`isray console-consumer`: kafka-console-consumer.sh. Prints the committed records of a topic, one per line.

It begins behind the last record, or with `--from-beginning` or `--offset` elsewhere, and goes on until `--max-messages`
records, until no record has come for `--timeout-ms`, or until Ctrl-C. Order holds within a partition. Bytes other than
UTF-8 are printed as hexadecimal escapes. At the end it says on standard error how many records it has printed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from experiments.cli.console_producer import partitions_of
from experiments.cli.output import option, print_json
from experiments.cli.target import Target, administering, with_target
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
_NAMED = {"earliest": EARLIEST, "latest": LATEST}


@with_target(principal=None, command_config=None)
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
        positions = dict.fromkeys(partitions_of(admin, topic, partition), first)
        for record in _records(admin, topic, positions, max_messages, timeout_ms):
            printed.append(record if target.as_json else {})
            if not target.as_json:
                typer.echo("\t".join([*(_shown(record, name) for name in properties), str(record["value"])]))
    typer.echo(f"Processed a total of {len(printed)} messages", err=True)
    if target.as_json:
        print_json(printed)


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


def _records(
    admin: AdminClient, topic: str, positions: dict[int, Offset], max_messages: int | None, timeout_ms: int | None
) -> Iterator[dict[str, object]]:
    """The records from these positions on, until there are `max_messages`, or none has come for `timeout_ms`."""
    count, last_s = 0, time.monotonic()
    wait_ms = max(1, min(WAIT_MS, timeout_ms or WAIT_MS) // len(positions))
    while timeout_ms is None or (time.monotonic() - last_s) * 1000 < timeout_ms:
        for partition, position in positions.items():
            command = ConsumeCommand(
                command_id=0,
                topic=topic,
                partition=partition,
                offset=position,
                max_bytes=READ_BYTES,
                max_wait_ms=wait_ms,
            )
            outcome = admin.consume(command)
            if outcome.error is not ErrorCode.NONE:
                raise AdminError(outcome.error, f"{topic}-{partition}")
            positions[partition] = outcome.next_offset
            for record in _of_outcome(outcome, partition, position):
                yield record
                count, last_s = count + 1, time.monotonic()
                if count == max_messages:
                    return


def _of_outcome(outcome: ConsumeOutcome, partition: int, position: Offset) -> Iterator[dict[str, object]]:
    """The records of an outcome, without those of its first batch that are below the position."""
    for batch in outcome.batches:
        for offset, value in enumerate(split(batch.payload), batch.base_offset):
            if offset >= position:
                text = value.decode(errors="backslashreplace")
                yield {"partition": partition, "offset": offset, "createtime": batch.timestamp_ms, "value": text}
