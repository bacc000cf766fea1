"""What each event does to a partition of the Markov model: its ISR, ELR and leader, and what its logs hold.

The rules are those of KIP-497 and KIP-966 and of Kafka's code, which `protocol/controller/partition_change.py` and
`recovery_decisions.py` follow as well. They are written down here a second time and not called, so that the chain is a
check of the protocol:

| generation | who leaves the ISR becomes | without a running ISR member the leader is |
|---|---|---|
| kip-497 | no member; the last one stays in the ISR | the last ISR member, when it is back |
| kip-966-elr | ELR below min ISR | a clean ELR member; without ELR the last known leader |
| kip-966 | ELR below min ISR | a clean ELR member; without one as the strategy says |

An ELR member that registers after an unclean shutdown leaves the ELR; kip-966 keeps it in the last known ELR. Both sets
are emptied when the ISR reaches min ISR. A proactive recovery elects the replica with the most records among those that
run, as soon as one does; a balanced one does so once the ELR is empty and all of the last known ELR run. Either waits
for the answers of brokers that have failed without the controller's knowledge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

from experiments.studies.theory.state import (
    DOWN,
    ELR,
    ISR,
    LAST_KNOWN_ELR,
    NO_MEMBER,
    RESTARTED,
    RUNNING,
    UNNOTICED,
    ChainState,
    Replica,
    Rules,
    canonical,
)

LOSS = "loss"
UNCLEAN_RECOVERY = "unclean recovery"

Outcome = tuple[float, ChainState, tuple[str, ...]]
"""A probability, a state, and the events on the way to it."""


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
    """A partition during one event. One of the methods named like an event is called, with the index of the replica
    whose broker it concerns; then :meth:`settle` gives the states that follow.
    """

    def __init__(self, rules: Rules, state: ChainState) -> None:
        self._rules = rules
        self._acked = state.acked
        self._places = [_Place(replica) for replica in state.replicas]
        self._events: tuple[str, ...] = ()

    # -- events --------------------------------------------------------------------------------------------------------

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
        place.process, place.clean = UNNOTICED, False
        place.phases = self._rules.phases
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

    # -- ISR and ELR ---------------------------------------------------------------------------------------------------

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

    # -- elections -----------------------------------------------------------------------------------------------------

    def settle(self) -> Iterator[Outcome]:
        """Elects a leader if there is none and one is possible, lets replicas catch up, and acknowledges a write."""
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
            if all(place.process == RUNNING for place in self._members(ISR)):
                self._acknowledge()
        if leader is not None and len(self._members(ISR)) >= self._rules.min_isr:
            for place in self._places:
                place.member = ISR if place.member == ISR else NO_MEMBER
        return canonical(self._rules, self._acked, [place.frozen() for place in self._places])

    def _acknowledge(self) -> None:
        isr = self._members(ISR)
        if len(isr) >= self._rules.min_isr:
            self._acked += 1
            for place in isr:
                place.log = self._acked
