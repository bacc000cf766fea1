"""Damaged requests at the listeners of a running cluster, beside a producer and a consumer: with the addresses, a
number of frames and a seed, `python -m tests.ray.listener_fuzz HOST:PORT,... 2000 1`.

The requests are those of `kafka_fuzz.py` without DeleteTopics, which is what an administrator may do to the producer's
topic. What must hold: every record of the producer is acknowledged, and read once, in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from contextlib import suppress
from random import Random

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.unit.protocol.kafka.kafka_bench import KafkaBench
from tests.unit.protocol.kafka.kafka_fuzz import damaged, request, served

DELETE_TOPICS = 20
CONNECTIONS = 24
FRAMES_PER_RECORD = 10
ANSWER_S, WITHIN_S = 0.05, 90.0
TOPIC = "steady"


class Steady:
    """A producer and a consumer of a topic with one partition. The values are the numbers of the records."""

    def __init__(self, servers: str) -> None:
        settings = {"bootstrap.servers": servers}
        admin = AdminClient(settings)
        for created in admin.create_topics([NewTopic(TOPIC, 1, 3), NewTopic("t", 1, 3)]).values():
            with suppress(KafkaException):  # of an earlier run
                created.result(WITHIN_S)
        self._producer = Producer({**settings, "enable.idempotence": True})
        self._consumer = Consumer({**settings, "group.id": TOPIC, "auto.offset.reset": "error"})
        _, end = self._consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=WITHIN_S)
        self._consumer.assign([TopicPartition(TOPIC, 0, end)])
        self.sent: list[int] = []
        self.acknowledged: list[int] = []
        self.read: list[int] = []

    def send(self) -> None:
        self.sent.append(len(self.sent))
        self._producer.produce(TOPIC, str(self.sent[-1]), on_delivery=self._report)
        self._producer.poll(0)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged.append(int(message.value() or b""))

    def take(self) -> None:
        self.read += [int(it.value() or b"") for it in self._consumer.consume(100, 0) if it.error() is None]

    def finish(self) -> None:
        assert self._producer.flush(WITHIN_S) == 0
        deadline_s = time.monotonic() + WITHIN_S
        while self.read[-1:] != self.sent[-1:] and time.monotonic() < deadline_s:
            self.take()
        self._consumer.close()


async def fuzz_listeners(servers: str, count: int, seed: int) -> tuple[Steady, Counter[str]]:
    """Sends frames, each on a connection of its own; returns the producer and consumer, and outcomes of connections."""
    random, outcomes, steady = Random(seed), Counter[str](), Steady(servers)
    ranges = [each for each in served(KafkaBench()) if each[0] != DELETE_TOPICS]
    places = [server.rpartition(":")[::2] for server in servers.split(",")]
    numbers = iter(range(count))

    async def send_frames() -> None:
        for number in numbers:
            data = damaged(random, request(random, ranges))
            host, port = random.choice(places)
            outcomes[await outcome(host, int(port), data)] += 1
            if number % FRAMES_PER_RECORD == 0:
                steady.send()
                steady.take()

    await asyncio.gather(*(send_frames() for _ in range(CONNECTIONS)))
    steady.finish()
    return steady, outcomes


async def outcome(host: str, port: int, data: bytes) -> str:
    """What becomes of a connection on which these bytes are sent."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        return "answered" if await asyncio.wait_for(reader.read(65_536), ANSWER_S) else "closed"
    except TimeoutError:
        return "open"
    except ConnectionError:
        return "closed"
    finally:
        writer.close()


if __name__ == "__main__":
    began = time.monotonic()
    seen, found = asyncio.run(fuzz_listeners(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    assert seen.sent == seen.acknowledged == seen.read
    print(f"{sys.argv[2]} frames, {time.monotonic() - began:.0f} s: {dict(found)}; {len(seen.sent)} records read")
