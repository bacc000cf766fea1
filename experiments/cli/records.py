"""Records of a running cluster: written and read as by Kafka's tools.

`isray produce`: kafka-producer-perf-test.sh. With `--throughput` the records go out at that rate, for `--duration` or
until `--num-records` have, and what a user of the cluster would notice is measured (`bench/producer_load.py`): a line
each second on a terminal, and a summary. Without it all records are sent at once, and nothing is measured. The client,
an idempotent producer, generates the records and batches them, and repeats what fails with a retriable error until
`delivery.timeout.ms`. A record that is not acknowledged is exit code 1; a failed record is not written, an unknown one
may be.

`isray console-producer`: kafka-console-producer.sh. On a terminal every line is a batch of its own. Otherwise a batch
is sent `--timeout` milliseconds (Kafka: 1,000 ms by default) after its first line, or as soon as it is full or the
input ends. One batch is under way at a time, and the next one grows meanwhile. The batches go round the partitions of
the topic unless `--partition` is given. The records have no keys. A batch that is not acknowledged is one line on
standard error; the command goes on with the next lines, and ends with exit code 1. If the cluster is lost, it ends at
once, and still prints its counts.

`isray console-consumer`: kafka-console-consumer.sh. It goes on until `--max-messages` records, until no record has come
for `--timeout-ms`, or until Ctrl-C. Order holds within a partition. Bytes other than UTF-8 are printed as hexadecimal
escapes. As Kafka's consumer does, it waits for a leader where a partition has none, with a warning, and reads the other
partitions meanwhile. One without a leader when `--timeout-ms` ends the command is exit code 1.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import cycle, islice
from select import select
from typing import Annotated

import typer

from experiments.cli.cluster_access import (
    BootstrapServer,
    ConsumerConfig,
    ProducerConfig,
    Target,
    administering,
    on_cluster,
    require,
)
from experiments.cli.game_day import running_partitions
from experiments.cli.output import fail, fail_if, option, print_json, print_result
from experiments.engines.admin_client import AdminClient, AdminError
from experiments.explorer.values import message_fields
from experiments.support.durations import parse_duration_ms
from experiments.support.errors import InputError, MissingInput
from protocol.client.records import MIN_RECORD_BYTES, join, values_of
from protocol.config import INT_MAX
from protocol.errors import ErrorCode
from protocol.ids import Offset, TopicPartition
from protocol.messages.commands import ROUND_ROBIN, ConsumeCommand, ProduceCommand, SendOutcome, SendRecords
from protocol.messages.data import EARLIEST, LATEST

PRODUCING = "Error while producing"
MAX_RECORDS = 1_000_000
MAX_RECORD_BYTES = 1_000_000
Partition = Annotated[
    int | None, option("N", "The partition. Default: batches go round the partitions.", min=0, max=INT_MAX)
]


Throughput = Annotated[
    int, option("R", "Records per second, measured; -1: all at once, without measurements.", min=-1, max=1_000_000)
]
Length = Annotated[str | None, option("TIME", "With --throughput: how long, such as 30s or 5m.")]


class Acks(StrEnum):
    """How many copies the producer waits for; `-1` is `all`, too."""

    ALL = "all"
    ONE = "1"
    NONE = "0"
    EVERY = "-1"

    @property
    def wire(self) -> int:
        return -1 if self is Acks.ALL else int(self.value)


@on_cluster(server=BootstrapServer, config=ProducerConfig)
def produce(
    target: Target,
    topic: Annotated[str, option("TOPIC", "The topic to write to.")],
    num_records: Annotated[int | None, option("N", "How many records; 1 if not given.", min=1, max=MAX_RECORDS)] = None,
    record_size: Annotated[
        int, option("BYTES", "Bytes of a record.", min=MIN_RECORD_BYTES, max=MAX_RECORD_BYTES)
    ] = 100,
    partition: Partition = None,
    acks: Annotated[Acks, option(None, "The copies to wait for.")] = Acks.ALL,
    throughput: Throughput = -1,
    duration: Length = None,
) -> None:
    """Write records to a topic of a running cluster, and wait until they are acknowledged."""
    records = SendRecords(
        command_id=0,
        topic=topic,
        partition=ROUND_ROBIN if partition is None else partition,
        acks=acks.wire,
        record_count=num_records or 1,
        record_bytes=record_size,
    )
    if throughput != -1 or duration is not None:
        _produce_measured(target, records, throughput, duration, num_records)
        return
    with administering(target, PRODUCING) as admin:
        outcome = admin.channel.send(admin.on_behalf(records))
    print_result(target.as_json, message_fields(outcome), typer.echo, summary(outcome))
    fail_if(outcome.error is not ErrorCode.NONE)


def _produce_measured(
    target: Target, records: SendRecords, throughput: int, duration: str | None, num_records: int | None
) -> None:
    """Sends records at a rate, and prints what was measured; exit code 1 where not all are acknowledged."""
    if throughput < 1:
        raise InputError("--throughput", "", throughput, "records per second, at least 1, with --duration")
    if duration is None and num_records is None:
        raise MissingInput("--duration", "a time such as 30s, or --num-records")
    try:
        duration_ms = None if duration is None else parse_duration_ms(duration)
    except ValueError as error:
        raise InputError("--duration", "", duration, "a time such as 30s, 5m or 1h") from error
    from experiments.engines.ray.connection import state_of
    from experiments.engines.ray.session import stay_on_loopback

    state = state_of(target.name, target.bootstrap)
    if state.options.trace is not None:
        typer.echo(f"isray: --throughput: {state.options.trace} records nothing of these records", err=True)
    stay_on_loopback()
    from experiments.bench.producer_load import LoadOptions, produce_load, words
    from experiments.engines.ray.attached import ActionRefusedError, attached

    def show(line: str) -> None:
        if sys.stderr.isatty():
            typer.echo(line, err=True)

    try:
        with attached(state) as engine:
            places = places_of(running_partitions(engine), records.topic, records.partition)
            options = LoadOptions(places, records.acks, records.record_bytes, throughput, duration_ms, num_records)
            if target.principal is not None:
                options = replace(options, principal=target.principal)
            found = produce_load(engine, options, show)
    except ActionRefusedError as error:
        fail(f"{PRODUCING}: {error}", {"error": str(error)} if target.as_json else None)
    print_result(target.as_json, found, typer.echo, words(found))
    fail_if(found["failed"] or (found["unknown"] and records.acks))


def places_of(known: Sequence[TopicPartition], topic: str, partition: int) -> list[TopicPartition]:
    """The partitions of a topic among those that exist, or the one of this number. InputError where there is none."""
    of_topic = [place for place in known if place.topic == topic]
    if not of_topic:
        topics = ", ".join(sorted({place.topic for place in known})) or "none exists"
        raise InputError("--topic", "", topic, f"a topic of the cluster: {topics}")
    found = [place for place in of_topic if partition in (ROUND_ROBIN, place.partition)]
    if not found:
        raise InputError("--partition", "", partition, f"0 to {of_topic[-1].partition}")
    return found


def summary(outcome: SendOutcome) -> str:
    counts = {"acknowledged": 0, "failed": 0, "unknown": 0}
    for sent in outcome.ranges:
        counts[_kind_of(sent.error, sent.unknown)] += sent.count
    reason = "" if outcome.error is ErrorCode.NONE else f" ({outcome.error.name})"
    shown = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind == "acknowledged")
    return f"records: {shown}{reason}"


def _kind_of(error: ErrorCode, unknown: bool) -> str:
    return "unknown" if unknown else "acknowledged" if error is ErrorCode.NONE else "failed"


BATCH_LINES = 200
BATCH_BYTES = 16_384
"""The size from which on a batch is full; a longer line is a batch of its own."""
LINGER_MS = 100
_IDLE_S = 1.0


@on_cluster(server=BootstrapServer, config=ProducerConfig)
def console_producer(
    target: Target,
    topic: Annotated[str, option("TOPIC", "The topic to write to.")],
    partition: Partition = None,
    acks: Annotated[Acks, option(None, "The copies to wait for.", "--request-required-acks", "--acks")] = Acks.ALL,
    timeout: Annotated[
        int, option("MS", "How long a batch waits for more lines, unless it is full.", min=0, max=INT_MAX)
    ] = LINGER_MS,
    batch_size: Annotated[
        int, option("BYTES", "From which size on a batch is full.", min=1, max=INT_MAX)
    ] = BATCH_BYTES,
) -> None:
    """Write the lines of standard input to a topic of a running cluster."""
    counts = Counter({"acknowledged": 0, "failed": 0, "unknown": 0})
    with administering(target, PRODUCING) as admin:
        partitions = cycle(partitions_of(admin, topic, partition))
        is_lost = False
        try:
            for lines in _batches(timeout, batch_size, admin.channel.require_reachable):
                _write(admin, topic, next(partitions), acks, lines, counts)
        except AdminError as error:
            is_lost = True
            typer.echo(f"{PRODUCING}: {error}", err=True)
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
    outcome = admin.channel.produce(admin.on_behalf(command))
    counts["unknown"] -= len(lines)
    counts[_kind_of(outcome.error, outcome.unknown)] += len(lines)
    if outcome.error is not ErrorCode.NONE:
        typer.echo(f"{PRODUCING}: {len(lines)} records to {topic}-{partition}: {outcome.error.name}", err=True)


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


def _batches(linger_ms: int, batch_bytes: int, while_idle: Callable[[], None]) -> Iterator[list[bytes]]:
    """The lines of standard input in batches; on a terminal one by one, each at a prompt."""
    is_terminal, lines = sys.stdin.isatty(), InputLines(sys.stdin.fileno(), while_idle, batch_bytes)
    while True:
        if is_terminal:
            typer.echo(">", nl=False)
        batch = lines.take(1, 0) if is_terminal else lines.take(BATCH_LINES, linger_ms)
        if not batch:
            return
        yield batch


class InputLines:
    """The lines that come from an open file, a pipe or a terminal, without their ends; the last one may have none.
    While no line comes, `while_idle` is called about once a second. Lines of `batch_bytes` fill a batch.
    """

    def __init__(self, descriptor: int, while_idle: Callable[[], None], batch_bytes: int = BATCH_BYTES) -> None:
        self._descriptor, self._while_idle, self._batch_bytes = descriptor, while_idle, batch_bytes
        self._lines: deque[bytes] = deque()
        self._waiting_bytes, self._begun, self._has_ended = 0, b"", False

    def take(self, most: int, linger_ms: int) -> list[bytes]:
        """Waits for a line, then for up to `linger_ms` for more lines; returns at most `most` of them, of `batch_bytes`
        together unless the first one is longer. Empty at the end of the input.
        """
        while not (self._lines or self._has_ended):
            if not self._read(_IDLE_S):
                self._while_idle()
        deadline_s = time.monotonic() + linger_ms / 1000
        while len(self._lines) < most and self._waiting_bytes < self._batch_bytes and not self._has_ended:
            if not self._read(max(0.0, deadline_s - time.monotonic())):
                break
        batch: list[bytes] = []
        size = 0
        while self._lines and len(batch) < most and (not batch or size + len(self._lines[0]) <= self._batch_bytes):
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


CONSUMING = "Error processing message, terminating consumer process"
WAIT_MS = 500
"""How long one round over the partitions waits for records."""
PROPERTIES = {"print.partition": "Partition", "print.offset": "Offset", "print.timestamp": "CreateTime"}
"""What `--property` prints before each record, with the title that Kafka's tool prints."""
LEADERLESS = ErrorCode.LEADER_NOT_AVAILABLE
_NAMED = {"earliest": EARLIEST, "latest": LATEST}


@on_cluster(server=BootstrapServer, config=ConsumerConfig)
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
        list[str] | None,
        option("NAME=true", f"{', '.join(PROPERTIES)}; may be repeated.", "--property", "--formatter-property"),
    ] = None,
) -> None:
    """Print the records of a topic of a running cluster."""
    first = _first(offset, partition, from_beginning)
    titles = [title for text in shown or () if (title := _title(text))]
    if target.as_json and max_messages is None and timeout_ms is None:
        raise MissingInput("--max-messages", "--max-messages or --timeout-ms with --json")
    printed: list[dict[str, object]] = []
    with administering(target, CONSUMING) as admin:
        reader = _Reader(admin, topic, dict.fromkeys(partitions_of(admin, topic, partition), first), timeout_ms)
        for record in islice(reader.records(), max_messages):
            printed.append(record if target.as_json else {})
            if not target.as_json:
                named = (f"{title}:{record[title.lower()]}" for title in titles)
                typer.echo("\t".join([*named, str(record["value"])]))
    typer.echo(f"Processed a total of {len(printed)} messages", err=True)
    if target.as_json:
        print_json(printed)
    if len(printed) != max_messages:
        fail_if(reader.leaderless)


def _first(offset: str | None, partition: int | None, from_beginning: bool) -> Offset:
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


def _title(text: str) -> str:
    """The title of what a property prints; empty where it prints nothing, or the value, which is printed always."""
    name, _, value = text.partition("=")
    if text == "print.value=true" or (name in PROPERTIES and value == "false"):
        return ""
    if name not in PROPERTIES or value != "true":
        allowed = " | ".join(f"{name}=true" for name in PROPERTIES)
        raise InputError("--property", "", f"{text}, not modelled: keys, headers, forms of values", allowed)
    return PROPERTIES[name]


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
            max_bytes=1_048_576,
            max_wait_ms=self._wait_ms,
            final_errors=(LEADERLESS,),
        )
        outcome = self._admin.channel.consume(self._admin.on_behalf(command))
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
        for batch in outcome.batches:
            for offset, value in enumerate(values_of(batch), batch.base_offset):
                if offset >= position:  # the first batch may begin below the position
                    text = value.decode(errors="backslashreplace")
                    yield {"partition": partition, "offset": offset, "createtime": batch.timestamp_ms, "value": text}
