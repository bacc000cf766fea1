"""`isray bench failover`: how long partitions are unavailable after the death of their leader's broker, on Ray, in each
generation; docs/benchmarks.md describes the setting and the columns.

One broker leads all partitions and is killed with SIGKILL; it is not the controller. Times count from the end of its
session, which the controller reports (`session_expired`), or in `v3` the store (`store_session_ended`). Beginning
before that, a load generator repeatedly sends a batch to each partition of a sample, to both survivors, until one
acknowledges, so that look-ups of leaders are not measured. Then it looks up the leaders, with one request as any client
does, and sends one batch to every other partition. The sample is small and its batches are repeated as rarely as the
figures allow, so that the probes do not load the brokers: a broker takes over all its leaderships in one input, so
partitions between two of the sample are available when these are. For the same reason no state of the cluster is read
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median_low
from typing import TYPE_CHECKING

from experiments.bench.process_usage import cpu_s
from experiments.bench.report import BenchReport, growth, median_run
from experiments.engines.port import Loss
from experiments.engines.ray.session import expect_kills, ray_session, stay_on_loopback
from protocol.config import BROKER_HEARTBEAT_INTERVAL_MS, BROKER_SESSION_TIMEOUT_MS, MIN_INSYNC_REPLICAS
from protocol.events.base import Trace
from protocol.events.controller import SessionExpired
from protocol.events.store import StoreSessionEnded
from protocol.features import Generation
from protocol.ids import FIRST_LOAD, BrokerId, TimeMs
from protocol.messages.commands import AdminCommand, AdminOutcome, ProbeCommand, ProbeOutcome
from protocol.messages.partitions import ElectionType, ElectLeadersRequest
from protocol.v3.store.settings import StoreSettings

if TYPE_CHECKING:
    from experiments.bench.ray_cluster import BenchCluster

SIZES = (1_000, 10_000)
BROKERS = 3
REPEATS = 3
SAMPLE = 50
SESSION_MS = 9_000
QUIET_MS = SESSION_MS + 4_000
"""After the kill: longer than most failovers, during which no state of the cluster is read."""
CHECK_EVERY_MS = 1_000
IN_FLIGHT = 1_000
RETRY_MS = 50
RETRY_WITH_STORE_MS = 200
"""A store takes milliseconds for each partition, so partitions are unavailable, and probed, much longer."""
TOPIC = "failover"
CONFIG: Mapping[str, object] = {MIN_INSYNC_REPLICAS: 2}
HEARTBEATS: Mapping[str, object] = {BROKER_SESSION_TIMEOUT_MS: SESSION_MS, BROKER_HEARTBEAT_INTERVAL_MS: 500}
STORES = (
    StoreSettings(session_timeout_ms=SESSION_MS),
    StoreSettings(session_timeout_ms=SESSION_MS, sessions=10, multi=100),
)
"""One request at a time, which S1 reckons with, and both of its cures: ten sessions, as many requests as Kafka's
controller had in flight to ZooKeeper by default, and a hundred writes per transaction."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The figures of one failover in milliseconds after the detection; `detected_ms` counts from the kill. `sessions`
    and `multi` are those of the store, None without one. `cpu_s` is the processor time of the other nodes from the kill
    until every partition has acknowledged: unlike the times, other work on the machine hardly changes it.
    """

    generation: str
    partitions: int
    detected_ms: int
    p50_ms: int
    max_ms: int
    all_served_ms: int
    sessions: int | None = None
    multi: int | None = None
    cpu_s: float = 0.0

    @property
    def case(self) -> str:
        """The generation, with the settings of the store where there is one."""
        store = "" if self.sessions is None else f", {self.sessions} sessions, multi {self.multi}"
        return f"{self.generation}{store}"

    def texts(self) -> list[str]:
        times = (self.detected_ms, self.p50_ms, self.max_ms, self.all_served_ms)
        return [self.case, f"{self.partitions:,}", *(f"{time:,} ms" for time in times), f"{self.cpu_s:.1f} s"]


def run(
    sizes: Sequence[int] = SIZES, repeats: int = REPEATS, generations: Sequence[Generation] = tuple(Generation)
) -> BenchReport:
    """Measures every size `repeats` times in each generation, `v3` with each of `STORES`, each time on a new cluster,
    sizes in ascending order; reports the run with the median `max_ms`. Call from the main thread.
    """
    stay_on_loopback()
    expect_kills()
    with ray_session():
        found = [
            median_run([_fail_over(generation, size, store) for _ in range(repeats)], lambda one: one.max_ms)
            for generation in generations
            for store in (STORES if generation.features.metadata_in_store else (None,))
            for size in sorted(set(sizes))
        ]
    rows = {case: [one for one in found if one.case == case] for case in dict.fromkeys(one.case for one in found)}
    exponents = {
        name: growth([one.partitions for one in own], [max(1, one.max_ms) for one in own]) for name, own in rows.items()
    }
    known = {name: exponent for name, exponent in exponents.items() if exponent is not None}
    return BenchReport(
        title="From the detection of a leader's death to partitions that acknowledge batches again",
        document={
            "brokers": BROKERS,
            "session_timeout_ms": SESSION_MS,
            "stores": [store.model_dump(mode="json") for store in STORES],
            "sample": SAMPLE,
            "repeats": repeats,
            "sizes": [asdict(one) for one in found],
            "growth_exponent": exponents,
        },
        columns=("generation", "partitions", "detected after", "p50", "max", "all acknowledged", "processor time"),
        rows=[one.texts() for one in found],
        notes=[f"growth exponent of max in {name} (1 is linear): {exponent:.2f}" for name, exponent in known.items()],
    )


def _fail_over(generation: Generation, partitions: int, store: StoreSettings | None) -> Failover:
    from experiments.bench.ray_cluster import bench_cluster

    config = {**CONFIG, **HEARTBEATS} if store is None else CONFIG
    retry_ms = RETRY_MS if store is None else RETRY_WITH_STORE_MS
    with bench_cluster(config, generation=generation, store=store) as cluster:
        controller = cluster.engine.active_controller()
        victim = next(broker for broker in cluster.engine.spec.broker_ids if broker != controller)
        survivors = [broker for broker in cluster.engine.spec.broker_ids if broker != victim]
        cluster.create_topic(TOPIC, assignments(partitions, victim, survivors))
        _await_leaderships(cluster, partitions, victim)
        _probe(cluster, range(partitions), (victim,), retry_ms)
        pids = cluster.engine.cluster.pids()
        others_pids = [pid for node, pid in pids.items() if node not in (victim, FIRST_LOAD)]
        before_s = cpu_s(others_pids)
        killed_ms = cluster.engine.now_ms()
        cluster.engine.crash(victim, Loss())
        sample = sample_of(partitions)
        others = sorted(set(range(partitions)).difference(sample))
        all_served = _probe(cluster, [*sample, *others], survivors, retry_ms, ahead=len(sample), not_before_ms=QUIET_MS)
        used_s = cpu_s(others_pids) - before_s
        detected_ms = _detection(cluster, victim, killed_ms)
    found = figures_of(generation, partitions, killed_ms, detected_ms, all_served[: len(sample)], all_served)
    found = replace(found, cpu_s=round(used_s, 2))
    return found if store is None else replace(found, sessions=store.sessions, multi=store.multi)


def figures_of(
    generation: Generation,
    partitions: int,
    killed_ms: TimeMs,
    detected_ms: TimeMs,
    served_ms: Sequence[TimeMs],
    all_served_ms: Sequence[TimeMs],
) -> Failover:
    """The figures of a run; `served_ms` are the first acknowledgements of the partitions in the sample."""
    after = [time - detected_ms for time in served_ms]
    all_after = max(all_served_ms) - detected_ms
    return Failover(generation.value, partitions, detected_ms - killed_ms, median_low(after), max(after), all_after)


def assignments(partitions: int, victim: BrokerId, survivors: Sequence[BrokerId]) -> list[list[BrokerId]]:
    """The replica lists: the victim leads all, the others alternate as the second replica."""
    return [[victim, *(survivors if index % 2 else reversed(survivors))] for index in range(partitions)]


def sample_of(partitions: int) -> list[int]:
    """At most `SAMPLE` partitions, evenly spread, with the first and the last one."""
    if partitions <= SAMPLE:
        return list(range(partitions))
    return [round(place * (partitions - 1) / (SAMPLE - 1)) for place in range(SAMPLE)]


def _await_leaderships(cluster: BenchCluster, partitions: int, victim: BrokerId) -> None:
    """Waits until all replicas are in sync and the victim leads all partitions, or BenchError. While the victim created
    thousands of logs, late heartbeats may have moved its leaderships: then requests a preferred election.
    """
    from experiments.bench.ray_cluster import WITHIN_MS, BenchError

    for _ in range(WITHIN_MS // CHECK_EVERY_MS):
        cluster.engine.run_for(CHECK_EVERY_MS)
        view = cluster.engine.view()
        found = [] if view is None else list(view.partitions.values())
        if len(found) == partitions and all(len(state.isr) == BROKERS for state in found):
            if all(state.leader == victim for state in found):
                return
            request = ElectLeadersRequest(correlation_id=0, election_type=ElectionType.PREFERRED, topic_partitions=None)
            cluster.run_command(AdminCommand(command_id=cluster.command_id(), request=request), AdminOutcome)
    raise BenchError(f"broker {victim} does not lead {partitions:,} partitions with all replicas in sync")


def _probe(
    cluster: BenchCluster,
    partitions: Sequence[int],
    brokers: Sequence[BrokerId],
    retry_ms: int,
    ahead: int = 0,
    not_before_ms: int = 0,
) -> tuple[TimeMs, ...]:
    """When each of the partitions acknowledged a batch, the first `ahead` of which get one before the others; no
    cluster state is read before `not_before_ms` have passed.
    """
    command = ProbeCommand(
        command_id=cluster.command_id(),
        topic=TOPIC,
        partitions=tuple(partitions),
        brokers=tuple(brokers),
        acks=-1,
        payload_bytes=1,
        in_flight=IN_FLIGHT,
        retry_ms=retry_ms,
        ahead=ahead,
    )
    outcome = cluster.run_command(command, ProbeOutcome, not_before_ms=not_before_ms)
    return tuple(map(cluster.engine.time_of, outcome.acknowledged_ms))


def _detection(cluster: BenchCluster, victim: BrokerId, killed_ms: TimeMs) -> TimeMs:
    """When the victim's session has ended; BenchError if it had ended before the kill, as on a busy machine."""
    from experiments.bench.ray_cluster import BenchError

    for event in cluster.engine.traces():
        if event.time_ms >= killed_ms and ends_session(event.trace, victim):
            return event.time_ms
    raise BenchError(f"the session of broker {victim} had ended before it was killed")


def ends_session(trace: Trace, broker: BrokerId) -> bool:
    """Whether a trace event says that the session of a broker has ended."""
    if isinstance(trace, StoreSessionEnded):
        return trace.owner == broker
    return isinstance(trace, SessionExpired) and trace.broker == broker
