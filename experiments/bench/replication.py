"""`isray bench replication`: throughput and latency of the data path on Ray, compared with bare Ray actor calls
(`experiments/bench/ceiling.py`) over the same hops; docs/benchmarks.md describes the setting and the columns.

A batch counts when its acknowledgement has arrived. The goals are an `of_ceiling` of at least 0.7 with 1 MiB, and with
64 KiB of 0.8 with one partition and 0.95 with eight; and at most 3 `call_round_trips` under light load. Cluster and
ceiling are measured alternately, `repeats` times each; the report has the run with the median ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from experiments.bench.report import BenchReport, median_run
from experiments.engines.ray.session import ray_session, stay_on_loopback
from protocol.config import MAX_MESSAGE_BYTES, MIN_INSYNC_REPLICAS
from protocol.messages.commands import LoadCommand, LoadOutcome

if TYPE_CHECKING:
    from experiments.bench.ceiling import CallLatencies, Ceiling
    from experiments.bench.ray_cluster import BenchCluster

RECORD_BYTES = 1_024
SIZES = (1_024, 65_536, 1_048_576)
PARTITIONS = (1, 8)
DEPTH = 5
"""Batches under way per partition, as `max.in.flight.requests.per.connection` has it."""
DURATION_MS = 4_000
WARM_UP_MS = 1_000
REPEATS = 3
COLUMNS = (
    *("batch", "partitions", "in flight", "records/s", "MB/s", "p50", "p99"),
    *("ceiling MB/s", "of ceiling", "p50 / hops", "p50 / call", "hops / call"),
)
CONFIG: Mapping[str, object] = {MIN_INSYNC_REPLICAS: 2, MAX_MESSAGE_BYTES: 2 * max(SIZES)}


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The parameters of one measurement: batch size in bytes, partitions, batches under way."""

    batch_bytes: int
    partitions: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class ReplicationFigures:
    """The figures of one run: rates in batches per second, times in milliseconds."""

    point: LoadPoint
    rate: float
    p50_ms: float
    p99_ms: float
    refused: int
    ceiling_rate: float
    ceiling_p50_ms: float
    call_p50_ms: float

    @property
    def of_ceiling(self) -> float:
        return self.rate / self.ceiling_rate

    def document(self) -> dict[str, object]:
        return asdict(self.point) | {
            "records_per_second": round(self.rate * _records_of(self.point.batch_bytes), 1),
            "megabytes_per_second": round(self.rate * self.point.batch_bytes / 1e6, 2),
            "p50_ms": round(self.p50_ms, 2),
            "p99_ms": round(self.p99_ms, 2),
            "refused": self.refused,
            "ceiling_batches_per_second": round(self.ceiling_rate, 1),
            "ceiling_p50_ms": round(self.ceiling_p50_ms, 2),
            "call_p50_ms": round(self.call_p50_ms, 2),
            "of_ceiling": round(self.of_ceiling, 2),
            "hop_round_trips": round(self.p50_ms / self.ceiling_p50_ms, 2),
            "call_round_trips": round(self.p50_ms / self.call_p50_ms, 2),
            "hops_in_calls": round(self.ceiling_p50_ms / self.call_p50_ms, 2),
        }

    def texts(self) -> list[str]:
        point, size = self.point, self.point.batch_bytes
        head = [f"{size // 1_024:,} KiB", f"{point.partitions}", f"{point.in_flight}"]
        rates = [f"{self.rate * _records_of(size):,.0f}", f"{self.rate * size / 1e6:,.1f}"]
        ceiling = [f"{self.ceiling_rate * size / 1e6:,.1f}", f"{self.of_ceiling:.2f}"]
        hops_ms, call_ms = self.ceiling_p50_ms, self.call_p50_ms
        ratios = (self.p50_ms / hops_ms, self.p50_ms / call_ms, hops_ms / call_ms)
        round_trips = [f"{ratio:.2f}" if point.in_flight == 1 else "" for ratio in ratios]
        return [*head, *rates, f"{self.p50_ms:,.1f} ms", f"{self.p99_ms:,.1f} ms", *ceiling, *round_trips]


def run(
    sizes: Sequence[int] = SIZES,
    partitions: Sequence[int] = PARTITIONS,
    duration_ms: int = DURATION_MS,
    repeats: int = REPEATS,
) -> BenchReport:
    """Measures every combination of batch sizes and partitions; call from the main thread."""
    stay_on_loopback()
    points = list(points_of(sizes, partitions))
    with ray_session():
        from experiments.bench.ceiling import Ceiling
        from experiments.bench.ray_cluster import BROKERS, bench_cluster

        ceiling = Ceiling(BROKERS)
        with bench_cluster(CONFIG) as cluster:
            for count in sorted(set(partitions)):
                cluster.create_topic(_topic(count), [rotated_replicas(BROKERS, index) for index in range(count)])
            runs = [[_measure(cluster, ceiling, p, duration_ms) for _ in range(repeats)] for p in points]
        ceiling.close()
    rows = [median_run(found, lambda row: row.of_ceiling) for found in runs]
    return BenchReport(
        title="acks=all batches through three brokers, against bare Ray calls over the same hops",
        document={
            "brokers": BROKERS,
            "replication_factor": BROKERS,
            "min_isr": 2,
            "record_bytes": RECORD_BYTES,
            "duration_ms": duration_ms,
            "repeats": repeats,
            "points": [row.document() for row in rows],
        },
        columns=COLUMNS,
        rows=[row.texts() for row in rows],
        notes=[
            "of ceiling: batches per second over those of bare calls, producer -> leader -> followers and back",
            "p50 / hops: median latency over that of bare calls over the same hops; p50 / call: over one bare call;"
            " hops / call: the least that p50 / call can be",
        ],
    )


def points_of(sizes: Sequence[int], partitions: Sequence[int]) -> Iterator[LoadPoint]:
    """For each size: light load with one partition, then every number of partitions with `DEPTH` batches each."""
    for size in sorted(set(sizes)):
        if 1 in partitions:
            yield LoadPoint(size, 1, 1)
        for count in sorted(set(partitions)):
            yield LoadPoint(size, count, DEPTH * count)


def _measure(cluster: BenchCluster, ceiling: Ceiling, point: LoadPoint, duration_ms: int) -> ReplicationFigures:
    warm_up_s, for_s = WARM_UP_MS / 1_000, duration_ms / 1_000
    bare = ceiling.replicate(point.partitions, point.batch_bytes, point.in_flight, warm_up_s, for_s)
    call = ceiling.round_trip(point.batch_bytes, warm_up_s / 4, for_s / 4)
    for factor in (1, 4, 16):  # where nothing is acknowledged, on a machine that others use too, a longer run follows
        outcome = _load(cluster, point, factor * duration_ms)
        if outcome.acknowledged:
            break
    return figures_of(point, outcome, bare, call)


def _load(cluster: BenchCluster, point: LoadPoint, duration_ms: int) -> LoadOutcome:
    command = LoadCommand(
        command_id=cluster.command_id(),
        topic=_topic(point.partitions),
        partitions=tuple(range(point.partitions)),
        acks=-1,
        record_count=_records_of(point.batch_bytes),
        payload_bytes=point.batch_bytes,
        in_flight=point.in_flight,
        warm_up_ms=WARM_UP_MS,
        duration_ms=duration_ms,
    )
    return cluster.run_command(command, LoadOutcome, not_before_ms=WARM_UP_MS + duration_ms)


def figures_of(point: LoadPoint, outcome: LoadOutcome, bare: CallLatencies, call: CallLatencies) -> ReplicationFigures:
    """The row of one run. BenchError where no batch was acknowledged."""
    from experiments.bench.ray_cluster import BenchError

    if not outcome.acknowledged:
        raise BenchError(f"nothing acknowledged at {point}: {outcome.last_error.name}")
    return ReplicationFigures(
        point=point,
        rate=outcome.acknowledged / outcome.elapsed_us * 1e6,
        p50_ms=outcome.p50_us / 1e3,
        p99_ms=outcome.p99_us / 1e3,
        refused=outcome.refused,
        ceiling_rate=len(bare.latencies_s) / bare.elapsed_s,
        ceiling_p50_ms=median_low(bare.latencies_s) * 1e3,
        call_p50_ms=median_low(call.latencies_s) * 1e3,
    )


def _records_of(batch_bytes: int) -> int:
    return max(1, batch_bytes // RECORD_BYTES)


def _topic(partitions: int) -> str:
    return f"partitions-{partitions}"


def rotated_replicas(brokers: int, first: int) -> list[int]:
    """The replica list with all brokers that begins with broker `first` modulo their number."""
    return [(first + place) % brokers for place in range(brokers)]
