"""An outbox: orders are written to a database first, and a relay sends them on to Kafka, in order, at least once.

The mistake: `send` returns as soon as the record is in the producer's buffer. A row that is marked then counts as sent
although its batch may still expire, when the partition has no leader for longer than `request_timeout_ms`. The fix
marks a row when the leader has acknowledged it, and sends it again until then, each time with a new producer: the
sequence numbers of aiokafka's idempotent producer have a gap after a batch that has expired, and the broker refuses all
that it sends to the partition from then on (OUT_OF_ORDER_SEQUENCE_NUMBER).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from experiments.virtual.checks import at_least_once, in_order
from experiments.virtual.simulation import RunResult, SimulatedKafka

TOPIC = "orders"
ORDERS = 60
EVERY_S = 1.0


@dataclass(slots=True)
class Row:
    """A row of the table."""

    order: bytes
    is_sent: bool = False


class Sender:
    """A producer that can be replaced."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self.producer: AIOKafkaProducer

    async def start(self) -> None:
        self.producer = AIOKafkaProducer(
            bootstrap_servers=self._servers, enable_idempotence=True, request_timeout_ms=3_000, linger_ms=20
        )
        while True:
            try:
                await self.producer.start()
                return
            except KafkaError:
                await asyncio.sleep(1.0)

    async def replace(self) -> None:
        await self.producer.stop()
        await self.start()


Relay = Callable[[Sender, Row], Coroutine[Any, Any, None]]


async def mark_when_buffered(sender: Sender, row: Row) -> None:
    """With the mistake."""
    await sender.producer.send(TOPIC, row.order)
    row.is_sent = True


async def mark_when_acknowledged(sender: Sender, row: Row) -> None:
    """Without it."""
    while not row.is_sent:
        try:
            await sender.producer.send_and_wait(TOPIC, row.order)
            row.is_sent = True
        except KafkaError:
            await sender.replace()


async def keep_the_producer(sender: Sender, row: Row) -> None:
    """As without the mistake, but it keeps a producer whose sequence numbers may have a gap."""
    while not row.is_sent:
        try:
            await sender.producer.send_and_wait(TOPIC, row.order)
            row.is_sent = True
        except KafkaError:
            await asyncio.sleep(1.0)


async def application(bootstrap_servers: str, relay: Relay) -> list[Row]:
    """An order a second, each relayed; returns the table."""
    table: list[Row] = []
    sender = Sender(bootstrap_servers)
    await sender.start()
    for number in range(ORDERS):
        table.append(Row(b"order-%d" % number))
        await relay(sender, table[-1])
        await asyncio.sleep(EVERY_S)
    await sender.producer.stop()
    return table


def run(seed: int, relay: Relay) -> RunResult:
    """The application under drawn failures."""
    kafka = SimulatedKafka(seed, "swarm", topics={TOPIC: 1}, topic_config={"min.insync.replicas": 2})
    return kafka.run(application, relay)


def findings(result: RunResult) -> list[str]:
    """What the outbox promises and did not keep: all rows that are marked as sent, in order."""
    sent = [row.order for row in result.value if row.is_sent]
    arrived = [record.value for record in result.records(TOPIC)]
    return at_least_once(sent, arrived) + in_order([row.order for row in result.value], arrived)
