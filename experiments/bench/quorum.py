"""`isray bench quorum`: commits, elections and snapshots of the controllers' metadata log; docs/benchmarks.md describes
the workloads, the columns and the baselines.

Commits (`quorum_ray.py`) are measured with three controllers and, on another cluster, with one; the brokers are paused,
so that their handling of the records is not measured. Elections run on Ray repeatedly on one cluster, in the simulator
on one cluster per seed (`quorum_elections.py`). Snapshots (`quorum_snapshot.py`) are written to a disk and loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from experiments.bench.quorum_elections import CONTROLLERS, bound_ms, config, distribution, simulated_ms
from experiments.bench.quorum_snapshot import SnapshotRow, measure
from experiments.bench.report import BenchReport
from experiments.engines.ray.session import expect_kills, ray_session, stay_on_loopback
from protocol.config import CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS, CONTROLLER_QUORUM_FETCH_TIMEOUT_MS

if TYPE_CHECKING:
    from experiments.bench.quorum_ray import Commits

REQUESTS, KILLS, SEEDS, SNAPSHOT_PARTITIONS, REPEATS = 20, 10, 200, 100_000, 3
COLUMNS = ("what", "figure", "against", "ratio")


def run(
    requests: int = REQUESTS,
    kills: int = KILLS,
    seeds: int = SEEDS,
    partitions: int = SNAPSHOT_PARTITIONS,
    repeats: int = REPEATS,
) -> BenchReport:
    """Measures commits, elections and snapshots; call from the main thread. `requests` per run of a workload, `kills`
    elections on Ray, `seeds` elections in the simulator, `partitions` in the snapshot; commits and snapshots are
    repeated, and the medians reported.
    """
    stay_on_loopback()
    expect_kills()
    with ray_session():
        from experiments.bench.quorum_ray import commits, elections_ms

        rates = [found for size in (CONTROLLERS, 1) for found in commits(size, requests, repeats)]
        killed = elections_ms(kills, CONTROLLERS)
    simulated = [simulated_ms(seed) for seed in range(seeds)]
    return report_of(rates, killed, simulated, measure(partitions, repeats), repeats)


def report_of(
    rates: Sequence[Commits], killed_ms: Sequence[int], simulated: Sequence[int], snapshot: SnapshotRow, repeats: int
) -> BenchReport:
    """The report of the measurements; `rates` must contain each workload with one controller."""
    values = config()
    elections = {"ray": distribution(killed_ms), "sim": distribution(simulated)}
    return BenchReport(
        title="The metadata log: commits, elections, snapshots",
        document={
            "controllers": CONTROLLERS,
            "repeats": repeats,
            "commits": [rate.document() | {"of_one_controller": _of_one(rate, rates)} for rate in rates],
            "elections": {
                "fetch_timeout_ms": values.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS),
                "election_timeout_ms": values.int_value(CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS),
                "bound_ms": bound_ms(values),
                **elections,
            },
            "snapshot": snapshot.document(),
        },
        columns=COLUMNS,
        rows=[
            *(_commit_texts(rate, rates) for rate in rates if rate.controllers == CONTROLLERS),
            *(_election_texts(where, found) for where, found in elections.items()),
            *_snapshot_texts(snapshot),
        ],
        notes=[
            "commits: records per second that are on the disks of a majority; one controller, appends with an fsync",
            "elections: from the kill of the active controller to the next one that is active; the bound",
            "snapshots: msgpack alone, the same values packed and written with an fsync, and read",
        ],
    )


def _of_one(rate: Commits, rates: Sequence[Commits]) -> float:
    """The ratio of the rate to that of one controller with the same workload."""
    [alone] = [other for other in rates if other.controllers == 1 and other.workload == rate.workload]
    return round(rate.rate / alone.rate, 3)


def _commit_texts(rate: Commits, rates: Sequence[Commits]) -> list[str]:
    of_one = _of_one(rate, rates)
    against = f"one controller {rate.rate / of_one:,.0f}/s, appends {rate.rate / rate.of_bare:,.0f}/s"
    figure = f"{rate.rate:,.0f} records/s, p50 {rate.p50_ms:,.1f} ms"
    return [f"commits, {rate.workload}", figure, against, f"{of_one:.2f}, {rate.of_bare:.3f}"]


def _election_texts(where: str, found: Mapping[str, int]) -> list[str]:
    times = ", ".join(f"{name} {found[f'{name}_ms']:,} ms" for name in ("p50", "p90", "max"))
    above = f"{found['above_bound']} of {found['kills']} above"
    return [f"elections, {where}", times, f"bound {bound_ms(config()):,} ms", above]


def _snapshot_texts(row: SnapshotRow) -> list[list[str]]:
    size = f"{row.partitions:,} partitions, {row.bytes / 1e6:,.1f} MB"
    return [
        [f"snapshot, {what}", f"{time_ms:,.0f} ms ({size})", f"bare {bare_ms:,.0f} ms", f"{time_ms / bare_ms:.2f}"]
        for what, time_ms, bare_ms in (
            ("written", row.write_ms, row.bare_write_ms),
            ("loaded", row.load_ms, row.bare_load_ms),
        )
    ]
