"""A simulated cluster whose messages and trace events are kept, so that durations and counts can be read from them.

Brokers, controllers and store are the nodes that every engine runs; nothing of the protocol is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments.engines.admin_requests import create_topic
from experiments.engines.port import ClusterSpec, Loss
from experiments.engines.sim.engine import SimEngine
from experiments.engines.sim.network import NetworkModel
from experiments.engines.sim.recorder import Recorder
from experiments.numbers.conditions import Conditions
from protocol.config import ClusterConfig
from protocol.errors import ErrorCode
from protocol.events.base import Trace
from protocol.events.broker import BecameFollower, BecameLeader
from protocol.features import Generation
from protocol.ids import STORE, NodeId, TimeMs, TopicPartition
from protocol.messages.admin import AdminRequest
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
from protocol.v3.broker.node import V3BrokerNode
from protocol.v3.controller.context import Controller
from protocol.v3.store.node import StoreNode

TOPIC = "t"
T0 = TopicPartition(TOPIC, 0)
LEADER, CONTROLLER = "leader", "controller"
"""Who writes ISRs in `v3`: values of `inter.broker.protocol.isr.updates`."""
KEEP = Loss("none")
WITHIN_MS = 10 * 86_400_000
"""Longer than any measurement under sensible conditions."""

Kind = TypeVar("Kind", bound=Message)
Event = TypeVar("Event", bound=Trace)


class MeasurementError(Exception):
    """A cluster did not come to the state in which something is measured."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message; `arrived_ms` is None if it was lost or its target did not run."""

    sent_ms: TimeMs
    arrived_ms: TimeMs | None
    source: NodeId
    target: NodeId
    message: Message


class MessageLog(Recorder):
    """All messages of a cluster."""

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self.counts: Counter[type[Message]] = Counter()

    def sent(
        self, time_ms: TimeMs, source: NodeId, target: NodeId, message: Message, arrivals: Sequence[TimeMs]
    ) -> None:
        self.counts[type(message)] += 1
        self.messages.append(Sent(time_ms, min(arrivals, default=None), source, target, message))


class MeasuredCluster:
    """A cluster of a generation with all its nodes started and, once `create` has been called, the topic `t`. `counts`
    are its trace events, `sent` its messages.
    """

    def __init__(
        self,
        conditions: Conditions,
        generation: Generation = Generation.V3,
        *,
        brokers: int = 3,
        controllers: int = 1,
        sessions: int = 1,
        multi: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.conditions = conditions
        store = conditions.store(sessions, multi) if generation.features.metadata_in_store else None
        spec = ClusterSpec(brokers, controllers, ClusterConfig.of(generation, config), conditions.seed, store=store)
        self.engine = SimEngine(spec, NetworkModel(conditions.network_ms, 0))
        self._cluster = self.engine.cluster
        self._sent_messages = MessageLog()
        self._cluster.recorder = self._sent_messages
        self.sent = self._sent_messages.counts
        self.counts: Counter[type[Trace]] = Counter()
        self._cluster.trace_observers.append(lambda now_ms, node, trace: self.counts.update((type(trace),)))
        self._commands = 0
        for node in spec.node_ids:
            self.engine.start(node)
        self.await_("all brokers are registered", lambda: len(self.engine.unfenced()) == brokers)

    @property
    def now_ms(self) -> TimeMs:
        return self.engine.now_ms()

    def await_(self, what: str, condition: Callable[[], bool], within_ms: int = WITHIN_MS) -> TimeMs:
        """Runs until the condition holds, and returns the time. MeasurementError if it does not come to hold."""
        if not self.engine.run_until(condition, within_ms):
            raise MeasurementError(f"not within {within_ms} ms: {what}")
        return self.now_ms

    def settle(self) -> None:
        """Lets what is under way come to an end."""
        self.engine.run_for(10_000)

    def _next_id(self) -> int:
        self._commands += 1
        return self._commands

    def _carry_out(self, command: Command, kind: type[Kind]) -> Kind:
        self.engine.submit(command)
        what = f"an outcome of {type(command).__name__}"
        self.await_(what, lambda: self.engine.outcome(command.command_id) is not None)
        outcome = self.engine.outcome(command.command_id)
        assert isinstance(outcome, kind)
        return outcome

    def administer(self, request: AdminRequest) -> AdminOutcome:
        return self._carry_out(AdminCommand(command_id=self._next_id(), request=request), AdminOutcome)

    def create(self, replicas: Sequence[Sequence[int]], config: Mapping[str, object] | None = None) -> None:
        """Creates the topic with these replicas of each partition, and waits until all of them have their roles."""
        leaders, held = len(replicas), sum(map(len, replicas))
        awaited = self.counts + Counter({BecameLeader: leaders, BecameFollower: held - leaders})
        outcome = self.administer(create_topic(TOPIC, replicas, config))
        if outcome.error is not ErrorCode.NONE:
            raise MeasurementError(f"the topic cannot be created: {outcome.message}")
        self.await_("leaders", lambda: self.counts[BecameLeader] >= awaited[BecameLeader])
        self.await_("followers", lambda: self.counts[BecameFollower] >= awaited[BecameFollower])
        self.settle()

    def produce(self, partition: int = 0, acks: int = -1) -> int:
        """Begins to produce one record; returns the number of the command."""
        number = self._next_id()
        command = ProduceCommand(
            command_id=number,
            topic=TOPIC,
            partition=partition,
            acks=acks,
            record_count=1,
            payload=str(number).encode(),
        )
        self.engine.submit(command)
        return number

    def await_acknowledgements(self, numbers: Iterable[int]) -> TimeMs:
        """Waits until records are acknowledged; returns the time. MeasurementError if one is refused."""
        pending = list(numbers)
        done_ms = self.await_("outcomes", lambda: all(self.engine.outcome(number) is not None for number in pending))
        for number in pending:
            if not self.is_acknowledged(number):
                raise MeasurementError(f"a record is not acknowledged: {self.engine.outcome(number)}")
        return done_ms

    def is_acknowledged(self, number: int) -> bool:
        outcome = self.engine.outcome(number)
        return isinstance(outcome, ProduceOutcome) and outcome.error is ErrorCode.NONE

    def visible(self) -> set[int]:
        """The numbers of the produce commands whose records a consumer reads from partition 0."""
        command = ConsumeCommand(command_id=self._next_id(), topic=TOPIC, partition=0, offset=0)
        return {int(batch.payload) for batch in self._carry_out(command, ConsumeOutcome).batches}

    def events(self, kind: type[Event], since_ms: TimeMs = 0) -> Iterator[tuple[TimeMs, NodeId, Event]]:
        for event in self.engine.traces():
            if isinstance(event.trace, kind) and event.time_ms >= since_ms:
                yield event.time_ms, event.node, event.trace

    def messages(
        self, kind: type[Kind], since_ms: TimeMs = 0, source: NodeId | None = None, target: NodeId | None = None
    ) -> list[tuple[Sent, Kind]]:
        """The messages of a kind that were sent, of those between certain nodes."""
        return [
            (sent, sent.message)
            for sent in self._sent_messages.messages
            if isinstance(sent.message, kind)
            and sent.sent_ms >= since_ms
            and source in (None, sent.source)
            and target in (None, sent.target)
        ]

    @property
    def controller(self) -> NodeId:
        """The broker that is the controller, or the active controller."""
        found = self.engine.active_controller()
        if found is None:
            raise MeasurementError("no controller is active")
        return found

    def others(self, *taken: NodeId) -> list[int]:
        """The brokers that are none of `taken`."""
        return [broker for broker in self.engine.spec.broker_ids if broker not in taken]

    def state(self, partition: int = 0) -> PartitionState:
        """What is published about a partition."""
        view = self.engine.view()
        if view is None:
            raise MeasurementError("no controller is active")
        return view.partitions[TopicPartition(TOPIC, partition)]

    @property
    def store(self) -> StoreNode:
        store = self._cluster.nodes[STORE]
        assert isinstance(store, StoreNode)
        return store

    def known_to_controller(self) -> Controller:
        """What the controller of `v3` knows."""
        node = self._cluster.nodes[self.controller]
        assert isinstance(node, V3BrokerNode)
        assert node.controller.term is not None
        return node.controller.term.controller

    def stop(self, broker: NodeId) -> None:
        """Controlled shutdown; waits until the broker has stopped."""
        self.engine.terminate(broker)
        self.await_("a broker has stopped", lambda: not self.engine.is_running(broker))

    def cut(self, a: NodeId, b: NodeId, up: bool = False) -> None:
        """Cuts or heals the link between two nodes."""
        self.engine.set_link(a, b, up)
        self.engine.set_link(b, a, up)

    def leave_isr(self, leader: NodeId, follower: NodeId) -> TimeMs:
        """Cuts a follower off until it has left the ISR, and returns the time at which it is back in the ISR."""
        self.cut(leader, follower)
        self.await_("the follower has left the ISR", lambda: follower not in self.state().isr)
        self.cut(leader, follower, up=True)
        return self.await_("the follower is back in the ISR", lambda: follower in self.state().isr)
