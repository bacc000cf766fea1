"""`isray soak`: runs load and faults on a cluster, then checks the recording of the run.

The cluster runs on a private Ray with one Ray node per broker and a head. The replication factor is the number of
brokers, min ISR one less, the generation `kip-966`. Faults follow each other by a seeded schedule (`faults.py`); each
begins when the cluster is healthy again after the previous one. The soak lasts for the given time, and at least one
round of faults. Then the producer stops, all sends end, the readers read to the log ends, and the recording of the run
is checked as `isray check` does (`experiments/check/check_recording.py`).

The soak passes if there are no findings. The folder `out` is a recording, with these files in addition:

    schedule.jsonl    the faults with their times and targets
    nodes/            the nodes' data directories, where there are findings
    report.json       what `--json` prints
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from experiments.check.check_recording import check
from experiments.check.client_history import ranges_of
from experiments.check.final_logs import final_logs
from experiments.check.history import FinalPartition
from experiments.check.losses import Losses
from experiments.check.recording import Header, Recording, RecordingWriter
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.attached import ActionRefusedError
from experiments.engines.ray.engine import RayEngine
from experiments.explorer.day import Span
from experiments.hunt.soak.cluster import NotHealedError, SoakCluster, homes_of
from experiments.hunt.soak.faults import FAULTS
from experiments.hunt.soak.kafka_clients import ClientGaveUpError, KafkaWorkload
from experiments.hunt.soak.ray_nodes import RayNodes, ray_nodes
from experiments.hunt.soak.workload import Counts, Workload
from protocol.config import LISTENERS, ClusterConfig
from protocol.events.base import Trace
from protocol.events.broker import StorageFailed
from protocol.events.controller import AlertRaised, SessionExpired
from protocol.events.host import RecordsDropped
from protocol.events.node import RequestRefused
from protocol.features import Generation
from protocol.ids import Offset, TopicPartition

CONFIG: Mapping[str, object] = {
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
    "replica.fetch.wait.max.ms": 300,
    "request.timeout.ms": 5_000,
    "controller.quorum.election.timeout.ms": 3_000,
    "segment.bytes": 1_048_576,
}
"""Sessions are short, so that faults are noticed. Votes have time: where the machine has so much other work that one
takes over a second, no election with Kafka's default of 1 s succeeds.
"""
KEPT_TRACES = (StorageFailed, RecordsDropped, RequestRefused, SessionExpired, AlertRaised)
BETWEEN_FAULTS_MS = 1_000
SCHEDULE, REPORT, DISKS = "schedule.jsonl", "report.json", "nodes"


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """The parameters of a soak; `rate` in records per second."""

    minutes: float
    seed: int
    brokers: int
    partitions: int
    rate: int
    faults: tuple[str, ...]
    out: Path
    controllers: int = 1
    cluster: str | None = None
    """The name of the running cluster; None for one of the soak's own."""
    kafka_clients: bool = False
    """Whether the workload is that of Kafka's clients on the brokers' listeners."""


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """The fault number `index` of a soak; `seed` is that of its random source."""

    index: int
    kind: str
    seed: str


def schedule(seed: int, kinds: Sequence[str]) -> Iterator[ScheduledFault]:
    """An endless sequence of faults of these kinds, in rounds that have every kind once, in an order that is drawn for
    the round: so every kind follows every other in the long run. Each fault has a seed of its own for its other draws,
    so that leaving out a kind changes no other fault.
    """
    numbers = count()
    for turn in count():
        order = sorted(kinds)
        Random(f"{seed}/round/{turn}").shuffle(order)
        yield from (ScheduledFault(next(numbers), kind, f"{seed}/{kind}/{turn}") for kind in order)


@dataclass(frozen=True, slots=True)
class DoneFault:
    """An injected fault: its target and variant in words, and the time until the cluster was healthy again."""

    index: int
    kind: str
    at_ms: int
    what: str
    healed_after_ms: int


@dataclass(slots=True)
class SoakResult:
    """`findings` is empty if the soak passed; `looked_at` counts checks by invariant; `memory` is the cluster's;
    `gaps` are the spans in which the clients received no acknowledgement (`explorer/day.py`).
    """

    options: SoakOptions
    seconds: float = 0.0
    done: list[DoneFault] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    gaps: list[Span] = field(default_factory=list)

    @property
    def recovery_ms(self) -> dict[str, list[int]]:
        """The recovery times of all faults by kind, in their order; every kind of the options has an entry."""
        return {kind: [done.healed_after_ms for done in self.done if done.kind == kind] for kind in self.options.faults}

    def document(self) -> dict[str, object]:
        """The JSON document of `--json` and `report.json`."""
        return {
            "minutes": round(self.seconds / 60, 2),
            "cluster": self.options.cluster,
            "kafka_clients": self.options.kafka_clients,
            "seed": self.options.seed,
            "brokers": self.options.brokers,
            "controllers": self.options.controllers,
            "partitions": self.options.partitions,
            "faults": {kind: {"done": len(found), "recovery_ms": found} for kind, found in self.recovery_ms.items()},
            "records": asdict(self.counts),
            **self.losses.document(),
            "acknowledged_per_second": round(self.counts.acknowledged / max(self.seconds, 1e-9), 1),
            "read_per_second": round(self.counts.read / max(self.seconds, 1e-9), 1),
            "gaps": [{"partition": it.row, "from_ms": it.begin_ms, "until_ms": it.end_ms} for it in self.gaps],
            "memory": self.memory,
            "out": str(self.options.out),
            "looked_at": self.looked_at,
            "findings": self.findings,
            "unjudged": self.unjudged,
        }


OnFault = Callable[[int, int], None]
"""Takes the numbers of records sent and of faults injected so far."""


def soak(options: SoakOptions, on_fault: OnFault = lambda _sent, _faults: None) -> SoakResult:
    """Runs a soak and writes its files to `options.out`, an empty or new folder; calls `on_fault` before each fault.
    Call from the main thread."""
    with written(options) as (result, writer), ray_nodes(options.brokers) as nodes:
        _run(nodes, writer, result, on_fault)
    return result


@contextmanager
def written(options: SoakOptions) -> Iterator[tuple[SoakResult, RecordingWriter]]:
    """The result that the block fills in, and the recording that it writes to; the result is written at the end."""
    options.out.mkdir(parents=True, exist_ok=True)
    result = SoakResult(options)
    writer = RecordingWriter(options.out)
    try:
        yield result, writer
    finally:
        writer.close()
    (options.out / REPORT).write_text(json.dumps(result.document(), indent=1) + "\n", encoding="utf-8")


def _run(nodes: RayNodes, writer: RecordingWriter, result: SoakResult, on_fault: OnFault) -> None:
    options = result.options
    listeners = {LISTENERS: "PLAINTEXT://127.0.0.1:0"} if options.kafka_clients else {}
    config = ClusterConfig.of(Generation.KIP_966, {**CONFIG, **listeners})
    spec = ClusterSpec(options.brokers, options.controllers, config, options.seed)
    homes = homes_of(spec, nodes)
    engine = RayEngine(spec, homes=homes, keeps=is_kept)
    try:
        writer.record(engine)
        cluster = SoakCluster(engine, nodes, homes)
        cluster.start(spec.node_ids)
        run_on(cluster, writer, result, on_fault)
        judge(cluster, writer, result)
        result.findings += [f"not judged: {line}" for line in result.unjudged]
        if result.findings:
            keep_disks(engine, options.out / DISKS)
    finally:
        engine.close()


def keep_disks(engine: RayEngine, folder: Path) -> None:
    """Copies the data directories of all nodes, which it ends before: files of a node that runs come and go."""
    cluster = engine.cluster
    for node in cluster.running():
        cluster.kill(node)
    shutil.copytree(cluster.folder, folder, dirs_exist_ok=True)


def is_kept(trace: Trace) -> bool:
    """Whether a soak keeps a trace event in memory."""
    return isinstance(trace, KEPT_TRACES)


def run_on(cluster: SoakCluster, writer: RecordingWriter, result: SoakResult, on_fault: OnFault) -> None:
    """Runs the workload and the faults on a cluster whose nodes have been started, until all replicas are equal."""
    options = result.options
    try:
        cluster.await_whole()
        cluster.create_topic(options.partitions)
        cluster.await_whole()
        with _workload(cluster, writer, options) as workload:
            result.counts, result.gaps = workload.counts, workload.gaps.spans
            _inject_faults(cluster, workload, writer, result, on_fault)
            _end_workload(cluster, workload)
    except (NotHealedError, ActionRefusedError, ClientGaveUpError) as error:
        result.findings.append(f"{error}: {_describe_states(cluster)}")
    result.memory = cluster.memory()


@contextmanager
def _workload(cluster: SoakCluster, writer: RecordingWriter, options: SoakOptions) -> Iterator[Workload]:
    """The workload of a cluster, which ends with the block."""
    parts = (cluster.engine, writer.operation, cluster.partitions, options.rate, cluster.next_id)
    workload = KafkaWorkload(*parts, cluster.listeners()) if options.kafka_clients else Workload(*parts)
    cluster.workload = workload
    try:
        yield workload
    finally:
        cluster.workload = None
        workload.end_sending()
        workload.close()


def judge(cluster: SoakCluster, writer: RecordingWriter, result: SoakResult) -> None:
    """Completes the recording, and judges it as `isray check` does."""
    engine = cluster.engine
    finals = read_final_logs(cluster, result.findings)
    writer.metadata(engine.metadata_log())
    began_ms = engine.began_unix_ms
    header = Header.of("soak", engine.name, engine.spec, nothing_may_be_lost=True, began_unix_ms=began_ms)
    writer.finish(header, finals)
    checked = check(Recording(result.options.out))
    result.findings += [f"{found.invariant}: {found.detail}" for found in checked.violations]
    result.unjudged = list(checked.unjudged)
    result.looked_at, result.losses = checked.looked_at, checked.losses


def read_final_logs(cluster: SoakCluster, findings: list[str]) -> list[FinalPartition]:
    """The final logs of all partitions. Before each of them waits until every broker is registered and every ISR full:
    on a busy machine reading a long log takes longer than `broker.session.timeout.ms`, so that leaders change. A wait
    that fails is added to `findings`; if there are findings, the logs are read without a wait.
    """
    finals = []
    for partition in cluster.partitions:
        try:
            if not findings:
                cluster.await_whole()
        except NotHealedError as error:
            findings.append(f"before {partition} was read: {error}: {_describe_states(cluster)}")
        finals += final_logs(cluster.engine, ranges_of, only=(partition,))
    return finals


def _inject_faults(
    cluster: SoakCluster, workload: Workload, writer: RecordingWriter, result: SoakResult, on_fault: OnFault
) -> None:
    """Injects faults until the time is over, at least one of each kind."""
    options, began_s = result.options, time.monotonic()
    try:
        for planned in schedule(options.seed, options.faults):
            if planned.index >= len(options.faults) and time.monotonic() - began_s >= options.minutes * 60:
                break
            on_fault(workload.counts.sent, len(result.done))
            cluster.pass_time(BETWEEN_FAULTS_MS)
            cluster.await_whole()
            done = _inject(planned, cluster)
            result.done.append(done)
            workload.rewind()
            writer.flush()
            with (options.out / SCHEDULE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(done)) + "\n")
        left_ms = int(options.minutes * 60_000 - (time.monotonic() - began_s) * 1000)
        cluster.pass_time(max(0, left_ms))
    finally:
        result.seconds = time.monotonic() - began_s


def _inject(planned: ScheduledFault, cluster: SoakCluster) -> DoneFault:
    at_ms = cluster.engine.now_ms()
    try:
        what = FAULTS[planned.kind](cluster, Random(planned.seed))
        cluster.await_whole()
    except NotHealedError as error:
        raise NotHealedError(f"fault {planned.index}, {planned.kind}: {error}") from error
    return DoneFault(planned.index, planned.kind, at_ms, what, cluster.engine.now_ms() - at_ms)


def _end_workload(cluster: SoakCluster, workload: Workload) -> None:
    """Ends the workload and waits until all replicas are equal."""
    workload.end_sending()
    cluster.wait(lambda: not workload.sends, "every send has ended")
    ends = cluster.wait_for(lambda: _log_ends(cluster), "all replicas have all records")
    cluster.wait(lambda: workload.has_read_to(ends), "the readers reach the log ends")
    workload.is_reading = False
    cluster.wait(lambda: not workload.reads, "every read has ended")
    cluster.await_whole()


def _log_ends(cluster: SoakCluster) -> dict[TopicPartition, Offset] | None:
    """The log end offsets by partition, None where replicas differ or a high watermark is still lower."""
    ends = {}
    for partition in cluster.partitions:
        views = [cluster.engine.replica(broker, partition) for broker in cluster.brokers]
        found = {view.log_end_offset for view in views if view is not None}
        marks = {view.high_watermark for view in views if view is not None and view.leads}
        if None in views or len(found) != 1 or marks != found:
            return None
        ends[partition] = found.pop()
    return ends


def _describe_states(cluster: SoakCluster) -> str:
    view = cluster.engine.view()
    if view is None:
        return "no controller is active"
    down = [node for node in cluster.engine.spec.node_ids if not cluster.engine.is_running(node)]
    fenced = sorted(view.brokers.keys() - view.unfenced)
    parts = [
        f"{p}: leader {s.leader}, isr {list(s.isr)}, elr {list(s.elr)}" for p, s in sorted(view.partitions.items())
    ]
    return f"down {down}; fenced {fenced}; {'; '.join(parts)}"
