"""The Markov model of one partition: who is up, who may lead, and whose log holds what was acknowledged.

Assumptions. They are those of docs/theory.md, which says how well a study meets each.

1. Brokers fail independently at the rate `fail` while they run; repairs take exponential times of rate `repair`.
2. A failure is unclean with probability `unclean`, otherwise a controlled shutdown, which flushes the log. An unclean
   one loses everything that was not flushed with probability `lossy`. A flush by policy, or the kernel that writes the
   page cache back, makes what a log holds durable after an exponential time of rate `write_back`. While writes go on
   the last record is always younger than that.
3. The controller notices an unclean failure after an Erlang time of `phases` stages, each of rate `notice`; with no
   stages at once. A broker that is repaired earlier waits until then (its former session must expire first).
4. Elections, recoveries, catch-up and changes of the ISR take no time. Every running broker is in the ISR while there
   is a leader that runs.
5. Writes are continuous: whenever the leader and all of the ISR run and the ISR has min ISR members, a record is
   acknowledged that the ISR alone holds.
6. A loss is the start of a leader whose log lacks an acknowledged record. What it lacks is then no longer counted:
   the same records cannot be lost twice.
7. Where several replicas are equally entitled to lead, each is chosen with the same probability.

`partition.py` says what a state holds, and what an event does to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.studies.theory.chain import Chain, Flow, explore
from experiments.studies.theory.partition import (
    DOWN,
    ISR,
    RESTARTED,
    RUNNING,
    UNNOTICED,
    ChainState,
    Partition,
    Replica,
    Rules,
    canonical,
)


@dataclass(frozen=True, slots=True)
class Model:
    """The `rules`, the number of `replicas`, and the rates and probabilities of the assumptions above."""

    rules: Rules
    replicas: int
    fail: float
    repair: float
    unclean: float = 1.0
    lossy: float = 0.1
    notice: float = 0.0
    write_back: float = 0.0

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
                if rate == 0.0:
                    continue
                partition = Partition(self.rules, state)
                happens(partition, index)
                for share, target, events in partition.settle():
                    yield Flow(count * rate * share, target, events)

    def _happenings(self, replica: Replica) -> Iterator[tuple[float, Callable[[Partition, int], None]]]:
        """What may happen to the broker of a replica, with the rates."""
        if replica.process == RUNNING:
            yield self.fail * (1.0 - self.unclean), Partition.shut_down
            yield self.fail * self.unclean * (1.0 - self.lossy), Partition.crash
            yield self.fail * self.unclean * self.lossy, Partition.crash_and_lose
        if replica.flushed < replica.log:
            yield self.write_back, Partition.write_back
        if replica.process in (UNNOTICED, DOWN):
            yield self.repair, Partition.repair
        if replica.process in (UNNOTICED, RESTARTED):
            yield self.notice, Partition.notice
