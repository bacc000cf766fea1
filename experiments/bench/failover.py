"""`isray bench failover`: how long partitions are unavailable after the death of their leader's broker, on Ray;
docs/benchmarks.md describes the setting and the columns.

Broker 0 leads all partitions and is killed with SIGKILL. Times count from the controller's `session_expired`. Beginning
before that, a load generator repeatedly sends a batch to each partition of a sample, to both survivors, until one
acknowledges, so that look-ups of leaders are not measured. Then it sends one batch to every partition. The sample is
small so that the probes do not load the brokers: a broker takes over all its leaderships in one input, so partitions
between two of the sample are available when these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from experiments.bench.report import BenchReport, growth, median_run
from experiments.engines.port import Loss
from experiments.engines.ray.session import expect_kills, ray_session, stay_on_loopback
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS, MIN_INSYNC_REPLICAS
from protocol.events.controller import SessionExpired
from protocol.ids import TimeMs
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.messages.load import ProbeCommand, ProbeOutcome
from protocol.messages.partitions import ElectionType, ElectLeadersRequest

if TYPE_CHECKING:
    from experiments.bench.ray_cluster import BenchCluster

SIZES = (1_000, 10_000)
REPEATS = 3
SAMPLE = 50
SESSION_MS = 9_000
CHECK_EVERY_MS = 1_000
RETRY_MS = 20
IN_FLIGHT = 200
VICTIM, SURVIVORS = 0, (1, 2)
TOPIC = "failover"
ALL = -1
CONFIG = {MIN_INSYNC_REPLICAS: 2, BROKER_SESSION_TIMEOUT_MS: SESSION_MS, BROKER_HEARTBEAT_INTERVAL_MS: 500}


@dataclass(frozen=True, slots=True)
class Failover:
    """The figures of one failover in milliseconds after the detection; `detected_ms` counts from the kill."""

    partitions: int
    detected_ms: int
    p50_ms: int
    max_ms: int
    all_served_ms: int

    def texts(self) -> list[str]:
        times = (self.detected_ms, self.p50_ms, self.max_ms, self.all_served_ms)
        return [f"{self.partitions:,}", *(f"{time:,} ms" for time in times)]


def run(sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> BenchReport:
    """Measures every size `repeats` times, each on a new cluster, in ascending order; reports the run with the median
    `max_ms`. Call from the main thread.
    """
    stay_on_loopback()
    expect_kills()
    with ray_session():
        runs = [[_fail_over(size) for _ in range(repeats)] for size in sorted(set(sizes))]
    found = [median_run(each, lambda one: one.max_ms) for each in runs]
    exponent = growth([one.partitions for one in found], [max(1, one.max_ms) for one in found])
    return BenchReport(
        title="From the detection of a leader's death to partitions that acknowledge batches again",
        document={
            "brokers": 1 + len(SURVIVORS),
            "session_timeout_ms": SESSION_MS,
            "sample": SAMPLE,
            "repeats": repeats,
            "sizes": [asdict(one) for one in found],
            "growth_exponent": exponent,
        },
        columns=("partitions", "detected after", "p50", "max", "all acknowledged"),
        rows=[one.texts() for one in found],
        notes=[] if exponent is None else [f"growth exponent of max (1 is linear): {exponent:.2f}"],
    )


def _fail_over(partitions: int) -> Failover:
    from experiments.bench.ray_cluster import bench_cluster

    with bench_cluster(CONFIG) as cluster:
        cluster.create_topic(TOPIC, assignments(partitions))
        _await_leaderships(cluster, partitions)
        _probe(cluster, range(partitions), (VICTIM,))
        killed_ms = cluster.engine.now_ms()
        cluster.engine.crash(VICTIM, Loss())
        served = _probe(cluster, sample_of(partitions), SURVIVORS, not_before_ms=SESSION_MS)
        detected_ms = _detection(cluster)
        all_served = _probe(cluster, range(partitions), SURVIVORS)
    return figures_of(partitions, killed_ms, detected_ms, served, all_served)


def figures_of(
    partitions: int,
    killed_ms: TimeMs,
    detected_ms: TimeMs,
    served_ms: Sequence[TimeMs],
    all_served_ms: Sequence[TimeMs],
) -> Failover:
    """The figures of a run from the cluster times of the kill, of its detection, and of the first acknowledgement of
    each partition, in the sample and then of all.
    """
    after = [time - detected_ms for time in served_ms]
    all_after = max(all_served_ms) - detected_ms
    return Failover(partitions, detected_ms - killed_ms, median_low(after), max(after), all_after)


def assignments(partitions: int) -> list[list[int]]:
    """The replica lists: broker 0 leads all, the others alternate as the second replica."""
    return [[VICTIM, *(SURVIVORS if index % 2 else reversed(SURVIVORS))] for index in range(partitions)]


def sample_of(partitions: int) -> list[int]:
    """At most `SAMPLE` partitions, evenly spread, with the first and the last one."""
    if partitions <= SAMPLE:
        return list(range(partitions))
    return [round(place * (partitions - 1) / (SAMPLE - 1)) for place in range(SAMPLE)]


def _await_leaderships(cluster: BenchCluster, partitions: int) -> None:
    """Waits until all replicas are in sync and the victim leads all partitions. While the victim created thousands of
    logs, late heartbeats may have moved its leaderships: then requests a preferred election. BenchError where the
    victim does not become leader of all.
    """
    from experiments.bench.ray_cluster import WITHIN_MS, BenchError

    for _ in range(WITHIN_MS // CHECK_EVERY_MS):
        cluster.engine.run_for(CHECK_EVERY_MS)
        view = cluster.engine.view()
        found = [] if view is None else list(view.partitions.values())
        if len(found) == partitions and all(len(state.isr) == 1 + len(SURVIVORS) for state in found):
            if all(state.leader == VICTIM for state in found):
                return
            request = ElectLeadersRequest(correlation_id=0, election_type=ElectionType.PREFERRED, topic_partitions=None)
            cluster.run_command(AdminCommand(command_id=cluster.command_id(), request=request), AdminOutcome)
    raise BenchError(f"broker {VICTIM} does not lead {partitions:,} partitions with all replicas in sync")


def _probe(
    cluster: BenchCluster, partitions: Sequence[int], brokers: Sequence[int], not_before_ms: int = 0
) -> tuple[TimeMs, ...]:
    """The time at which each of the partitions acknowledged a batch; no cluster state is read before `not_before_ms`
    have passed.
    """
    command = ProbeCommand(
        command_id=cluster.command_id(),
        topic=TOPIC,
        partitions=tuple(partitions),
        brokers=tuple(brokers),
        acks=ALL,
        payload_bytes=1,
        in_flight=IN_FLIGHT,
        retry_ms=RETRY_MS,
    )
    return cluster.run_command(command, ProbeOutcome, not_before_ms=not_before_ms).acknowledged_ms


def _detection(cluster: BenchCluster) -> TimeMs:
    return next(event.time_ms for event in cluster.engine.traces() if isinstance(event.trace, SessionExpired))
