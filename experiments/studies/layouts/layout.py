"""The layout of a cluster: its brokers, their racks, and the replicas of each partition.

Two numbers say how failures of several brokers meet partitions. The *replica sets* are the different sets of brokers
that hold a partition: with k brokers down at once, a partition has lost all its replicas only if the brokers that are
down contain a replica set, so that few sets are hit seldom, and many partitions each time. The *scatter width* of a
broker is the number of other brokers with which it shares a partition: those from which its data can be copied after
its disk was lost (Cidon et al., Copysets, ATC 2013, section 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.support.errors import InputError

Brokers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """The state of one partition as a tool described it: `leader` -1 is none; ELR and last known ELR are empty where
    the tool does not know them; `adding` and `removing` belong to a reassignment that is under way.
    """

    leader: int
    isr: Brokers
    elr: Brokers = ()
    last_known_elr: Brokers = ()
    adding: Brokers = ()
    removing: Brokers = ()


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """A topic. `replicas`: those of partition i at i, the preferred leader first. `min_insync_replicas` and
    `unclean_leader_election` are the topic's own configs, None where the source does not say: then the cluster's
    default holds. `described`: the state of each partition, None where the source says where replicas belong and not
    how they are.
    """

    name: str
    replicas: tuple[Brokers, ...]
    min_insync_replicas: int | None = None
    described: tuple[Described, ...] | None = None
    unclean_leader_election: bool | None = None

    @property
    def isr(self) -> tuple[Brokers, ...] | None:
        """The in-sync replicas of each partition as described, None where they are not."""
        return None if self.described is None else tuple(state.isr for state in self.described)


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster. `brokers` ascend, and may hold no replica; `racks` has every broker, or is empty."""

    brokers: Brokers
    racks: Mapping[int, str]
    topics: tuple[TopicLayout, ...]

    @property
    def partitions(self) -> int:
        """The number of partitions of all topics."""
        return sum(len(topic.replicas) for topic in self.topics)

    def replica_sets(self) -> frozenset[frozenset[int]]:
        """The different sets of brokers that hold a partition."""
        return frozenset(frozenset(replicas) for topic in self.topics for replicas in topic.replicas)

    def scatter_widths(self) -> dict[int, int]:
        """Of each broker the number of other brokers with which it shares a partition."""
        partners: dict[int, set[int]] = {broker: set() for broker in self.brokers}
        for members in self.replica_sets():
            for broker in members:
                partners[broker] |= members - {broker}
        return {broker: len(found) for broker, found in partners.items()}

    def brokers_in(self, rack: str) -> Brokers:
        """The brokers of a rack, ascending."""
        return tuple(broker for broker in self.brokers if self.racks.get(broker) == rack)


def layout_of(
    topics: Iterable[TopicLayout], brokers: Iterable[int] = (), racks: Mapping[int, str] | None = None
) -> Layout:
    """A layout of these topics, sorted by name, with all brokers that are given, have a rack, or hold a replica."""
    ordered = tuple(sorted(topics, key=lambda topic: topic.name))
    holding = {broker for topic in ordered for replicas in topic.replicas for broker in replicas}
    found = dict(sorted((racks or {}).items()))
    return Layout(tuple(sorted(holding.union(brokers, found))), found, ordered)


def with_racks(layout: Layout, racks: Mapping[int, str], source: str) -> Layout:
    """The layout with these racks, which may name further brokers. InputError, which names `source`, where a broker of
    the layout has none: a placement that counts racks would count such brokers as one more.
    """
    missing = [broker for broker in layout.brokers if broker not in racks]
    if missing:
        found = f"no rack of broker {', '.join(map(str, missing[:5]))}{' and others' if missing[5:] else ''}"
        raise InputError(source, "", found, "a rack for each broker of the layout, or no racks")
    return layout_of(layout.topics, layout.brokers, racks)
