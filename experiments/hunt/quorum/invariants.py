"""What must hold in a quorum after every event, one class each, by the names of the published model of KRaft with
reconfiguration (Vanlightly/kafka-tlaplus, kraft/kip_853):

| in the model | here |
|---|---|
| NoIllegalState | the same: transitions that no replica may make, and whatever a replica itself calls impossible |
| NoLogDivergence | the same; with logs also what is committed is compared, so a pair need not be looked at together |
| StatesMatchRoles | the same, of every replica; an UNATTACHED one may know a leader that it has given up |
| NeverTwoLeadersInSameEpoch | the same, over all time: who led an epoch that nobody remembers counts too |
| LeaderHasAllAckedValues | the same; a leader must have what was committed up to its epoch, be it the newest or not |
| AckedValueNotLost | the same, by the disks of the committed voters |

What the model has in the conditions of its actions are invariants here: one vote in an epoch (HandleVoteRequest), the
newest configuration of the own log (MostRecentReconfigEntry), one change at a time (HasPendingConfigCommand) and none
before a record of the own epoch is committed (LeaderHasCommittedOffsetsInCurrentEpoch), the majority behind the high
watermark (AcceptFetchRequestFromVoter), and the leader that no majority fetches from (CheckQuorumResign). Its liveness
properties are in `properties.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from experiments.hunt.quorum.truth import Disk, Event, Truth, VoterChange, Voters, is_counted, is_same, majority
from protocol.errors import ErrorCode
from protocol.ids import DRIVER, NO_LEADER, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Response
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    RemoveVoterRecord,
    RemoveVoterRequest,
    VoteRequest,
    VoteResponse,
)
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

STANDING = frozenset({Role.PROSPECTIVE, Role.CANDIDATE})
ELECTED = frozenset({Role.LEADER, Role.RESIGNED})
VoterRequest = AddVoterRequest | RemoveVoterRequest
Fetch = QuorumFetchRequest | FetchSnapshotRequest


class Invariant:
    """`check` is called after each event of a replica that runs, and says what is wrong in words, or nothing. Events
    without a replica, which are those of its end, go to `gone`.
    """

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def check(self, event: Event, replica: QuorumReplica) -> str:
        return ""

    def gone(self, event: Event) -> str:
        return ""


class NoIllegalState(Invariant):
    """The epoch of a disk never falls, in an epoch nobody changes leaders, and only a candidate becomes leader."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._before: dict[Disk, tuple[Epoch, NodeId]] = {}
        self._led: set[tuple[Disk, Epoch]] = set()

    def check(self, event: Event, replica: QuorumReplica) -> str:
        key, epoch, leader = replica.key, replica.epoch, replica.leader
        disk = self.truth.disk(event.node)
        former, former_leader = self._before.get(disk, (-1, NO_LEADER))
        self._before[disk] = epoch, leader
        if replica.high_watermark > replica.log.end_offset:
            return f"{key}: high watermark {replica.high_watermark}, log end {replica.log.end_offset}"
        if epoch < former:
            return f"{key} goes from epoch {former} back to {epoch}"
        if epoch == former and former_leader not in (NO_LEADER, leader):
            return f"{key} has leader {leader} after {former_leader} in epoch {epoch}"
        if replica.role is Role.LEADER:
            self._led.add((disk, epoch))
        elif replica.role is Role.RESIGNED and epoch == former and (disk, epoch) not in self._led:
            return f"{key} resigns in epoch {epoch}, which it did not lead"
        return ""


class NoLogDivergence(Invariant):
    """Below its high watermark every log has what is committed; a snapshot stands for nothing else."""

    def check(self, event: Event, replica: QuorumReplica) -> str:
        truth, copy = self.truth, self.truth.copies[event.node]
        if copy.matched < replica.high_watermark:
            found, known = copy.values_from(copy.matched)[:1], truth.committed[copy.matched : copy.matched + 1]
            return f"{replica.key} has {found} at {copy.matched}, where {known} is committed"
        snapshot = replica.snapshot
        if snapshot is not None and 0 < snapshot.end_offset <= len(truth.committed):
            epoch, _ = truth.committed[snapshot.end_offset - 1]
            if snapshot.epoch != epoch:
                return f"{replica.key}: its snapshot of {snapshot.end_offset} has epoch {snapshot.epoch}, not {epoch}"
        return ""


class StatesMatchRoles(Invariant):
    """Who leads, stands or follows is who may, by its own log; asked of every replica, voter or not."""

    def check(self, event: Event, replica: QuorumReplica) -> str:
        role, leader, key = replica.role, replica.leader, replica.key
        if role is Role.FOLLOWER and leader in (NO_LEADER, key.id):
            return f"{key} follows {leader}"
        if role in ELECTED and leader != key.id:
            return f"{key} is {role} in an epoch of {leader}"
        if role is Role.CANDIDATE and leader != NO_LEADER:
            return f"{key} is a candidate in an epoch of {leader}"
        if role in STANDING or role is Role.LEADER:
            history = self.truth.copies[event.node].history
            is_open = history.last_change >= replica.high_watermark
            sets = [history.latest, *([history.below(history.last_change)] if is_open else [])]
            if not key.uuid or not any(is_counted(key, voters) for voters in sets):
                return f"{key} is {role}, and its voters are {_list(history.latest)}"
        return ""


class ConfigMatchesLog(Invariant):
    """A replica's voters are those of the newest change in its log, committed or not, and its snapshot has those of its
    offset; asked of every replica, not of the leader alone.
    """

    def check(self, event: Event, replica: QuorumReplica) -> str:
        truth, expected = self.truth, self.truth.copies[event.node].history.latest
        if frozenset(replica.voters.keys) != expected:
            return f"{replica.key} goes by {_list(replica.voters.keys)}, its log says {_list(expected)}"
        snapshot = replica.snapshot
        if snapshot is not None and snapshot.end_offset <= len(truth.committed):
            expected = truth.history.below(snapshot.end_offset)
            if frozenset(snapshot.voters.keys) != expected:
                found = f"{_list(snapshot.voters.keys)}, not {_list(expected)}"
                return f"{replica.key}: its snapshot of {snapshot.end_offset} has the voters {found}"
        return ""


class NeverTwoLeadersInSameEpoch(Invariant):
    """No two replicas lead an epoch or believe that another leads it."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._leaders: dict[Epoch, NodeId] = {}
        self._keys: dict[Epoch, ReplicaKey] = {}

    def check(self, event: Event, replica: QuorumReplica) -> str:
        epoch, leader = replica.epoch, replica.leader
        if leader != NO_LEADER and self._leaders.setdefault(epoch, leader) != leader:
            return f"{replica.key} has leader {leader} in epoch {epoch}, and there was {self._leaders[epoch]}"
        if replica.is_leader and self._keys.setdefault(epoch, replica.key) != replica.key:
            return f"{replica.key} leads epoch {epoch}, and so did {self._keys[epoch]}"
        return ""


class OneVotePerEpoch(Invariant):
    """A disk gives one vote in an epoch, its own included, however often its replica restarts."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._votes: dict[tuple[Disk, Epoch], ReplicaKey] = {}

    def check(self, event: Event, replica: QuorumReplica) -> str:
        cause, voted = event.cause, []
        if replica.role is Role.CANDIDATE:
            voted.append((replica.epoch, replica.key))
        if isinstance(cause, VoteRequest) and not cause.pre_vote:
            answers = [send.message for send in event.sends if isinstance(send.message, VoteResponse)]
            if any(answer.vote_granted for answer in answers):
                voted.append((cause.candidate_epoch, ReplicaKey(cause.candidate_id, cause.candidate_uuid)))
        for epoch, candidate in voted:
            first = self._votes.setdefault((self.truth.disk(event.node), epoch), candidate)
            if first != candidate:
                return f"{replica.key} votes for {candidate} in epoch {epoch}, after {first}"
        return ""


class LeaderHasAllAckedValues(Invariant):
    """A leader has all that the leaders before it, and it itself, have committed."""

    def check(self, event: Event, replica: QuorumReplica) -> str:
        truth = self.truth
        leaders = [(event.node, replica)] if truth.new_commit is None else list(truth.running.items())
        for node, leader in leaders:
            if leader.is_leader:
                needed = max((end for epoch, end in truth.committed_by.items() if epoch <= leader.epoch), default=0)
                if truth.copies[node].matched < needed:
                    return f"{leader.key} leads epoch {leader.epoch} and lacks {truth.copies[node].matched} of {needed}"
        return ""


class AckedValueNotLost(Invariant):
    """All that is committed is on the disk of one committed voter at least."""

    def check(self, event: Event, replica: QuorumReplica) -> str:
        return self.gone(event)

    def gone(self, event: Event) -> str:
        truth = self.truth
        holds = [
            copy.matched
            for node, copy in truth.copies.items()
            if node in truth.keys and is_counted(truth.keys[node], truth.voters)
        ]
        if truth.committed and max(holds, default=0) < len(truth.committed):
            return f"{len(truth.committed)} are committed, of which the voters {_list(truth.voters)} have {holds}"
        return ""


class HighWatermarkHasMajority(Invariant):
    """What is committed is on the disks of a majority of the voters of the newest change that the leader has, and ends
    with a record of its own epoch.
    """

    def check(self, event: Event, replica: QuorumReplica) -> str:
        truth, commit = self.truth, self.truth.new_commit
        if commit is None:
            return ""
        end = commit.end_offset
        epoch, _ = truth.committed[end - 1]
        if epoch != commit.epoch:
            return f"{replica.key} commits {end - 1} of epoch {epoch} in epoch {commit.epoch}"
        if not any(self._has_majority(voters, end) for voters in commit.sets):
            ends = {node: copy.durable for node, copy in truth.copies.items()}
            return f"{replica.key} commits {end} by {' or '.join(map(_list, commit.sets))}; on disks are {ends}"
        return ""

    def _has_majority(self, voters: Voters, end: Offset) -> bool:
        having = [voter for voter in voters if any(copy.durable >= end for copy in self.truth.copies_of(voter))]
        return len(having) >= majority(voters)


class HighWatermarkMonotone(Invariant):
    """Within a life it never goes back."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._before: dict[int, Offset] = {}

    def check(self, event: Event, replica: QuorumReplica) -> str:
        before = self._before.get(event.life, 0)
        self._before[event.life] = replica.high_watermark
        return f"{replica.key}: {replica.high_watermark} after {before}" if replica.high_watermark < before else ""


class ChangesTakeTurns(Invariant):
    """A leader appends a change of the voters when it has committed a record of its epoch and all changes before, and
    adds nobody who has less than it has itself.
    """

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._last: dict[tuple[NodeId, Epoch], Offset] = {}

    def check(self, event: Event, replica: QuorumReplica) -> str:
        if not replica.is_leader:
            return ""
        copy, place = self.truth.copies[event.node], (event.node, replica.epoch)
        last = copy.history.last_change
        before, self._last[place] = self._last.get(place, last), last
        if last == before:
            return ""
        waiting = [offset for offset in copy.changes if offset >= replica.high_watermark]
        if len(waiting) > 1:
            return f"{replica.key} changes the voters at {waiting}, and has committed none of that"
        if replica.epoch not in self.truth.committed_by:
            return f"{replica.key} changes the voters at {last}, and has committed nothing of epoch {replica.epoch}"
        return self._lagging(replica, copy.changes[last], last) if last in copy.changes else ""

    def _lagging(self, leader: QuorumReplica, change: VoterChange, offset: Offset) -> str:
        if isinstance(change, RemoveVoterRecord):
            return ""
        added = ReplicaKey(change.voter_id, change.voter_uuid)
        running = self.truth.running.get(added.id)
        if running is not None and running.epoch > leader.epoch:
            return ""  # it had all, and has dropped that in a later epoch
        end = max((copy.end for copy in self.truth.copies_of(added)), default=0)
        return f"{leader.key} adds {added} at {offset}, which has {end}" if end < offset else ""


class AckedChangeIsCommitted(Invariant):
    """Who asked for a change of the voters and is told that it is made finds it among what is committed."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._asked: dict[int, VoterRequest] = {}

    def check(self, event: Event, replica: QuorumReplica) -> str:
        cause, changes = event.cause, self.truth.changes.values()
        if isinstance(cause, VoterRequest):
            self._asked[cause.correlation_id] = cause
        for send in event.sends:
            answer = send.message
            if send.to != DRIVER or not isinstance(answer, Response) or answer.error is not ErrorCode.NONE:
                continue
            asked = self._asked.get(answer.correlation_id)
            if asked is not None and not any(_is_made(asked, change) for change in changes):
                return f"{replica.key} says that the change of {asked.voter_id}:{asked.voter_uuid} is made"
        return ""


def _is_made(asked: VoterRequest, change: VoterChange) -> bool:
    kind = AddVoterRecord if isinstance(asked, AddVoterRequest) else RemoveVoterRecord
    key = (change.voter_id, change.voter_uuid)
    return isinstance(change, kind) and key == (asked.voter_id, asked.voter_uuid)


@dataclass(slots=True)
class _Hearing:
    """When a leader heard last of which node. Nobody counts as silent for longer than the voters are what they are."""

    voters: Voters = frozenset()
    since_ms: TimeMs = 0
    overdue_ms: TimeMs | None = None
    fetched_ms: dict[NodeId, TimeMs] = field(default_factory=dict)


class CheckQuorumResign(Invariant):
    """A leader that no majority has fetched from for twice the fetch timeout is leader no more; one that was paused has
    another fetch timeout to see it.
    """

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._hearing: dict[tuple[NodeId, Epoch], _Hearing] = {}

    def check(self, event: Event, replica: QuorumReplica) -> str:
        voters = self.truth.copies[event.node].history.latest
        if not replica.is_leader or not voters:
            return ""
        cause, now_ms = event.cause, event.now_ms
        hearing = self._hearing.setdefault((event.node, replica.epoch), _Hearing())
        if voters != hearing.voters:
            hearing.voters, hearing.since_ms = voters, now_ms
        if isinstance(cause, Fetch) and cause.current_leader_epoch == replica.epoch and event.sender is not None:
            hearing.fetched_ms[event.sender] = now_ms
        times = [
            now_ms if is_same(voter, replica.key) else max(hearing.fetched_ms.get(voter.id, 0), hearing.since_ms)
            for voter in voters
        ]
        silent_ms, fetch_ms = now_ms - sorted(times)[-majority(voters)], replica.config.fetch_ms
        if silent_ms <= 2 * fetch_ms:
            hearing.overdue_ms = None
            return ""
        hearing.overdue_ms = now_ms if hearing.overdue_ms is None else hearing.overdue_ms
        is_patient = now_ms - hearing.overdue_ms <= fetch_ms
        return "" if is_patient else f"{replica.key} leads on, and no majority has fetched for {silent_ms} ms"


def _list(keys: Iterable[ReplicaKey]) -> str:
    return ", ".join(map(str, sorted(keys))) or "nobody"


INVARIANTS: tuple[type[Invariant], ...] = (
    NoIllegalState,
    NoLogDivergence,
    StatesMatchRoles,
    ConfigMatchesLog,
    NeverTwoLeadersInSameEpoch,
    OneVotePerEpoch,
    LeaderHasAllAckedValues,
    AckedValueNotLost,
    HighWatermarkHasMajority,
    HighWatermarkMonotone,
    ChangesTakeTurns,
    AckedChangeIsCommitted,
    CheckQuorumResign,
)
