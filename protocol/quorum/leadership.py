"""What a leader of the metadata log knows of the others, and the high watermark.

A follower's fetch says what it has on its disk. The high watermark is what a majority of the voters of the newest set
has (D22); a leader that is no voter any more does not count itself (D18). It rises only over a record of the leader's
own epoch: a record of an earlier one may be on a majority and still be replaced by a leader that has none of it.

A leader that no majority fetches from may have been replaced without knowing; it resigns (check-quorum). A voter counts
as `silent` from when it has not fetched for a while, until it fetches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import Epoch, NodeId, Offset, TimeMs
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet, is_meant


@dataclass(slots=True)
class Progress:
    """What a replica has shown by its fetches: the end of its log, when it fetched last, and whether that waits."""

    end_offset: Offset
    fetched_ms: TimeMs
    is_waiting: bool = False


@dataclass(slots=True)
class Leadership:
    """One epoch of a leader, whose own first record is at `start_offset`."""

    epoch: Epoch
    start_offset: Offset
    since_ms: TimeMs
    me: ReplicaKey
    progress: dict[ReplicaKey, Progress] = field(default_factory=dict)
    silent: set[NodeId] = field(default_factory=set)

    def fetched(self, replica: ReplicaKey, end_offset: Offset, now_ms: TimeMs) -> None:
        """A replica has fetched, and so has all records below `end_offset`."""
        self.progress[replica] = Progress(end_offset, now_ms)

    def disk_of(self, voter: ReplicaKey) -> ReplicaKey:
        """The voter with the uuid of its disk: the leader's own, or the one that fetched last. As it is where none did,
        or where its fetches tell of no uuid, as those of releases before KIP-853 do (D21).
        """
        if is_meant(voter, self.me):
            return self.me
        if voter.uuid != NO_UUID:
            return voter
        found = [key for key in self.progress if key.id == voter.id]
        return max(found, key=lambda key: self.progress[key].fetched_ms, default=voter)

    def of(self, voter: ReplicaKey) -> Progress | None:
        """The progress of a voter; of one that is known by its id alone, that of the disk that fetched last."""
        return self.progress.get(self.disk_of(voter))

    def without_uuid(self, voters: VoterSet) -> ReplicaKey | None:
        """The first voter that has not shown that it can follow changes of the voters: nobody knows its uuid (D35)."""
        return next((voter for voter in voters.keys if self.disk_of(voter).uuid == NO_UUID), None)

    def majority_end(self, voters: VoterSet, own_end: Offset) -> Offset | None:
        """The offset below which a majority of the voters has everything, None as long as that holds no record of this
        epoch.
        """
        ends = sorted((self._end_of(voter, own_end) for voter in voters.keys), reverse=True)
        if not ends:
            return None
        end = ends[voters.majority - 1]
        return end if end > self.start_offset else None

    def _end_of(self, voter: ReplicaKey, own_end: Offset) -> Offset:
        if is_meant(voter, self.me):
            return own_end
        progress = self.of(voter)
        return -1 if progress is None else progress.end_offset

    def has_majority(self, voters: VoterSet) -> bool:
        """Whether a majority of the voters is not silent."""
        return sum(is_meant(key, self.me) or key.id not in self.silent for key in voters.keys) >= voters.majority

    def unheard(self, voters: VoterSet) -> list[ReplicaKey]:
        """The other voters that do not fetch: not in this epoch yet, or not any more."""
        others = [voter for voter in voters.keys if voter.id != self.me.id]
        return [voter for voter in others if voter.id in self.silent or self.of(voter) is None]

    def successors(self, voters: VoterSet) -> list[ReplicaKey]:
        """The other voters, the one with most of the log first."""
        others = [voter for voter in voters.keys if voter.id != self.me.id]
        return sorted(others, key=lambda voter: (-self._end_of(voter, 0), voter))
