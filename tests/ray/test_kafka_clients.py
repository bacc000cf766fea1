"""Kafka's clients on the listeners of a cluster: librdkafka, kafka-python and aiokafka, while leaders are killed.

Each record's value is its number, so that what was acknowledged can be compared with what is read: nothing lost,
nothing twice, in the order in which it was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

from experiments.engines.port import Loss
from protocol.config import LISTENERS
from protocol.kafka.groups.records import OFFSETS_TOPIC, partition_of
from tests.ray.cluster_helpers import FAST, ProcessPool, RunningCluster, running_cluster
from tests.ray.listener_fuzz import fuzz_listeners

BROKERS = (0, 1, 2)
GROUP = "readers"
WITHIN_S = 90


@pytest.fixture(scope="module")
def cluster(pool: ProcessPool) -> Iterator[RunningCluster]:
    """Three brokers with listeners, topic `t` on all of them with min ISR 2."""
    config = {**FAST, LISTENERS: "PLAINTEXT://127.0.0.1:0"}
    with running_cluster(config=config, within_ms=90_000, pool=pool) as cluster:
        cluster.create_topic(BROKERS, min_isr=2)
        yield cluster


def addresses(cluster: RunningCluster) -> str:
    view = cluster.engine.view()
    assert view is not None
    return ",".join(sorted(str(view.brokers[broker].endpoint) for broker in BROKERS))


def restart(cluster: RunningCluster, broker: int) -> None:
    cluster.engine.start(broker)
    cluster.await_whole()


def read(cluster: RunningCluster, count: int, group: str, commits: bool = True) -> list[int]:
    """Reads `count` records of `t` as a member of a group of librdkafka's, and commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses(cluster),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
        }
    )
    consumer.subscribe(["t"])
    values: list[int] = []

    def has_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(int(message.value()))
        return len(values) >= count

    try:
        cluster.until(has_read, f"{count} records are read")
        if commits:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def test_an_idempotent_producer_goes_on_when_its_leader_is_killed(cluster: RunningCluster) -> None:
    acknowledged: list[int] = []

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        acknowledged.append(int(message.value()))  # type: ignore[attr-defined]

    servers = {"bootstrap.servers": addresses(cluster), "enable.idempotence": True, "linger.ms": 1}
    producer = Producer(servers)
    for number in range(100):
        producer.produce("t", str(number), on_delivery=delivered)
    assert producer.flush(WITHIN_S) == 0
    killed = cluster.leader()
    cluster.engine.crash(killed, Loss("none"))
    for number in range(100, 200):
        producer.produce("t", str(number), on_delivery=delivered)
    assert producer.flush(WITHIN_S) == 0
    restart(cluster, killed)
    assert acknowledged == list(range(200))
    assert read(cluster, 200, "first") == list(range(200))


def test_other_clients_read_what_was_written_and_write_themselves(cluster: RunningCluster) -> None:
    servers = addresses(cluster)
    writer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True)
    sent = [writer.send("t", str(number).encode()) for number in range(200, 220)]
    offsets = [future.get(WITHIN_S).offset for future in sent]
    writer.close()
    assert offsets == list(range(offsets[0], offsets[0] + 20))
    asyncio.run(write_and_read(servers, offsets[-1] + 1))
    reader = KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=WITHIN_S * 1000)
    reader.assign([KafkaPythonPartition("t", 0)])
    reader.seek(KafkaPythonPartition("t", 0), offsets[0])
    assert [int(next(reader).value) for _ in range(40)] == list(range(200, 240))
    reader.close()


async def write_and_read(servers: str, begin: int) -> None:
    """aiokafka writes 20 records, compressed and with headers, and reads them again."""
    producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, compression_type="gzip")
    await producer.start()
    for number in range(220, 240):
        metadata = await producer.send_and_wait("t", str(number).encode(), key=b"k", headers=[("h", b"1")])
        assert metadata.offset >= begin
    await producer.stop()
    consumer = AIOKafkaConsumer("t", bootstrap_servers=servers, group_id="aio", auto_offset_reset="earliest")
    await consumer.start()
    found = []
    while len(found) < 240:
        found.append(await asyncio.wait_for(consumer.getone(), WITHIN_S))
    await consumer.stop()
    assert [int(record.value) for record in found] == list(range(240))
    assert (found[-1].key, found[-1].headers) == (b"k", (("h", b"1"),))


def test_committed_offsets_outlive_their_coordinator(cluster: RunningCluster) -> None:
    assert read(cluster, 10, GROUP)[:3] == [0, 1, 2]
    view = cluster.engine.view()
    assert view is not None
    offsets = {name: state for name, state in view.partitions.items() if name.topic == OFFSETS_TOPIC}
    coordinator = next(s for n, s in offsets.items() if n.partition == partition_of(GROUP, len(offsets))).leader
    committed = Consumer({"bootstrap.servers": addresses(cluster), "group.id": GROUP})
    shown: list[int] = []

    def is_shown() -> bool:
        """librdkafka returns what a broker answers that is the coordinator no more, or not yet."""
        with suppress(KafkaException):
            shown.append(committed.committed([TopicPartition("t", 0)], timeout=5)[0].offset)
        return bool(shown)

    cluster.until(is_shown, "the committed offset is shown")
    before = shown.pop()
    cluster.engine.crash(coordinator, Loss("none"))
    cluster.until(is_shown, "the next coordinator shows the committed offset")
    after = shown.pop()
    committed.close()
    restart(cluster, coordinator)
    assert before == after >= 10
    assert read(cluster, 1, GROUP, commits=False)[0] == before


def test_damaged_requests_do_not_disturb_other_clients(cluster: RunningCluster) -> None:
    steady, outcomes = asyncio.run(fuzz_listeners(addresses(cluster), 600, 1))
    assert len(steady.sent) > 0
    assert steady.sent == steady.acknowledged == steady.read
    assert sum(outcomes.values()) == 600
    assert min(outcomes["answered"], outcomes["closed"]) > 100
