"""A simulated cluster with a topic `t`, and the commands of its client."""

from __future__ import annotations

from experiments.engines.port import Loss
from experiments.engines.sim.cluster import SimCluster
from protocol.broker.context import Replica
from protocol.errors import ErrorCode
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER
from protocol.messages.admin import AdminRequest
from protocol.messages.commands import AdminCommand, AdminOutcome, Command, ProduceCommand, ProduceOutcome
from protocol.nodes.base_broker import BaseBroker
from protocol.nodes.controller import ControllerNode

KEEP = Loss("none")


def controller_of(cluster: SimCluster) -> ControllerNode:
    """The first controller, which runs."""
    node = cluster.nodes[FIRST_CONTROLLER]
    assert isinstance(node, ControllerNode)
    return node


def broker_of(cluster: SimCluster, broker: int) -> BaseBroker:
    """A broker that runs."""
    node = cluster.nodes[broker]
    assert isinstance(node, BaseBroker)
    return node


def replica_of(cluster: SimCluster, broker: int, topic: str = "t", partition: int = 0) -> Replica:
    """The replica of a broker that runs."""
    replica = broker_of(cluster, broker).context.replica_named(topic, partition)
    assert replica is not None
    return replica


class ClusterBench:
    """Commands are numbered; a record that is produced has its command's number as payload unless one is given."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.commands = 0

    def start_all(self) -> None:
        """Starts all nodes."""
        for node in self.cluster.spec.node_ids:
            if node not in self.cluster.nodes:
                self.cluster.start(node)

    def run_until(self, at_ms: int) -> None:
        self.cluster.run_until(at_ms)

    def run_for(self, duration_ms: int) -> None:
        self.cluster.run_until(self.cluster.now_ms + duration_ms)

    def submit(self, command: Command) -> int:
        self.cluster.command(FIRST_CLIENT, command)
        return command.command_id

    def next_number(self) -> int:
        self.commands += 1
        return self.commands

    def administer(self, request: AdminRequest) -> int:
        return self.submit(AdminCommand(command_id=self.next_number(), request=request))

    def produce(self, acks: int = -1, partition: int = 0, payload: bytes | None = None) -> int:
        number = self.next_number()
        data = str(number).encode() if payload is None else payload
        return self.submit(
            ProduceCommand(command_id=number, topic="t", partition=partition, acks=acks, record_count=1, payload=data)
        )

    def error(self, command_id: int) -> ErrorCode | None:
        """None while there is no outcome."""
        outcome = self.cluster.outcomes.get(command_id)
        assert isinstance(outcome, AdminOutcome | ProduceOutcome | None)
        return None if outcome is None else outcome.error

    def acked(self, command_id: int) -> bool:
        return self.error(command_id) is ErrorCode.NONE

    def cut(self, a: int, b: int, up: bool = False) -> None:
        self.cluster.set_link(a, b, up)
        self.cluster.set_link(b, a, up)
