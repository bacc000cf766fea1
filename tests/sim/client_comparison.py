"""aiokafka and librdkafka on sockets in the situations of docs/client-findings.md:
`python -m tests.sim.client_comparison former-leader`, or `gap`, or `stop`. Prints one line for each client.
`python -m tests.sim.client_comparison FILE aiokafka`, or `librdkafka`: the one goes through the faults of a finding.

Both clients run in one situation at the same time, each in a thread of its own. No test runs this: it takes a minute.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, Producer, TopicPartition

from experiments.engines.port import Loss
from experiments.hunt.clients.application import application
from experiments.hunt.clients.plan import load
from experiments.hunt.clients.processes import LIBRARIES, Workload, judged, placed
from experiments.virtual.simulation import committed
from experiments.virtual.timeline import is_whole, schedule
from protocol.ids import FIRST_APPLICATION, NO_LEADER
from tests.sim.real_time import ANY_TIME, RealTimeCluster

BROKERS = (0, 1, 2)
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
        print(f"{name}: {self.ended[name]}", flush=True)

    def have_reached(self, place: str) -> bool:
        return all(self.reached.get(thread_name) == place for thread_name in ("aiokafka", "librdkafka"))

    def join(self, cluster: RealTimeCluster) -> None:
        cluster.until(lambda: len(self.ended) == len(self._threads), "all clients end")


class Counting(logging.Handler):
    """Counts aiokafka's metadata requests."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("Sending metadata request")


def write(servers: str, topic: str) -> str:
    """Writes a record; returns what came of it."""
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, "first")
    return str(producer.flush(PATIENCE_S))


# -- a reader whose partition has moved between its metadata and its first request -----------------------------------


def former_leader(cluster: RealTimeCluster) -> None:
    """The leader is cut off, the readers learn of it from the others, and they reach it when another one leads."""
    prepared = Clients(cluster.address_of(*BROKERS))
    prepared.run(writer=lambda clients, name: write(clients.servers, "t"))
    cluster.until(lambda: prepared.ended == {"writer": "0"}, "a record")
    leader = cluster.leader()
    clients = Clients(cluster.address_of(*{*BROKERS} - {leader}))
    others = {*cluster.engine.spec.node_ids, FIRST_APPLICATION} - {leader}
    set_links(cluster, leader, others, up=False)
    clients.run(aiokafka=aio_reads, librdkafka=rd_reads)
    cluster.until(lambda: cluster.leader() not in (leader, NO_LEADER), "another leader")
    set_links(cluster, leader, others - {FIRST_APPLICATION}, up=True)
    cluster.until(lambda: not cluster.leads(leader), "the former leader knows it")
    set_links(cluster, leader, {FIRST_APPLICATION}, up=True)
    clients.join(cluster)


def set_links(cluster: RealTimeCluster, node: int, others: set[int], *, up: bool) -> None:
    for other in sorted(others):
        cluster.engine.set_link(node, other, up)
        cluster.engine.set_link(other, node, up)


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


def gap(cluster: RealTimeCluster) -> None:
    """The only replica of a topic is down until a record of both producers has expired."""
    clients = Clients(cluster.address_of(*BROKERS))
    clients.run(aiokafka=aio_expires, librdkafka=rd_expires)
    cluster.until(lambda: clients.have_reached("first"), "the first records")
    cluster.engine.crash(0, Loss("none"))
    cluster.until(lambda: cluster.leader("one") == NO_LEADER, "no leader")
    clients.go_on.set()
    cluster.until(lambda: clients.have_reached("expired"), "records expire")
    clients.go_on.clear()
    cluster.engine.start(0)
    cluster.until(lambda: cluster.leader("one") == 0, "the leader is back")
    clients.go_on.set()
    clients.join(cluster)


def aio_expires(clients: Clients, name: str) -> str:
    counting = Counting()
    logging.getLogger("aiokafka").addHandler(counting)

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


def stop(cluster: RealTimeCluster) -> None:
    """All brokers are down when the members stop, and come back."""
    prepared = Clients(cluster.address_of(*BROKERS))
    prepared.run(writer=lambda clients, name: write(clients.servers, "t"))
    cluster.until(lambda: prepared.ended == {"writer": "0"}, "a record")
    clients = Clients(cluster.address_of(*BROKERS))
    clients.run(aiokafka=aio_stops, librdkafka=rd_stops)
    cluster.until(lambda: clients.have_reached("first"), "records are read")
    for broker in BROKERS:
        cluster.engine.crash(broker, Loss("none"))
    clients.go_on.set()
    cluster.until(lambda: clients.have_reached("stopping"), "members stop")
    for broker in BROKERS:
        cluster.engine.start(broker)
    clients.join(cluster)


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


# -- the faults of a finding -----------------------------------------------------------------------------------------


def replay(file: str, name: str) -> None:
    """Runs the plan of a file with a library, and prints what it shows."""
    plan = load(Path(file)).plan
    library, topic, _ = LIBRARIES[name]
    replicas = placed(plan, {"brokers": len(BROKERS), "controllers": plan.controllers})
    config = {"min.insync.replicas": 2, **ANY_TIME}
    topics: list[dict[str, object]] = [{"name": topic, "assignments": replicas, "config": config}]
    cluster = RealTimeCluster(plan.seed, topics, plan.controllers)
    run = Workload(application(cluster.address_of(*BROKERS), plan, library))
    schedule(plan.faults, cluster.runner, cluster.engine)
    cluster.until(lambda: not run.is_alive(), "the application ends", 600)
    cluster.until(lambda: is_whole(cluster.engine), "the cluster is whole")
    found = judged(plan, run.book, cluster, committed(cluster.engine), topic)
    for finding in found.findings:
        print(f"{name}: {finding.name}: {finding.detail}")
    print(f"{name}: most requests in a second: {found.busiest}")


SITUATIONS = {"former-leader": former_leader, "gap": gap, "stop": stop}

if __name__ == "__main__":
    logger = logging.getLogger("aiokafka")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    if sys.argv[1] in SITUATIONS:
        SITUATIONS[sys.argv[1]](RealTimeCluster())
    else:
        replay(*sys.argv[1:])
