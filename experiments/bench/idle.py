"""`isray bench idle`: what a cluster without clients costs, on Ray: memory and processor time of its nodes, by the
number of partitions, and how soon a broker with its share of them runs again; docs/benchmarks.md has the columns.

Leaders and followers rotate over the brokers (replication factor 3), so that every broker leads as many partitions and
follows as many as any other. All brokers have applied the metadata of all partitions once each has led one of the last
topic through a batch with acks=all. The cluster is left alone during the measurement; it is not even polled. The
baseline, in the same seconds, is as many bare Ray actors as the cluster has nodes: a process of Ray's costs something
without any node in it.

The restarted broker is killed first, and its session has ended: it opens all its logs, registers, and replays the
metadata before it runs.

A second baseline is what Ray's calls would cost: in the same seconds as many bare actors as the cluster has brokers and
controllers make as many calls as Kafka's intervals need at the least (`calls_per_second`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from experiments.bench.process_usage import cpu_s, usage_of
from experiments.bench.report import BenchReport
from experiments.engines.port import Loss, TraceEvent
from experiments.engines.ray.session import expect_kills, ray_session, stay_on_loopback
from protocol.broker.lifecycle import LifecycleState
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.events.broker import BrokerStateChanged
from protocol.events.controller import SessionExpired
from protocol.ids import BrokerId
from protocol.messages.commands import ProbeCommand, ProbeOutcome

if TYPE_CHECKING:
    from experiments.bench.ray_cluster import BenchCluster

BROKERS, CONTROLLERS = 3, 3
PARTITIONS = (3, 10_000)
SECONDS = 60
REPLICATION_FACTOR = 3
PARTITIONS_PER_TOPIC = 5_000
SETTLE_S = 12.0
"""Before the measurement: two repetitions of the metrics, and the checkpoints of the high watermarks."""
CONFIG: Mapping[str, object] = {MIN_INSYNC_REPLICAS: 2}
CALL_BYTES = 100
"""About the size of a frame with a fetch, a renewal or a heartbeat."""


@dataclass(frozen=True, slots=True)
class IdleFigures:
    """The figures of one cluster. `cores` are processor seconds per second of its brokers and controllers together,
    `all_cores` those of all its actors, with client, recovery manager and load generator, `bare_cores` those of as many
    bare actors; `calling_cores` those of as many bare actors as brokers and controllers, with as many calls between
    them. `empty_mb` is the resident memory of a broker without partitions, `broker_mb` that with its share.
    """

    brokers: int
    controllers: int
    partitions: int
    create_s: float
    empty_mb: float
    broker_mb: float
    controller_mb: float
    cores: float
    all_cores: float
    bare_cores: float
    calling_cores: float
    restart_s: float

    @property
    def replica_kb(self) -> float:
        """The memory of a broker per replica, in kB."""
        replicas = self.partitions * REPLICATION_FACTOR / self.brokers
        return round((self.broker_mb - self.empty_mb) * 1_000 / replicas, 2)

    def texts(self) -> list[str]:
        return [
            f"{self.brokers} + {self.controllers}",
            f"{self.partitions:,}",
            f"{self.create_s:,.1f} s",
            f"{self.empty_mb:,.0f} MB",
            f"{self.broker_mb:,.0f} MB",
            f"{self.replica_kb:,.2f} kB",
            f"{self.controller_mb:,.0f} MB",
            f"{self.cores:.3f}",
            f"{self.all_cores:.3f}",
            f"{self.all_cores / max(self.bare_cores, 0.001):.1f}",
            f"{self.calling_cores:.3f}",
            f"{self.restart_s:,.1f} s",
        ]


def run(
    partitions: Sequence[int] = PARTITIONS,
    brokers: int = BROKERS,
    controllers: int = CONTROLLERS,
    seconds: int = SECONDS,
) -> BenchReport:
    """Measures one new cluster per number of partitions, each for `seconds`. Call from the main thread."""
    stay_on_loopback()
    expect_kills()
    with ray_session():
        found = [_measure(brokers, controllers, number, seconds) for number in sorted(set(partitions))]
    return BenchReport(
        title="A cluster that is left alone",
        document={
            "replication_factor": REPLICATION_FACTOR,
            "seconds": seconds,
            "sizes": [asdict(one) | {"replica_kb": one.replica_kb} for one in found],
        },
        columns=(
            *("brokers + controllers", "partitions", "created in", "broker, empty", "broker", "per replica"),
            *("controller", "cores", "all actors", "of bare actors", "bare actors that call", "broker runs again"),
        ),
        rows=[one.texts() for one in found],
    )


def assignments(partitions: int, brokers: int) -> list[list[BrokerId]]:
    """The replica lists of partitions in rotation over the brokers."""
    copies = min(REPLICATION_FACTOR, brokers)
    return [[(number + place) % brokers for place in range(copies)] for number in range(partitions)]


def topics_of(partitions: int) -> list[int]:
    """How many partitions each topic of a cluster gets, at most PARTITIONS_PER_TOPIC."""
    full, rest = divmod(partitions, PARTITIONS_PER_TOPIC)
    return [PARTITIONS_PER_TOPIC] * full + [rest] * (rest > 0)


def calls_per_second(brokers: int, controllers: int) -> float:
    """How many calls an idle cluster needs, where a request and its response share one, and so do the requests of two
    nodes to each other. By Kafka's intervals every node but the active controller fetches from the metadata log twice a
    second, two brokers that follow each other renew their fetch sessions twice a second (`replica.fetch.wait.max.ms`),
    and each broker sends a heartbeat every two seconds (`broker.heartbeat.interval.ms`). In rotation a broker shares
    partitions with the `REPLICATION_FACTOR` - 1 brokers on either side of it.
    """
    partners = min(brokers - 1, 2 * (REPLICATION_FACTOR - 1))
    return 2 * (brokers + controllers - 1) + brokers * partners + brokers / 2


def _measure(brokers: int, controllers: int, partitions: int, seconds: int) -> IdleFigures:
    from experiments.bench.ceiling import Ceiling
    from experiments.bench.ray_cluster import bench_cluster

    with bench_cluster(CONFIG, controllers, brokers) as cluster:
        pids = cluster.engine.cluster.pids()
        empty_mb = _resident_mb(pids[broker] for broker in range(brokers))
        began_s = time.perf_counter()
        _create(cluster, partitions, brokers)
        create_s = time.perf_counter() - began_s
        bare = Ceiling(len(pids) - 1)
        spec = cluster.engine.spec
        nodes = [pids[node] for node in (*spec.broker_ids, *spec.controller_ids)]
        calling = Ceiling(len(nodes) - 1)
        groups = (nodes, list(pids.values()), bare.pids(), calling.pids())
        time.sleep(SETTLE_S)
        calling.exchange(calls_per_second(brokers, controllers), seconds, CALL_BYTES)
        before = [cpu_s(group) for group in groups]
        time.sleep(seconds)
        cores, all_cores, bare_cores, calling_cores = (
            round((cpu_s(group) - begun) / seconds, 4) for group, begun in zip(groups, before, strict=True)
        )
        bare.close()
        calling.close()
        return IdleFigures(
            brokers=brokers,
            controllers=controllers,
            partitions=partitions,
            create_s=round(create_s, 1),
            empty_mb=empty_mb,
            broker_mb=_resident_mb(pids[broker] for broker in range(brokers)),
            controller_mb=_resident_mb(pids[node] for node in spec.controller_ids),
            cores=cores,
            all_cores=all_cores,
            bare_cores=bare_cores,
            calling_cores=calling_cores,
            restart_s=round(_restart(cluster, brokers - 1), 1),
        )


def _create(cluster: BenchCluster, partitions: int, brokers: int) -> None:
    """Creates the topics, and waits until every broker has applied the metadata of the last one."""
    sizes = topics_of(partitions)
    for number, size in enumerate(sizes):
        cluster.create_topic(f"idle-{number}", assignments(size, brokers))
    probe = ProbeCommand(
        command_id=cluster.command_id(),
        topic=f"idle-{len(sizes) - 1}",
        partitions=tuple(range(min(brokers, sizes[-1]))),
        brokers=tuple(range(brokers)),
        acks=-1,
        payload_bytes=1,
        in_flight=brokers,
        retry_ms=200,
    )
    cluster.run_command(probe, ProbeOutcome)


def _restart(cluster: BenchCluster, broker: BrokerId) -> float:
    """Kills a broker, starts it again once its session has ended, and returns the seconds until it runs."""
    events: list[TraceEvent] = []
    stop = cluster.engine.record_to(events.append)
    cluster.engine.crash(broker, Loss())
    cluster.await_condition(
        lambda: any(isinstance(event.trace, SessionExpired) and event.trace.broker == broker for event in events),
        f"the end of the session of broker {broker}",
    )
    events.clear()
    began_ms = cluster.engine.now_ms()
    cluster.engine.start(broker)
    found: list[TraceEvent] = []

    def runs() -> bool:
        found[:] = [event for event in events if event.node == broker and _is_running(event)]
        return bool(found)

    cluster.await_condition(runs, f"broker {broker} running")
    stop()
    return (found[0].time_ms - began_ms) / 1_000


def _is_running(event: TraceEvent) -> bool:
    return isinstance(event.trace, BrokerStateChanged) and event.trace.state == LifecycleState.RUNNING.value


def _resident_mb(pids: Iterable[int]) -> float:
    """The mean resident memory of processes that run, in MB of 10^6 bytes."""
    found = [usage[1] for pid in pids if (usage := usage_of(pid)) is not None]
    return round(sum(found) / len(found) / 1e6, 1)
