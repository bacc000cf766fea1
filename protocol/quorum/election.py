"""Elections: who may have a vote, and whether there are enough of them (KIP-595, KIP-996).

A replica gives one vote per epoch, to a candidate whose log ends at or behind its own end: the winner then has every
record that a majority has. Before it begins an epoch a replica asks whether it would win one (pre-vote), which commits
nobody; who hears from a leader says no, so a voter that was cut off cannot depose a leader that all others follow.

    unattached    knows no leader that it could follow
    follower      fetches from the leader
    prospective   asks whether it would win
    candidate     asks for votes, having given itself its own
    leader        has a majority; keeps it as long as a majority fetches
    resigned      was leader in this epoch and is it no more
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from protocol.ids import NO_LEADER, Epoch, NodeId, Offset
from protocol.quorum.voters import ReplicaKey, VoterSet, is_meant


class Role(StrEnum):
    """See the module docstring; voters and observers alike have one of the first two."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


LogEnd = tuple[Epoch, Offset]
"""(epoch of the last record, offset behind it): of two logs the one with the greater end has more."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a replica's own vote depends on; `has_fetched` tells whether its leader has answered it."""

    role: Role
    leader: NodeId
    voted: ReplicaKey | None
    has_fetched: bool
    log_end: LogEnd


def grants(standing: Standing, candidate: ReplicaKey, log_end: LogEnd, *, pre_vote: bool) -> bool:
    """Whether a replica gives its vote in its present epoch, or with `pre_vote` would give one."""
    if standing.role is Role.LEADER or log_end < standing.log_end:
        return False
    if pre_vote:
        return not (standing.role is Role.FOLLOWER and standing.has_fetched)
    if standing.role not in (Role.UNATTACHED, Role.PROSPECTIVE):
        return False
    if standing.voted is not None:
        return is_meant(standing.voted, candidate)
    return standing.leader == NO_LEADER


@dataclass(slots=True)
class Ballot:
    """The votes of one election, those of `voters` by the correlation ids of the requests that ask for them."""

    voters: VoterSet
    asked: dict[int, ReplicaKey] = field(default_factory=dict)
    granted: set[ReplicaKey] = field(default_factory=set)
    refused: set[ReplicaKey] = field(default_factory=set)

    def note(self, correlation_id: int, granted: bool) -> None:
        """An answer; one that was not asked for counts for nothing."""
        voter = self.asked.pop(correlation_id, None)
        if voter is not None:
            (self.granted if granted else self.refused).add(voter)

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        return len(self.voters) - len(self.refused) < self.voters.majority
