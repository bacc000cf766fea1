"""On which brokers the replicas of a study's partitions are.

`spread` is the placement of Kafka's controller for racks (`protocol/controller/placement.py`); without racks, partition
i is on consecutive brokers from i on. `together` fills one rack before the next, those that hold most replicas first:
among equal racks partition i begins with rack i, and the brokers of a rack take turns. The placement does not depend on
the seed: all trials of a cell have the same one. A whole cluster (`cluster.py`) has its own.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import NamedTuple

from experiments.studies.design.mappings import Burst
from experiments.studies.design.model import CellParameters
from protocol.controller.placement import UsableBroker, place
from protocol.ids import NodeId, TopicPartition

TOPIC = "t"


class Simulated(NamedTuple):
    """A partition of a trial. In a whole cluster it stands for a class (`cluster.py`)."""

    name: TopicPartition
    replicas: tuple[NodeId, ...]
    min_insync_replicas: int
    acks: str


def simulated_partitions(params: CellParameters) -> tuple[Simulated, ...]:
    """The partitions of a trial, in the order of their numbers in the trace. They are of one topic; in a whole cluster
    of one for each RF and min ISR, which are of topics."""
    least, acks, cluster = params.min_insync_replicas, params.acks, params.cluster
    if cluster is None:
        placed = enumerate(assignments(params))
        return tuple(Simulated(TopicPartition(TOPIC, index), replicas, least, acks) for index, replicas in placed)
    found, sizes = [], defaultdict[str, int](int)
    for each in cluster.classes:
        topic = f"{TOPIC}-rf{len(each.replicas)}-min{each.min_insync_replicas}"
        name = TopicPartition(topic, sizes[topic])
        found.append(Simulated(name, each.replicas, each.min_insync_replicas, each.acks))
        sizes[topic] += 1
    return tuple(found)


def rack_of(params: CellParameters, broker: NodeId) -> int:
    """The rack of a broker without a cluster of names: brokers are in the racks in turn."""
    return broker % params.racks


def racks_of(params: CellParameters) -> list[tuple[NodeId, ...]]:
    """The brokers of each rack."""
    if params.cluster is not None:
        return params.cluster.brokers_by_rack()
    return [tuple(range(rack, params.brokers, params.racks)) for rack in range(params.racks)]


def rack_sizes(params: CellParameters) -> list[int]:
    """The number of brokers in each rack."""
    return [len(rack) for rack in racks_of(params)]


def burst_domains(params: CellParameters, burst: Burst) -> list[tuple[float, tuple[NodeId, ...]]]:
    """The cluster and each rack, with the probability that a burst strikes brokers of that domain only."""
    racks, everyone = racks_of(params), tuple(range(params.brokers))
    return [(1.0 - burst.same_rack, everyone), *((burst.same_rack / len(racks), rack) for rack in racks)]


def assignments(params: CellParameters) -> tuple[tuple[NodeId, ...], ...]:
    """The replicas of each partition, the first of them its preferred leader."""
    factor, partitions = params.replication_factor, range(params.partitions)
    if params.cluster is not None:
        return tuple(each.replicas for each in params.cluster.classes)
    if params.placement == "together":
        return tuple(_filled(params, index)[:factor] for index in partitions)
    if params.racks == 1:
        return tuple(tuple((index + offset) % params.brokers for offset in range(factor)) for index in partitions)
    usable = [UsableBroker(broker, f"{rack_of(params, broker):03d}") for broker in range(params.brokers)]
    return tuple(place(usable, params.partitions, factor, Random(0)))


def _filled(params: CellParameters, index: int) -> tuple[NodeId, ...]:
    """All brokers, rack by rack."""
    racks, turn = racks_of(params), index // params.racks
    in_turn = [racks[(index + step) % params.racks] for step in range(params.racks)]
    ordered = sorted(in_turn, key=lambda rack: -min(len(rack), params.replication_factor))
    return tuple(rack[(turn + place) % len(rack)] for rack in ordered for place in range(len(rack)))
