"""Elections: the roles of a replica, the rule by which it grants a vote, and the count of votes (KIP-595, KIP-996).

A replica grants at most one vote per epoch, and only to a candidate whose log is at least as up to date as its own.
The winner therefore has every record that a majority of the voters has.

Before a voter starts an epoch it runs a pre-vote: it asks the other voters whether they would vote for it. A pre-vote
changes no state. A follower that has fetched from its leader in this epoch rejects pre-votes, so a voter that was
partitioned away cannot depose a leader that a majority follows.

    unattached    knows no leader of this epoch that it can fetch from
    follower      fetches from the leader
    prospective   has sent pre-vote requests
    candidate     has voted for itself in a new epoch and has sent vote requests
    leader        was elected by a majority; resigns when a majority no longer fetches from it
    resigned      was the leader of this epoch and has stepped down
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from protocol.ids import NO_LEADER, Epoch, NodeId, Offset
from protocol.quorum.voters import ReplicaKey, VoterSet, matches_voter
from protocol.values import direct


@direct
class Role(StrEnum):
    """The role of a replica in its epoch (KIP-595, KIP-996). An observer is only ever unattached or follower."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"


FOLLOWER: Final = Role.FOLLOWER
"""For what every fetch reads: Python 3.11 finds a global name in a tenth of the time of a member of an enumeration."""


LogEnd = tuple[Epoch, Offset]
"""(epoch of the last record, log end offset); the log with the greater value is more up to date (Raft, 5.4.1)."""


@dataclass(frozen=True, slots=True)
class VotingState:
    """What a replica's vote depends on: its role, the known leader (-1: none), the candidate that it voted for in this
    epoch, whether it has fetched from the leader in this epoch, and its log end.
    """

    role: Role
    leader: NodeId
    voted: ReplicaKey | None
    has_fetched: bool
    log_end: LogEnd


def can_grant_vote(state: VotingState, candidate: ReplicaKey, log_end: LogEnd, *, pre_vote: bool) -> bool:
    """Whether a replica in `state` grants a candidate whose log ends at `log_end` its vote, or would (`pre_vote`)."""
    if state.role is Role.LEADER or log_end < state.log_end:
        return False
    if pre_vote:
        return not (state.role is Role.FOLLOWER and state.has_fetched)
    if state.role not in (Role.UNATTACHED, Role.PROSPECTIVE):
        return False
    return matches_voter(state.voted, candidate) if state.voted is not None else state.leader == NO_LEADER


@dataclass(slots=True)
class Election:
    """The votes of one election. `pending`: the voters of open vote requests by correlation id."""

    voters: VoterSet
    pending: dict[int, ReplicaKey] = field(default_factory=dict)
    granted: set[ReplicaKey] = field(default_factory=set)
    rejected: set[ReplicaKey] = field(default_factory=set)

    def record_vote(self, correlation_id: int, granted: bool) -> None:
        """Counts the response to a vote request of this election; ignores any other response."""
        voter = self.pending.pop(correlation_id, None)
        if voter is not None:
            (self.granted if granted else self.rejected).add(voter)

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        return len(self.voters) - len(self.rejected) < self.voters.majority


def is_electing(role: Role, election: Election | None) -> bool:
    """Whether a replica waits for the end of an election, its own or another's: its election timeout runs."""
    if role is Role.PROSPECTIVE:
        return election is not None and not election.is_lost
    return role in (Role.UNATTACHED, Role.CANDIDATE, Role.RESIGNED)
