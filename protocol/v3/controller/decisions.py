"""What the V3 controller decides about a partition, as pure functions: who leads, and which ISR (A13-A15, A19, A40).

- A leader is elected from the live members of the ISR, and dead brokers leave the ISR.
- If no member of the ISR is alive, any live assigned replica leads alone, which may lose committed records: an unclean
  election, recorded in `is_unclean_leader` (C3). A clean election clears it (C4), and an ISR change keeps it (C6).
- If no assigned replica is alive either, the leader is -1.

Departures from S1:

- A leader that is alive goes on to lead; S1 elects "one of" the ISR. Otherwise the first in the assignment is elected,
  so that the same state gives the same leader; one in controlled shutdown only if there is no other.
- The ISR of a partition without a leader stays as it was: emptied, the return of a member would be an unclean election
  though it has every committed record.
- `unclean_allowed` can forbid unclean elections (N12).
- A reassignment is complete once the brokers that are added are in the ISR and enough of the target is, instead of
  ISR == AR+RAR, which waits for dead replicas without end (N8). A leader that is not in the target is replaced by the
  same decision (A41).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.ids import NO_EPOCH, NO_LEADER, BrokerId, Epoch
from protocol.messages.control import PartitionIsrProposal
from protocol.metadata.partition import awaited_replicas, copies_of_completed
from protocol.v3.store.records import LeaderAndIsr, Stored

Replicas = tuple[BrokerId, ...]


class Choice(NamedTuple):
    """A decision on a partition, before it has an author and an epoch."""

    leader: BrokerId
    isr: Replicas
    is_unclean_leader: bool


class Author(NamedTuple):
    controller: BrokerId
    controller_epoch: Epoch


@dataclass(frozen=True, slots=True)
class Brokers:
    """`live`: the live brokers with their epochs; `leaving`: those of them that are in controlled shutdown."""

    live: Mapping[BrokerId, int]
    leaving: frozenset[BrokerId] = frozenset()

    def alive(self, brokers: Iterable[BrokerId]) -> Replicas:
        """Those of `brokers` that are alive, in their order."""
        return tuple(broker for broker in brokers if broker in self.live)

    def to_lead(self, candidates: Replicas) -> BrokerId:
        """Who of the live `candidates` is elected: the first that stays, else the first."""
        return next((broker for broker in candidates if broker not in self.leaving), candidates[0])


def decided(state: LeaderAndIsr, choice: Choice, author: Author) -> LeaderAndIsr:
    """The state after a decision: every decision has a leader epoch of its own (A16)."""
    return state.model_copy(update={**choice._asdict(), **author._asdict(), "leader_epoch": state.leader_epoch + 1})


def in_order(members: Collection[BrokerId], replicas: Replicas) -> Replicas:
    """`members`, the assigned ones first in the order of the assignment."""
    return (*(b for b in replicas if b in members), *(b for b in members if b not in replicas))


def after_broker_change(
    state: LeaderAndIsr, replicas: Replicas, brokers: Brokers, unclean_allowed: bool
) -> Choice | None:
    """Leader and ISR after brokers have died or come back (A13-A15); None if nothing changes."""
    present = unchanged(state)
    isr, candidates = brokers.alive(state.isr), brokers.alive(replicas)
    if isr and state.leader in isr:
        choice = present._replace(isr=isr)
    elif isr:
        choice = Choice(brokers.to_lead(in_order(isr, replicas)), isr, False)
    elif candidates and unclean_allowed:
        leader = brokers.to_lead(candidates)
        choice = Choice(leader, (leader,), True)
    else:
        choice = present._replace(leader=NO_LEADER)
    return None if choice == present else choice


def initial(replicas: Replicas, brokers: Brokers) -> Choice | None:
    """Leader and ISR of a partition that has none yet (A19); None if no replica is alive."""
    alive = brokers.alive(replicas)
    return Choice(brokers.to_lead(alive), alive, False) if alive else None


def preferred(state: LeaderAndIsr, replicas: Replicas, brokers: Brokers) -> Choice | ErrorCode:
    """A preferred election: the first replica leads, if it is in sync and alive."""
    leader = replicas[0]
    if state.leader == leader and leader in brokers.live:
        return ErrorCode.ELECTION_NOT_NEEDED
    if leader not in state.isr or leader not in brokers.live or leader in brokers.leaving:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return Choice(leader, state.isr, False)


def unclean(state: LeaderAndIsr, replicas: Replicas, brokers: Brokers) -> Choice | ErrorCode:
    """An election that an operator asks for where no leader is alive; clean if a member of the ISR is."""
    if state.leader in brokers.live:
        return ErrorCode.ELECTION_NOT_NEEDED
    choice = after_broker_change(state, replicas, brokers, unclean_allowed=True)
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if choice is None or choice.leader == NO_LEADER else choice


def without(state: LeaderAndIsr, replicas: Replicas, broker: BrokerId, brokers: Brokers) -> Choice | None:
    """Leader and ISR without a broker in controlled shutdown (B3); None if it is not in the ISR, or alone in it."""
    isr = tuple(member for member in state.isr if member != broker)
    able = brokers.alive(in_order(isr, replicas))
    if broker not in state.isr or not able:
        return None
    return Choice(brokers.to_lead(able), isr, False) if state.leader == broker else unchanged(state)._replace(isr=isr)


def unchanged(state: LeaderAndIsr) -> Choice:
    """The present state under a new epoch: a leader that is to learn of new replicas obeys only a larger one (A25)."""
    return Choice(state.leader, state.isr, state.is_unclean_leader)


def reassigned(
    state: LeaderAndIsr, replicas: Replicas, target: Replicas, brokers: Brokers, min_isr: int
) -> Choice | None:
    """Leader and ISR of a reassignment to `target` that can be completed (A40, A41, E32, N8, N31), else None. One that
    removes no replica of the assignment, such as a return to it, asks for min ISR alone.
    """
    isr = brokers.alive(broker for broker in target if broker in state.isr)
    added, removed = set(target) - set(replicas), set(replicas) - set(target)
    if not isr or not awaited_replicas(target, added, removed).issubset(isr):
        return None
    if len(isr) < copies_of_completed(min_isr, len(target), removed):
        return None
    kept = unchanged(state)._replace(isr=isr)
    return kept if state.leader in isr else Choice(brokers.to_lead(isr), isr, False)


def is_affected(state: LeaderAndIsr, brokers: Brokers) -> bool:
    """Whether the leader or a member of the ISR is not alive (A12)."""
    return state.leader not in brokers.live or any(broker not in brokers.live for broker in state.isr)


def holders(stored: Stored | None, assigned: Replicas, target: Replicas) -> Replicas:
    """The brokers that hold a partition: assigned, to be assigned by a reassignment, or in the ISR."""
    isr = stored.state.isr if stored is not None else ()
    return tuple(dict.fromkeys((*assigned, *target, *isr)))


def check_proposal(
    stored: Stored, sender: BrokerId, proposal: PartitionIsrProposal, replicas: Replicas, brokers: Brokers
) -> ErrorCode:
    """NONE for an accepted ISR, else the error (B6, B18-B23); the version of the node is the partition epoch (N2)."""
    state = stored.state
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > stored.version:
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < stored.version:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [member.broker_id for member in proposal.new_isr]
    sets_flag = bool(proposal.leader_recovery_state) and not state.is_unclean_leader
    if len(set(isr)) != len(isr) or not set(isr) <= set(replicas) or sender not in isr or sets_flag:
        return ErrorCode.INVALID_REQUEST
    for member in proposal.new_isr:
        known = brokers.live.get(member.broker_id)
        if known is None or member.broker_id in brokers.leaving or member.broker_epoch not in (NO_EPOCH, known):
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def proposed(state: LeaderAndIsr, proposal: PartitionIsrProposal, author: Author) -> LeaderAndIsr:
    """The state after an accepted proposal: the leader epoch stays, the flag is as proposed (C5)."""
    isr = tuple(member.broker_id for member in proposal.new_isr)
    flag = bool(proposal.leader_recovery_state)
    return state.model_copy(update={**author._asdict(), "isr": isr, "is_unclean_leader": flag})
