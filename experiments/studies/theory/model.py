"""The Markov model of one partition: who is up, who may lead, and whose log holds what was acknowledged.

docs/theory.md lists the assumptions. The rules are those of KIP-497 and KIP-966 and of Kafka's code, written here a
second time, beside those of `protocol/controller`, so that the chain is a check of the protocol:

| generation | who leaves the ISR becomes | without a running ISR member the leader is |
|---|---|---|
| kip-497 | no member; the last one stays in the ISR | the last ISR member, when it is back |
| kip-966-elr | ELR below min ISR | a clean ELR member; without ELR the last known leader |
| kip-966 | ELR below min ISR | a clean ELR member; without one as the strategy says |

An ELR member that registers after an unclean shutdown leaves the ELR; kip-966 keeps it in the last known ELR. Both sets
are emptied when the ISR reaches min ISR. A proactive recovery elects the replica with the most records among those that
run, as soon as one does; a balanced one does so once the ELR is empty and all of the last known ELR run. Either waits
for the answers of brokers that have failed without the controller's knowledge.

Logs are compared by what they hold of the acknowledged records, of which each holds a prefix. So a log is a *level*:
how far it reaches. Only the order of levels matters, and whether a level is zero; :func:`canonical` numbers them 0, 1,
2, ... Brokers are exchangeable: a state is the multiset of its replicas, held as a sorted tuple. What cannot influence
the future is removed from a state, so that equal futures are equal states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, NamedTuple

from experiments.studies.theory.chain import Chain, Flow, explore

Generation = Literal["kip-497", "kip-966-elr", "kip-966"]
Strategy = Literal["proactive", "balanced", "manual"]

RUNNING, UNNOTICED, RESTARTED, DOWN = range(4)
"""The broker of a replica runs; has failed, and the controller does not know; likewise, and is repaired; is fenced."""
NO_MEMBER, ISR, ELR, LAST_KNOWN_ELR = range(4)
"""The set of the partition that a replica is a member of."""


class Replica(NamedTuple):
    """`process`, `member`: of the constants above; `phases`: stages left until the controller notices a failure;
    `clean`: shut down cleanly; `log`, `flushed`: levels; `last_known`: the leader that kip-966-elr keeps in
    `last_known_elr`; `leads`: the recorded leader."""

    process: int
    phases: int
    member: int
    clean: bool
    log: int
    flushed: int
    last_known: bool
    leads: bool


class ChainState(NamedTuple):
    """`acked` is the level of everything that was acknowledged and is not lost."""

    acked: int
    replicas: tuple[Replica, ...]

    @property
    def leader(self) -> Replica | None:
        return next((replica for replica in self.replicas if replica.leads), None)

    @property
    def in_sync(self) -> int:
        """The size of the ISR; 0 without a leader."""
        return 0 if self.leader is None else sum(replica.member == ISR for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol's settings. `min_isr` is at most the number of replicas; `strategy` matters in kip-966 only;
    `phases`: stages until the controller notices a failure, 0 = at once; `loses`: some failures lose what was not
    flushed; `flushes`: a controlled shutdown flushes the log; `partly`: a partly flushed log keeps that part."""

    generation: Generation
    strategy: Strategy
    min_isr: int
    phases: int = 0
    loses: bool = True
    flushes: bool = True
    partly: bool = True

    @property
    def recovers(self) -> bool:
        """Whether a partition without ISR and ELR queries its replicas (KIP-966's Unclean Recovery)."""
        return self.generation == "kip-966" and self.strategy != "manual"


def canonical(rules: Rules, acked: int, replicas: Iterable[Replica]) -> ChainState:
    """The state without what cannot influence the future, levels renumbered, replicas sorted. If failures are noticed
    at once, who leads does not matter: let it be the first member of the ISR."""
    kept = [_relevant(rules, acked, replica) for replica in replicas]
    levels = sorted({0, acked, *(replica.log for replica in kept), *(replica.flushed for replica in kept)})
    number = {level: index for index, level in enumerate(levels)}
    kept = sorted(replica._replace(log=number[replica.log], flushed=number[replica.flushed]) for replica in kept)
    if not rules.phases and any(replica.leads for replica in kept):
        kept = sorted(replica._replace(leads=False) for replica in kept)
        first = next(index for index, replica in enumerate(kept) if replica.member == ISR)
        kept[first] = kept[first]._replace(leads=True)
    return ChainState(number[acked], tuple(kept))


def _relevant(rules: Rules, acked: int, replica: Replica) -> Replica:
    """A replica without the log, the clean shutdown or the membership that no later decision reads."""
    member, log = replica.member, replica.log
    if member == LAST_KNOWN_ELR and rules.strategy != "balanced":
        member = NO_MEMBER
    flushed = replica.flushed if rules.loses and (rules.partly or replica.flushed >= acked) else 0
    if not rules.recovers and member == NO_MEMBER and not replica.last_known:
        log = flushed
    return replica._replace(member=member, log=log, flushed=flushed, clean=replica.clean and member == ELR)


LOSS = "loss"
UNCLEAN_RECOVERY = "unclean recovery"


class _Place:
    """A replica that changes; the attributes are those of :class:`Replica`."""

    __slots__ = Replica._fields

    def __init__(self, replica: Replica) -> None:
        self.process, self.phases, self.member, self.clean = replica[:4]
        self.log, self.flushed, self.last_known, self.leads = replica[4:]

    def frozen(self) -> Replica:
        return Replica(
            self.process, self.phases, self.member, self.clean, self.log, self.flushed, self.last_known, self.leads
        )

    @property
    def is_active(self) -> bool:
        """Whether the controller holds the broker for active: it is not fenced."""
        return self.process != DOWN


class Partition:
    """A partition during one event. A method named like an event is called with the index of the replica whose broker
    it concerns, then :meth:`settle`."""

    def __init__(self, rules: Rules, state: ChainState) -> None:
        self._rules = rules
        self._acked = state.acked
        self._places = [_Place(replica) for replica in state.replicas]
        self._events: tuple[str, ...] = ()

    def shut_down(self, index: int) -> None:
        """A controlled shutdown: the controller knows, and the log is flushed."""
        place = self._places[index]
        place.process, place.clean = DOWN, True
        if self._rules.flushes:
            place.flushed = place.log
        self._fence(place)

    def crash(self, index: int) -> None:
        """An unclean failure that loses nothing."""
        place = self._places[index]
        place.process, place.clean, place.phases = UNNOTICED, False, self._rules.phases
        if not place.phases:
            place.process = DOWN
            self._fence(place)

    def crash_and_lose(self, index: int) -> None:
        """An unclean failure that loses what was not flushed."""
        self._places[index].log = self._places[index].flushed
        self.crash(index)

    def notice(self, index: int) -> None:
        """A stage of the session timeout has passed; after the last one the broker is fenced."""
        place = self._places[index]
        place.phases -= 1
        if not place.phases:
            is_back = place.process == RESTARTED
            place.process = DOWN
            self._fence(place)
            if is_back:
                self._register(place)

    def repair(self, index: int) -> None:
        """The broker starts; it registers once the session of its former incarnation is over."""
        place = self._places[index]
        if place.process == UNNOTICED:
            place.process = RESTARTED
        else:
            self._register(place)

    def write_back(self, index: int) -> None:
        """What the log holds reaches the disk."""
        place = self._places[index]
        place.flushed = place.log

    def _members(self, member: int) -> list[_Place]:
        return [place for place in self._places if place.member == member]

    def _fence(self, place: _Place) -> None:
        """The broker leaves the ISR, and leads no more."""
        led, place.leads = place.leads, False
        isr = self._members(ISR)
        if place.member != ISR or (self._rules.generation == "kip-497" and len(isr) == 1):
            return
        below = len(isr) - 1 < self._rules.min_isr and self._rules.generation != "kip-497"
        place.member = ELR if below else NO_MEMBER
        if self._rules.generation == "kip-966-elr" and len(isr) == 1 and led:
            for other in self._places:
                other.last_known = other is place

    def _register(self, place: _Place) -> None:
        """The broker is back and unfenced. After an unclean shutdown it is no longer eligible."""
        if place.member == ELR and not place.clean:
            place.member = LAST_KNOWN_ELR if self._rules.generation == "kip-966" else NO_MEMBER
        place.process, place.clean = RUNNING, False

    def settle(self) -> Iterator[tuple[float, ChainState, tuple[str, ...]]]:
        """Elects a leader if there is none and one is possible, lets replicas catch up, and acknowledges a write: the
        states that follow, with their probabilities and the events on the way to them."""
        if any(place.leads for place in self._places):
            yield 1.0, self._serve(), self._events
            return
        candidates, unclean = self._candidates()
        if not candidates:
            yield 1.0, self._serve(), self._events
        for index in candidates:
            branch = deepcopy(self) if len(candidates) > 1 else self
            branch._elect(branch._places[index], unclean)
            yield 1.0 / len(candidates), branch._serve(), branch._events

    def _candidates(self) -> tuple[Sequence[int], bool]:
        """The replicas of which one is elected, by index, and whether that is unclean."""
        complete = ISR if self._members(ISR) else ELR
        entitled = [i for i, place in enumerate(self._places) if place.member == complete and place.is_active]
        if not self._rules.phases:
            entitled = entitled[:1]
        if entitled or self._members(ISR):
            return entitled, False
        if self._rules.recovers:
            return self._recovered(), True
        if self._members(ELR):
            return (), False
        return [i for i, place in enumerate(self._places) if place.last_known and place.is_active], True

    def _recovered(self) -> Sequence[int]:
        """The replica that an unclean recovery elects: the longest log of those that answer."""
        active = [place for place in self._places if place.is_active]
        if self._rules.strategy == "balanced":
            last_known = self._members(LAST_KNOWN_ELR)
            if self._members(ELR) or not last_known or not all(place.is_active for place in last_known):
                return ()
        if not active or any(place.process != RUNNING for place in active):
            return ()
        return [self._places.index(max(active, key=lambda place: place.log))]

    def _elect(self, leader: _Place, unclean: bool) -> None:
        if unclean:
            self._events += (UNCLEAN_RECOVERY,)
        if leader.member != ISR:
            keeps = self._rules.generation == "kip-966"
            for place in self._places:
                if unclean and place.member in (ISR, ELR):
                    place.member = LAST_KNOWN_ELR if keeps else NO_MEMBER
            leader.member = ISR
        for place in self._places:
            place.last_known = False
        leader.leads = True
        if leader.process == RUNNING and leader.log < self._acked:
            self._events += (LOSS,)
            self._acked = leader.log
            for place in self._places:
                place.log, place.flushed = min(place.log, self._acked), min(place.flushed, self._acked)

    def _serve(self) -> ChainState:
        """Replicas that run join the ISR; what the ISR acknowledges then, it alone holds."""
        leader = next((place for place in self._places if place.leads), None)
        if leader is not None and leader.process == RUNNING:
            for place in self._places:
                if place.process == RUNNING:
                    place.member, place.log = ISR, self._acked
            isr = self._members(ISR)
            if len(isr) >= self._rules.min_isr and all(place.process == RUNNING for place in isr):
                self._acked += 1
                for place in isr:
                    place.log = self._acked
        if leader is not None and len(self._members(ISR)) >= self._rules.min_isr:
            for place in self._places:
                place.member = ISR if place.member == ISR else NO_MEMBER
        return canonical(self._rules, self._acked, [place.frozen() for place in self._places])


@dataclass(frozen=True, slots=True)
class Model:
    """The `rules`, the number of `replicas`, and rates and probabilities (docs/theory.md); `notice`: of a stage."""

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
                if rate > 0.0:
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
