"""Random faults on a simulated cluster, within tolerance, with a client that writes all the time.

A plan is drawn from a seed before the run and does not depend on it, so that the same plan can be carried out under
different settings of the simulator. Every fault has its healing half; at the end everything is healed and started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import msgpack

from experiments.check.engine import CheckedEngine
from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.network import NetworkModel
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.registry import detail_of
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, TopicPartition
from protocol.messages.commands import AdminCommand, ProduceCommand, ProduceOutcome

BROKERS = 3
HEAL_MS = 240_000
PARTITIONS = tuple(TopicPartition("t", index) for index in range(2))


@dataclass(slots=True)
class Chaos:
    """One run. `config` is the cluster's, beside the lag time. `acked` maps a partition to the payloads acknowledged
    with acks=all.
    """

    seed: int
    generation: Generation
    duration_ms: int = 180_000
    elide_idle: bool = True
    paranoid: bool = False
    model: NetworkModel = field(default_factory=NetworkModel)
    config: Mapping[str, object] = field(default_factory=dict)
    acked: dict[TopicPartition, list[bytes]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    commands: dict[int, tuple[TopicPartition, bytes]] = field(default_factory=dict)
    unsafe: set[int] = field(default_factory=set)
    engine: CheckedEngine = field(init=False)

    def __post_init__(self) -> None:
        config = ClusterConfig.of(self.generation, {"replica.lag.time.max.ms": 5_000} | dict(self.config))
        self.engine = CheckedEngine(
            ClusterSpec(BROKERS, 1, config, self.seed), self.model, elide_idle=self.elide_idle, paranoid=self.paranoid
        )

    def run(self) -> Chaos:
        engine = self.engine
        for node in engine.spec.node_ids:
            engine.start(node)
        engine.run_for(1_000)
        request = create_topic("t", ((0, 1, 2), (1, 2, 0)), {"min.insync.replicas": 2})
        engine.submit(AdminCommand(command_id=1, request=request))
        engine.run_for(1_000)
        for at_ms, action, *args in self._plan():
            engine.run_for(max(0, at_ms - engine.now_ms()))
            getattr(self, f"_{action}")(*args)
        self._heal()
        return self

    def _plan(self) -> list[tuple[int, str, object]]:
        random = Random(f"{self.seed}/chaos")
        plan: list[tuple[int, str, object]] = []
        at_ms = 3_000
        while at_ms < self.duration_ms:
            broker = random.randrange(BROKERS)
            fault = random.choice(("crash", "lossy", "shutdown", "pause", "isolate", "one_way", "controller"))
            length_ms = random.choice((300, 3_000, 12_000, 40_000))
            plan.append((at_ms, fault, broker))
            plan.append((at_ms + length_ms, "mend", broker))
            at_ms += random.choice((500, 4_000, 15_000, 50_000))
        number = 10
        for write_ms in range(2_500, self.duration_ms, 1_700):
            number += 1
            plan.append((write_ms, "write", number))
        return sorted(plan, key=lambda item: (item[0], item[1], str(item[2])))

    def _write(self, number: int) -> None:
        partition = PARTITIONS[number % len(PARTITIONS)]
        payload = msgpack.packb([number])
        self.commands[number] = (partition, payload)
        self.engine.submit(
            ProduceCommand(
                command_id=number,
                topic=partition.topic,
                partition=partition.partition,
                acks=-1,
                record_count=1,
                payload=payload,
            )
        )

    def _crash(self, broker: int) -> None:
        if self.engine.is_running(broker):
            self.engine.crash(broker, Loss("none"))

    def _lossy(self, broker: int) -> None:
        """Loses the unflushed tail, if that is still within tolerance: one at a time, and with ELR only."""
        truth = self.engine.suite.truth
        outstanding = set().union(*(truth.of(partition).lossy for partition in PARTITIONS))
        tolerable = self.generation.features.elr and outstanding <= {broker} and self.engine.view() is not None
        if self.engine.is_running(broker):
            self.engine.crash(broker, Loss("unflushed" if tolerable else "none"))

    def _shutdown(self, broker: int) -> None:
        if self.engine.is_running(broker) and not self.engine.is_paused(broker):
            self.engine.terminate(broker)

    def _pause(self, broker: int) -> None:
        if self.engine.is_running(broker) and not self.engine.is_paused(broker):
            self.engine.pause(broker)

    def _isolate(self, broker: int) -> None:
        for other in (*range(BROKERS), FIRST_CONTROLLER):
            if other != broker:
                self.engine.set_link(broker, other, False)
                self.engine.set_link(other, broker, False)

    def _one_way(self, broker: int) -> None:
        self.engine.set_link(broker, (broker + 1) % BROKERS, False)
        self.engine.set_link(broker, FIRST_CONTROLLER, False)

    def _controller(self, broker: int) -> None:
        if self.engine.is_running(FIRST_CONTROLLER):
            self.engine.crash(FIRST_CONTROLLER, Loss("none"))

    def _mend(self, broker: int) -> None:
        if self.engine.is_paused(broker):
            self.engine.resume(broker)
        self.engine.heal_links()
        for node in (FIRST_CONTROLLER, broker):
            if not self.engine.is_running(node):
                self.engine.start(node)

    def _heal(self) -> None:
        for broker in range(BROKERS):
            self._mend(broker)
        self.engine.run_for(HEAL_MS)
        for broker in range(BROKERS):
            self._mend(broker)
        self.engine.run_for(HEAL_MS)
        for number, (partition, payload) in self.commands.items():
            outcome = self.engine.outcome(number)
            assert isinstance(outcome, ProduceOutcome), f"no outcome of write {number}"
            if outcome.error is ErrorCode.NONE:
                self.acked[partition].append(payload)

    def complaints(self) -> list[str]:
        """Everything that is not as it should be once all has healed."""
        found = [str(violation) for violation in self.engine.violations()]
        view = self.engine.view()
        assert view is not None
        for partition in PARTITIONS:
            state = view.partitions[partition]
            if state.leader == -1 or sorted(state.isr) != list(range(BROKERS)):
                found.append(f"{partition} has not recovered: {state}")
                continue
            logs = [[batch.payload for batch in self.engine.log(broker, partition)] for broker in range(BROKERS)]
            if not logs[0] == logs[1] == logs[2]:
                found.append(f"{partition}: logs differ: {[len(log) for log in logs]}")
            tolerant = self.engine.suite.truth.of(partition).tolerant
            lost = [payload for payload in self.acked[partition] if payload not in logs[state.leader]]
            if lost and tolerant:
                found.append(f"{partition}: lost {len(lost)} acknowledged records")
        return found

    def story(self) -> list[tuple[object, ...]]:
        """The trace without what elision may leave out."""
        return [
            (event.time_ms, event.node, event.trace.kind, event.trace.about(), tuple(detail_of(event.trace).items()))
            for event in self.engine.traces()
        ]
