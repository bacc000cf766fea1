"""A loop that reads texts from one topic and writes them in capitals to another, at least once and in order.

The mistake: a failed write is logged, and the loop goes on with the next record. The fix sends a record again until it
is acknowledged, before it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from experiments.virtual.checks import at_least_once, in_order
from experiments.virtual.simulation import RunResult, SimulatedKafka

SOURCE, TARGET = "texts", "capitals"
TEXTS = 60
PROCESSING_S = 1.0
log = logging.getLogger(__name__)
Write = Callable[[AIOKafkaProducer, bytes], Coroutine[Any, Any, None]]


async def write_once(producer: AIOKafkaProducer, text: bytes) -> None:
    """With the mistake."""
    try:
        await producer.send_and_wait(TARGET, text.upper())
    except KafkaError as error:
        log.warning("%r was not written: %s", text, error)


async def write_until_acknowledged(producer: AIOKafkaProducer, text: bytes) -> None:
    """Without it."""
    while True:
        try:
            await producer.send_and_wait(TARGET, text.upper())
            return
        except KafkaError as error:
            log.info("%r is written again: %s", text, error)
            await asyncio.sleep(1.0)


async def feed(bootstrap_servers: str, topic: str = SOURCE) -> None:
    """Writes the texts to a topic."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=True)
    await producer.start()
    for number in range(TEXTS):
        await producer.send_and_wait(topic, b"text-%d" % number)
    await producer.stop()


async def application(bootstrap_servers: str, write: Write) -> None:
    """The loop, until it has read all texts; each takes a second."""
    await feed(bootstrap_servers)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    consumer.assign([TopicPartition(SOURCE, 0)])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", request_timeout_ms=3_000)
    await consumer.start()
    await producer.start()
    consumer.seek(TopicPartition(SOURCE, 0), 0)
    for _ in range(TEXTS):
        record = await consumer.getone()
        await asyncio.sleep(PROCESSING_S)
        await write(producer, record.value)
    await producer.stop()
    await consumer.stop()


def run(seed: int, write: Write) -> RunResult:
    """The application under drawn failures."""
    topics: dict[str, Any] = {SOURCE: 1, TARGET: 1}
    return SimulatedKafka(seed, "swarm", topics=topics, topic_config={"min.insync.replicas": 2}).run(application, write)


def findings(result: RunResult) -> list[str]:
    """What the loop promises and did not keep."""
    expected = [record.value.upper() for record in result.records(SOURCE) if record.value is not None]
    written = [record.value for record in result.records(TARGET)]
    return at_least_once(expected, written) + in_order(expected, written)
