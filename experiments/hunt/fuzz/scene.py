"""What an episode gets (its scene) and what it is made of (its parts)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from experiments.faults.schema import Fault
from protocol.ids import NodeId


@dataclass(frozen=True, slots=True)
class RequestedElection:
    """A user requests a leader election of the episode's partition."""

    at_ms: int


class PreferredElection(RequestedElection):
    """A preferred leader election."""

    __slots__ = ()


class UncleanElection(RequestedElection):
    """An unclean leader election."""

    __slots__ = ()


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

    @property
    def followers(self) -> tuple[NodeId, ...]:
        return (self.member, *self.others)


Part = Fault | RequestedElection | Quiet
Episode = Callable[[Scene], Iterator[Part]]
