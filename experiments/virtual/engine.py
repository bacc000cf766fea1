"""The sim engine of a cluster with listeners and of an application on its loop."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random

from experiments.check.engine import CheckedEngine
from experiments.engines.port import ClusterSpec
from experiments.engines.sim.network import NetworkModel
from experiments.virtual.broker import listening_broker
from experiments.virtual.connections import PORT, Connections
from experiments.virtual.loop import SimulatedLoop
from experiments.virtual.observer import Observer
from protocol.contract import Node
from protocol.ids import FIRST_APPLICATION, NodeId, TimeMs, node_name


class VirtualEngine(CheckedEngine):
    """A simulated cluster whose brokers have listeners, and the application's loop, which waits run as well."""

    def __init__(self, spec: ClusterSpec, model: NetworkModel | None, shuffle: bool, reset_after_ms: TimeMs) -> None:
        super().__init__(spec, model)
        self.observer = Observer()
        self.connections = Connections(self.cluster, self.observer, reset_after_ms=reset_after_ms)
        self.cluster.build = self._listening
        order = Random(f"{spec.seed}/order") if shuffle else None
        # mypy does not see the methods that refuse, which the module of the loop adds in a loop.
        self.loop = SimulatedLoop(self.cluster, self.connections, FIRST_APPLICATION, order)  # type: ignore[abstract]

    def _listening(self, node: NodeId) -> Node | None:
        endpoint = f"{node_name(node)}:{PORT}"
        return listening_broker(node, self.spec, self.cluster, endpoint, self.connections.from_broker)

    def run_until(self, condition: Callable[[], bool], within_ms: int) -> bool:
        return self.loop.run_until(condition, self.cluster.now_ms + within_ms)

    def run_for(self, duration_ms: int) -> None:
        self.loop.run_until(lambda: False, self.cluster.now_ms + duration_ms)

    def trace_hash(self) -> str:
        both = self.cluster.trace_hash() + self.connections.trace_hash()
        return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()
