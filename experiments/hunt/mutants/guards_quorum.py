"""Guards of the metadata log's quorum: votes, epochs, what is committed, who votes, and what a snapshot keeps."""

from __future__ import annotations

from dataclasses import replace

from experiments.hunt.mutants.mutant import Mutant, QuorumFocus
from experiments.hunt.mutants.patches import Original, around, as_property, constant, with_arguments
from experiments.hunt.quorum.chaos import HEALTHY_LEADER_STAYS, ChaosBias
from protocol.ids import NO_LEADER, Epoch, Offset, TimeMs
from protocol.quorum import context, election, leader, leader_state, replica, state_file
from protocol.quorum.context import QuorumContext
from protocol.quorum.election import VotingState
from protocol.quorum.follower import QuorumFollower
from protocol.quorum.leader import QuorumLeader
from protocol.quorum.leader_state import LeaderState, Progress
from protocol.quorum.log import QuorumLog, Snapshot
from protocol.quorum.membership import Change
from protocol.quorum.replica import QuorumReplica
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


def _same_id(original: object, voter: ReplicaKey, other: ReplicaKey) -> bool:
    return voter.id == other.id


def _progress_by_id(original: object, self: LeaderState, voter: ReplicaKey) -> Progress | None:
    found = [progress for key, progress in self.progress.items() if key.id == voter.id]
    return max(found, key=lambda progress: progress.fetched_ms, default=None)


def _pre_vote_to_anybody(
    original: Original, state: VotingState, candidate: ReplicaKey, log_end: object, *, pre_vote: bool
) -> object:
    return original(
        replace(state, has_fetched=state.has_fetched and not pre_vote), candidate, log_end, pre_vote=pre_vote
    )


def _by_the_voters_before(original: object, self: QuorumLeader) -> None:
    found = self._context
    before = found.log.voters.before(found.log.voters.last_change)
    end = self.leader_state.majority_end_offset(before if len(before) else found.voters, found.log.end_offset)
    if end is not None and end > found.high_watermark:
        found.high_watermark = end


def _without_catching_up(
    original: Original, change: Change, history: VoterHistory, found: LeaderState, high_watermark: Offset, end: Offset
) -> object:
    caught_up = replace(found, progress={change.voter: Progress(end, 0)})
    return original(change, history, caught_up, high_watermark, end)


def _acknowledge_at_once(original: Original, self: QuorumLeader, now_ms: TimeMs, change: Change) -> None:
    original(self, now_ms, change)
    if change.offset >= 0:
        self._complete_change(change)
        change.offset = -1


def _to_the_snapshot(original: object, self: QuorumFollower, epoch: Epoch, end_offset: Offset) -> None:
    log = self._context.log
    log.truncate(0 if log.snapshot is None else log.snapshot.end_offset)


GUARDS = (
    Mutant(
        "vote-forgotten-at-restart",
        "A replica's vote is on its disk before the vote response is sent (KIP-595).",
        "After a restart it votes in the same epoch again.",
        VOTES,
        (around(state_file, "decode", lambda original, data: replace(original(data), voted=None)),),
        REBOOTS,
    ),
    Mutant(
        "epoch-forgotten-at-restart",
        "The epoch that a replica has reached is on its disk before it sends it (KIP-595).",
        "After a restart it is in the epoch of its last record.",
        VOTES,
        (around(state_file, "decode", lambda read, data: replace(read(data), epoch=0, leader=NO_LEADER, voted=None)),),
        ANYWHERE,
    ),
    Mutant(
        "uuid-forgotten-at-restart",
        "The uuid of a disk is created once and stored on it (D5).",
        "Every restart creates another one.",
        STUCK,
        (around(state_file, "decode", lambda original, data: replace(original(data), uuid=NO_UUID)),),
        ANYWHERE,
    ),
    Mutant(
        "vote-given-twice",
        "A replica grants one vote per epoch (KIP-595).",
        "It grants one to every candidate.",
        VOTES,
        (with_arguments(replica, "can_grant_vote", state=lambda voter: replace(voter, voted=None)),),
        REBOOTS,
    ),
    Mutant(
        "half-is-a-majority",
        "A majority is more than half of the voters (KIP-595).",
        "Half of them count as a majority.",
        (*COUNTED, *VOTES, *STUCK),
        (as_property(VoterSet, "majority", lambda self: (len(self) + 1) // 2),),
        ANYWHERE,
    ),
    Mutant(
        "vote-for-a-shorter-log",
        "A vote is granted to a candidate whose log is at least as long as the voter's (KIP-595).",
        "It is granted to any.",
        LOST,
        (with_arguments(replica, "can_grant_vote", state=lambda voter: replace(voter, log_end=(-1, 0))),),
        DEPOSED_LEADERS,
    ),
    Mutant(
        "uuid-ignored",
        "A voter is an id and the uuid of its disk (KIP-853, D4, M78).",
        "A disk that replaces another counts as the same voter.",
        (*COUNTED, *VOTES, "StatesMatchRoles"),
        (
            *(around(user, "matches_voter", _same_id) for user in (replica, context, election, leader_state, leader)),
            around(LeaderState, "progress_of", _progress_by_id),
        ),
        ANYWHERE,
    ),
    Mutant(
        "pre-vote-under-a-live-leader",
        "A replica that has heard from its leader grants no pre-vote (KIP-996).",
        "A voter that is cut off deposes the leader of all others.",
        (HEALTHY_LEADER_STAYS,),
        (around(replica, "can_grant_vote", _pre_vote_to_anybody),),
        ANYWHERE,
    ),
    Mutant(
        "no-pre-vote",
        "A replica asks for pre-votes before it begins an epoch (KIP-996).",
        "It begins the epoch at once.",
        (HEALTHY_LEADER_STAYS,),
        (around(QuorumReplica, "_become_prospective", lambda original, self, now_ms: self._become_candidate(now_ms)),),
        ANYWHERE,
    ),
    Mutant(
        "observer-becomes-candidate",
        "A replica that is no voter begins no election (KIP-853).",
        "Any replica with a uuid does.",
        ("StatesMatchRoles",),
        (as_property(QuorumContext, "can_be_candidate", lambda self: self.can_vote),),
        ANYWHERE,
    ),
    Mutant(
        "check-quorum-skipped",
        "A leader that no majority fetches from resigns (KIP-595).",
        "It stays leader.",
        ("CheckQuorumResign",),
        (constant(LeaderState, "has_active_majority", True),),
        LONELY_LEADERS,
    ),
    Mutant(
        "removed-leader-stays",
        "A leader that is removed resigns when that is committed (D18, M82).",
        "It stays leader.",
        ("StatesMatchRoles",),
        (as_property(QuorumLeader, "is_removed", lambda self: False),),
        ANYWHERE,
    ),
    Mutant(
        "removed-leader-counts-itself",
        "A leader that is no longer a voter does not count itself (D18).",
        "It does.",
        COUNTED,
        (
            around(
                LeaderState,
                "majority_end_offset",
                lambda original, self, voters, own_end: original(self, voters.with_voter(self.local), own_end),
            ),
        ),
        SLOW_FETCHES,
    ),
    Mutant(
        "change-counted-by-the-voters-before",
        "The high watermark counts with the voters of the newest change, committed or not (D8, D22).",
        "It counts with the former voters.",
        COUNTED,
        (around(QuorumLeader, "_advance_high_watermark", _by_the_voters_before),),
        ANYWHERE,
    ),
    Mutant(
        "high-watermark-over-former-epochs",
        "The high watermark rises over a record of the leader's own epoch only (KIP-595).",
        "It rises over records of former leaders that a majority has.",
        COUNTED,
        (with_arguments(LeaderState, "majority_end_offset", self=lambda found: replace(found, start_offset=-1)),),
        ANYWHERE,
    ),
    Mutant(
        "change-before-a-record-of-its-epoch",
        "A leader makes no change of the voters before it has committed a record of its own epoch (D15).",
        "It makes one at once.",
        ("ChangesTakeTurns", *COUNTED),
        (with_arguments(leader, "blocking_reason", leader_state=lambda found: replace(found, start_offset=-1)),),
        CHANGING,
    ),
    Mutant(
        "two-changes-at-once",
        "A change of the voters waits until the one before it is committed (D11).",
        "It does not.",
        ("ChangesTakeTurns", "StatesMatchRoles", *COUNTED),
        (with_arguments(leader, "blocking_reason", history=lambda found: VoterHistory(found.latest)),),
        CHANGING,
    ),
    Mutant(
        "voter-added-that-lags",
        "A voter is added when it has all that the leader has (D12, M79).",
        "It is added at once, although no replica has ever received a message from it.",
        ("ChangesTakeTurns", *STUCK),
        (around(leader, "blocking_reason", _without_catching_up),),
        MISTAKES,
    ),
    Mutant(
        "last-voter-removed",
        "The last voter is not removed (D20).",
        "It is.",
        STUCK,
        (with_arguments(leader, "rejection", voters=lambda found: found.with_voter(ReplicaKey(2**30, "another"))),),
        MISTAKES,
    ),
    Mutant(
        "change-acknowledged-when-appended",
        "A change of the voters is acknowledged when it is committed (D12).",
        "It is acknowledged when it is appended.",
        ("AckedChangeIsCommitted",),
        (around(QuorumLeader, "_append_change", _acknowledge_at_once),),
        ANYWHERE,
    ),
    Mutant(
        "change-outlives-its-record",
        "When a change of the voters is truncated, the former set counts again (D9, M80).",
        "The change stays in force.",
        ("ConfigMatchesLog",),
        (constant(VoterHistory, "truncate", None),),
        CHANGING,
    ),
    Mutant(
        "truncation-below-the-high-watermark",
        "A follower truncates to the end of the last common epoch, and no committed record (KIP-595).",
        "It truncates everything that its snapshot does not cover.",
        LOST,
        (around(QuorumFollower, "_truncate", _to_the_snapshot),),
        DEPOSED_LEADERS,
    ),
    Mutant(
        "divergence-not-looked-for",
        "A leader sends records only to a follower whose log is a prefix of its own (KIP-595).",
        "It sends them to every follower.",
        COUNTED,
        (constant(QuorumLog, "validate_fetch_position", None),),
        ANYWHERE,
    ),
    Mutant(
        "records-not-flushed",
        "Records are flushed before the next fetch request reports them, and before the leader counts them (KIP-595).",
        "They are in the page cache.",
        COUNTED,
        (constant(QuorumLog, "flush", None),),
        ANYWHERE,
    ),
    Mutant(
        "snapshot-without-voters",
        "A snapshot holds the voters of its offset (D7, M84).",
        "It holds none.",
        ("ConfigMatchesLog",),
        (with_arguments(Snapshot, "encode", self=lambda found: replace(found, voters=VoterSet())),),
        SNAPSHOTS,
    ),
)
