"""A simulated cluster under a continuous produce load, with its invariants checked after every event."""

from __future__ import annotations

from collections.abc import Callable

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.network import NetworkModel
from protocol.broker.context import Replica
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.registry import detail_of
from protocol.features import Generation
from protocol.ids import FIRST_CONTROLLER, TopicPartition
from protocol.kafka_release import NEWEST, KafkaRelease
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand, AdminOutcome, ProduceCommand, ProduceOutcome
from protocol.metadata.partition import PartitionState
from protocol.nodes.base_broker import BaseBroker
from tests.sim.cluster_helpers import KEEP, broker_of, replica_of
from tests.sim.scenario_helpers import running_engine

T0 = TopicPartition("t", 0)


class ContinuouslyWrittenCluster:
    """Partition `t-0` with `filled` batches. Until `check_settled` a client writes another one every `every_ms` with
    acks=all. A follower gets one batch per fetch, so that a new replica takes a while to catch up.
    """

    def __init__(
        self,
        generation: Generation = Generation.KIP_966,
        brokers: int = 5,
        replicas: tuple[int, ...] = (0, 1, 2),
        min_isr: int = 2,
        filled: int = 40,
        every_ms: int = 700,
        seed: int = 0,
        kafka_release: KafkaRelease = NEWEST,
        **configs: object,
    ) -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        config = ClusterConfig.of(generation, {"replica.fetch.max.bytes": 1} | settings, kafka_release=kafka_release)
        self.engine = running_engine(2_000, ClusterSpec(brokers, 1, config, seed), NetworkModel())
        self._commands = 0
        self._written: dict[int, bytes] = {}
        self._writing = True
        assert self.administer(create_topic("t", (replicas,), {"min.insync.replicas": min_isr})) is ErrorCode.NONE
        for _ in range(filled):
            self._submit()
        self.engine.run_for(2_000)
        self._write(every_ms)

    def _submit(self) -> None:
        self._commands += 1
        payload = self._written[self._commands] = str(self._commands).encode()
        command = ProduceCommand(
            command_id=self._commands, topic="t", partition=0, acks=-1, record_count=1, payload=payload
        )
        self.engine.submit(command)

    def _write(self, every_ms: int) -> None:
        if self._writing:
            self._submit()
            self.engine.cluster.call_at(self.engine.now_ms() + every_ms, lambda: self._write(every_ms))

    def administer(self, request: AdminRequest) -> ErrorCode:
        """Sends the request and waits for its outcome."""
        self._commands += 1
        number = self._commands
        self.engine.submit(AdminCommand(command_id=number, request=request))
        assert self.engine.run_until(lambda: self.engine.outcome(number) is not None, 90_000)
        outcome = self.engine.outcome(number)
        assert isinstance(outcome, AdminOutcome)
        return outcome.error

    def crash(self, node: int) -> None:
        self.engine.crash(node, KEEP)

    def lose(self, *brokers: int) -> None:
        """Crashes the brokers one after another, each when the controller has fenced the one before."""
        for broker in brokers:
            self.crash(broker)
            assert self.engine.run_until(lambda gone=broker: not self.is_unfenced(gone), 60_000)  # type: ignore[misc]
            self.run_for(2_000)

    def start(self, *nodes: int) -> None:
        for node in nodes:
            self.engine.start(node)

    def start_and_wait(self, broker: int) -> None:
        """Starts a broker and waits until the controller has unfenced it."""
        self.start(broker)
        assert self.engine.run_until(lambda: self.is_unfenced(broker), 60_000)

    def bounce_controller(self, down_ms: int = 2_000) -> None:
        """Crashes the controller and restarts it with its disk."""
        self.crash(FIRST_CONTROLLER)
        self.engine.run_for(down_ms)
        self.start(FIRST_CONTROLLER)

    def run_for(self, duration_ms: int) -> None:
        self.engine.run_for(duration_ms)

    def run_until(self, condition: Callable[[PartitionState], bool], within_ms: int = 120_000) -> None:
        """Runs until the controller's state of the partition fulfils `condition`, which it must in time."""
        assert self.engine.run_until(lambda: self._is(condition), within_ms), self.state

    def _is(self, condition: Callable[[PartitionState], bool]) -> bool:
        view = self.engine.view()
        return view is not None and condition(view.partitions[T0])

    @property
    def state(self) -> PartitionState:
        view = self.engine.view()
        assert view is not None
        return view.partitions[T0]

    def is_unfenced(self, broker: int) -> bool:
        return broker in self.engine.unfenced()

    def broker(self, broker: int) -> BaseBroker:
        return broker_of(self.engine.cluster, broker)

    def replica(self, broker: int) -> Replica:
        return replica_of(self.engine.cluster, broker)

    def has_replica(self, broker: int) -> bool:
        """Whether the broker has the partition, in memory or on its disk."""
        disk = self.engine.cluster.disks[broker].log_names()
        return self.broker(broker).context.replica_named("t", 0) is not None or bool(
            [name for name in disk if not name.startswith("__")]
        )

    def traced(self, kind: str) -> list[tuple[int, int, dict[str, object]]]:
        """Time, node and details of the events of a kind."""
        return [
            (event.time_ms, event.node, detail_of(event.trace))
            for event in self.engine.traces()
            if event.trace.kind == kind
        ]

    def check_settled(self, within_ms: int = 200_000) -> None:
        """Stops writing, and asserts that all replicas come to hold the same records and all that were acknowledged."""
        self._writing = False
        self.engine.run_for(within_ms)
        assert not self.engine.violations(), self.engine.violations()
        assert sorted(self.state.isr) == sorted(self.state.replicas)
        logs = [[batch.payload for batch in self.engine.log(broker, T0)] for broker in self.state.replicas]
        assert all(log == logs[0] for log in logs), [len(log) for log in logs]
        assert len(self.acknowledged()) > 0
        lost = [payload for payload in self.acknowledged() if payload not in set(logs[0])]
        assert not lost, lost

    def acknowledged(self) -> list[bytes]:
        outcomes = {number: self.engine.outcome(number) for number in self._written}
        return [
            self._written[number]
            for number, outcome in outcomes.items()
            if isinstance(outcome, ProduceOutcome) and outcome.error is ErrorCode.NONE
        ]
