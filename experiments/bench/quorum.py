"""`isray bench quorum`: commits, elections and snapshots of the controllers' metadata log; docs/benchmarks.md describes
the workloads, the columns and the baselines.

Commits (`quorum_ray.py`) are measured with three controllers and, on another cluster, with one. Elections, from the
death of the active controller to the next active one, run on Ray repeatedly on one cluster, in the simulator on one
cluster per seed, which draws leader, time of death, election timeouts and latencies. On Ray the processes of a finished
cluster serve the next one.

The baselines of a snapshot are the minimum: msgpack packs the plain values of all records, which are written with an
fsync, and unpacks the same bytes, without checksums, models and image.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgpack

from experiments.bench import controller
from experiments.bench.report import BenchReport, measure_ms, medians_ms
from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec, Engine, Loss
from experiments.engines.ray.directories import open_storage
from experiments.engines.ray.session import expect_kills, ray_session, stay_on_loopback
from protocol.config import CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS, CONTROLLER_QUORUM_FETCH_TIMEOUT_MS, ClusterConfig
from protocol.contract import Storage
from protocol.events.controller import ControllerStarted
from protocol.features import Generation, record_version
from protocol.ids import METADATA_LOG, NodeId, TimeMs
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import forget_unpacked, pack_records, unpack_records
from protocol.messages.records import MetadataRecord
from protocol.metadata.image import MetadataImage
from protocol.quorum.log import QuorumLog
from protocol.quorum.voters import VoterSet

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
    """Call from the main thread. `requests` per run of a workload, `kills` elections on Ray, `seeds` elections in the
    simulator, `partitions` in the snapshot; commits and snapshots are repeated, and the medians reported.
    """
    stay_on_loopback()
    expect_kills()
    with ray_session():
        from experiments.bench.quorum_ray import commits, elections_ms
        from experiments.engines.ray.process_pool import ProcessPool

        with closing(ProcessPool()) as pool:
            rates = [found for size in (CONTROLLERS, 1) for found in commits(size, requests, repeats, pool)]
            killed = elections_ms(kills, CONTROLLERS, pool)
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
    times = {"written": (row.write_ms, row.bare_write_ms), "loaded": (row.load_ms, row.bare_load_ms)}
    return [
        [f"snapshot, {what}", f"{time_ms:,.0f} ms ({size})", f"bare {bare_ms:,.0f} ms", f"{time_ms / bare_ms:.2f}"]
        for what, (time_ms, bare_ms) in times.items()
    ]


CONTROLLERS = 3
WITHIN_MS = 120_000


def config() -> ClusterConfig:
    return ClusterConfig.of(Generation.KIP_966)


def bound_ms(values: ClusterConfig) -> int:
    """The bound of an election time: the fetch timeout, after which followers notice the leader's death, twice the
    election timeout, the most that a candidate draws, and 2 s for the votes and the first commit.
    """
    fetch_ms = values.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS)
    return fetch_ms + 2 * values.int_value(CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS) + 2_000


def is_settled(engine: Engine) -> bool:
    """Whether a controller is active and all others lead or follow in the quorum."""
    roles = [part.role for part in engine.quorum().values()]
    return engine.active_controller() is not None and len(roles) == CONTROLLERS and set(roles) <= {"leader", "follower"}


def became_active(engine: Engine, after_ms: TimeMs, but: NodeId) -> TimeMs | None:
    """The time of the first `controller_started` after `after_ms` of a controller other than `but`; None until then."""
    started = (event for event in engine.traces() if isinstance(event.trace, ControllerStarted))
    return next((event.time_ms for event in started if event.time_ms > after_ms and event.node != but), None)


def simulated_ms(seed: int) -> int:
    """The election time with this seed. AssertionError where no controller becomes active."""
    engine = CheckedEngine(ClusterSpec(1, CONTROLLERS, config(), seed))
    for node in engine.spec.node_ids:
        engine.start(node)
    assert engine.run_until(lambda: is_settled(engine), WITHIN_MS), "the quorum has no leader"
    engine.run_for(Random(f"bench/{seed}").randrange(2_000))
    active = engine.active_controller()
    assert active is not None
    killed_ms = engine.now_ms()
    engine.crash(active, Loss())
    engine.run_until(lambda: became_active(engine, killed_ms, active) is not None, WITHIN_MS)
    found_ms = became_active(engine, killed_ms, active)
    assert found_ms is not None, "no successor"
    return found_ms - killed_ms


def rank(values: Sequence[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed; `values` must not be empty."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def distribution(times_ms: Sequence[int]) -> dict[str, int]:
    """Count, p50, p90 and maximum of election times, and the number of those above the bound."""
    bound = bound_ms(config())
    return {
        "kills": len(times_ms),
        "p50_ms": rank(times_ms, 0.5),
        "p90_ms": rank(times_ms, 0.9),
        "max_ms": max(times_ms),
        "above_bound": sum(time_ms > bound for time_ms in times_ms),
    }


_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """Times are medians in milliseconds; `bytes` is the size of the file."""

    partitions: int
    records: int
    bytes: int
    write_ms: float
    load_ms: float
    bare_write_ms: float
    bare_load_ms: float

    def document(self) -> dict[str, object]:
        return asdict(self) | {
            "write_ratio": round(self.write_ms / self.bare_write_ms, 2),
            "load_ratio": round(self.load_ms / self.bare_load_ms, 2),
        }


def measure(partitions: int, repeats: int) -> SnapshotRow:
    """Measures the metadata of `partitions` partitions, in topics of 100 with three replicas each."""
    records = controller.cluster_records(partitions)
    runs = [_times_once(records) for _ in range(repeats)]
    return SnapshotRow(partitions, len(records), runs[0][0], *medians_ms([times_ms for _, times_ms in runs]))


def _times_once(records: Sequence[MetadataRecord]) -> tuple[int, list[float]]:
    """(bytes of the snapshot; milliseconds of writing, loading, bare writing and bare loading) of one run."""
    image = controller.state_of(records).image
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "node"
        with open_storage(directory) as storage:
            log = _fill_log(storage, records)
            write_ms, _ = measure_ms(lambda: write(log, image))
            raw = log.raw_snapshot
        forget_unpacked()
        load_ms, loaded = measure_ms(lambda: load(directory))
        assert loaded.partition_count == image.partition_count
        bare = Path(folder) / "bare"
        bare.write_bytes(raw)
        bare_load_ms, values = measure_ms(lambda: _bare_load(bare))
        bare_write_ms, _ = measure_ms(lambda: _bare_write(bare, values))
    forget_unpacked()
    return len(raw), [write_ms, load_ms, bare_write_ms, bare_load_ms]


def _fill_log(storage: Storage, records: Sequence[MetadataRecord]) -> QuorumLog:
    """A flushed log with the records, in batches of 1,000."""
    log = QuorumLog(storage, METADATA_LOG, VoterSet())
    for first in range(0, len(records), 1_000):
        part = records[first : first + 1_000]
        payload = pack_records(part, _version())
        log.append(RecordBatch(base_offset=first, leader_epoch=1, record_count=len(part), payload=payload), part)
    log.flush()
    return log


def _version() -> int:
    return record_version(controller.config().generation.feature_levels)


def write(log: QuorumLog, image: MetadataImage) -> None:
    """Takes the image as the snapshot of the whole log."""
    log.take_snapshot(log.end_offset, pack_records(image.to_records(), _version()))


def load(directory: Path) -> MetadataImage:
    with open_storage(directory) as storage:
        snapshot = QuorumLog(storage, METADATA_LOG, VoterSet()).snapshot
        assert snapshot is not None
        image = MetadataImage(controller.config())
        image.load(unpack_records(snapshot.data), snapshot.end_offset)
        return image


def _bare_load(path: Path) -> list[object]:
    """The plain values of all records of a snapshot file."""
    _, _, _, data = msgpack.unpackb(memoryview(path.read_bytes())[_CRC_BYTES:])
    return [msgpack.unpackb(msgpack.unpackb(frame[_CRC_BYTES:]).data) for frame in msgpack.unpackb(data)]


def _bare_write(path: Path, values: Sequence[object]) -> None:
    frames = [msgpack.packb(msgpack.ExtType(1, msgpack.packb(value))) for value in values]
    with path.open("wb", buffering=0) as file:
        file.write(msgpack.packb(frames))
        os.fsync(file.fileno())
