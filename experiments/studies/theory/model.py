"""The Markov model of a cell: what happens to the brokers of one partition (`partition.py`), and how often.

*Shared* events strike several brokers at once: power events all of them, bursts a set drawn at random. Each broker that
is struck loses what its log has not on disk with a probability of its own. Failures that are noticed at once are fenced
one after the other, in an order drawn at random, and a member of the ISR that is left leads meanwhile: the one that is
fenced last was the last leader. With sessions that expire later, the order of failing decides nothing. Struck brokers
have repairs of their own, or are back together with the power, for which one that is repaired earlier waits. Outages of
the power are a queue M/M/infinity, as impairments are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import NamedTuple

from experiments.studies.theory.chain import Chain, Flow, explore
from experiments.studies.theory.partition import (
    DOWN,
    ISR,
    MOST_AT_ONCE,
    OUT,
    RESTARTED,
    RETURNED,
    RUNNING,
    SILENT,
    UNNOTICED,
    ChainState,
    Partition,
    Replica,
    Rules,
    canonical,
)  # fmt: skip


class Shared(NamedTuple):
    """Events at `rate` that strike so many (`size`) of the replicas, drawn at random; each loses what its log has not
    on disk with probability `lossy`. `restore`: the rate at which a power outage ends, for all of them together; 0:
    each has a repair of its own."""

    rate: float
    size: int
    lossy: float
    restore: float = 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """The `rules`, the number of `replicas`, and rates and probabilities (docs/theory.md); `notice`, `lag`: of a stage;
    `isolations`, `pauses`, `slow`: how often they begin, `reconnect`, `resume`, `speed_up`: how soon each ends.
    `shared`: at most one with `restore`."""

    rules: Rules
    replicas: int
    fail: float
    repair: float
    unclean: float = 1.0
    lossy: float = 0.1
    notice: float = 0.0
    write_back: float = 0.0
    isolations: float = 0.0
    reconnect: float = 0.0
    pauses: float = 0.0
    resume: float = 0.0
    slow: float = 0.0
    speed_up: float = 0.0
    lag: float = 0.0
    shared: tuple[Shared, ...] = ()

    @property
    def failures(self) -> float:
        """How many brokers fail per unit of time."""
        own = self.replicas * self.fail * self.repair / (self.fail + self.repair)
        return own + sum(each.rate * each.size for each in self.shared)

    def chain(self) -> Chain[ChainState]:
        """All states that are reached from a cluster in which every broker runs and something was acknowledged."""
        replica = Replica(RUNNING, 0, ISR, False, 1, 0, False, False)
        replicas = (replica._replace(leads=True), *(replica,) * (self.replicas - 1))
        return explore(canonical(self.rules, 1, replicas), self.flows)

    def flows(self, state: ChainState) -> Iterator[Flow[ChainState]]:
        """All transitions out of `state`. Flows to one target are not added up."""
        for index, replica in enumerate(state.replicas):
            if replica in state.replicas[:index]:
                continue
            count = state.replicas.count(replica)
            for rate, happens in self._happenings(replica):
                if rate > 0.0:
                    partition = Partition(self.rules, state)
                    happens(partition, index)
                    yield from _settled(partition, count * rate)
        for shared in self.shared:
            yield from self._strikes(shared, state)

    def _strikes(self, shared: Shared, state: ChainState) -> Iterator[Flow[ChainState]]:
        """The events of a shared cause, and the end of its outages."""
        if shared.restore and state.outages:
            partition = Partition(self.rules, state)
            partition.restore_power()
            yield from _settled(partition, state.outages * shared.restore)
        if shared.restore and state.outages >= MOST_AT_ONCE:
            return
        drawn = combinations if self.rules.phases else permutations
        orders = list(drawn(range(self.replicas), shared.size))
        for order, losses in product(orders, product((False, True), repeat=shared.size)):
            rate = shared.rate / len(orders) * shared.lossy ** sum(losses)
            rate *= (1.0 - shared.lossy) ** (shared.size - sum(losses))
            if rate > 0.0:
                partition = Partition(self.rules, state)
                if shared.restore:
                    partition.cut_power()
                for index, lossy in zip(order, losses, strict=True):
                    partition.strike(index, lossy, shared.restore > 0.0)
                yield from _settled(partition, rate)

    def _happenings(self, replica: Replica) -> Iterator[tuple[float, Callable[[Partition, int], None]]]:
        """What may happen to the broker of a replica, with the rates."""
        if replica.process in (RUNNING, SILENT, OUT, RETURNED):
            yield self.fail * (1.0 - self.unclean), Partition.shut_down
            yield self.fail * self.unclean * (1.0 - self.lossy), Partition.crash
            yield self.fail * self.unclean * self.lossy, Partition.crash_and_lose
        if replica.flushed < replica.log:
            yield self.write_back, Partition.write_back
        if replica.process in (UNNOTICED, DOWN):
            yield self.repair, Partition.repair
        if replica.process in (UNNOTICED, RESTARTED, SILENT):
            yield self.notice, Partition.notice
        if replica.process == RUNNING and replica.phases:
            yield self.lag, Partition.lag
        if replica.isolations < MOST_AT_ONCE:
            yield self.isolations, Partition.isolate
        if replica.pauses < MOST_AT_ONCE and replica.process not in (UNNOTICED, DOWN):
            yield self.pauses, Partition.pause
        if replica.slow < MOST_AT_ONCE:
            yield self.slow, Partition.slow_down
        yield replica.isolations * self.reconnect, Partition.reconnect
        yield replica.pauses * self.resume, Partition.resume
        yield replica.slow * self.speed_up, Partition.speed_up


def _settled(partition: Partition, rate: float) -> Iterator[Flow[ChainState]]:
    """What follows an event of that rate."""
    for share, target, events in partition.settle():
        yield Flow(rate * share, target, events)
