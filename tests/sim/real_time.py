"""A simulated cluster in real time that listens on sockets of 127.0.0.1, for clients with threads of their own.

Brokers, elections and faults are those of the simulator; its clock follows the machine's every `TICK_S`. A connection
behaves as in virtual time: bytes wait while a link is cut or a broker is paused, and a crash resets it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.network import NetworkModel
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.runner import Runner
from experiments.virtual.broker import SimulatedBroker, listening_broker
from experiments.virtual.observer import Observer
from protocol.contract import Node
from protocol.ids import FIRST_APPLICATION, NO_LEADER, NodeId, TopicPartition, is_broker
from protocol.messages.base import Message
from protocol.messages.connections import ClientBytes, ClientConnected, ClientDisconnected
from protocol.nodes.broker import BrokerNode

TICK_S = 0.002
WITHIN_S = 100.0
ANY_TIME = {"message.timestamp.after.max.ms": 2**62}
"""The cluster's time begins at 0, the clients' does not."""
TOPICS = [
    {"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2, **ANY_TIME}},
    {"name": "one", "assignments": [[0]], "config": {"min.insync.replicas": 1, **ANY_TIME}},
]


class _Socket(asyncio.Protocol):
    """A client's connection to a broker; `to_broker` and `to_client` are what has not arrived yet."""

    def __init__(self, cluster: RealTimeCluster, broker: NodeId) -> None:
        self._cluster, self.broker = cluster, broker
        self.number = 0
        self.incarnation = -1
        self.to_broker: deque[Message] = deque()
        self.to_client: deque[ClientBytes | ClientDisconnected] = deque()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._cluster.connected(self)
        self.to_broker.append(ClientConnected(connection=self.number, peer="127.0.0.1:1"))

    def data_received(self, data: bytes) -> None:
        self._cluster.observe(self, "sends", data)
        self.to_broker.append(ClientBytes(connection=self.number, data=bytes(data)))

    def connection_lost(self, error: Exception | None) -> None:
        self._cluster.observe(self, "ends", b"")
        self.to_broker.append(ClientDisconnected(connection=self.number))


class RealTimeCluster:
    """Three brokers, by default with the topics `t` and `one`. `observer` sees the bytes of all clients."""

    def __init__(self, seed: int = 1, topics: Sequence[dict[str, object]] = TOPICS, controllers: int = 1) -> None:
        self.loop = asyncio.new_event_loop()
        self._sockets: dict[int, _Socket] = {}
        self._last_number = 0
        servers = [
            self.loop.run_until_complete(
                self.loop.create_server(lambda broker=broker: _Socket(self, broker), "127.0.0.1", 0)  # type: ignore[misc]
            )
            for broker in range(3)
        ]
        self._ports = [server.sockets[0].getsockname()[1] for server in servers]
        self.observer, self.unhandled = Observer(), list[str]()
        shape = {"brokers": 3, "controllers": controllers}
        raw = {"name": "real-time", "cluster": shape, "topics": [*topics], "steps": [{"wait": "1ms"}]}
        scenario = scenario_from(raw, "real_time", (FIRST_APPLICATION,))
        self._spec: ClusterSpec = scenario.cluster.spec(seed)
        self.engine = CheckedEngine(self._spec, NetworkModel())
        self.engine.cluster.build = self._listening
        self.runner = Runner(scenario, self.engine)
        self.runner.set_up()
        self._began_s = time.monotonic() - self.engine.now_ms() / 1_000
        self._tick()

    def now_ms(self) -> int:
        return self.engine.now_ms()

    def observe(self, socket: _Socket, what: str, data: bytes) -> None:
        self.observer.observe(self.now_ms(), socket, what, data)

    def address_of(self, *brokers: NodeId) -> str:
        return ",".join(f"127.0.0.1:{self._ports[broker]}" for broker in brokers)

    def leader(self, topic: str = "t") -> NodeId:
        view = self.engine.view()
        return NO_LEADER if view is None else view.partitions[TopicPartition(topic, 0)].leader

    def leads(self, broker: NodeId) -> bool:
        """Whether a broker takes itself for the leader of `t`."""
        node = self.engine.cluster.nodes[broker]
        assert isinstance(node, BrokerNode)
        replica = node.context.replica_named("t", 0)
        return replica is not None and replica.leadership is not None

    def until(self, condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
        """Runs until a condition holds."""
        ended_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < ended_s, what
            self.loop.run_until_complete(asyncio.wait_for(self._next_tick(), 5))

    async def _next_tick(self) -> None:
        reached = self.loop.create_future()
        self.loop.call_later(TICK_S, reached.set_result, None)
        await reached

    def connected(self, socket: _Socket) -> None:
        self._last_number += 1
        socket.number = self._last_number
        self._sockets[socket.number] = socket
        node = self.engine.cluster.nodes.get(socket.broker)
        if not (isinstance(node, SimulatedBroker) and node.is_accepting):
            socket.transport.abort()
        socket.incarnation = self.engine.cluster.incarnation_of(socket.broker)

    def _listening(self, node: NodeId) -> Node | None:
        endpoint = self.address_of(node) if is_broker(node) else ""
        return listening_broker(node, self._spec, self.engine.cluster, endpoint, self._to_client)

    def _to_client(self, message: ClientBytes | ClientDisconnected) -> None:
        socket = self._sockets.get(message.connection)
        if socket is not None:
            socket.to_client.append(message)

    def _tick(self) -> None:
        cluster = self.engine.cluster
        cluster.run_until(int((time.monotonic() - self._began_s) * 1_000))
        for socket in [*self._sockets.values()]:
            self._move(socket)
        self.loop.call_later(TICK_S, self._tick)

    def _move(self, socket: _Socket) -> None:
        """Delivers what a connection has on its way, as far as it can arrive now."""
        cluster, broker = self.engine.cluster, socket.broker
        if cluster.incarnation_of(broker) != socket.incarnation or broker not in cluster.nodes:
            socket.transport.abort()
            del self._sockets[socket.number]
            return
        network = cluster.network
        while socket.to_broker and not cluster.is_paused(broker) and not network.is_cut(FIRST_APPLICATION, broker):
            message = socket.to_broker.popleft()
            cluster.carry_out(
                broker, cluster.nodes[broker].receive(cluster.time_at(broker), FIRST_APPLICATION, message)
            )
            if isinstance(message, ClientDisconnected):
                del self._sockets[socket.number]
                return
        while socket.to_client and not network.is_cut(broker, FIRST_APPLICATION):
            answer = socket.to_client.popleft()
            if isinstance(answer, ClientBytes):
                self.observe(socket, "receives", answer.data)
                socket.transport.write(answer.data)
            else:
                socket.transport.close()
