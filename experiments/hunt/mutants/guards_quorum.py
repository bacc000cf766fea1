"""Guards of the metadata log's quorum: votes, epochs, what is committed, who votes, and what a snapshot keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from experiments.hunt.mutants.mutant import Mutant, Patch, QuorumFocus, always_returns
from experiments.hunt.quorum.chaos import HEALTHY_LEADER_STAYS, ChaosBias
from protocol.ids import NO_LEADER, Epoch, Offset
from protocol.quorum import context, election, leader, leader_state, replica, state_file
from protocol.quorum.context import QuorumContext
from protocol.quorum.election import VotingState
from protocol.quorum.follower import QuorumFollower
from protocol.quorum.leader import QuorumLeader
from protocol.quorum.leader_state import LeaderState, Progress
from protocol.quorum.log import QuorumLog, Snapshot
from protocol.quorum.membership import Change
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterHistory, VoterSet

VOTES = ("OneVotePerEpoch", "NeverTwoLeadersInSameEpoch", "NoIllegalState")
LOST = ("LeaderHasAllAckedValues", "AckedValueNotLost", "NoLogDivergence", "NoIllegalState")
COUNTED = ("HighWatermarkHasMajority", *LOST)
STUCK = ("EventuallyLeaderElected", "ReconfigurationNotStuck", "ValuesEventuallyAcked", "AllConverges")


ANYWHERE = QuorumFocus()
REBOOTS = QuorumFocus(
    ChaosBias(sizes=(3, 5), static=True, faults=("bounce", "reordering")),
    why="Replicas restart as soon as they have granted a vote, and vote requests are delayed.",
)
LONELY_LEADERS = QuorumFocus(ChaosBias(sizes=(3, 5), always=("cut",)), why="Leaders are cut off.")
CHANGING = QuorumFocus(
    ChaosBias(sizes=(3, 4, 5), static=False, faults=("cut", "additions", "removals"), steps=150),
    why="Voters are added and removed, and leaders are cut off with a change that no other replica has.",
)
DEPOSED_LEADERS = QuorumFocus(
    ChaosBias(sizes=(3, 5), faults=("crash", "cut", "one-way cut")),
    why="Leaders are cut off and crash, and so do others.",
)
MISTAKES = QuorumFocus(
    ChaosBias(sizes=(1, 2, 3), static=False, always=("mistakes",)), why="The operator adds disks that do not exist."
)
SLOW_FETCHES = QuorumFocus(
    ChaosBias(sizes=(3, 4), static=False, faults=("reordering", "additions", "removals")),
    why="Leaders are removed, and fetches are delayed.",
)
SNAPSHOTS = QuorumFocus(ChaosBias(always=("crash", "snapshots")), why="Replicas take snapshots, and restart with them.")


def _forget_the_vote(original: Callable[[bytes], QuorumState]) -> Callable[[bytes], QuorumState]:
    return lambda data: replace(original(data), voted=None)


def _forget_the_epoch(original: Callable[[bytes], QuorumState]) -> Callable[[bytes], QuorumState]:
    return lambda data: replace(original(data), epoch=0, leader=NO_LEADER, voted=None)


def _forget_the_uuid(original: Callable[[bytes], QuorumState]) -> Callable[[bytes], QuorumState]:
    return lambda data: replace(original(data), uuid=NO_UUID)


def _by_id(original: Callable[..., bool]) -> Callable[..., bool]:
    return lambda voter, replica: voter.id == replica.id


def _progress_by_id(original: Callable[..., Progress | None]) -> Callable[..., Progress | None]:
    def progress_of(self: LeaderState, voter: ReplicaKey) -> Progress | None:
        found = [progress for key, progress in self.progress.items() if key.id == voter.id]
        return max(found, key=lambda progress: progress.fetched_ms, default=None)

    return progress_of


def _to_any_log(original: Callable[..., bool]) -> Callable[..., bool]:
    def can_grant_vote(state: VotingState, candidate: ReplicaKey, log_end: object, *, pre_vote: bool) -> bool:
        return original(replace(state, log_end=(-1, 0)), candidate, log_end, pre_vote=pre_vote)

    return can_grant_vote


def _pre_vote_to_anybody(original: Callable[..., bool]) -> Callable[..., bool]:
    def can_grant_vote(state: VotingState, candidate: ReplicaKey, log_end: object, *, pre_vote: bool) -> bool:
        return original(
            replace(state, has_fetched=state.has_fetched and not pre_vote), candidate, log_end, pre_vote=pre_vote
        )

    return can_grant_vote


def _twice(original: Callable[..., bool]) -> Callable[..., bool]:
    def can_grant_vote(state: VotingState, candidate: ReplicaKey, log_end: object, *, pre_vote: bool) -> bool:
        return original(replace(state, voted=None), candidate, log_end, pre_vote=pre_vote)

    return can_grant_vote


def _stand_at_once(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, now_ms: self._become_candidate(now_ms)


def _by_the_voters_before(original: Callable[..., None]) -> Callable[..., None]:
    def advance(self: QuorumLeader) -> None:
        found = self._context
        before = found.log.voters.before(found.log.voters.last_change)
        end = self.leader_state.majority_end_offset(before if len(before) else found.voters, found.log.end_offset)
        if end is not None and end > found.high_watermark:
            found.high_watermark = end

    return advance


def _with_itself(original: Callable[..., Offset | None]) -> Callable[..., Offset | None]:
    return lambda self, voters, own_end: original(self, voters.with_voter(self.local), own_end)


def _over_any_epoch(original: Callable[..., Offset | None]) -> Callable[..., Offset | None]:
    return lambda self, voters, own_end: original(replace(self, start_offset=-1), voters, own_end)


def _before_its_epoch(original: Callable[..., str]) -> Callable[..., str]:
    def blocking_reason(
        change: object, history: VoterHistory, found: LeaderState, high_watermark: Offset, end: Offset
    ) -> str:
        return original(change, history, replace(found, start_offset=-1), high_watermark, end)

    return blocking_reason


def _beside_another(original: Callable[..., str]) -> Callable[..., str]:
    def blocking_reason(
        change: object, history: VoterHistory, found: LeaderState, high_watermark: Offset, end: Offset
    ) -> str:
        return original(change, VoterHistory(history.latest), found, high_watermark, end)

    return blocking_reason


def _without_catching_up(original: Callable[..., str]) -> Callable[..., str]:
    def blocking_reason(
        change: Change, history: VoterHistory, found: LeaderState, high_watermark: Offset, end: Offset
    ) -> str:
        caught_up = replace(found, progress={change.voter: Progress(end, 0)})
        return original(change, history, caught_up, high_watermark, end)

    return blocking_reason


def _acknowledge_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def begin(self: QuorumLeader, change: Change) -> None:
        original(self, change)
        if change.offset >= 0:
            self._complete_change(change)
            change.offset = -1

    return begin


def _the_last_too(original: Callable[..., object]) -> Callable[..., object]:
    def rejection(request: object, voters: VoterSet, *, static: bool) -> object:
        return original(request, voters.with_voter(ReplicaKey(2**30, "another")), static=static)

    return rejection


def _to_the_snapshot(original: Callable[..., None]) -> Callable[..., None]:
    def truncate(self: QuorumFollower, epoch: Epoch, end_offset: Offset) -> None:
        log = self._context.log
        log.truncate(0 if log.snapshot is None else log.snapshot.end_offset)

    return truncate


def _without_voters(original: Callable[[Snapshot], bytes]) -> Callable[[Snapshot], bytes]:
    return lambda self: original(replace(self, voters=VoterSet()))


GUARDS = (
    Mutant(
        "vote-forgotten-at-restart",
        "A replica's vote is on its disk before the vote response is sent (KIP-595).",
        "After a restart it votes in the same epoch again.",
        VOTES,
        (Patch(state_file, "decode", _forget_the_vote),),
        REBOOTS,
    ),
    Mutant(
        "epoch-forgotten-at-restart",
        "The epoch that a replica has reached is on its disk before it sends it (KIP-595).",
        "After a restart it is in the epoch of its last record.",
        VOTES,
        (Patch(state_file, "decode", _forget_the_epoch),),
        ANYWHERE,
    ),
    Mutant(
        "uuid-forgotten-at-restart",
        "The uuid of a disk is created once and stored on it (D5).",
        "Every restart creates another one.",
        STUCK,
        (Patch(state_file, "decode", _forget_the_uuid),),
        ANYWHERE,
    ),
    Mutant(
        "vote-given-twice",
        "A replica grants one vote per epoch (KIP-595).",
        "It grants one to every candidate.",
        VOTES,
        (Patch(replica, "can_grant_vote", _twice),),
        REBOOTS,
    ),
    Mutant(
        "half-is-a-majority",
        "A majority is more than half of the voters (KIP-595).",
        "Half of them count as a majority.",
        (*COUNTED, *VOTES, *STUCK),
        (Patch(VoterSet, "majority", lambda original: property(lambda self: (len(self) + 1) // 2)),),
        ANYWHERE,
    ),
    Mutant(
        "vote-for-a-shorter-log",
        "A vote is granted to a candidate whose log is at least as long as the voter's (KIP-595).",
        "It is granted to any.",
        LOST,
        (Patch(replica, "can_grant_vote", _to_any_log),),
        DEPOSED_LEADERS,
    ),
    Mutant(
        "uuid-ignored",
        "A voter is an id and the uuid of its disk (KIP-853, D4, M78).",
        "A disk that replaces another counts as the same voter.",
        (*COUNTED, *VOTES, "StatesMatchRoles"),
        (
            Patch(replica, "matches_voter", _by_id),
            Patch(context, "matches_voter", _by_id),
            Patch(election, "matches_voter", _by_id),
            Patch(leader_state, "matches_voter", _by_id),
            Patch(leader, "matches_voter", _by_id),
            Patch(LeaderState, "progress_of", _progress_by_id),
        ),
        ANYWHERE,
    ),
    Mutant(
        "pre-vote-under-a-live-leader",
        "A replica that has heard from its leader grants no pre-vote (KIP-996).",
        "A voter that is cut off deposes the leader of all others.",
        (HEALTHY_LEADER_STAYS,),
        (Patch(replica, "can_grant_vote", _pre_vote_to_anybody),),
        ANYWHERE,
    ),
    Mutant(
        "no-pre-vote",
        "A replica asks for pre-votes before it begins an epoch (KIP-996).",
        "It begins the epoch at once.",
        (HEALTHY_LEADER_STAYS,),
        (Patch(QuorumReplica, "_become_prospective", _stand_at_once),),
        ANYWHERE,
    ),
    Mutant(
        "observer-stands",
        "A replica that is no voter begins no election (KIP-853).",
        "Any replica with a uuid does.",
        ("StatesMatchRoles",),
        (Patch(QuorumContext, "can_be_candidate", lambda original: property(lambda self: self.can_vote)),),
        ANYWHERE,
    ),
    Mutant(
        "check-quorum-skipped",
        "A leader that no majority fetches from resigns (KIP-595).",
        "It stays leader.",
        ("CheckQuorumResign",),
        (Patch(LeaderState, "has_active_majority", always_returns(True)),),
        LONELY_LEADERS,
    ),
    Mutant(
        "removed-leader-stays",
        "A leader that is removed resigns when that is committed (D18, M82).",
        "It stays leader.",
        ("StatesMatchRoles",),
        (Patch(QuorumLeader, "is_removed", lambda original: property(always_returns(False)(None))),),
        ANYWHERE,
    ),
    Mutant(
        "removed-leader-counts-itself",
        "A leader that is no longer a voter does not count itself (D18).",
        "It does.",
        COUNTED,
        (Patch(LeaderState, "majority_end_offset", _with_itself),),
        SLOW_FETCHES,
    ),
    Mutant(
        "change-counted-by-the-voters-before",
        "The high watermark counts with the voters of the newest change, committed or not (D8, D22).",
        "It counts with the former voters.",
        COUNTED,
        (Patch(QuorumLeader, "_advance_high_watermark", _by_the_voters_before),),
        ANYWHERE,
    ),
    Mutant(
        "high-watermark-over-former-epochs",
        "The high watermark rises over a record of the leader's own epoch only (KIP-595).",
        "It rises over records of former leaders that a majority has.",
        COUNTED,
        (Patch(LeaderState, "majority_end_offset", _over_any_epoch),),
        ANYWHERE,
    ),
    Mutant(
        "change-before-a-record-of-its-epoch",
        "A leader makes no change of the voters before it has committed a record of its own epoch (D15).",
        "It makes one at once.",
        ("ChangesTakeTurns", *COUNTED),
        (Patch(leader, "blocking_reason", _before_its_epoch),),
        CHANGING,
    ),
    Mutant(
        "two-changes-at-once",
        "A change of the voters waits until the one before it is committed (D11).",
        "It does not.",
        ("ChangesTakeTurns", "StatesMatchRoles", *COUNTED),
        (Patch(leader, "blocking_reason", _beside_another),),
        CHANGING,
    ),
    Mutant(
        "voter-added-that-lags",
        "A voter is added when it has all that the leader has (D12, M79).",
        "It is added at once, although no replica has ever received a message from it.",
        ("ChangesTakeTurns", *STUCK),
        (Patch(leader, "blocking_reason", _without_catching_up),),
        MISTAKES,
    ),
    Mutant(
        "last-voter-removed",
        "The last voter is not removed (D20).",
        "It is.",
        STUCK,
        (Patch(leader, "rejection", _the_last_too),),
        MISTAKES,
    ),
    Mutant(
        "change-acknowledged-when-appended",
        "A change of the voters is acknowledged when it is committed (D12).",
        "It is acknowledged when it is appended.",
        ("AckedChangeIsCommitted",),
        (Patch(QuorumLeader, "_append_change", _acknowledge_at_once),),
        ANYWHERE,
    ),
    Mutant(
        "change-outlives-its-record",
        "When a change of the voters is truncated, the former set counts again (D9, M80).",
        "The change stays in force.",
        ("ConfigMatchesLog",),
        (Patch(VoterHistory, "truncate", always_returns(None)),),
        CHANGING,
    ),
    Mutant(
        "truncation-below-the-high-watermark",
        "A follower truncates to the end of the last common epoch, and no committed record (KIP-595).",
        "It truncates everything that its snapshot does not cover.",
        LOST,
        (Patch(QuorumFollower, "_truncate", _to_the_snapshot),),
        ANYWHERE,
    ),
    Mutant(
        "divergence-not-looked-for",
        "A leader sends records only to a follower whose log is a prefix of its own (KIP-595).",
        "It sends them to every follower.",
        COUNTED,
        (Patch(QuorumLog, "validate_fetch_position", always_returns(None)),),
        ANYWHERE,
    ),
    Mutant(
        "records-not-flushed",
        "Records are flushed before the next fetch request reports them, and before the leader counts them (KIP-595).",
        "They are in the page cache.",
        COUNTED,
        (Patch(QuorumLog, "flush", always_returns(None)),),
        ANYWHERE,
    ),
    Mutant(
        "snapshot-without-voters",
        "A snapshot holds the voters of its offset (D7, M84).",
        "It holds none.",
        ("ConfigMatchesLog",),
        (Patch(Snapshot, "encode", _without_voters),),
        SNAPSHOTS,
    ),
)
