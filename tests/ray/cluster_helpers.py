"""A running cluster on Ray for tests, with the commands and waits that they share.

A `RunningCluster` submits commands under ids of its own and waits for conditions, each for at most `WITHIN_MS`. It
produces to and consumes from partition 0 of topic `t`. With the timeouts of `FAST`, a cluster detects within seconds
what takes half a minute with Kafka's defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from actors.storage import LOCK_FILE
from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss, TraceEvent
from experiments.engines.ray.engine import RayEngine
from experiments.engines.ray.process_pool import ProcessPool as ProcessPool
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.ids import NO_LEADER, BrokerId, NodeId, TimeMs, TopicPartition
from protocol.messages.base import Message
from protocol.messages.commands import (
    AdminCommand,
    AdminOutcome,
    Command,
    ConsumeCommand,
    ConsumeOutcome,
    ProduceCommand,
    ProduceOutcome,
)
from protocol.metadata.partition import PartitionState

T0 = TopicPartition("t", 0)
ALL = -1
WITHIN_MS = 60_000
LEAVES_WITHIN_S = 30.0
"""How long a process may take to end once it was asked to or was killed."""
FAST = {
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 300,
    "replica.lag.time.max.ms": 2_000,
    "replica.fetch.wait.max.ms": 200,
}
FAST_OPTIONS = tuple(item for name, value in FAST.items() for item in ("--config", f"{name}={value}"))
Outcome = TypeVar("Outcome", bound=Message)


class RunningCluster:
    """A cluster on the ray engine, and partition 0 of its topic `t`.

    `engine` runs the cluster; each wait ends after `within_ms` at the latest. `meanwhile` is called before each
    evaluation of a condition.
    """

    def __init__(self, engine: RayEngine, within_ms: int = WITHIN_MS) -> None:
        self.engine = engine
        self.meanwhile: Callable[[], None] = lambda: None
        self._within_ms = within_ms
        self._commands = 0

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self.meanwhile()
            return condition()

        assert self.engine.run_until(holds, self._within_ms), f"{what}: {self.engine.view()}"

    def await_unfenced(self, *brokers: BrokerId) -> None:
        self.until(lambda: self.engine.unfenced().issuperset(brokers), f"{brokers} unfenced")

    def await_partition(self, what: str, **expected: object) -> None:
        """Waits until the controller's state of the partition has these fields; sets compare as sets."""

        def holds() -> bool:
            state = self.state()
            if state is None:
                return False
            found = {name: getattr(state, name) for name in expected}
            return all(set(v) == expected[k] if isinstance(v, tuple) else v == expected[k] for k, v in found.items())

        self.until(holds, what)

    def await_whole(self) -> BrokerId:
        """Waits until the partition has a leader and all brokers in its ISR. Returns the leader."""
        everyone = set(self.engine.spec.broker_ids)

        def is_whole() -> bool:
            state = self.state()
            return state is not None and state.leader != NO_LEADER and set(state.isr) == everyone

        self.until(is_whole, "the ISR is whole")
        return self.leader()

    def submit(self, make: Callable[[int], Command]) -> int:
        """Submits `make(command_id)` with an unused command id. Returns the id."""
        self._commands += 1
        self.engine.submit(make(self._commands))
        return self._commands

    def outcome(self, number: int, kind: type[Outcome]) -> Outcome:
        """Waits for the outcome of a command and returns it."""
        self.until(lambda: self.engine.outcome(number) is not None, f"the outcome of command {number}")
        found = self.engine.outcome(number)
        assert isinstance(found, kind), found
        return found

    def create_topic(
        self, replicas: tuple[BrokerId, ...], min_isr: int, name: str = "t", config: Mapping[str, object] | None = None
    ) -> None:
        request = create_topic(name, (replicas,), {"min.insync.replicas": min_isr, **(config or {})})
        number = self.submit(lambda number: AdminCommand(command_id=number, request=request))
        created = self.outcome(number, AdminOutcome)
        assert created.error is ErrorCode.NONE, created

    def produce(self, *payloads: bytes, acks: int = ALL) -> list[ErrorCode]:
        """Produces batches of one record one after the other. Returns the error of each."""
        return [self._produce(payload, acks) for payload in payloads]

    def _produce(self, payload: bytes, acks: int) -> ErrorCode:
        number = self.submit(
            lambda number: ProduceCommand(
                command_id=number, topic="t", partition=0, acks=acks, record_count=1, payload=payload
            )
        )
        return self.outcome(number, ProduceOutcome).error

    def consumed(self) -> list[bytes]:
        """Returns the payloads of all batches that a consumer reads from offset 0."""
        number = self.submit(lambda number: ConsumeCommand(command_id=number, topic="t", partition=0))
        return [batch.payload for batch in self.outcome(number, ConsumeOutcome).batches]

    def cut(self, a: NodeId, b: NodeId) -> None:
        """Cuts the link between two nodes, both ways."""
        for source, target in ((a, b), (b, a)):
            self.engine.set_link(source, target, False)

    def kill_the_active_controller(self) -> tuple[NodeId, NodeId]:
        """Sends SIGKILL to the active controller. Returns its id and the id of the next active controller."""
        killed = self.active_controller()
        self.engine.crash(killed, Loss())
        at_ms = self.engine.now_ms()
        self.until(lambda: self._became_active(at_ms) is not None, f"a controller other than {killed} is active")
        successor = self._became_active(at_ms)
        assert successor is not None
        return killed, successor

    def active_controller(self) -> NodeId:
        """Waits for an active controller and returns its id."""
        self.until(lambda: self.engine.active_controller() is not None, "a controller is active")
        active = self.engine.active_controller()
        assert active is not None
        return active

    def _became_active(self, after_ms: TimeMs) -> NodeId | None:
        """The first controller that became active after a time, None if no controller did."""
        started = [event for event in self.engine.traces() if event.trace.kind == "controller_started"]
        return next((event.node for event in started if event.time_ms > after_ms), None)

    def state(self) -> PartitionState | None:
        view = self.engine.view()
        return None if view is None else view.partitions.get(T0)

    def leader(self) -> BrokerId:
        state = self.state()
        return NO_LEADER if state is None else state.leader

    def leader_epoch(self) -> int:
        state = self.state()
        assert state is not None, self.engine.view()
        return state.leader_epoch

    def payloads(self, broker: BrokerId) -> list[bytes]:
        """The payloads of all batches in a replica's log."""
        return [batch.payload for batch in self.engine.log(broker, T0)]

    def reasons(self, kind: str, node: NodeId) -> list[str]:
        """The `reason` fields of a node's trace events of one kind."""
        found = [event for event in self.engine.traces() if event.trace.kind == kind and event.node == node]
        return [event.trace.reason for event in found]


@contextmanager
def running_cluster(
    brokers: int = 3,
    config: Mapping[str, object] = FAST,
    generation: Generation = Generation.KIP_966,
    within_ms: int = WITHIN_MS,
    controllers: int = 1,
    record_to: Callable[[TraceEvent], None] | None = None,
    pool: ProcessPool | None = None,
) -> Iterator[RunningCluster]:
    """A running cluster with all its brokers unfenced, on the Ray that this process is connected to, in processes of
    `pool`, if it is given."""
    spec = ClusterSpec(brokers, controllers, ClusterConfig.of(generation, config))
    engine = RayEngine(spec) if pool is None else pool.engine(spec)
    if record_to is not None:
        engine.record_to(record_to)
    try:
        for node in engine.spec.node_ids:
            engine.start(node)
        cluster = RunningCluster(engine, within_ms)
        cluster.await_unfenced(*engine.spec.broker_ids)
        yield cluster
    finally:
        engine.close()


def content(directory: Path) -> dict[str, bytes]:
    """The files of a node's directory, except its lock."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != LOCK_FILE]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
