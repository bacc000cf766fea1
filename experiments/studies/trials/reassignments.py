"""Reassignments of a simulated trial: replicas that move from one broker to another, as a rebalance moves them.

Every partition has a Poisson process of moves, in random streams of its own. A move takes one replica, drawn at random,
off its broker, and puts it in the same place of the assignment on a running broker without a replica, drawn at random.
Neither the state of the ISR nor failures that are under way keep a move back, as nothing in Kafka does. A partition
whose last move is not complete is left alone, as is one whose replica no broker can take. The controller refuses a move
in one case, as in Kafka (UNKNOWN_SERVER_ERROR): a broker that left the assignment is still in the ELR, and would lead.

A new replica is in sync once it has fetched the whole log: `backlog` of `catch_up`, at its rate, or at once without
`catch_up`. Kafka's rule of completion decides when the old replica goes (`protocol/controller/partition_change.py`), so
that what a move costs depends on the release.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from experiments.engines.admin_requests import reassign
from experiments.engines.sim.cluster import SimCluster
from experiments.studies.design.model import YEAR_MS, CellParameters
from experiments.studies.design.placement import TOPIC
from experiments.studies.failures.sources import poisson_events
from experiments.studies.trials.degraded import CatchUps
from experiments.studies.trials.states import PartitionStates
from protocol.ids import FIRST_CLIENT, NodeId, TimeMs, TopicPartition


class Move(NamedTuple):
    """At `at_ms`, in the timeline's time, a replica of a partition moves; `leaving` and `joining`, uniform in [0, 1),
    say which of the replicas and which of the brokers that may take it."""

    at_ms: int
    partition: int
    leaving: float
    joining: float


def drawn_moves(params: CellParameters, seed: int, begins_ms: int) -> Iterator[Move]:
    """The moves of all partitions from `begins_ms` on, by time, without end; none without `reassignments`."""
    if params.reassignments is None:
        return iter(())
    rate_per_ms = params.reassignments.per_year / YEAR_MS
    return heapq.merge(*(_of_partition(index, rate_per_ms, seed, begins_ms) for index in range(params.partitions)))


def _of_partition(index: int, rate_per_ms: float, seed: int, begins_ms: int) -> Iterator[Move]:
    for at_ms, draws in poisson_events(f"partition/{index}/reassignments", rate_per_ms, seed, begins_ms):
        yield Move(at_ms, index, draws.event.random(), draws.event.random())


def target_of(
    replicas: Sequence[NodeId], factor: int, running: Sequence[NodeId], move: Move
) -> tuple[NodeId, ...] | None:
    """The assignment after the move; None where the last one is not complete, as there are more replicas than `factor`,
    or where no running broker is without a replica."""
    if len(replicas) > factor:
        return None
    free = [broker for broker in running if broker not in replicas]
    if not free:
        return None
    place = int(move.leaving * len(replicas))
    return (*replicas[:place], free[int(move.joining * len(free))], *replicas[place + 1 :])


class Reassigner:
    """Asks the controller of `cluster` for `moves`, whose time 0 is `zero_ms` of the cluster. `catch_ups` holds back
    the new replicas, if replicas have to catch up."""

    def __init__(
        self,
        cluster: SimCluster,
        states: PartitionStates,
        replication_factor: int,
        moves: Iterator[Move],
        catch_ups: CatchUps | None,
        zero_ms: TimeMs,
    ) -> None:
        self._cluster, self._states, self._moves = cluster, states, moves
        self._replication_factor, self._catch_ups, self._zero_ms = replication_factor, catch_ups, zero_ms

    def await_next(self) -> None:
        """Schedules the next move, if there is another one."""
        move = next(self._moves, None)
        if move is not None:
            self._cluster.call_at(self._zero_ms + move.at_ms, lambda: self._handle(move))

    def _handle(self, move: Move) -> None:
        name, cluster = TopicPartition(TOPIC, move.partition), self._cluster
        replicas = self._states.partitions[name].replicas
        running = [broker for broker in cluster.spec.broker_ids if broker in cluster.nodes]
        target = target_of(replicas, self._replication_factor, running, move)
        if target is not None:
            if self._catch_ups is not None:
                (joining,) = set(target).difference(replicas)
                self._catch_ups.copy(joining)
            for controller in cluster.spec.controller_ids:
                cluster.send(FIRST_CLIENT, controller, reassign(TOPIC, move.partition, target))
        self.await_next()
