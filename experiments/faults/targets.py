"""What faults can be drawn for: the nodes, topics and partitions of a cluster.

Draws depend on the random source and on the targets alone, never on the state of a cluster: a timeline is a value,
which can be saved, shortened and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from protocol.ids import NodeId

_Nodes = tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Targets:
    """Brokers, controllers, clients, recovery managers, stores, and topics with the number of their partitions. A drawn
    reassignment has `replication_factor` replicas.
    """

    brokers: Sequence[NodeId]
    controllers: Sequence[NodeId]
    clients: Sequence[NodeId]
    topics: Mapping[str, int]
    replication_factor: int
    managers: Sequence[NodeId] = ()
    stores: Sequence[NodeId] = ()

    def draw_server(self, rng: Random) -> NodeId:
        """A broker, a controller, a recovery manager or a store, each node with the same probability."""
        return rng.choice((*self.brokers, *self.controllers, *self.managers, *self.stores))

    def draw_partition(self, rng: Random) -> tuple[str, int]:
        """A topic, and the index of one of its partitions."""
        topic = rng.choice(sorted(self.topics))
        return topic, rng.randrange(self.topics[topic])

    def draw_sides(self, rng: Random) -> tuple[_Nodes, _Nodes]:
        """Two disjoint groups of nodes: one broker and one other node, one broker and all other nodes, the controllers
        (in `v3` the store) and several brokers, or two random parts of the cluster.
        """
        all_nodes = (*self.brokers, *self.controllers, *self.clients, *self.managers, *self.stores)
        one = rng.choice(self.brokers)
        others = tuple(node for node in all_nodes if node != one)
        form = rng.randrange(5)
        if form == 0:
            return (one,), others
        if form == 1:
            several = rng.sample(list(self.brokers), rng.randint(1, len(self.brokers)))
            return tuple(self.controllers or self.stores), tuple(sorted(several))
        if form == 2:
            side = tuple(node for node in others if rng.random() < 0.5)
            rest = tuple(node for node in others if node not in side)
            return ((one, *side), rest) if rest else ((one,), others)
        return (one,), (rng.choice(others),)
