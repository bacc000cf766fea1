"""The part of `isray bench quorum` on Ray: commits of the metadata log, and elections after SIGKILL."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

import ray

from experiments.bench.quorum import became_active, is_settled
from experiments.bench.ray_cluster import BenchCluster, BenchError, bench_cluster
from experiments.bench.report import median_run
from experiments.engines.admin_requests import alter_config, create_topic
from experiments.engines.ray.process_pool import ProcessPool
from experiments.engines.ray.session import Handle
from protocol.config import BROKER_SESSION_TIMEOUT_MS
from protocol.errors import ErrorCode
from protocol.features import record_version
from protocol.ids import FIRST_CLIENT, node_name
from protocol.messages.admin import AdminRequest
from protocol.messages.codec import decode, encode
from protocol.messages.commands import AdminOutcome
from protocol.messages.metadata_batch import pack_records

TOPICS, CONFIGS = "topics", "configs"
PARTITIONS = 500
"""Partitions of each created topic."""
IN_FLIGHT = {TOPICS: 4, CONFIGS: 64}
TIMES = {TOPICS: 1, CONFIGS: 20}
"""Factor on the number of requests of a run."""
RECORDS = {TOPICS: 1 + PARTITIONS, CONFIGS: 1}
"""Records per request."""
CONFIG_OF = "configured"
CONFIG = {BROKER_SESSION_TIMEOUT_MS: 3_600_000}
"""The brokers are paused while commits are measured; their sessions must not expire."""


@dataclass(frozen=True, slots=True)
class Commits:
    """The measurement of a workload: `requests` requests, each a batch of `batch_bytes`, were committed in `elapsed_s`,
    with the median latency `p50_ms`. `bare_s` is the time of as many appends with an fsync.
    """

    workload: str
    controllers: int
    requests: int
    elapsed_s: float
    p50_ms: float
    batch_bytes: int
    bare_s: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.requests * RECORDS[self.workload] / self.elapsed_s

    @property
    def of_bare(self) -> float:
        """The ratio of the rate to that of the bare appends."""
        return self.bare_s / self.elapsed_s

    def document(self) -> dict[str, object]:
        return {
            **{name: getattr(self, name) for name in ("workload", "controllers", "requests")},
            "in_flight": IN_FLIGHT[self.workload],
            "records_per_request": RECORDS[self.workload],
            "batch_bytes": self.batch_bytes,
            "records_per_second": round(self.rate, 1),
            "p50_ms": round(self.p50_ms, 2),
            "bare_records_per_second": round(self.rate / self.of_bare, 1),
            "of_bare": round(self.of_bare, 4),
        }


def commits(controllers: int, requests: int, repeats: int, pool: ProcessPool) -> list[Commits]:
    """Runs both workloads on a cluster with `controllers` controllers, once for warm-up and then `repeats` times;
    returns the run with the median rate of each.
    """
    found: dict[str, list[Commits]] = {TOPICS: [], CONFIGS: []}
    with bench_cluster(CONFIG, controllers, pool=pool) as cluster:
        cluster.create_topic(CONFIG_OF, [[0, 1, 2]])
        client = ray.get_actor(node_name(FIRST_CLIENT), cluster.engine.cluster.run)
        for broker in cluster.engine.spec.broker_ids:
            cluster.engine.pause(broker)
        for workload, runs in found.items():
            _run_pipelined(client, _requests(workload, 0, requests), IN_FLIGHT[workload])
            version = record_version(cluster.engine.spec.config.generation.feature_levels)
            batch_bytes = len(pack_records(cluster.engine.metadata_log()[-RECORDS[workload] :], version))
            for turn in range(1, repeats + 1):
                made = _requests(workload, turn, requests)
                latencies_s, elapsed_s = _run_pipelined(client, made, IN_FLIGHT[workload])
                bare_s = bare_appends(batch_bytes, len(made))
                p50_ms = median_low(latencies_s) * 1e3
                runs.append(Commits(workload, controllers, len(made), elapsed_s, p50_ms, batch_bytes, bare_s))
    return [median_run(runs, lambda run: run.rate) for runs in found.values()]


def _requests(workload: str, turn: int, requests: int) -> Sequence[AdminRequest]:
    numbers = range(requests * TIMES[workload])
    if workload == CONFIGS:
        return [alter_config(CONFIG_OF, {"flush.messages": 1 + turn * 1_000_000 + number}) for number in numbers]
    return [create_topic(f"t-{turn}-{number}", [[0, 1, 2]] * PARTITIONS) for number in numbers]


def _run_pipelined(client: Handle, requests: Sequence[AdminRequest], in_flight: int) -> tuple[list[float], float]:
    """(latency of each request, time until all were answered) in seconds; BenchError where a request was refused."""
    frames = [encode(request) for request in requests]
    sent_s: dict[Handle, float] = {}
    latencies_s: list[float] = []
    began_s = time.perf_counter()
    for frame in frames:
        if len(sent_s) >= in_flight:
            latencies_s += _await_answers(sent_s)
        sent_s[client.request.remote(frame)] = time.perf_counter()
    while sent_s:
        latencies_s += _await_answers(sent_s)
    return latencies_s, time.perf_counter() - began_s


def _await_answers(sent_s: dict[Handle, float]) -> list[float]:
    """Waits for at least one answer; removes the answered calls from `sent_s` and returns their latencies."""
    ready, _ = ray.wait(list(sent_s), num_returns=1)
    found = []
    for answer in ready:
        outcome = decode(ray.get(answer))
        assert isinstance(outcome, AdminOutcome), outcome
        error = outcome.error if outcome.response is None else outcome.response.failure()[0]
        if error is not ErrorCode.NONE:
            raise BenchError(f"refused: {outcome}")
        found.append(time.perf_counter() - sent_s.pop(answer))
    return found


def bare_appends(size: int, count: int) -> float:
    """The time in seconds of `count` appends of `size` bytes to a file on the disk of the nodes, each with an fsync."""
    payload = b"\xa5" * size
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb", buffering=0) as file:
        began_s = time.perf_counter()
        for _ in range(count):
            file.write(payload)
            os.fsync(file.fileno())
        return time.perf_counter() - began_s


def elections_ms(kills: int, controllers: int, pool: ProcessPool) -> list[int]:
    """The times of `kills` elections, from the SIGKILL of the active controller to `controller_started` of the next.
    Before each kill the previous victim runs again and follows.
    """
    with bench_cluster({}, controllers, brokers=1, pool=pool) as cluster:
        return [_election_ms(cluster) for _ in range(kills)]


def _election_ms(cluster: BenchCluster) -> int:
    engine = cluster.engine
    cluster.await_condition(lambda: is_settled(engine), "the quorum is settled")
    active = engine.active_controller()
    assert active is not None
    pid, killed_ms = engine.cluster.pids()[active], engine.now_ms()
    os.kill(pid, signal.SIGKILL)
    cluster.await_condition(lambda: became_active(engine, killed_ms, active) is not None, "another one is active")
    found_ms = became_active(engine, killed_ms, active)
    assert found_ms is not None
    cluster.await_condition(lambda: not engine.is_running(active), "it has ended")
    engine.start(active)
    return found_ms - killed_ms
