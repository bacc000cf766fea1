"""A producer that writes at a given rate for a given time to a running cluster, and what its users would notice of a
failure: rate, latencies, the longest gap between acknowledgements, records that failed or whose fate is unknown.

The producer is a client of the command's own, idempotent, which repeats batches as any client does. Every `TICK_MS` it
is given the records that are due as one batch, to the partitions in turn; so that after a stall the rate is made up
for, by one second's records at a time. A record's latency is the time from when it is given to the client until the
client has its acknowledgement; both are read on one machine, in whole milliseconds. A percentile is the smallest
latency that this share of the acknowledged records does not exceed (nearest rank). A gap is a time between two
acknowledgements that follow each other, or between one and the beginning or the end of the sending: a cluster that
acknowledges nothing has one gap, as long as the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import ceil

from experiments.check.client_history import result_of
from experiments.engines.port import TraceEvent
from experiments.engines.ray.attached import AttachedEngine
from protocol.client.records import join, joined_size, record
from protocol.events.node import ProduceCompleted
from protocol.ids import TimeMs, TopicPartition
from protocol.messages.base import ANONYMOUS
from protocol.messages.commands import ProduceCommand, ProduceOutcome

TICK_MS = 10
LINE_EVERY_MS = 1_000
MAX_BATCH_BYTES = 1_000_000
"""Below `max.message.bytes`, unless that is set lower."""
OUTCOMES_WITHIN_MS = 150_000
"""Longer than any client waits for its cluster (`delivery.timeout.ms`)."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What to send: records of `record_bytes` to these partitions in turn, `rate` records per second, until
    `duration_ms` are over or `total` records have been sent (None: without that limit).
    """

    partitions: Sequence[TopicPartition]
    acks: int
    record_bytes: int
    rate: int
    duration_ms: int | None
    total: int | None = None
    principal: str = ANONYMOUS


@dataclass(slots=True)
class Meter:
    """What has become of the records of a run; times in milliseconds of one clock. `began_ms` is the beginning of the
    sending, `latencies_ms` counts acknowledged records by latency, `acknowledged_ms` are the times of acknowledgements.
    """

    began_ms: TimeMs
    record_bytes: int
    sent: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    latencies_ms: Counter[int] = field(default_factory=Counter)
    acknowledged_ms: list[TimeMs] = field(default_factory=list)
    under_way: dict[int, tuple[TimeMs, int]] = field(default_factory=dict)

    def begin(self, command_id: int, now_ms: TimeMs, records: int) -> None:
        """A command with so many records is given to the client."""
        self.under_way[command_id] = now_ms, records
        self.sent += records

    def end(self, outcome: ProduceOutcome, acks: int, now_ms: TimeMs) -> None:
        """A command has this outcome since this time."""
        began_ms, records = self.under_way.pop(outcome.command_id)
        result = result_of(outcome, acks)
        is_acknowledged = result in ("acknowledged", "appended")
        self.counts["acknowledged" if is_acknowledged else result] += records
        if is_acknowledged:
            self.latencies_ms[now_ms - began_ms] += records
            self.acknowledged_ms.append(now_ms)

    def abandon(self) -> None:
        """The outcomes that are missing will not come: their records may be written."""
        self.counts["unknown"] += sum(records for _, records in self.under_way.values())
        self.under_way.clear()

    def percentile(self, share: float) -> int | None:
        """The latency in ms that this share of the acknowledged records does not exceed; None where there are none."""
        left = ceil(share * sum(self.latencies_ms.values()))
        for latency_ms, records in sorted(self.latencies_ms.items()):
            left -= records
            if left <= 0:
                return latency_ms
        return None

    def longest_gap_ms(self, until_ms: TimeMs) -> TimeMs:
        """The longest time without an acknowledgement from the beginning until this time."""
        within = (time_ms for time_ms in sorted(self.acknowledged_ms) if time_ms < until_ms)
        return max(after - before for before, after in pairwise([self.began_ms, *within, until_ms]))

    def document(self, until_ms: TimeMs) -> dict[str, object]:
        """The JSON document of a run whose sending ended at `until_ms`. Rates are of acknowledged records, over the
        time of the sending.
        """
        seconds = max(until_ms - self.began_ms, 1) / 1000
        per_second = self.counts["acknowledged"] / seconds
        return {
            "records": self.sent,
            "acknowledged": self.counts["acknowledged"],
            "failed": self.counts["failed"],
            "unknown": self.counts["unknown"],
            "seconds": round(seconds, 3),
            "records_per_second": round(per_second, 1),
            "mb_per_second": round(per_second * self.record_bytes / 1e6, 3),
            "latency_ms": {
                "p50": self.percentile(0.5),
                "p99": self.percentile(0.99),
                "max": max(self.latencies_ms, default=None),
            },
            "longest_gap_ms": self.longest_gap_ms(until_ms),
        }


def words(document: dict[str, object]) -> str:
    """The document in one line."""
    latency = document["latency_ms"]
    assert isinstance(latency, dict)
    latencies = ", ".join(f"{name} {'none' if found is None else f'{found} ms'}" for name, found in latency.items())
    return (
        f"{document['seconds']} s: {document['records']} records sent, {document['acknowledged']} acknowledged, "
        f"{document['failed']} failed, {document['unknown']} unknown; {document['records_per_second']} records/s, "
        f"{document['mb_per_second']} MB/s; {latencies}; longest gap {document['longest_gap_ms']} ms"
    )


def produce_load(
    engine: AttachedEngine, options: LoadOptions, every_second: Callable[[str], None]
) -> dict[str, object]:
    """Sends the records, waits for their outcomes, and returns the document; calls `every_second` with a line about the
    last second. An interrupt ends the sending early.
    """
    engine.cluster.require_client()
    load = _Load(engine, options)
    try:
        load.send(every_second)
    except KeyboardInterrupt:
        load.ended_ms = engine.now_ms()
    load.await_outcomes()
    return load.meter.document(load.ended_ms)


class _Load:
    """A run of the producer."""

    def __init__(self, engine: AttachedEngine, options: LoadOptions) -> None:
        self._engine, self._options = engine, options
        self._ids = count(1)
        self._completed_ms: dict[int, TimeMs] = {}
        engine.record_to(self._observe)
        self.meter = Meter(engine.now_ms(), options.record_bytes)
        self.ended_ms = self.meter.began_ms

    def _observe(self, event: TraceEvent) -> None:
        if isinstance(event.trace, ProduceCompleted) and event.trace.command_id in self.meter.under_way:
            self._completed_ms[event.trace.command_id] = event.time_ms

    def send(self, every_second: Callable[[str], None]) -> None:
        second = Meter(self.meter.began_ms, self.meter.record_bytes)

        def tick() -> bool:
            nonlocal second
            now_ms = self._engine.now_ms()
            self._take(second)
            if now_ms - second.began_ms >= LINE_EVERY_MS:
                every_second(words(second.document(now_ms)))
                second = Meter(now_ms, self.meter.record_bytes)
            self.ended_ms = now_ms
            return self._send_due(now_ms, second)

        within_ms = self._options.duration_ms if self._options.duration_ms is not None else 2**53
        self._engine.run_until(tick, within_ms, TICK_MS)

    def _send_due(self, now_ms: TimeMs, second: Meter) -> bool:
        """Sends the records that are due; returns whether all have been sent."""
        options, sent = self._options, self.meter.sent
        due = (now_ms - self.meter.began_ms) * options.rate // 1000 + 1 - sent
        left = due if options.total is None else min(due, options.total - sent)
        number = min(left, options.rate, MAX_BATCH_BYTES // joined_size(options.record_bytes))
        if number > 0:
            command_id = next(self._ids)
            partition = options.partitions[command_id % len(options.partitions)]
            command = ProduceCommand(
                command_id=command_id,
                topic=partition.topic,
                partition=partition.partition,
                acks=options.acks,
                record_count=number,
                payload=join([record(command_id, place, options.record_bytes) for place in range(number)]),
                principal=options.principal,
            )
            self.meter.begin(command_id, now_ms, number)
            second.sent += number
            self._engine.submit(command)
        return options.total is not None and self.meter.sent >= options.total

    def _take(self, second: Meter | None = None) -> None:
        """Takes the outcomes that have arrived, into the meter of the present second, too."""
        for command_id, outcome in self._engine.take_outcomes().items():
            if isinstance(outcome, ProduceOutcome) and command_id in self.meter.under_way:
                time_ms = self._completed_ms.pop(command_id, self._engine.now_ms())
                if second is not None:
                    second.under_way[command_id] = self.meter.under_way[command_id]
                    second.end(outcome, self._options.acks, time_ms)
                self.meter.end(outcome, self._options.acks, time_ms)

    def await_outcomes(self) -> None:
        def all_ended() -> bool:
            self._take()
            return not self.meter.under_way

        self._engine.run_until(all_ended, OUTCOMES_WITHIN_MS)
        self.meter.abandon()
