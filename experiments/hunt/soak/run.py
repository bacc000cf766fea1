"""`isray soak`: load and faults in turn, then the judgement.

A private Ray of one node per broker and a head; replication factor as many as there are brokers, min ISR one less,
generation `kip-966`, an idempotent producer with acks=all (`load.py`). Faults follow each other by a seeded schedule
(`schedule.py`, `faults.py`); each begins when the cluster is whole again after the one before. The soak lasts at least
so many minutes, and at least one round of faults; a fault that has begun is healed. Then sending stops, every send
comes to its end, readers read to the end, and the recording of the whole run is judged as `isray check` would judge it
(`experiments/check/recorded.py`).

What is found is a list of lines; none is the pass. The folder `out` is a recording (`experiments/check/recording.py`),
and keeps beside it:

    schedule.jsonl    the faults with their times and what they struck
    nodes/            the nodes' data directories, where there are findings
    report.json       what `--json` prints
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from experiments.check.history import FinalPartition, Run
from experiments.check.recorded import check
from experiments.check.recording import Recording, RecordingWriter
from experiments.engines.port import ClusterSpec
from experiments.engines.ray.engine import RayEngine
from experiments.hunt.soak.cluster import NotHealedError, SoakCluster, homes_of
from experiments.hunt.soak.faults import FAULTS
from experiments.hunt.soak.ray_nodes import RayNodes, ray_nodes
from experiments.hunt.soak.schedule import Planned, schedule
from experiments.hunt.workload import Counts, Workload, runs_of
from protocol.config import ClusterConfig, Generation
from protocol.contract import Trace
from protocol.ids import BrokerId, Offset, TopicPartition

CONFIG: Mapping[str, object] = {
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
    "replica.fetch.wait.max.ms": 300,
    "request.timeout.ms": 5_000,
    "segment.bytes": 1_048_576,
}
KEPT_TRACES = frozenset({"storage_error", "records_dropped", "refused", "session_expired", "alert"})
BETWEEN_FAULTS_MS = 1_000
SCHEDULE, REPORT, DISKS = "schedule.jsonl", "report.json", "nodes"


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What is asked for; `rate` in records per second."""

    minutes: float
    seed: int
    brokers: int
    partitions: int
    rate: int
    faults: tuple[str, ...]
    out: Path
    controllers: int = 1


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done: what it struck, and how long the cluster took from its beginning to be whole again."""

    index: int
    kind: str
    at_ms: int
    what: str
    healed_after_ms: int


@dataclass(slots=True)
class SoakResult:
    """What came of a soak. `findings` are lines, none where all is well; `looked_at` counts, by invariant, how often it
    was looked at.
    """

    plan: SoakPlan
    seconds: float = 0.0
    done: list[Done] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    looked_at: dict[str, int] = field(default_factory=dict)

    @property
    def recovery_ms(self) -> dict[str, list[int]]:
        """How long the cluster took to be whole again after each fault, by kind and in their order; all kinds of the
        plan are there.
        """
        return {kind: [done.healed_after_ms for done in self.done if done.kind == kind] for kind in self.plan.faults}

    def document(self) -> dict[str, object]:
        """The JSON document."""
        return {
            "minutes": round(self.seconds / 60, 2),
            "seed": self.plan.seed,
            "brokers": self.plan.brokers,
            "controllers": self.plan.controllers,
            "partitions": self.plan.partitions,
            "faults": {kind: {"done": len(found), "recovery_ms": found} for kind, found in self.recovery_ms.items()},
            "records": asdict(self.counts),
            "acknowledged_per_second": round(self.counts.acknowledged / max(self.seconds, 1e-9), 1),
            "read_per_second": round(self.counts.read / max(self.seconds, 1e-9), 1),
            "memory": self.memory,
            "out": str(self.plan.out),
            "looked_at": self.looked_at,
            "findings": self.findings,
        }


def soak(plan: SoakPlan) -> SoakResult:
    """Runs a soak; writes what it leaves to `plan.out`, an empty or new folder. Call from the main thread."""
    plan.out.mkdir(parents=True, exist_ok=True)
    result = SoakResult(plan)
    writer = RecordingWriter(plan.out)
    try:
        with ray_nodes(plan.brokers) as nodes:
            _run(plan, nodes, writer, result)
    finally:
        writer.close()
    (plan.out / REPORT).write_text(json.dumps(result.document(), indent=1) + "\n", encoding="utf-8")
    return result


def _run(plan: SoakPlan, nodes: RayNodes, writer: RecordingWriter, result: SoakResult) -> None:
    spec = ClusterSpec(plan.brokers, plan.controllers, ClusterConfig.of(Generation.KIP_966, CONFIG), plan.seed)
    homes = homes_of(spec, nodes)
    engine = RayEngine(spec, homes=homes, keeps=_is_kept)
    try:
        engine.record_to(writer.event)
        lab = SoakCluster(engine, nodes, homes)
        lab.start(spec.node_ids)
        lab.heal()
        lab.create_topic(plan.partitions)
        lab.heal()
        load = lab.load = Workload(engine, writer.operation, lab.partitions, plan.rate, lab.next_id)
        result.counts = load.counts
        try:
            _strike(plan, lab, load, writer, result)
            finals = _settle(lab, load)
        except NotHealedError as error:
            result.findings.append(f"{error}: {_states(lab)}")
            finals = _final_logs(lab)
        result.memory = lab.memory()
        metadata = engine.metadata_log()
        writer.finish("soak", engine.name, spec, metadata, finals, nothing_may_be_lost=True)
        checked = check(Recording(plan.out))
        result.findings += [f"{found.invariant}: {found.detail}" for found in checked.violations]
        result.findings += [f"not judged: {line}" for line in checked.unjudged]
        result.looked_at = checked.looked_at
        if result.findings:
            shutil.copytree(engine.folder, plan.out / DISKS, dirs_exist_ok=True)
    finally:
        engine.close()


def _is_kept(trace: Trace) -> bool:
    return trace.kind in KEPT_TRACES


def _strike(plan: SoakPlan, lab: SoakCluster, load: Workload, writer: RecordingWriter, result: SoakResult) -> None:
    """Faults until the time is over, and at least one of each kind."""
    began_s = time.monotonic()
    try:
        for planned in schedule(plan.seed, plan.faults):
            if planned.index >= len(plan.faults) and time.monotonic() - began_s >= plan.minutes * 60:
                break
            lab.pass_time(BETWEEN_FAULTS_MS)
            lab.heal()
            done = _fault(planned, lab)
            result.done.append(done)
            load.look_back()
            writer.flush()
            with (plan.out / SCHEDULE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(done)) + "\n")
        left_ms = int(plan.minutes * 60_000 - (time.monotonic() - began_s) * 1000)
        lab.pass_time(max(0, left_ms))
    finally:
        result.seconds = time.monotonic() - began_s


def _fault(planned: Planned, lab: SoakCluster) -> Done:
    at_ms = lab.engine.now_ms()
    try:
        what = FAULTS[planned.kind](lab, Random(planned.dice))
        lab.heal()
    except NotHealedError as error:
        raise NotHealedError(f"fault {planned.index}, {planned.kind}: {error}") from error
    return Done(planned.index, planned.kind, at_ms, what, lab.engine.now_ms() - at_ms)


def _settle(lab: SoakCluster, load: Workload) -> list[FinalPartition]:
    """Lets everything come to its end; the final logs of a cluster that is whole."""
    load.stop_sending()
    lab.wait(lambda: not load.outstanding, "every send comes to its end")
    lab.wait(lambda: _ends(lab) is not None, "all replicas have all records")
    ends = _ends(lab)
    assert ends is not None
    lab.wait(lambda: load.has_read_to(ends), "the readers come to the end")
    load.stop_reading()
    lab.wait(lambda: load.is_over, "every read comes to its end")
    lab.heal()
    return _final_logs(lab)


def _ends(lab: SoakCluster) -> dict[TopicPartition, Offset] | None:
    """Where the logs end, None where replicas differ in that, or a high watermark is not there yet."""
    ends = {}
    for partition in lab.partitions:
        views = [lab.engine.replica(broker, partition) for broker in lab.brokers]
        found = {view.log_end_offset for view in views if view is not None}
        marks = {view.high_watermark for view in views if view is not None and view.leads}
        if None in views or len(found) != 1 or marks != found:
            return None
        ends[partition] = found.pop()
    return ends


def _final_logs(lab: SoakCluster) -> list[FinalPartition]:
    """The logs of all replicas that are in sync and run."""
    finals = []
    for partition in lab.partitions:
        state = lab.state(partition)
        isr = () if state is None else state.isr
        logs = {broker: _log(lab, broker, partition) for broker in isr if lab.engine.is_running(broker)}
        if state is not None and state.leader in logs:
            finals.append(FinalPartition(partition, state.leader, logs))
    return finals


def _log(lab: SoakCluster, broker: BrokerId, partition: TopicPartition) -> Sequence[Run]:
    return [run for batch in lab.engine.log(broker, partition) for run in runs_of(batch)]


def _states(lab: SoakCluster) -> str:
    view = lab.engine.view()
    if view is None:
        return "no controller is active"
    down = [node for node in lab.engine.spec.node_ids if not lab.engine.is_running(node)]
    fenced = sorted(view.brokers.keys() - view.unfenced)
    parts = [
        f"{p}: leader {s.leader}, isr {list(s.isr)}, elr {list(s.elr)}" for p, s in sorted(view.partitions.items())
    ]
    return f"down {down}; fenced {fenced}; {'; '.join(parts)}"
