"""`isray bench kafka`: Kafka's protocol at a broker's listener; docs/benchmarks.md has the columns.

The state machine alone: a produce request of 64 records of 1,000 bytes is cut out of the stream, decoded, its batch
checked, and a response encoded, in one process without a socket. The baseline is the checksum of its batch, which
every broker computes.

The client program: one producer of librdkafka's writes records with acks=all to one partition of three replicas, once
with as many in flight as it likes (throughput) and once one after the other (p50 and p99 of the round trip). It runs
against the listeners of a cluster on Ray, and, with `beside`, against another cluster in the same run, such as a real
Kafka on the same machine, the two in turns.

Connections: so many clients connect to one broker, ask for its versions, and stay. What the broker's process has grown
by, per connection, is its memory; how long a connection takes includes the request.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from experiments.bench.process_usage import usage_of
from experiments.bench.report import BenchReport, measure_ms, median_ms
from experiments.engines.ray.session import ray_session, stay_on_loopback
from experiments.support.errors import InputError
from experiments.support.librdkafka import librdkafka
from protocol.config import LISTENERS, MIN_INSYNC_REPLICAS
from protocol.kafka.apis import PRODUCE
from protocol.kafka.batches import build_batch, read_produced, to_kafka
from protocol.kafka.wire import (
    API_VERSIONS,
    FrameReader,
    decode_request,
    encode_request,
    encode_response,
    request_head,
)
from protocol.log.checksum import Checksum

SIZES = (1_024, 65_536, 1_048_576)
SECONDS = 4
CONNECTIONS = 1_000
VERSION = 9
ROUNDS = 2_000
RECORDS, RECORD_BYTES = 64, 1_000
MAX_FRAME_BYTES = 1 << 20
CONFIG = {MIN_INSYNC_REPLICAS: 2, LISTENERS: "PLAINTEXT://127.0.0.1:0", "max.message.bytes": 4_194_304}
TOPIC = "bench"
WITHIN_S = 60


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What the client program found on one cluster with records of `record_bytes`."""

    cluster: str
    record_bytes: int
    mib_per_s: float
    p50_ms: float
    p99_ms: float

    def texts(self) -> list[str]:
        times = [f"{time_ms:,.2f} ms" for time_ms in (self.p50_ms, self.p99_ms)]
        return [self.cluster, f"{self.record_bytes:,}", f"{self.mib_per_s:,.2f} MiB/s", *times]


@dataclass(frozen=True, slots=True)
class ConnectionFigures:
    """What idle connections cost a broker."""

    connections: int
    kib_each: float
    ms_each: float


def run(
    sizes: Sequence[int] = SIZES,
    seconds: int = SECONDS,
    beside: str | None = None,
    connections: int = CONNECTIONS,
) -> BenchReport:
    """Measures the state machine, then the client program on a new cluster and on the one at `beside` (HOST:PORT), in
    which a topic `bench` is created where there is none, then connections. InputError without confluent-kafka.
    """
    if beside is not None:
        _create_topic(beside)
    stay_on_loopback()
    produce_us, crc_us = _state_machine()
    found: list[ClientFigures] = []
    with ray_session():
        from experiments.bench.ray_cluster import bench_cluster

        with bench_cluster(CONFIG) as cluster:
            cluster.create_topic(TOPIC, [[0, 1, 2]])
            view = cluster.engine.view()
            servers = ",".join(str(broker.endpoint) for broker in view.brokers.values()) if view is not None else ""
            for size in sizes:
                found.append(_client("isray", servers, size, seconds))
                if beside is not None:
                    found.append(_client(beside, beside, size, seconds))
            idle = _connections(servers.partition(",")[0], cluster.engine.cluster.pids()[0], connections)
    return BenchReport(
        title="Kafka's protocol at a listener",
        document={
            "produce_64k_us": produce_us,
            "crc_64k_us": crc_us,
            "clients": [asdict(one) for one in found],
            "idle": asdict(idle),
        },
        columns=("cluster", "record", "acks=all", "p50", "p99"),
        rows=[one.texts() for one in found],
        notes=[
            f"A produce of 64 KB, decoded, checked and answered: {produce_us} µs; its checksum alone: {crc_us} µs.",
            f"{idle.connections:,} idle connections to a broker: {idle.kib_each} KiB and {idle.ms_each} ms each.",
        ],
    )


def _create_topic(servers: str) -> None:
    """Creates the topic of the client program on another cluster. InputError where that is not possible."""
    module, admin = librdkafka("isray bench kafka"), librdkafka("isray bench kafka", "confluent_kafka.admin")
    config = {name: str(value) for name, value in CONFIG.items() if name != LISTENERS}
    topic = admin.NewTopic(TOPIC, 1, 3, config=config)
    client = admin.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    try:
        client.create_topics([topic], operation_timeout=WITHIN_S, request_timeout=WITHIN_S)[TOPIC].result()
    except module.KafkaException as error:
        if error.args[0].code() != module.KafkaError.TOPIC_ALREADY_EXISTS:
            raise InputError("--beside", "", f"{servers}: {error.args[0].str()}", "a Kafka of 3 brokers") from error


def _connections(address: str, pid: int, count: int) -> ConnectionFigures:
    """Connects `count` times to the broker at an address, whose process is `pid`."""
    host, port = address.rsplit(":", 1)
    frame = encode_request(API_VERSIONS, 0, 1, "bench", {})
    with ExitStack() as open_sockets:
        before, began_s = usage_of(pid), time.perf_counter()
        for _ in range(count):
            connection = open_sockets.enter_context(socket.create_connection((host, int(port)), WITHIN_S))
            connection.sendall(frame)
            with connection.makefile("rb") as stream:
                stream.read(int.from_bytes(stream.read(4), "big"))
        seconds, after = time.perf_counter() - began_s, usage_of(pid)
    if before is None or after is None:
        raise RuntimeError(f"process {pid} of the broker has ended")
    return ConnectionFigures(count, round((after[1] - before[1]) / count / 1_024, 1), round(seconds / count * 1_000, 2))


def _state_machine() -> tuple[float, float]:
    """Microseconds of a produce through the state machine, and of the checksum alone."""
    from experiments.virtual.broker import crc32c

    records: list[tuple[bytes | None, bytes | None]] = [(None, bytes(RECORD_BYTES))] * RECORDS
    data = to_kafka(build_batch(records, 0, crc32c), crc32c)
    frame = _frame(data)
    whole = [measure_ms(lambda: _produce(frame, crc32c), time.process_time)[0] for _ in range(5)]
    crc = [measure_ms(lambda: _checksums(data, crc32c), time.process_time)[0] for _ in range(5)]
    return tuple(round(median_ms(times) / ROUNDS * 1_000, 1) for times in (whole, crc))  # type: ignore[return-value]


def _checksums(data: bytes, checksum: Checksum) -> None:
    for _ in range(ROUNDS):
        checksum(data, 0)


def _produce(frame: bytes, checksum: Checksum) -> None:
    reader = FrameReader(MAX_FRAME_BYTES)
    partition = {"index": 0, "error_code": 0, "base_offset": 5, "log_append_time": None, "log_start_offset": 0}
    outcome = partition | {"record_errors": (), "error_message": None}
    values = {"responses": [{"name": TOPIC, "partition_responses": [outcome]}]}
    for _ in range(ROUNDS):
        reader.feed(frame)
        body = reader.next()
        assert body is not None
        request = decode_request(request_head(body), body)
        read_produced(request.body.topic_data[0].partition_data[0].records, checksum)
        encode_response(PRODUCE, VERSION, request.correlation_id, values)


def _frame(records: bytes) -> bytes:
    """A produce request as a client writes it."""
    partitions = [{"index": 0, "records": records}]
    topics = [{"name": TOPIC, "partition_data": partitions}]
    values = {"transactional_id": None, "acks": -1, "timeout": WITHIN_S * 1_000, "topic_data": topics}
    return encode_request(PRODUCE, VERSION, 1, "bench", values)


def _client(name: str, servers: str, record_bytes: int, seconds: int) -> ClientFigures:
    """The client program on one cluster."""
    module = librdkafka("isray bench kafka")
    settings = {
        "bootstrap.servers": servers,
        "acks": "all",
        "linger.ms": 0,
        "message.max.bytes": 4_000_000,
        "queue.buffering.max.kbytes": 16_384,
    }
    producer, value = module.Producer(settings), bytes(record_bytes)
    _one(producer, value)
    written, began_s = 0, time.perf_counter()
    end_s = began_s + seconds
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        nonlocal written
        if error is None:
            written += 1
        else:
            failures.append(error)

    while time.perf_counter() < end_s:
        try:
            producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    producer.flush(WITHIN_S)
    rate = written * record_bytes / (time.perf_counter() - began_s) / 2**20
    if failures:
        raise RuntimeError(f"{name}: {failures[0]}")
    times_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s or len(times_ms) < 2:
        times_ms.append(measure_ms(lambda: _one(producer, value))[0])
    cuts = quantiles(times_ms, n=100)
    return ClientFigures(name, record_bytes, round(rate, 2), round(cuts[49], 2), round(cuts[98], 2))


def _one(producer: Any, value: bytes) -> None:
    """Writes one record and waits until it is acknowledged."""
    producer.produce(TOPIC, value, partition=0)
    if producer.flush(WITHIN_S):
        raise RuntimeError("a record was not acknowledged")
