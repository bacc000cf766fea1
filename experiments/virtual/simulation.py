"""Runs an application's coroutine against a simulated cluster, with failures at times.

A run has four parts: the cluster starts and creates its topics; the coroutine runs until it returns, while the
timeline's steps are carried out at their times; all failures end, and the cluster has `SETTLE_MS` to come back; the
logs of the leaders are read. So what a check compares is what the application was told with what is there in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from experiments.engines.port import Engine, Violation
from experiments.engines.sim.memory import rare_collections
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario
from experiments.scenarios.runner import Runner
from experiments.support.errors import InputError
from experiments.virtual.connections import PORT, RESET_AFTER_MS
from experiments.virtual.engine import VirtualEngine
from experiments.virtual.observer import Acknowledged, Exchange, readable
from experiments.virtual.patches import patched
from experiments.virtual.recording import CallRecorder
from experiments.virtual.timeline import SOURCE, Steps, Timeline
from protocol.ids import FIRST_APPLICATION, NO_LEADER, TimeMs, TopicPartition, node_name
from protocol.messages.kafka_batch import KafkaRecord, is_kafka

SETTLE_MS = 60_000
CANCEL_WITHIN_MS = 60_000
Application = Callable[..., Coroutine[Any, Any, Any]]


class StuckError(Exception):
    """The coroutine has not returned within the time of the run; the message lists its tasks."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has shown. `logs` has the committed records of every partition at the end, by its name; `acknowledged`
    what leaders have acknowledged to the application, in that order; `exchanges` its requests. `value` is what the
    coroutine returned. Equal seeds give equal `trace_hash`es. `duration_ms` is virtual time.
    """

    seed: int
    value: Any
    duration_ms: TimeMs
    trace_hash: str
    acknowledged: Sequence[Acknowledged]
    logs: Mapping[TopicPartition, Sequence[KafkaRecord]]
    exchanges: Sequence[Exchange]
    violations: Sequence[Violation]
    unhandled: Sequence[str]

    def records(self, topic: str) -> list[KafkaRecord]:
        """The committed records of a topic, partition by partition."""
        return [record for place, log in sorted(self.logs.items()) if place.topic == topic for record in log]


class SimulatedKafka:
    """A cluster to run applications against; every run begins with a new one.

    - `seed`: determines all latencies, drawn faults, and what the application draws from `random`.
    - `timeline`: steps of scenarios as mappings with one key each, and `at`, a time since the application's start
      (`{"at": "5s", "crash": {"broker": 0}}`); one without `at` follows the one before. Or faults with such times, or
      `"swarm"`: faults drawn from the seed. Faults lose no acknowledged record.
    - `brokers`, `controllers`, `config`, `generation`: as in scenario files. `topics`: the number of partitions of each
      topic, or its lists of replicas; with `topic_config` as configs.
    - `within`: the virtual time after which a run that has not ended is stuck.
    - `shuffle`: draws the order and lateness of the loop's timers from the seed.
    - `latency`: that of links. `reset_after_ms`: when TCP gives up.

    With the attribute `html`, a path, a run is recorded, and writes its page (`experiments/explorer`) though it fails.

    InputError for a timeline or a cluster that no scenario file could have.
    """

    def __init__(
        self,
        seed: int = 0,
        timeline: Steps = (),
        *,
        brokers: int = 3,
        topics: Mapping[str, int | Sequence[Sequence[int]]] | None = None,
        topic_config: Mapping[str, object] | None = None,
        cluster: Mapping[str, object] | None = None,
        within: str = "10m",
        shuffle: bool = True,
        latency: NetworkModel | None = None,
        reset_after_ms: TimeMs = RESET_AFTER_MS,
    ) -> None:
        if type(seed) is not int:
            raise InputError(SOURCE, "seed", seed, "a whole number")
        self.seed = seed
        self.html: Path | None = None
        self._shuffle = shuffle
        self._latency = latency
        self._reset_after_ms = reset_after_ms
        self._timeline = Timeline.of(timeline, within)
        self._scenario = scenario_of(
            {"brokers": brokers, **(cluster or {})}, topics or {"t": 1}, topic_config or {}, self._timeline.raw_steps
        )

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{node_name(broker)}:{PORT}" for broker in range(self._scenario.cluster.brokers))

    def run(self, application: Application, *args: Any) -> RunResult:
        """Runs `application(bootstrap_servers, *args)`. Raises what it raises; StuckError where it does not return, and
        StepFailedError where a step of the timeline fails.
        """
        engine = VirtualEngine(
            self._scenario.cluster.spec(self.seed), self._latency, self._shuffle, self._reset_after_ms
        )
        runner = Runner(self._scenario, engine)
        recorder = None if self.html is None else CallRecorder(engine, runner)
        verdict = "returned"
        try:
            with rare_collections(), patched(engine.cluster, Random(f"{self.seed}/application")):
                try:
                    runner.set_up()
                    return self._run(engine, runner, application, args)
                finally:
                    engine.loop.close()
        except BaseException as error:
            verdict = f"{type(error).__name__}: {error}"
            raise
        finally:
            if recorder is not None and self.html is not None:
                facts = [("seed", str(self.seed)), ("application", verdict), ("trace", engine.trace_hash())]
                name = getattr(application, "__qualname__", "application")
                recorder.write(self.html, f"{name}, seed {self.seed}", facts)
            engine.close()

    def _run(self, engine: VirtualEngine, runner: Runner, application: Application, args: tuple[Any, ...]) -> RunResult:
        loop, begun_ms = engine.loop, engine.now_ms()
        task = loop.create_task(application(self.bootstrap_servers, *args))
        try:
            self._timeline.carry_out(runner, engine, task.done)
            if not task.done():
                waited = ", ".join(loop.pending())
                raise StuckError(f"not done after {self._timeline.within_ms} ms of virtual time; tasks: {waited}")
        finally:
            loop.cancel_all()
            loop.run_until(lambda: not loop.pending(), engine.now_ms() + CANCEL_WITHIN_MS)
        value, ended_ms = task.result(), engine.now_ms()
        self._timeline.settle(engine, SETTLE_MS)
        return RunResult(
            seed=self.seed,
            value=value,
            duration_ms=ended_ms - begun_ms,
            trace_hash=engine.trace_hash(),
            acknowledged=engine.observer.acknowledged,
            logs=committed(engine),
            exchanges=engine.observer.exchanges,
            violations=engine.violations(),
            unhandled=loop.unhandled,
        )


def scenario_of(
    cluster: Mapping[str, object],
    topics: Mapping[str, int | Sequence[Sequence[int]]],
    config: Mapping[str, object],
    steps: Sequence[Mapping[str, object]] = (),
) -> Scenario:
    """The scenario that creates the cluster and the topics of a run."""
    brokers = cluster["brokers"]
    factor = min(3, brokers) if isinstance(brokers, int) else 3
    listed = [
        {"name": name, "config": {**config}}
        | ({"partitions": shape, "replication_factor": factor} if isinstance(shape, int) else {"assignments": shape})
        for name, shape in topics.items()
    ]
    raw: dict[str, object] = {"name": "simulated-kafka", "cluster": {**cluster}, "topics": listed}
    listed_steps = [dict(step) for step in steps] or [{"wait": "1ms"}]
    return scenario_from(raw | {"steps": listed_steps}, SOURCE, (FIRST_APPLICATION,))


def committed(engine: Engine) -> dict[TopicPartition, list[KafkaRecord]]:
    """The records below the high watermark in the leader's log of each partition that has one."""
    view = engine.view()
    logs: dict[TopicPartition, list[KafkaRecord]] = {}
    for place, state in sorted({} if view is None else view.partitions.items()):
        replica = None if state.leader == NO_LEADER else engine.replica(state.leader, place)
        if replica is not None:
            batches = engine.log(state.leader, place)
            records = [record for batch in batches if is_kafka(batch.payload) for record in readable(batch)]
            logs[place] = [record for record in records if record.offset < replica.high_watermark]
    return logs
