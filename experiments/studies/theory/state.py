"""The states of the Markov model: the replicas of one partition, and what makes two states the same state.

Logs are compared by what they hold of the acknowledged records. In this respect the logs of all replicas are prefixes
of one sequence, so a log is a *level*: how far it reaches in that sequence. Only the order of levels matters, and
whether a level is zero (nothing that was acknowledged is held); :func:`canonical` numbers them 0, 1, 2, ...

Brokers are exchangeable: a state is the multiset of its replicas, held as a sorted tuple. What cannot influence the
future is removed from a state, so that equal futures are equal states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Generation = Literal["kip-497", "kip-966-elr", "kip-966"]
Strategy = Literal["proactive", "balanced", "manual"]

RUNNING, UNNOTICED, RESTARTED, DOWN = range(4)
"""What the broker of a replica does: it runs; it has failed, and the controller does not know; likewise, and it is
repaired; it is fenced and down."""
NO_MEMBER, ISR, ELR, LAST_KNOWN_ELR = range(4)
"""The set of the partition that a replica is a member of."""


class Replica(NamedTuple):
    """`process` and `member` are of the constants above; `phases` are the stages left until the controller notices a
    failure; `clean`: the broker was shut down cleanly; `log` and `flushed` are levels; `last_known`: it is the leader
    that kip-966-elr keeps in `last_known_elr`; `leads`: it is the recorded leader.
    """

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
    flushed; `flushes`: a controlled shutdown flushes the log; `partly`: a log of which a part is flushed keeps that
    part, otherwise it counts as not flushed.
    """

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
    """The state without what cannot influence the future, levels renumbered, replicas sorted."""
    kept = [_relevant(rules, acked, replica) for replica in replicas]
    levels = sorted({0, acked, *(replica.log for replica in kept), *(replica.flushed for replica in kept)})
    number = {level: index for index, level in enumerate(levels)}
    kept = sorted(replica._replace(log=number[replica.log], flushed=number[replica.flushed]) for replica in kept)
    if not rules.phases and any(replica.leads for replica in kept):
        kept = _lead_by_first(kept)
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


def _lead_by_first(replicas: list[Replica]) -> list[Replica]:
    """If failures are noticed at once, who leads does not matter: let it be the first member of the ISR."""
    without = sorted(replica._replace(leads=False) for replica in replicas)
    first = next(index for index, replica in enumerate(without) if replica.member == ISR)
    without[first] = without[first]._replace(leads=True)
    return without
