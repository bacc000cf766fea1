"""The leader's view of the other replicas: their progress, the high watermark, and check-quorum.

A fetch reports how much of the log is on the follower's disk. The high watermark is the offset that a majority of the
voter set in use has reached (D22); a leader that is not a voter itself does not count (D18). It only advances past a
record of the leader's own epoch: a record of an earlier epoch may be on a majority and still be overwritten by a later
leader that does not have it (Raft, section 5.4.2).

A leader from which no majority fetches may have been replaced without noticing, so it resigns (check-quorum). A voter
is `inactive` from the expiry of its fetch timer until its next fetch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import Epoch, NodeId, Offset, TimeMs
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet, matches_voter


@dataclass(slots=True)
class Progress:
    """A replica's progress by its fetches: log end, leader's time of the last fetch and its log end then, when the
    replica had all records last (-1: never), and whether the last fetch is delayed.
    """

    end_offset: Offset
    fetched_ms: TimeMs
    leader_end: Offset = 0
    caught_up_ms: TimeMs = -1
    has_delayed_fetch: bool = False


@dataclass(slots=True)
class LeaderState:
    """The state of the leader `local` of `epoch`, which began at `since_ms` with a record at `start_offset`. `progress`
    holds every replica that has fetched in this epoch, `inactive` the ids of voters whose fetch timer has expired.
    """

    epoch: Epoch
    start_offset: Offset
    since_ms: TimeMs
    local: ReplicaKey
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    inactive: set[NodeId] = field(default_factory=set)

    def record_fetch(self, replica: ReplicaKey, end_offset: Offset, leader_end: Offset, now_ms: TimeMs) -> None:
        """Records that a replica has all records below `end_offset`, of the leader's `leader_end`. It is caught up now
        if that is all; as of its previous fetch if it has all of then (Kafka's `updateFollowerState`).
        """
        before = self.progress.get(replica)
        caught_up_ms = -1 if before is None else before.caught_up_ms
        if end_offset >= leader_end:
            caught_up_ms = now_ms
        elif before is not None and end_offset >= before.leader_end:
            caught_up_ms = max(caught_up_ms, before.fetched_ms)
        self.progress[replica] = Progress(end_offset, now_ms, leader_end, caught_up_ms)

    def resolve_key(self, voter: ReplicaKey) -> ReplicaKey:
        """The key of a voter completed with a uuid: the leader's own, or that of the disk of this id that fetched last;
        unchanged if that is unknown or, before KIP-853, fetches without a uuid (D21).
        """
        if matches_voter(voter, self.local):
            return self.local
        if voter.uuid != NO_UUID:
            return voter
        found = [key for key in self.progress if key.id == voter.id]
        return max(found, key=lambda key: self.progress[key].fetched_ms, default=voter)

    def progress_of(self, voter: ReplicaKey) -> Progress | None:
        """The progress of a voter, None if it has not fetched; without a uuid, of the disk that fetched last."""
        return self.progress.get(self.resolve_key(voter))

    def voter_without_uuid(self, voters: VoterSet) -> ReplicaKey | None:
        """The first voter without a known uuid, None if there is none; it may run a release before KIP-853 (D35)."""
        return next((voter for voter in voters.keys if self.resolve_key(voter).uuid == NO_UUID), None)

    def majority_end_offset(self, voters: VoterSet, own_end: Offset) -> Offset | None:
        """The end of what a majority of the voters has; None until that includes a record of this epoch."""
        ends = sorted((self._end_of(voter, own_end) for voter in voters.keys), reverse=True)
        if not ends:
            return None
        end = ends[voters.majority - 1]
        return end if end > self.start_offset else None

    def _end_of(self, voter: ReplicaKey, own_end: Offset) -> Offset:
        if matches_voter(voter, self.local):
            return own_end
        progress = self.progress_of(voter)
        return -1 if progress is None else progress.end_offset

    def has_active_majority(self, voters: VoterSet) -> bool:
        """Whether a majority of the voters, including the leader if it is one, is active (check-quorum)."""
        active = [key for key in voters.keys if matches_voter(key, self.local) or key.id not in self.inactive]
        return len(active) >= voters.majority

    def inactive_voters(self, voters: VoterSet) -> list[ReplicaKey]:
        others = [voter for voter in voters.keys if voter.id != self.local.id]
        return [voter for voter in others if voter.id in self.inactive or self.progress_of(voter) is None]

    def preferred_successors(self, voters: VoterSet) -> list[ReplicaKey]:
        others = [voter for voter in voters.keys if voter.id != self.local.id]
        return sorted(others, key=lambda voter: (-self._end_of(voter, 0), voter))
