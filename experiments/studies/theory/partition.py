"""The Markov model's rules of one partition: who is up, who may lead, and whose log holds what was acknowledged.

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

An *impaired* broker (isolated from the controller and the other brokers, or paused) is silent: the controller fences it
as if it had crashed, while its process runs and keeps its log. At the end of the impairment a broker that was fenced is
unfenced in its old incarnation, so it stays in the ELR, which one that comes back from a crash leaves. Impairments of a
broker begin as a Poisson process, also while another one lasts, and each ends by itself (the queue M/M/infinity, here
with at most `MOST_AT_ONCE` at a time); a pause ends with the process, an isolation does not.

A broker with a *slow disk* appends nothing until the end and does all else, so the controller holds it for sound. As
leader it keeps its leadership, and writes wait. As a follower it leaves the ISR once it has lagged behind a leader that
appends, and stays out until the end. A slow disk lasts through restarts.

Logs are compared by what they hold of the acknowledged records, of which each holds a prefix. So a log is a *level*:
how far it reaches. Only the order of levels matters, and whether a level is zero; :func:`canonical` numbers them 0, 1,
2, ... Brokers are exchangeable: a state is the multiset of its replicas, held as a sorted tuple. What cannot influence
the future is removed from a state, so that equal futures are equal states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, NamedTuple

Generation = Literal["kip-497", "kip-966-elr", "kip-966"]
Strategy = Literal["proactive", "balanced", "manual"]

RUNNING, UNNOTICED, RESTARTED, DOWN, SILENT, OUT, RETURNED, HELD = range(8)
"""The broker of a replica runs; has failed, and the controller does not know; likewise, and is repaired; has failed and
is fenced. Impaired: it runs, and the controller does not know; runs, and is fenced; is repaired, and not registered.
Waits for the power, and for nothing else."""
MOST_AT_ONCE = 2
"""Impairments of one kind of a broker at a time; of load a, more would last for about a^3 / 6 of the time."""
NO_MEMBER, ISR, ELR, LAST_KNOWN_ELR = range(4)
"""The set of the partition that a replica is a member of."""


class Replica(NamedTuple):
    """`process`, `member`: of the constants above; `phases`: stages left until the controller notices a failure;
    `clean`: shut down cleanly; `log`, `flushed`: levels; `last_known`: the leader that kip-966-elr keeps in
    `last_known_elr`; `leads`: the recorded leader; `isolations`, `pauses`, `slow` (its disk): how many last.
    Of a broker that runs and is slow, `phases` are the stages left until its leader finds that it lags."""

    process: int
    phases: int
    member: int
    clean: bool
    log: int
    flushed: int
    last_known: bool
    leads: bool
    isolations: int = 0
    pauses: int = 0
    slow: int = 0


class ChainState(NamedTuple):
    """`acked` is the level of everything that was acknowledged and is not lost; `outages`: of the power, that last."""

    acked: int
    replicas: tuple[Replica, ...]
    outages: int = 0

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
    `phases`: stages until the controller notices a failure, 0 = at once, and until a leader finds that a follower with
    a slow disk lags; `loses`: some failures lose what was not
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


def canonical(rules: Rules, acked: int, replicas: Iterable[Replica], outages: int = 0) -> ChainState:
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
    return ChainState(number[acked], tuple(kept), outages)


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
        self.log, self.flushed, self.last_known, self.leads = replica[4:8]
        self.isolations, self.pauses, self.slow = replica[8:]

    def frozen(self) -> Replica:
        of_log = self.log, self.flushed, self.last_known, self.leads
        impairments = self.isolations, self.pauses, self.slow
        return Replica(self.process, self.phases, self.member, self.clean, *of_log, *impairments)

    @property
    def is_active(self) -> bool:
        """Whether the controller holds the broker for active: it is not fenced."""
        return self.process not in (DOWN, OUT, RETURNED, HELD)

    @property
    def is_impaired(self) -> bool:
        """Whether an isolation or a pause lasts."""
        return self.isolations + self.pauses > 0

    @property
    def appends(self) -> bool:
        """Whether the broker runs and writes to its disk."""
        return self.process == RUNNING and not self.slow


class Partition:
    """A partition during one event. A method named like an event is called with the index of the replica whose broker
    it concerns, then :meth:`settle`."""

    def __init__(self, rules: Rules, state: ChainState) -> None:
        self._rules = rules
        self._acked, self._outages = state.acked, state.outages
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
        was_active, was_silent = place.is_active, place.process == SILENT
        place.process, place.clean, place.pauses = UNNOTICED, False, 0
        place.phases = place.phases if was_silent else self._rules.phases
        if not was_active:
            place.process, place.phases = DOWN, 0
        elif not place.phases:
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
            before = place.process
            place.process = OUT if before == SILENT else DOWN
            self._fence(place)
            if before == RESTARTED:
                self._return(place)

    def repair(self, index: int) -> None:
        """The broker starts; it registers once the session of its former incarnation is over."""
        place = self._places[index]
        if place.process == UNNOTICED:
            place.process = RESTARTED
        elif self._outages:
            place.process = HELD
        else:
            self._return(place)

    def strike(self, index: int, lossy: bool, holds: bool) -> None:
        """An event strikes the broker, perhaps others at the same moment, which another member of the ISR leads on.
        A broker that is down already may lose what is not flushed. `holds`: the broker is back with the power."""
        place = self._places[index]
        if lossy:
            place.log = place.flushed
        if place.process == RESTARTED:
            place.process = UNNOTICED
        elif place.process not in (UNNOTICED, DOWN, HELD):
            self.crash(index)
            place.process = HELD if holds else place.process
        successors = [other for other in self._members(ISR) if other.is_active]
        if successors and not any(other.leads for other in self._places):
            successors[0].leads = True

    def cut_power(self) -> None:
        """An outage of the power of all brokers has begun."""
        self._outages += 1

    def restore_power(self) -> None:
        """It ends. If no other one lasts, the brokers that waited for it are back."""
        self._outages -= 1
        for place in self._places:
            if place.process == HELD and not self._outages:
                self._return(place)

    def slow_down(self, index: int) -> None:
        """The disk of the broker becomes slow."""
        self._places[index].slow += 1

    def speed_up(self, index: int) -> None:
        """The disk is slow for one reason less."""
        self._places[index].slow -= 1

    def lag(self, index: int) -> None:
        """A stage has passed of the time after which a follower that appends nothing leaves the ISR."""
        place = self._places[index]
        place.phases -= 1
        if not place.phases:
            self._fence(place)

    def write_back(self, index: int) -> None:
        """What the log holds reaches the disk."""
        place = self._places[index]
        place.flushed = place.log

    def isolate(self, index: int) -> None:
        """An isolation of the broker begins."""
        self._places[index].isolations += 1
        self._silence(self._places[index])

    def pause(self, index: int) -> None:
        """A pause of the broker begins."""
        self._places[index].pauses += 1
        self._silence(self._places[index])

    def reconnect(self, index: int) -> None:
        """An isolation of the broker ends."""
        self._places[index].isolations -= 1
        self._hear(self._places[index])

    def resume(self, index: int) -> None:
        """A pause of the broker ends."""
        self._places[index].pauses -= 1
        self._hear(self._places[index])

    def _silence(self, place: _Place) -> None:
        if place.process == RUNNING:
            place.process, place.phases = SILENT, self._rules.phases

    def _hear(self, place: _Place) -> None:
        """The controller hears of a broker again, unless it is impaired in another way."""
        if place.is_impaired:
            return
        if place.process in (SILENT, OUT):
            place.process, place.phases = RUNNING, 0
        elif place.process == RETURNED:
            self._register(place)

    def _return(self, place: _Place) -> None:
        """The broker is repaired, and no session of its former incarnation lasts: it registers as soon as it can."""
        if place.is_impaired:
            place.process = RETURNED
        else:
            self._register(place)

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
        """Replicas that run and append join the ISR; what the ISR acknowledges then, it alone holds."""
        leader = next((place for place in self._places if place.leads), None)
        if leader is not None and leader.process == RUNNING:
            for place in self._places:
                if place.appends:
                    place.member, place.log = ISR, self._acked
            isr = self._members(ISR)
            if len(isr) >= self._rules.min_isr and all(place.appends for place in isr):
                self._acked += 1
                for place in isr:
                    place.log = self._acked
        if leader is not None and len(self._members(ISR)) >= self._rules.min_isr:
            for place in self._places:
                place.member = ISR if place.member == ISR else NO_MEMBER
        for place in self._places:
            if place.process == RUNNING:
                self._count_lag(place, leader)
        return canonical(self._rules, self._acked, [place.frozen() for place in self._places], self._outages)

    def _count_lag(self, place: _Place, leader: _Place | None) -> None:
        """A follower in the ISR that appends nothing lags from the moment at which its leader appends something."""
        runs = leader is not None and leader.process == RUNNING
        if not runs or leader is place or place.member != ISR or not place.slow:
            place.phases = 0
        elif leader is not None and leader.appends:
            place.phases = place.phases or self._rules.phases
