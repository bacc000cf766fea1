"""A consumer that processes payments at least once, and is restarted now and then while it works.

The mistake: it commits before it processes, so that a restart between the two skips what was committed. The fix commits
what is processed. The position is kept with the effects, in the application's own database; partitions are assigned by
hand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from experiments.virtual.checks import at_least_once, in_order
from experiments.virtual.simulation import RunResult, SimulatedKafka

TOPIC = "payments"
PAYMENTS = 40
RESTART_S = (1.0, 8.0)
"""The shortest and the longest life of the process."""


@dataclass(slots=True)
class Database:
    """What outlives the process: the committed position and the payments that were carried out."""

    position: int = 0
    done: list[bytes] = field(default_factory=list)


Handle = Callable[[Database, ConsumerRecord], Coroutine[Any, Any, None]]


async def process(database: Database, record: ConsumerRecord) -> None:
    """Carries out a payment, which takes a moment."""
    await asyncio.sleep(0.2)
    database.done.append(record.value)


async def commit_first(database: Database, record: ConsumerRecord) -> None:
    """With the mistake."""
    database.position = record.offset + 1
    await process(database, record)


async def process_first(database: Database, record: ConsumerRecord) -> None:
    """Without it."""
    await process(database, record)
    database.position = record.offset + 1


async def consume(bootstrap_servers: str, database: Database, handle: Handle) -> None:
    """One life of the process."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    partition = TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    await consumer.start()
    try:
        consumer.seek(partition, database.position)
        while database.position < PAYMENTS:
            await handle(database, await consumer.getone())
    finally:
        await consumer.stop()


async def application(bootstrap_servers: str, handle: Handle) -> Database:
    """Payments come in, and the consumer is restarted after random times until it has committed all of them."""
    database = Database()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True)
    await producer.start()
    for number in range(PAYMENTS):
        await producer.send_and_wait(TOPIC, b"payment-%d" % number)
    await producer.stop()
    while database.position < PAYMENTS:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(consume(bootstrap_servers, database, handle), random.uniform(*RESTART_S))
    return database


def run(seed: int, handle: Handle) -> RunResult:
    """The application under drawn failures."""
    kafka = SimulatedKafka(seed, "swarm", topics={TOPIC: 1}, topic_config={"min.insync.replicas": 2})
    return kafka.run(application, handle)


def findings(result: RunResult) -> list[str]:
    """What the consumer promises and did not keep: every payment is carried out, in order."""
    payments = [record.value for record in result.records(TOPIC)]
    return at_least_once(payments, result.value.done) + in_order(payments, result.value.done)
