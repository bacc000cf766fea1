"""`isray bench controller`: the time in which the controller fences a broker that leads a third of the partitions and
follows in the others; docs/benchmarks.md describes the columns.

Every partition is on three brokers (min ISR 2, topics of 100 partitions). The session of broker 0 expires: one record
per partition and one for the registration. Each figure is the median of repeated runs on a new cluster. `peak_bytes` is
measured by tracemalloc in a separate, untimed run.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random

from experiments.bench.report import BenchReport, growth, measure_ms, medians_ms
from experiments.engines.sim.disk import SimStorage, formatted_disk
from experiments.support.metadata_fetch import metadata_fetch
from protocol.config import MIN_INSYNC_REPLICAS, ClusterConfig
from protocol.contract import Effect
from protocol.controller.brokers import fence
from protocol.controller.context import ControllerState
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, METADATA_LOG, BrokerId, TopicIdPartition
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_batch
from protocol.messages.records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from protocol.metadata.partition import PartitionState
from protocol.nodes.broker_sessions import SESSION_PREFIX
from protocol.nodes.controller import ControllerNode

SIZES = (1_000, 10_000, 100_000)
REPEATS = 5
BROKERS: tuple[BrokerId, ...] = (0, 1, 2)
SILENT: BrokerId = 0
PARTITIONS_PER_TOPIC = 100
KAFKA_PARTITIONS = 10_000
KAFKA_DECIDE_MS, KAFKA_REPLAY_MS = (13, 30), (56, 98)
"""(fastest, slowest) run of Kafka's own controller code with 10,000 partitions, on two cores, in a warm JVM with the
records in memory."""


@dataclass(frozen=True, slots=True)
class FencingFigures:
    """The figures of one size; times are medians in milliseconds of wall time."""

    partitions: int
    records: int
    decide_ms: float
    replay_ms: float
    write_ms: float
    node_ms: float
    baseline_ms: float
    peak_bytes: int

    @property
    def total_ms(self) -> float:
        return self.decide_ms + self.replay_ms

    def document(self) -> dict[str, object]:
        return asdict(self) | {
            "records_per_second": round(self.records / self.total_ms * 1_000),
            "ratio": round(self.total_ms / self.baseline_ms, 2),
        }


def run(sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> BenchReport:
    """Measures every size, in ascending order; both arguments are positive."""
    _times_once(cluster_records(1_000))  # a warm-up
    rows = [_measure(size, repeats) for size in sorted(set(sizes))]
    measured = [row.partitions for row in rows]
    exponents = {
        name: growth(measured, [getattr(row, f"{name}_ms") for row in rows]) for name in ("decide", "replay", "node")
    }
    against = next((_times_kafka(row) for row in rows if row.partitions == KAFKA_PARTITIONS), None)
    document: dict[str, object] = {
        "brokers": len(BROKERS),
        "replication_factor": len(BROKERS),
        "repeats": repeats,
        "sizes": [row.document() for row in rows],
        "growth_exponent": exponents,
        "kafka": {
            "partitions": KAFKA_PARTITIONS,
            "decide_ms": KAFKA_DECIDE_MS,
            "replay_ms": KAFKA_REPLAY_MS,
            "times_kafka": against,
        },
    }
    return BenchReport(
        title="Fencing a broker that leads a third of the partitions and follows in the others",
        document=document,
        columns=("partitions", "records", "decide", "replay", "write", "node", "records/s", "ratio", "peak"),
        rows=[_texts(row) for row in rows],
        notes=_notes(exponents, against),
    )


def config() -> ClusterConfig:
    return ClusterConfig.of(Generation.KIP_966, {MIN_INSYNC_REPLICAS: 2})


def cluster_records(partitions: int) -> list[MetadataRecord]:
    """The metadata of a cluster with all brokers unfenced and leaders in rotation."""
    records: list[MetadataRecord] = [
        RegisterBrokerRecord(
            broker_id=broker, broker_epoch=broker, incarnation_id=f"incarnation-{broker}", fenced=False
        )
        for broker in BROKERS
    ]
    for number in range(partitions):
        topic, index = divmod(number, PARTITIONS_PER_TOPIC)
        if index == 0:
            records.append(TopicRecord(name=f"topic-{topic}", topic_id=f"id-{topic}"))
        first = number % len(BROKERS)
        replicas = (*BROKERS[first:], *BROKERS[:first])
        records.append(
            PartitionRecord(
                topic_id=f"id-{topic}", partition_id=index, replicas=replicas, isr=replicas, leader=replicas[0]
            )
        )
    return records


def state_of(records: Sequence[MetadataRecord]) -> ControllerState:
    state = ControllerState(config(), Random(0))
    replay(state, records)
    return state


def node_of(records: Sequence[MetadataRecord]) -> ControllerNode:
    """A started controller with the records in its log, at which fetches of the metadata by both other brokers wait."""
    storage = formatted_disk()
    _append(storage, records)
    node = ControllerNode(FIRST_CONTROLLER, [FIRST_CONTROLLER], config(), storage, Random(0))
    node.start(0)
    for broker in BROKERS:
        if broker != SILENT:
            node.receive(0, broker, metadata_fetch(node, broker))
    return node


def decide(state: ControllerState) -> list[MetadataRecord]:
    epoch = state.image.broker_epoch(SILENT)
    assert epoch is not None
    return fence(state, SILENT, epoch)


def replay(state: ControllerState, records: Sequence[MetadataRecord]) -> None:
    for record in records:
        state.replay(record)


def expire_session(node: ControllerNode) -> list[Effect]:
    """Fires the session timer of the silent broker."""
    return node.fire(config().int_value("broker.session.timeout.ms"), f"{SESSION_PREFIX}{SILENT}")


def _append(storage: SimStorage, records: Sequence[MetadataRecord]) -> None:
    log, payload = storage.open_log(METADATA_LOG), pack_batch(records, config().generation.feature_levels)
    log.append(RecordBatch(base_offset=log.end_offset, leader_epoch=0, record_count=len(records), payload=payload))
    log.flush()


def _bare_work(records: Sequence[MetadataRecord]) -> dict[TopicIdPartition, PartitionState]:
    """The baseline, the minimum with these types: per changed partition one checked change record, one partition state
    and one dict entry.
    """
    table: dict[TopicIdPartition, PartitionState] = {}
    for record in records:
        if isinstance(record, PartitionChangeRecord):
            made = PartitionChangeRecord(
                topic_id=record.topic_id, partition_id=record.partition_id, isr=record.isr, leader=record.leader
            )
            isr = made.isr or ()
            state = PartitionState(replicas=BROKERS, isr=isr, leader=made.leader, leader_epoch=1, partition_epoch=1)
            table[TopicIdPartition(made.topic_id, made.partition_id)] = state
    return table


def _times_once(cluster: Sequence[MetadataRecord]) -> tuple[int, list[float]]:
    """(number of records; milliseconds of decide, replay, write, node and baseline) of one run."""
    state = state_of(cluster)
    decide_ms, records = measure_ms(lambda: decide(state))
    replay_ms, _ = measure_ms(lambda: replay(state, records))
    storage = SimStorage()
    write_ms, _ = measure_ms(lambda: _append(storage, records))
    baseline_ms, _ = measure_ms(lambda: _bare_work(records))
    node = node_of(cluster)
    node_ms, _ = measure_ms(lambda: expire_session(node))
    return len(records), [decide_ms, replay_ms, write_ms, node_ms, baseline_ms]


def _peak_bytes(cluster: Sequence[MetadataRecord]) -> int:
    node = node_of(cluster)
    tracemalloc.start()
    try:
        expire_session(node)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _measure(partitions: int, repeats: int) -> FencingFigures:
    cluster = cluster_records(partitions)
    runs = [_times_once(cluster) for _ in range(repeats)]
    decide_ms, replay_ms, write_ms, node_ms, baseline_ms = medians_ms([times_ms for _, times_ms in runs])
    records, peak_bytes = runs[0][0], _peak_bytes(cluster)
    return FencingFigures(partitions, records, decide_ms, replay_ms, write_ms, node_ms, baseline_ms, peak_bytes)


def _times_kafka(row: FencingFigures) -> tuple[float, float]:
    """How many times as long as Kafka's code it took to decide and replay, by Kafka's slowest and fastest figures."""
    fast, slow = (KAFKA_DECIDE_MS[end] + KAFKA_REPLAY_MS[end] for end in (0, 1))
    return round(row.total_ms / slow, 2), round(row.total_ms / fast, 2)


def _texts(row: FencingFigures) -> list[str]:
    times = [f"{time:,.1f} ms" for time in (row.decide_ms, row.replay_ms, row.write_ms, row.node_ms)]
    rate = row.records / row.total_ms * 1_000
    memory = f"{row.peak_bytes / 2**20:,.1f} MiB"
    ratio = f"{row.total_ms / row.baseline_ms:.2f}"
    return [f"{row.partitions:,}", f"{row.records:,}", *times, f"{rate:,.0f}", ratio, memory]


def _notes(exponents: Mapping[str, float | None], against: tuple[float, float] | None) -> list[str]:
    notes = ["ratio: (decide + replay) / the same number of bare records, states and dict entries"]
    grown = [f"{name} {exponent:.2f}" for name, exponent in exponents.items() if exponent is not None]
    if grown:
        notes.append(f"growth exponent (1 is linear): {', '.join(grown)}")
    if against is not None:
        times = f"{against[0]} to {against[1]} times Kafka's own code"
        notes.append(f"decide + replay of {KAFKA_PARTITIONS:,} partitions: {times}")
    return notes
