"""One run of the hunt: random faults within tolerance on a small cluster under load, then all heals, then judgement.

A plan is drawn from a seed before the run and does not depend on it (swarm: each seed has sizes, configs and a random
part of the faults of its own). A partition with an idempotent producer and two readers is what the load of the soak
makes it (`experiments/soak/load.py`). A run ends with the first thing that is found:

- an invariant that does not hold (`experiments/check/invariants.py`), looked at after every event;
- an exception out of a node, by the name of its type;
- `Liveness`: all has healed, and not all replicas are in the ISR, or a send has no outcome, or a reader has not come
  to the end; also a cluster that does not come to rest;
- what the history's judge finds (`experiments/check/history.py`), as far as the partition has been within tolerance.

What a plan may do is in `actions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple

from experiments.check.history import FinalPartition, Operation, judge
from experiments.engine import ClusterSpec
from experiments.mutants.actions import FAULTS, Actions, Settings, Step
from experiments.mutants.mutant import Focus
from experiments.requests import alter_config, create_topic
from experiments.sim.engine import SimEngine
from experiments.sim.network import NetworkModel
from experiments.soak.load import Load, runs_of
from protocol.config import MIN_INSYNC_REPLICAS, ClusterConfig, Generation
from protocol.ids import NO_LEADER, TopicPartition
from protocol.messages.base import Message
from protocol.messages.commands import Command

BEGIN_MS, TICK_MS, HEAL_MS = 3_000, 50, 60_000
MAX_EVENTS = 60_000
DURATIONS_MS = (3, 30, 300, 2_000, 6_000)
PAUSES_MS = (5, 60, 400, 2_000)
CONFIG: Mapping[str, object] = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 500,
    "request.timeout.ms": 1_500,
    "delivery.timeout.ms": 12_000,
}


def slow_routine(partition: TopicPartition, leader_epoch: int, log_end: int) -> int:
    """A data-loss routine that takes its time (`protocol.broker.recovery`)."""
    return 8_000


class Found(NamedTuple):
    """What ended a run: an invariant, a kind of finding, an exception's type, or `Liveness`; and a line about it."""

    invariant: str
    detail: str
    time_ms: int


class CaughtError(Exception):
    """Ends a run with what was found."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(invariant, detail)
        self.invariant, self.detail = invariant, detail


def draw_settings(random: Random, focus: Focus) -> Settings:
    """The sizes and configs of a seed, but for those that the focus fixes."""
    brokers = random.choice((3, 3, 4, 5))
    topic: dict[str, object] = {}
    cluster: dict[str, object] = {"replica.lag.time.max.ms": random.choice((1_500, 4_000))}
    if random.random() < 0.3:
        topic |= {"segment.bytes": 3_000, "retention.bytes": 6_000}
        cluster["log.retention.check.interval.ms"] = 700
    if random.random() < 0.4:
        cluster["replica.fetch.max.bytes"] = 1
    if random.random() < 0.3:
        topic["flush.messages"] = random.choice((20, 100))
    drawn: dict[str, object] = {
        "brokers": brokers,
        "partitions": random.choice((1, 1, 2)),
        "rate": random.choice((20, 50, 200)),
        "jitter_ms": random.choice((0, 2, 20)),
        "topic": topic,
        "cluster": cluster,
    }
    return Settings(**(drawn | dict(focus.settings)))  # type: ignore[arg-type]


def draw_plan(random: Random, settings: Settings, focus: Focus) -> list[Step]:
    """What will be done, in order."""
    if focus.script:
        return [Step(*planned[:3], random.getrandbits(30), planned[3]) for planned in focus.script]
    kinds = focus.faults or tuple(random.sample(sorted(FAULTS), random.randint(2, len(FAULTS) // 2)))
    plan: list[Step] = []
    at_ms = BEGIN_MS
    while at_ms < settings.duration_ms:
        broker, dice = random.randrange(settings.brokers), random.getrandbits(30)
        plan.append(Step(at_ms, random.choice(kinds), broker, dice, broker))
        plan.append(Step(at_ms + random.choice(DURATIONS_MS), "mend", broker, dice, broker))
        at_ms += random.choice(PAUSES_MS)
    return sorted(plan, key=lambda step: step.at_ms)


@dataclass(slots=True)
class _Clients:
    """The client of the simulated cluster, as a load wants it."""

    engine: SimEngine

    def now_ms(self) -> int:
        return self.engine.now_ms()

    def submit(self, command: Command) -> None:
        self.engine.submit(command)

    def take_outcomes(self) -> Mapping[int, Message]:
        taken = dict(self.engine.cluster.outcomes)
        self.engine.cluster.outcomes.clear()
        return taken


class Hunt:
    """One run; `run` gives what it found, None where all is as it should be."""

    def __init__(self, seed: int, focus: Focus = Focus()) -> None:  # noqa: B008 (a frozen value)
        random = Random(f"{seed}/hunt")
        self.settings = settings = draw_settings(random, focus)
        self.plan = draw_plan(random, settings, focus)
        config = ClusterConfig.of(Generation(settings.generation), dict(CONFIG) | dict(settings.cluster))
        spec = ClusterSpec(settings.brokers, 1, config, seed)
        self.engine = SimEngine(spec, NetworkModel(jitter_ms=settings.jitter_ms))
        self.partitions = tuple(TopicPartition("t", index) for index in range(settings.partitions))
        self._ids = count(1)
        self._history: list[Operation] = []
        self._actions = Actions(self.engine, settings)
        self._load: Load | None = None

    def run(self) -> Found | None:
        """Carries out the plan."""
        try:
            self._begin()
            for step in self.plan:
                self._run_until(step.at_ms)
                self._actions.do(step)
            self._run_until(self.settings.duration_ms)
            self._heal()
            self._judge()
        except CaughtError as caught:
            return Found(caught.invariant, caught.detail, self.engine.now_ms())
        except Exception as error:  # noqa: BLE001 (what a node without its guard may come to is not known beforehand)
            return Found(type(error).__name__, str(error), self.engine.now_ms())
        return None

    # -- phases --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        engine, settings = self.engine, self.settings
        for node in engine.spec.node_ids:
            engine.start(node)
        self._run_until(1_000)
        brokers = range(settings.brokers)
        turns = [
            tuple((index + turn) % len(brokers) for turn in range(settings.replicas))
            for index in range(settings.partitions)
        ]
        self._actions.administer(
            create_topic("t", turns, {MIN_INSYNC_REPLICAS: settings.min_isr} | dict(settings.topic))
        )
        self._run_until(2_000)
        clients = _Clients(engine)
        self._load = Load(clients, self._history.append, self.partitions, settings.rate, lambda: next(self._ids))
        self._tick()

    def _tick(self) -> None:
        assert self._load is not None
        self._load.tick()
        self.engine.cluster.call_at(self.engine.now_ms() + TICK_MS, self._tick)

    def _run_until(self, at_ms: int) -> None:
        cluster, violations = self.engine.cluster, self.engine.suite.violations
        while cluster.step(at_ms):
            if violations:
                break
            if cluster.event_count > MAX_EVENTS:
                raise CaughtError("Liveness", f"the cluster does not come to rest: {MAX_EVENTS} events")
        if violations:
            raise CaughtError(violations[0].invariant, violations[0].detail)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline_ms = self.engine.now_ms() + HEAL_MS
        while not condition():
            if self.engine.now_ms() >= deadline_ms:
                raise CaughtError("Liveness", f"{what}: not within {HEAL_MS} ms after the faults")
            self._run_until(self.engine.now_ms() + 200)

    def _heal(self) -> None:
        load = self._load
        assert load is not None
        self._actions.mend_everything()
        self._run_until(self.engine.now_ms() + 1_000)
        self._actions.mend_everything()
        self._actions.administer(alter_config("t", {MIN_INSYNC_REPLICAS: self.settings.min_isr}))
        self._await(self._is_whole, "all replicas are in the ISR")
        load.stop_sending()
        self._await(lambda: not load.outstanding, "every send has its outcome")
        self._await(self._is_whole, "all replicas are in the ISR")
        ends = {partition: self._end_of(partition) for partition in self.partitions}
        self._await(lambda: load.has_read_to(ends), "the readers have come to the end")
        load.stop_reading()
        self._run_until(self.engine.now_ms() + 2_000)
        for violation in self.engine.violations():
            raise CaughtError(violation.invariant, violation.detail)

    def _is_whole(self) -> bool:
        view = self.engine.view()
        if view is None or any(not self.engine.is_running(broker) for broker in self.engine.spec.broker_ids):
            return False
        states = [view.partitions.get(partition) for partition in self.partitions]
        return all(
            state is not None and state.leader != NO_LEADER and set(state.isr) == set(state.replicas)
            for state in states
        )

    def _end_of(self, partition: TopicPartition) -> int:
        state = self.engine.suite.truth.controller_state(partition)
        replica = None if state is None else self.engine.replica(state.leader, partition)
        return 0 if replica is None else replica.high_watermark

    def _judge(self) -> None:
        truth, finals = self.engine.suite.truth, []
        for partition in self.partitions:
            state = truth.controller_state(partition)
            assert state is not None
            replicas = {broker: truth.replica(broker, partition) for broker in state.isr}
            logs = {
                broker: [run for batch in self.engine.log(broker, partition) for run in runs_of(batch)]
                for broker, replica in replicas.items()
            }
            start = max(replica.log.start_offset for replica in replicas.values() if replica is not None)
            logs = {broker: [run for run in runs if run.offset >= start] for broker, runs in logs.items()}
            finals.append(FinalPartition(partition, state.leader, logs, start))
        for finding in judge(self._history, finals):
            if truth.of(finding.partition).tolerant:
                raise CaughtError(type(finding).__name__, finding.text)
