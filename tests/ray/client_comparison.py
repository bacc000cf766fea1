"""aiokafka and librdkafka on processes in the situations of docs/client-findings.md:
`python -m tests.ray.client_comparison former-leader`, or `gap`, or `stop`. Prints one line for each client.

Both clients run in one situation at the same time, each in a thread of its own. No test runs this: it takes a minute.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, Producer, TopicPartition

from experiments.engines.port import Loss
from experiments.engines.ray.session import ray_session, stay_on_loopback
from protocol.config import LISTENERS
from protocol.ids import NO_LEADER
from protocol.ids import TopicPartition as Place
from tests.ray.cluster_helpers import FAST, RunningCluster, running_cluster

PATIENCE_S = 45.0
EXPIRY_S = 3.0
ATTEMPTS = 8


class Clients:
    """Both clients in one situation. `reached` says how far each has come; `ended` what it says in the end."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.reached: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.go_on = threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, **clients: Callable[[Clients, str], str]) -> None:
        for name, client in clients.items():
            self._threads.append(threading.Thread(target=self._run, args=(name, client)))
            self._threads[-1].start()

    def _run(self, name: str, client: Callable[[Clients, str], str]) -> None:
        self.ended[name] = client(self, name)

    def have_reached(self, place: str) -> bool:
        return all(self.reached.get(thread_name) == place for thread_name in ("aiokafka", "librdkafka"))

    def print_ends(self) -> None:
        for thread in self._threads:
            thread.join()
        for name, words in sorted(self.ended.items()):
            print(f"{name}: {words}", flush=True)


class Counting(logging.Handler):
    """Counts aiokafka's metadata requests."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Sending metadata request")


def addresses(cluster: RunningCluster, *without: int) -> str:
    view = cluster.engine.view()
    assert view is not None
    brokers = sorted(set(cluster.engine.spec.broker_ids) - set(without))
    return ",".join(str(view.brokers[broker].endpoint) for broker in brokers)


def write(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, "first")
    assert producer.flush(PATIENCE_S) == 0


# -- a reader whose partition has moved between its metadata and its first request -----------------------------------


def former_leader(cluster: RunningCluster) -> None:
    """The leader is paused, the readers learn of it from the others, and it resumes when another one leads."""
    write(addresses(cluster), "t")
    leader = cluster.leader()
    clients = Clients(addresses(cluster, leader))
    cluster.engine.pause(leader)
    clients.run(aiokafka=aio_reads, librdkafka=rd_reads)
    cluster.until(lambda: cluster.leader() not in (leader, NO_LEADER), "another leader")
    cluster.engine.resume(leader)
    clients.print_ends()


def aio_reads(clients: Clients, name: str) -> str:
    async def read() -> str:
        consumer = AIOKafkaConsumer(bootstrap_servers=clients.servers, auto_offset_reset="earliest")
        consumer.assign([AioPartition("t", 0)])
        await consumer.start()
        began_s = time.monotonic()
        try:
            await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        except TimeoutError:
            return f"nothing read in {PATIENCE_S:.0f} s"
        finally:
            await consumer.stop()
        return f"read after {time.monotonic() - began_s:.1f} s"

    return asyncio.run(read())


def rd_reads(clients: Clients, name: str) -> str:
    consumer = Consumer(
        {"bootstrap.servers": clients.servers, "group.id": "x", "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", 0, -2)])
    began_s = time.monotonic()
    while time.monotonic() < began_s + PATIENCE_S:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            consumer.close()
            return f"read after {time.monotonic() - began_s:.1f} s"
    consumer.close()
    return f"nothing read in {PATIENCE_S:.0f} s"


# -- an idempotent producer whose record expires while there is no leader --------------------------------------------


def gap(cluster: RunningCluster) -> None:
    """The only replica of a topic is down until a record of both producers has expired."""
    cluster.create_topic((0,), min_isr=1, name="one")
    clients = Clients(addresses(cluster))
    clients.run(aiokafka=aio_expires, librdkafka=rd_expires)
    cluster.until(lambda: clients.have_reached("first"), "the first records")
    cluster.engine.crash(0, Loss("none"))
    cluster.until(lambda: leader_of(cluster, "one") == NO_LEADER, "no leader")
    clients.go_on.set()
    cluster.until(lambda: clients.have_reached("expired"), "records expire")
    clients.go_on.clear()
    cluster.engine.start(0)
    cluster.until(lambda: leader_of(cluster, "one") == 0, "the leader is back")
    clients.go_on.set()
    clients.print_ends()


def leader_of(cluster: RunningCluster, topic: str) -> int:
    view = cluster.engine.view()
    return NO_LEADER if view is None else view.partitions[Place(topic, 0)].leader


def aio_expires(clients: Clients, name: str) -> str:
    log, counting = logging.getLogger("aiokafka"), Counting()
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(counting)

    async def produce() -> str:
        producer = AIOKafkaProducer(
            bootstrap_servers=clients.servers, enable_idempotence=True, request_timeout_ms=int(EXPIRY_S * 1_000)
        )
        await producer.start()
        await producer.send_and_wait("one", b"a")
        clients.reached[name] = "first"
        await asyncio.to_thread(clients.go_on.wait)
        before, began_s, said = counting.count, time.monotonic(), "no error"
        try:
            await producer.send_and_wait("one", b"b")
        except KafkaError as error:
            said = type(error).__name__
        rate = (counting.count - before) / (time.monotonic() - began_s)
        clients.reached[name] = "expired"
        await asyncio.to_thread(lambda: until_cleared_and_set(clients.go_on))
        outcomes = []
        for _ in range(ATTEMPTS):
            try:
                await producer.send_and_wait("one", b"c")
                outcomes.append("acknowledged")
            except KafkaError as error:
                outcomes.append(type(error).__name__)
        await producer.stop()
        return f"{said}, {rate:.0f} metadata requests/s; then {', '.join(dict.fromkeys(outcomes))}"

    return asyncio.run(produce())


def until_cleared_and_set(event: threading.Event) -> None:
    while event.is_set():
        threading.Event().wait(0.05)
    event.wait()


def rd_expires(clients: Clients, name: str) -> str:
    outcomes: list[str] = []
    requests: dict[str, int] = {}

    def count(document: str) -> None:
        import json

        brokers = json.loads(document)["brokers"].values()
        requests["metadata"] = sum(broker["req"].get("Metadata", 0) for broker in brokers)

    def delivered(error: Any, message: object) -> None:
        outcomes.append("acknowledged" if error is None else str(error.name()))

    producer = Producer(
        {"bootstrap.servers": clients.servers, "enable.idempotence": True, "message.timeout.ms": int(EXPIRY_S * 1_000)}
        | {"statistics.interval.ms": 200, "stats_cb": count}
    )
    producer.produce("one", "a", on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0, outcomes
    clients.reached[name] = "first"
    clients.go_on.wait()
    outcomes.clear()
    before, began_s = requests.get("metadata", 0), time.monotonic()
    producer.produce("one", "b", on_delivery=delivered)
    producer.flush(PATIENCE_S)
    rate = (requests["metadata"] - before) / (time.monotonic() - began_s)
    said = outcomes.pop()
    clients.reached[name] = "expired"
    until_cleared_and_set(clients.go_on)
    for _ in range(ATTEMPTS):
        producer.produce("one", "c", on_delivery=delivered)
        producer.flush(PATIENCE_S)
    return f"{said}, {rate:.0f} metadata requests/s; then {', '.join(dict.fromkeys(outcomes))}"


# -- a member of a group that stops while its coordinator is not there ------------------------------------------------


def stop(cluster: RunningCluster) -> None:
    """All brokers are down when the members stop, and come back."""
    write(addresses(cluster), "t")
    clients = Clients(addresses(cluster))
    clients.run(aiokafka=aio_stops, librdkafka=rd_stops)
    cluster.until(lambda: clients.have_reached("first"), "records are read")
    for broker in cluster.engine.spec.broker_ids:
        cluster.engine.crash(broker, Loss("none"))
    clients.go_on.set()
    cluster.until(lambda: clients.have_reached("stopping"), "members stop")
    for broker in cluster.engine.spec.broker_ids:
        cluster.engine.start(broker)
    cluster.await_unfenced(*cluster.engine.spec.broker_ids)
    clients.print_ends()


def aio_stops(clients: Clients, name: str) -> str:
    async def read() -> str:
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=clients.servers,
            group_id="aio",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        await consumer.getone()
        clients.reached[name] = "first"
        await asyncio.to_thread(clients.go_on.wait)
        while consumer._coordinator.coordinator_id is not None:
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(threading.Event().wait, 0.1))])
        clients.reached[name] = "stopping"
        began_s = time.monotonic()
        try:
            await asyncio.wait_for(consumer.stop(), PATIENCE_S)
        except TimeoutError:
            return f"stop() has not ended after {PATIENCE_S:.0f} s"
        return f"stop() ended after {time.monotonic() - began_s:.1f} s"

    return asyncio.run(read())


def rd_stops(clients: Clients, name: str) -> str:
    consumer = Consumer(
        {"bootstrap.servers": clients.servers, "group.id": "rd", "auto.offset.reset": "earliest"}
        | {"heartbeat.interval.ms": 500, "session.timeout.ms": 6_000}
    )
    consumer.subscribe(["t"])
    while (message := consumer.poll(0.2)) is None or message.error() is not None:
        continue
    clients.reached[name] = "first"
    clients.go_on.wait()
    clients.reached[name] = "stopping"
    began_s = time.monotonic()
    consumer.close()
    return f"close() ended after {time.monotonic() - began_s:.1f} s"


SITUATIONS = {"former-leader": former_leader, "gap": gap, "stop": stop}

if __name__ == "__main__":
    stay_on_loopback()
    with (
        ray_session(),
        running_cluster(config={**FAST, LISTENERS: "PLAINTEXT://127.0.0.1:0"}, within_ms=90_000) as running,
    ):
        running.create_topic((0, 1, 2), min_isr=2)
        running.await_whole()
        SITUATIONS[sys.argv[1]](running)
