"""A consumer of a group that commits by itself, so that every payment is carried out at least once. Its process is
restarted now and then while it works.

The mistake: it commits the offset before it carries out the payment, so that a restart between the two skips it. The
fix commits what is done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from experiments.virtual.checks import at_least_once, in_order
from experiments.virtual.simulation import RunResult, SimulatedKafka

TOPIC = "payments"
PAYMENTS = 40
LIFE_S = (5.0, 12.0)
"""The shortest and the longest life of the process."""
Handle = Callable[[AIOKafkaConsumer, list[bytes], ConsumerRecord], Coroutine[Any, Any, None]]


async def carry_out(done: list[bytes], record: ConsumerRecord) -> None:
    """Carries out a payment, which takes a moment."""
    await asyncio.sleep(0.2)
    done.append(record.value)


async def commit(consumer: AIOKafkaConsumer, record: ConsumerRecord) -> None:
    """Commits everything up to a record."""
    await consumer.commit({TopicPartition(record.topic, record.partition): record.offset + 1})


async def commit_first(consumer: AIOKafkaConsumer, done: list[bytes], record: ConsumerRecord) -> None:
    """With the mistake."""
    await commit(consumer, record)
    await carry_out(done, record)


async def carry_out_first(consumer: AIOKafkaConsumer, done: list[bytes], record: ConsumerRecord) -> None:
    """Without it."""
    await carry_out(done, record)
    await commit(consumer, record)


async def consume(bootstrap_servers: str, done: list[bytes], handle: Handle) -> None:
    """One life of the process."""
    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap_servers,
        group_id="payers",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        await consumer.start()
        async for record in consumer:
            await handle(consumer, done, record)
    finally:
        await consumer.stop()


async def application(bootstrap_servers: str, handle: Handle) -> list[bytes]:
    """Payments come in; the consumer lives a random time, and again until the last payment is done. Returns those that
    were carried out, in that order.
    """
    done: list[bytes] = []
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True)
    await producer.start()
    for number in range(PAYMENTS):
        await producer.send_and_wait(TOPIC, b"payment-%d" % number)
    await producer.stop()
    last = b"payment-%d" % (PAYMENTS - 1)
    for _ in range(30):
        if last in done:
            break
        with suppress(asyncio.TimeoutError, KafkaError):
            await asyncio.wait_for(consume(bootstrap_servers, done, handle), random.uniform(*LIFE_S))
    return done


def run(seed: int, handle: Handle) -> RunResult:
    """The application under drawn failures."""
    kafka = SimulatedKafka(seed, "swarm", topics={TOPIC: 1}, topic_config={"min.insync.replicas": 2})
    return kafka.run(application, handle)


def findings(result: RunResult) -> list[str]:
    """What the consumer promises and did not keep: every payment is carried out, in order."""
    payments = [record.value for record in result.records(TOPIC)]
    return at_least_once(payments, result.value) + in_order(payments, result.value)
