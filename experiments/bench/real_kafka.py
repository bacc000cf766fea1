"""`isray bench kafka --release R`: a real Kafka beside the simulator; docs/benchmarks.md has the columns.

*Fault trials*: a new cluster of three brokers and a controller; one record with acks=all; the leader is killed; another
broker leads and has a record written to it; the killed one is back in the ISR with both records. The same scenario runs
in the simulator, one trial after the other in this process with all invariants checked, and on the real Kafka, whose
trial begins with formatted disks and ends when its processes have.

*Failover*: one broker leads all partitions and is killed. Times count from the kill, in the controllers' metadata log
as this process reads it: until the broker is fenced, and until no partition has it as leader. From then on a batch with
acks=all is sent to each partition, to both new leaders at the same time, one request per topic after the other, until
it is acknowledged.

*Start-up*: from the first process until all brokers are unfenced. *Memory*: the resident bytes of all processes then.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial

from experiments.bench.failover import assignments
from experiments.bench.process_usage import usage_of
from experiments.bench.report import BenchReport
from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import create_topic
from experiments.engines.kafka.client import PRODUCE, crc32c
from experiments.engines.kafka.engine import KafkaEngine
from experiments.engines.kafka.processes import Program
from experiments.engines.kafka.wire import Connection
from experiments.engines.port import ClusterSpec, Engine, Loss
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import ClusterModel, Scenario
from experiments.scenarios.runner import Runner
from protocol.config import MIN_INSYNC_REPLICAS
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
from protocol.kafka.batches import build_batch, to_kafka
from protocol.messages.commands import AdminCommand, AdminOutcome
from protocol.metadata.partition import PartitionState

SIZES = (1_000, 10_000)
TRIALS = 3
SIM_SECONDS = 5
TOPIC_PARTITIONS = 1_000
"""Of one topic: a request to the controller has at most 10,000 records."""
WITHIN_MS = 300_000
CLUSTER = {"brokers": 3, "controllers": 1, "generation": "kip-966-elr"}
_TOPIC = {"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}
TRIAL: dict[str, object] = {
    "name": "fault-trial",
    "cluster": CLUSTER,
    "topics": [_TOPIC],
    "steps": [
        {"produce": {"topic": "t", "records": 1}},
        {"crash": {"broker": 0}},
        {"await": {"topic": "t", "leader": 1, "isr": [1, 2], "within": "60s"}},
        {"produce": {"topic": "t", "records": 1}},
        {"start": {"broker": 0}},
        {"await": {"topic": "t", "isr": [0, 1, 2], "log_end_offset": {0: 2, 1: 2, 2: 2}, "within": "60s"}},
        {"expect": {"topic": "t", "lost_acked": 0}},
    ],
}
Makes = Callable[[ClusterSpec], Engine]


@dataclass(frozen=True, slots=True)
class Trials:
    """`count` fault trials, how many there would be in a minute, and the processor seconds of one, of this process and
    of those that it has started.
    """

    count: int
    per_minute: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Failover:
    """A failover of a real Kafka in milliseconds after the kill, which was at `killed_at_ms`; `created_ms` is how long
    the topics took. The last two are 0 until batches were written.
    """

    partitions: int
    created_ms: int
    killed_at_ms: TimeMs
    fenced_ms: int
    moved_ms: int
    first_served_ms: int = 0
    served_ms: int = 0

    def texts(self) -> list[str]:
        times = (self.created_ms, self.fenced_ms, self.moved_ms, self.first_served_ms, self.served_ms)
        return [f"{self.partitions:,}", *(f"{time_ms:,} ms" for time_ms in times)]


def run_trials(makes: Makes, trials: int, seconds: float) -> Trials:
    """Runs fault trials: at least one, at most `trials`, and none begins after `seconds`."""
    scenario = scenario_from(TRIAL, "the fault trial")
    began, used_s, done = time.perf_counter(), _cpu_s(), 0
    while done < trials and (done == 0 or time.perf_counter() - began < seconds):
        _run_trial(scenario, makes, done)
        done += 1
    return Trials(done, 60 * done / (time.perf_counter() - began), (_cpu_s() - used_s) / done)


def _cpu_s() -> float:
    """Processor seconds of this process, and of those that it has started and seen end."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def _run_trial(scenario: Scenario, makes: Makes, seed: int) -> None:
    with closing(makes(scenario.cluster.spec(seed))) as engine:
        result = Runner(scenario, engine).run()
    if not result.passed:
        raise AssertionError(f"a fault trial failed on {engine.name}: {result.steps[-1].detail}")


def started(engine: Engine) -> int:
    """Starts all nodes of a new cluster; returns the milliseconds until all brokers are unfenced."""
    began_ms = engine.now_ms()
    for node in engine.spec.node_ids:
        if not engine.is_running(node):
            engine.start(node)
    brokers = frozenset(engine.spec.broker_ids)
    _await(engine, lambda: engine.unfenced() == brokers, "all brokers are unfenced")
    return engine.now_ms() - began_ms


def failover(engine: Engine, partitions: int) -> Failover:
    """Creates the partitions on a cluster that has started, all of which broker 0 leads, and kills it."""
    began_ms, victim, survivors = engine.now_ms(), 0, engine.spec.broker_ids[1:]
    placed = assignments(partitions, victim, survivors)
    for number, begin in enumerate(range(0, partitions, TOPIC_PARTITIONS), start=1):
        request = create_topic(f"t{number}", placed[begin : begin + TOPIC_PARTITIONS], {MIN_INSYNC_REPLICAS: 2})
        engine.submit(AdminCommand(command_id=number, request=request))
        _await(engine, partial(_is_created, engine, number), f"topic {number} is created")

    def states() -> Collection[PartitionState]:
        view = engine.view()
        return () if view is None else view.partitions.values()

    def lead(broker: int) -> bool:
        return len(found := states()) == partitions and all(it.leader == broker and len(it.isr) == 3 for it in found)

    _await(engine, lambda: lead(victim), f"broker {victim} leads all partitions")
    created_ms, killed_ms = engine.now_ms() - began_ms, engine.now_ms()
    engine.crash(victim, Loss())
    _await(engine, lambda: victim not in engine.unfenced(), f"broker {victim} is fenced")
    fenced_ms = engine.now_ms() - killed_ms
    _await(engine, lambda: all(it.leader != victim for it in states()), "all partitions have another leader")
    return Failover(partitions, created_ms, killed_ms, fenced_ms, engine.now_ms() - killed_ms)


def served(engine: KafkaEngine, found: Failover) -> Failover:
    """The failover with when the first and the last partition has acknowledged a batch."""
    view = engine.view()
    assert view is not None
    led: dict[NodeId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for partition, state in sorted(view.partitions.items()):
        led[state.leader][partition.topic].append(partition.partition)
    with ThreadPoolExecutor(len(led)) as pool:
        done = list(pool.map(lambda leader: _write(engine, leader, led[leader]), led))
    first, last = min(first for first, _ in done), max(last for _, last in done)
    return replace(found, first_served_ms=first - found.killed_at_ms, served_ms=last - found.killed_at_ms)


def _write(engine: KafkaEngine, leader: NodeId, led: Mapping[str, Sequence[int]]) -> tuple[TimeMs, TimeMs]:
    """Writes a batch to each partition that a broker leads, again where it is not acknowledged; returns when the first
    and the last request was answered whose batches were.
    """
    records, times = to_kafka(build_batch([(None, b"")], 0, crc32c), crc32c), list[TimeMs]()
    deadline_ms = engine.now_ms() + WITHIN_MS
    with closing(Connection(engine.cluster.address(leader))) as connection:
        for topic, left in led.items():
            while left:
                data = [{"index": index, "records": records} for index in left]
                topics = [{"name": topic, "partition_data": data}]
                values = {"transactional_id": None, "acks": -1, "timeout": WITHIN_MS, "topic_data": topics}
                [answer] = connection.call(*PRODUCE, values, WITHIN_MS / 1000).responses
                refused = [it.index for it in answer.partition_responses if int(it.error_code)]
                if len(refused) < len(left):
                    times.append(engine.now_ms())
                elif engine.now_ms() > deadline_ms:
                    raise AssertionError(f"not within {WITHIN_MS // 1000} s: broker {leader} serves {topic}")
                left = refused
    return times[0], times[-1]


def _is_created(engine: Engine, number: int) -> bool:
    outcome = engine.outcome(number)
    if isinstance(outcome, AdminOutcome) and outcome.error is not ErrorCode.NONE:
        raise AssertionError(f"topic {number}: {outcome.error.name}: {outcome.message}")
    return outcome is not None


def _await(engine: Engine, condition: Callable[[], bool], what: str) -> None:
    if not engine.run_until(condition, WITHIN_MS):
        raise AssertionError(f"not within {WITHIN_MS // 1000} s: {what}")


def run(release: str, sizes: Sequence[int] = SIZES, trials: int = TRIALS) -> BenchReport:
    """Measures an installed release: fault trials, and a failover of each of these numbers of partitions. InputError
    where it is not installed, and without a JDK.
    """
    program = Program.of(release, os.environ, option="--release")
    spec = ClusterModel.model_validate(CLUSTER).spec()

    def makes(spec: ClusterSpec) -> KafkaEngine:
        return KafkaEngine(spec, program)

    before = run_trials(CheckedEngine, 10**6, SIM_SECONDS)
    real = run_trials(makes, trials, float("inf"))
    after = run_trials(CheckedEngine, 10**6, SIM_SECONDS)
    starts, failovers, memory = [], [], []
    for size in sizes:
        with closing(makes(spec)) as engine:
            starts.append(started(engine))
            memory.append(_resident(engine))
            failovers.append(served(engine, failover(engine, size)))
            memory.append(_resident(engine))
    sim_rate, sim_s = (before.per_minute + after.per_minute) / 2, (before.cpu_s + after.cpu_s) / 2
    document = {
        "fault_trials": {"sim": before.count + after.count, "kafka": real.count},
        "fault_trials_per_minute": {"sim": round(sim_rate, 1), "kafka": round(real.per_minute, 3)},
        "fault_trial_cpu_s": {"sim": round(sim_s, 5), "kafka": round(real.cpu_s, 2)},
        "ratio": round(sim_rate / real.per_minute),
        "start_up_ms": starts,
        "resident_bytes": memory,
        "failovers": [asdict(it) for it in failovers],
    }
    return BenchReport(
        title="A real Kafka beside the simulator",
        document=document,
        columns=(
            "partitions",
            "created in",
            "fenced after",
            "all moved after",
            "first served after",
            "all served after",
        ),
        rows=[it.texts() for it in failovers],
        notes=[
            f"fault trials per minute: {sim_rate:,.0f} in one process of the simulator, {real.per_minute:.2f} on a real"
            f" Kafka; {sim_rate / real.per_minute:,.0f} times as many",
            f"processor time of a fault trial: {1000 * sim_s:.1f} ms, and {real.cpu_s:.1f} s",
            f"start-up of three brokers and a controller: {', '.join(f'{it:,} ms' for it in starts)}",
            f"resident memory after start-up and after a failover: {', '.join(f'{it >> 20:,} MiB' for it in memory)}",
        ],
    )


def _resident(engine: KafkaEngine) -> int:
    return sum(usage[1] for pid in engine.cluster.pids().values() if (usage := usage_of(pid)) is not None)
