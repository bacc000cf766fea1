"""What an episode gets (its scene) and what it is made of (its parts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from experiments.faults.kinds.administration import Configure, Reassign
from experiments.faults.schema import Fault
from experiments.support.fields import ConfigSetting
from protocol.ids import NodeId


@dataclass(frozen=True, slots=True)
class RequestedElection:
    """A user requests a preferred or an unclean leader election of the episode's partition."""

    at_ms: int
    unclean: bool = False

    @property
    def end_ms(self) -> int:
        return self.at_ms


@dataclass(frozen=True, slots=True)
class Quiet:
    """Clients begin no operation from `at_ms` to `end_ms`."""

    at_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Scene:
    """The parameters of an episode, which begins at `at_ms`. A follower without responses for `away_ms` leaves the ISR,
    a broker without heartbeats for `gone_ms` is fenced; both include a margin. `recovers`: there is a recovery manager.
    """

    rng: Random
    at_ms: int
    topic: str
    partition: int
    min_isr: int
    brokers: Sequence[NodeId]
    leader: NodeId
    member: NodeId
    others: Sequence[NodeId]
    away_ms: int
    gone_ms: int
    recovers: bool

    def after(self, begin_ms: int, least_ms: int, most_ms: int) -> int:
        """A time that much later."""
        return begin_ms + self.rng.randint(least_ms, most_ms)

    def perhaps(self, probability: float = 0.5) -> bool:
        return self.rng.random() < probability

    def either_way(
        self, one: Sequence[NodeId], other: Sequence[NodeId], probability: float = 0.5
    ) -> tuple[Sequence[NodeId], Sequence[NodeId]]:
        """The two groups of nodes as source and target, with this probability in this order."""
        return (one, other) if self.perhaps(probability) else (other, one)

    @property
    def followers(self) -> tuple[NodeId, ...]:
        return (self.member, *self.others)

    def other_than(self, broker: NodeId) -> tuple[NodeId, ...]:
        return tuple(other for other in self.brokers if other != broker)

    def elsewhere(self, *without: NodeId) -> list[NodeId]:
        """As many replicas, none of them the leader or one of these, if there are enough brokers."""
        others = [broker for broker in self.other_than(self.leader) if broker not in without]
        return self.rng.sample(others, min(1 + len(self.followers), len(others)))

    def reassign(self, begin_ms: int, end_ms: int, replicas: Sequence[NodeId]) -> Fault:
        """The partition is reassigned to these replicas, and back again at the end."""
        lasts_ms, topic, partition = end_ms - begin_ms, self.topic, self.partition
        return Reassign(
            at_ms=begin_ms, duration_ms=lasts_ms, topic=topic, partition=partition, replicas=tuple(replicas)
        )

    def configure(self, begin_ms: int, end_ms: int, name: str, value: ConfigSetting) -> Fault:
        """A config of the topic has this value for a time."""
        config = {name: value}
        return Configure(at_ms=begin_ms, duration_ms=end_ms - begin_ms, topic=self.topic, config=config)


Part = Fault | RequestedElection | Quiet
Episode = Callable[[Scene], Iterator[Part]]
