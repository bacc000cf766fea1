"""A broker with a listener as a node of the simulator.

It is a `BrokerNode`, as which invariants and observers know it; its inputs go through a `ListeningBroker` around it.
What its listener sends to hosts of applications goes to the network's connections, not to its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from google_crc32c import extend

from experiments.engines.port import ClusterSpec
from experiments.engines.sim.cluster import SimCluster
from protocol.broker.lifecycle import LifecycleState
from protocol.contract import Effect, Node, Send
from protocol.ids import CLUSTER_ID, NodeId, TimeMs, is_broker
from protocol.messages.base import ClientRequest, Message
from protocol.messages.connections import ClientBytes, ClientDisconnected
from protocol.nodes.broker import BrokerNode
from protocol.nodes.listening_broker import ListeningBroker


def crc32c(data: bytes, before: int) -> int:
    """CRC-32C, the checksum of Kafka's batches."""
    return int(extend(before, bytes(data)))


class _Core:
    """The broker without its listener, as the listener's composite node hosts it."""

    def __init__(self, node: SimulatedBroker) -> None:
        self.node_id = node.node_id
        self.context = node.context
        self._node = node

    @property
    def state(self) -> LifecycleState:
        return self._node.state

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return BrokerNode.start(self._node, now_ms)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        return BrokerNode.receive(self._node, now_ms, sender, message)

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        return BrokerNode.fire(self._node, now_ms, name)

    def withdraw(self, client: NodeId, number: int, request: ClientRequest) -> None:
        self._node.withdraw(client, number, request)


class SimulatedBroker(BrokerNode):
    """A broker with a listener (`listener_rng`); `to_application` takes what it sends to clients. The
    other arguments are those of `BrokerNode`.
    """

    def __init__(
        self,
        to_application: Callable[[ClientBytes | ClientDisconnected], None],
        listener_rng: Random,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._to_application = to_application
        self._both = ListeningBroker(_Core(self), crc32c, CLUSTER_ID, listener_rng)

    @property
    def is_accepting(self) -> bool:
        """Whether its listener accepts connections."""
        return self._both.listener.is_accepting

    def start(self, now_ms: TimeMs) -> list[Effect]:
        return self._sorted(self._both.start(now_ms))

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> list[Effect]:
        return self._sorted(self._both.receive(now_ms, sender, message))

    def fire(self, now_ms: TimeMs, name: str) -> list[Effect]:
        return self._sorted(self._both.fire(now_ms, name))

    def _sorted(self, effects: list[Effect]) -> list[Effect]:
        """The effects for the simulator; those for applications are carried out."""
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, ClientBytes | ClientDisconnected):
                self._to_application(effect.message)
            else:
                kept.append(effect)
        return kept


def listening_broker(
    node: NodeId,
    spec: ClusterSpec,
    cluster: SimCluster,
    endpoint: str,
    to_application: Callable[[ClientBytes | ClientDisconnected], None],
) -> Node | None:
    """A new process of a broker with a listener, on its disk; None for a node that is no broker. Its random sources
    follow from the cluster's seed and the number of the incarnation.
    """
    if not is_broker(node):
        return None
    life = f"{node}/{cluster.incarnation_of(node)}"
    return SimulatedBroker(
        to_application,
        Random(f"{spec.seed}/listener/{life}"),
        node,
        spec.controller_ids,
        spec.config,
        cluster.disks[node],
        Random(f"{spec.seed}/node/{life}"),
        rack=spec.rack_of(node),
        endpoint=endpoint,
    )
