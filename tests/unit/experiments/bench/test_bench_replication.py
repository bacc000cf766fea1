"""`isray bench replication`: the measured points, and the figures of a run; no test of a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from experiments.bench.ceiling import BareProducer
from experiments.bench.ray_cluster import BenchError
from experiments.bench.replication import (
    COLUMNS,
    DEPTH,
    LoadPoint,
    ReplicationFigures,
    figures_of,
    points_of,
    rotated_replicas,
)
from experiments.bench.report import median_run
from protocol.errors import ErrorCode
from protocol.messages.commands import LoadOutcome

KIB = 1_024
OUTCOME = LoadOutcome(
    command_id=1, acknowledged=600, refused=2, unanswered=5, elapsed_us=2_000_000, p50_us=6_000, p99_us=45_000
)


@dataclass(frozen=True)
class Bare:
    """Measured bare calls like `experiments.bench.ceiling.CallLatencies`, without Ray."""

    elapsed_s: float = 2.0
    latencies_s: list[float] = field(default_factory=lambda: [0.001, 0.002, 0.003, 0.900])


def leader(produce: Callable[[bytes], Awaitable[None]]) -> SimpleNamespace:
    """A broker of the ceiling, without Ray."""
    return SimpleNamespace(produce=SimpleNamespace(remote=produce))


LIGHT = LoadPoint(64 * KIB, 1, 1)


def row(point: LoadPoint = LIGHT, bare: Bare | None = None, call: Bare | None = None) -> ReplicationFigures:
    bare = bare or Bare(elapsed_s=2.0, latencies_s=[0.003] * 1_200)
    return figures_of(point, OUTCOME, bare, call or Bare(latencies_s=[0.0015]))  # type: ignore[arg-type]


def test_light_load_comes_first_for_each_size_then_depth_per_partition() -> None:
    assert list(points_of((65_536, 1_024, 1_024), (8, 1))) == [
        LoadPoint(1_024, 1, 1),
        LoadPoint(1_024, 1, DEPTH),
        LoadPoint(1_024, 8, 8 * DEPTH),
        LoadPoint(65_536, 1, 1),
        LoadPoint(65_536, 1, DEPTH),
        LoadPoint(65_536, 8, 8 * DEPTH),
    ]


def test_without_a_single_partition_there_is_no_light_load() -> None:
    assert list(points_of((KIB,), (2, 4))) == [LoadPoint(KIB, 2, 2 * DEPTH), LoadPoint(KIB, 4, 4 * DEPTH)]


def test_the_leaders_rotate_and_every_partition_is_on_all_brokers() -> None:
    assert [rotated_replicas(3, index) for index in range(4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_a_row_has_the_rates_and_ratios_of_the_counts() -> None:
    assert row().document() == {
        "batch_bytes": 65_536,
        "partitions": 1,
        "in_flight": 1,
        "records_per_second": 300.0 * 64,
        "megabytes_per_second": 19.66,
        "p50_ms": 6.0,
        "p99_ms": 45.0,
        "refused": 2,
        "ceiling_batches_per_second": 600.0,
        "ceiling_p50_ms": 3.0,
        "call_p50_ms": 1.5,
        "of_ceiling": 0.5,
        "hop_round_trips": 2.0,
        "call_round_trips": 4.0,
        "hops_in_calls": 2.0,
    }


def test_the_median_of_bare_calls_is_one_of_them() -> None:
    assert row(bare=Bare()).ceiling_p50_ms == pytest.approx(2.0)


@pytest.mark.parametrize("size", [1, KIB, 3 * KIB // 2])
def test_a_small_batch_is_one_record(size: int) -> None:
    assert row(replace(LIGHT, batch_bytes=size)).document()["records_per_second"] == 300.0


def test_the_table_has_the_same_figures_and_round_trips_under_light_load_only() -> None:
    light, deep = row().texts(), row(LoadPoint(64 * KIB, 8, 40)).texts()
    assert light == ["64 KiB", "1", "1", "19,200", "19.7", "6.0 ms", "45.0 ms", "39.3", "0.50", "2.00", "4.00", "2.00"]
    assert deep == ["64 KiB", "8", "40", *light[3:9], "", "", ""]
    assert len(light) == len(COLUMNS)


def test_a_run_without_an_acknowledgement_is_an_error() -> None:
    outcome = replace(OUTCOME, acknowledged=0, last_error=ErrorCode.NOT_ENOUGH_REPLICAS)
    with pytest.raises(BenchError, match="NOT_ENOUGH_REPLICAS"):
        figures_of(LIGHT, outcome, Bare(), Bare())  # type: ignore[arg-type]


def test_bare_calls_that_take_longer_than_the_measurement_are_measured_until_one_has_ended() -> None:
    calls = 0

    async def call(payload: bytes) -> None:
        nonlocal calls
        calls += 1

    found = asyncio.run(BareProducer().replicate([leader(call)], KIB, 3, warm_up_s=0.0, for_s=0.0))
    assert (calls, len(found.latencies_s)) == (1, 1)
    assert found.elapsed_s >= found.latencies_s[0]


def test_the_reported_run_is_the_one_with_the_median_ratio() -> None:
    runs = [replace(row(), rate=rate) for rate in (240.0, 60.0, 300.0, 180.0)]
    assert median_run(runs[:3], lambda run: run.of_ceiling).rate == 240.0
    assert median_run(runs, lambda run: run.of_ceiling).rate == 180.0, "of two in the middle the lower one"
