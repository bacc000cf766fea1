"""librdkafka with those methods of aiokafka's clients that the workload calls (`application.Library`).

Callbacks run in the event loop's thread, since only that one polls. Options mean the same as in aiokafka: a record
expires after `request_timeout_ms`, a member's session ends after 10 s. The topic and the group are its own, so that
both libraries can run on one cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from experiments.hunt.clients.application import GROUP, Library
from experiments.hunt.clients.plan import TOPIC, ClientPlan
from experiments.support.librdkafka import librdkafka

OWN_TOPIC = f"{TOPIC}-librdkafka"
POLL_S = 0.01


def failure(error: Any) -> KafkaError:
    """An error of librdkafka as an exception, whose type has its name."""
    return type(str(error.name()), (KafkaError,), {})(error.str())


class _Client:
    def __init__(self, servers: str, kind: str, options: Mapping[str, object]) -> None:
        self.module = librdkafka("isray clients compare")
        settings = {"bootstrap.servers": servers, "broker.address.family": "v4", "log_level": 0, **options}
        self.client = getattr(self.module, kind)(settings)


class Producer(_Client):
    """As `AIOKafkaProducer`."""

    def __init__(self, servers: str, plan: ClientPlan) -> None:
        timeout_ms = max(plan.request_timeout_ms, plan.linger_ms + 1)
        timeouts = {"message.timeout.ms": timeout_ms, "request.timeout.ms": timeout_ms, "linger.ms": plan.linger_ms}
        super().__init__(servers, "Producer", {"acks": "all", "enable.idempotence": plan.idempotent, **timeouts})

    async def start(self) -> None:
        self._polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            self.client.poll(0)
            await asyncio.sleep(POLL_S)

    async def send(self, topic: str, value: bytes, partition: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self.client.produce(OWN_TOPIC, value, partition=partition, on_delivery=partial(_deliver, future))
        except self.module.KafkaException as error:
            raise failure(error.args[0]) from error
        return future

    async def stop(self) -> None:
        while len(self.client):
            await asyncio.sleep(POLL_S)
        self._polling.cancel()


def _deliver(future: asyncio.Future[Any], error: Any, message: Any) -> None:
    if error is None:
        future.set_result(SimpleNamespace(offset=message.offset()))
    else:
        future.set_exception(failure(error))


class Consumer(_Client):
    """As `AIOKafkaConsumer`; `member` as in `Library`."""

    def __init__(self, servers: str, plan: ClientPlan, member: int) -> None:
        options = {"auto.offset.reset": "earliest", "enable.auto.commit": plan.auto_commit}
        group = {"group.id": f"{GROUP}-librdkafka", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 3_000}
        super().__init__(servers, "Consumer", options | group)
        self._partitions = () if member else range(plan.partitions)

    async def start(self) -> None:
        if self._partitions:
            self.client.assign([self.module.TopicPartition(OWN_TOPIC, number, -2) for number in self._partitions])
        else:
            self.client.subscribe([OWN_TOPIC])

    async def getone(self) -> SimpleNamespace:
        while (message := self.client.poll(0)) is None:
            await asyncio.sleep(POLL_S)
        if message.error() is not None:
            raise failure(message.error())
        place = {"topic": TOPIC, "partition": message.partition(), "offset": message.offset()}
        return SimpleNamespace(value=message.value(), **place)

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(TOPIC, place.partition) for place in self.client.assignment()}

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        places = [self.module.TopicPartition(OWN_TOPIC, it.partition, offset) for it, offset in offsets.items()]
        try:
            await asyncio.to_thread(self.client.commit, offsets=places, asynchronous=False)
        except self.module.KafkaException as error:
            raise failure(error.args[0]) from error

    async def stop(self) -> None:
        await asyncio.to_thread(self.client.close)


LIBRDKAFKA = Library(Producer, Consumer)
