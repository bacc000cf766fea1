"""Safety invariants: what must hold after every step, one class each. Six have the names of the published TLA+ model of
KRaft with reconfiguration (Vanlightly/kafka-tlaplus, kraft/kip_853):

| in the model | here |
|---|---|
| NoIllegalState | the same: illegal transitions, and every ProtocolInvariantError that a replica raises |
| NoLogDivergence | the same; compares each log with the committed values instead of pairs of logs |
| StatesMatchRoles | the same, for every replica; an unattached replica may know a leader whose fetch timeout expired |
| NeverTwoLeadersInSameEpoch | the same, over all time: includes leaders of epochs that no replica remembers |
| LeaderHasAllAckedValues | the same, for every leader, also one of an older epoch: all commits up to its epoch |
| AckedValueNotLost | the same, by the disks of the committed voters |

The others are conditions of the model's actions: OneVotePerEpoch (HandleVoteRequest), ConfigMatchesLog
(MostRecentReconfigEntry), ChangesTakeTurns (HasPendingConfigCommand, LeaderHasCommittedOffsetsInCurrentEpoch),
HighWatermarkHasMajority (AcceptFetchRequestFromVoter) and CheckQuorumResign. HighWatermarkMonotone and
AckedChangeIsCommitted are what users of the log rely on. The liveness properties are in `liveness.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from experiments.check import rules
from experiments.check.quorum_rules import matches
from experiments.check.rules import majority
from experiments.hunt.quorum.global_view import (
    Disk,
    GlobalView,
    ReplicaStep,
    Voters,
    is_voter_of,
    list_keys,
)
from protocol.errors import ErrorCode
from protocol.ids import DRIVER, METADATA_LOG, NO_LEADER, Epoch, NodeId, Offset, TimeMs
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

VoterRequest = AddVoterRequest | RemoveVoterRequest
Fetch = QuorumFetchRequest | FetchSnapshotRequest


@dataclass
class SafetyInvariant(ABC):
    """Base of the safety invariants. `check` runs after every step of a running replica, `check_stopped` after a step
    that ended its process. Both yield descriptions of violations, of which the first one ends the run.
    """

    view: GlobalView

    @abstractmethod
    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]: ...

    def check_stopped(self, step: ReplicaStep) -> Iterator[str]:
        return iter(())


@dataclass
class NoIllegalState(SafetyInvariant):
    """The epoch of a disk never decreases, an epoch never changes leaders, and only a leader resigns."""

    _before: dict[Disk, tuple[Epoch, NodeId]] = field(default_factory=dict)
    _led: set[tuple[Disk, Epoch]] = field(default_factory=set)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        key, epoch, leader = replica.key, replica.epoch, replica.leader
        disk = self.view.disk(step.node)
        former, former_leader = self._before.get(disk, (-1, NO_LEADER))
        self._before[disk] = epoch, leader
        wrong = rules.mark_is_in_log(replica.high_watermark, replica.log.end_offset)
        if wrong := wrong or rules.epoch_stays(former, epoch):
            yield f"{key} {wrong}"
        if epoch == former and former_leader not in (NO_LEADER, leader):
            yield f"{key} has leader {leader} after {former_leader} in epoch {epoch}"
        if replica.role is Role.LEADER:
            self._led.add((disk, epoch))
        elif replica.role is Role.RESIGNED and epoch == former and (disk, epoch) not in self._led:
            yield f"{key} resigns in epoch {epoch}, which it did not lead"


class NoLogDivergence(SafetyInvariant):
    """Below its high watermark every log has the committed values; a snapshot has the epoch of its last record."""

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        view, copy = self.view, self.view.copies[step.node]
        if copy.matched < replica.high_watermark:
            at = copy.matched
            found, known = copy.values[max(0, at - copy.start) :][:1], view.committed[at : at + 1]
            yield f"{replica.key} has {found} at {at}, where {known} is committed"
        snapshot = replica.snapshot
        if snapshot is not None and 0 < snapshot.end_offset <= len(view.committed):
            epoch, _ = view.committed[snapshot.end_offset - 1]
            if snapshot.epoch != epoch:
                yield f"{replica.key}: its snapshot of {snapshot.end_offset} has epoch {snapshot.epoch}, not {epoch}"


class StatesMatchRoles(SafetyInvariant):
    """A leader, candidate or follower has that role legitimately by its own log; checked on every replica."""

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        role, leader, key = replica.role, replica.leader, replica.key
        if role is Role.FOLLOWER and leader in (NO_LEADER, key.id):
            yield f"{key} follows {leader}"
        if role in (Role.LEADER, Role.RESIGNED) and leader != key.id:
            yield f"{key} is {role} in an epoch of {leader}"
        if role is Role.CANDIDATE and leader != NO_LEADER:
            yield f"{key} is a candidate in an epoch of {leader}"
        if role in (Role.PROSPECTIVE, Role.CANDIDATE, Role.LEADER):
            history = self.view.copies[step.node].history
            is_open = history.last_change >= replica.high_watermark
            sets = [history.latest, *([history.below(history.last_change)] if is_open else [])]
            if not key.uuid or not any(is_voter_of(key, voters) for voters in sets):
                yield f"{key} is {role}, and its voters are {list_keys(history.latest)}"


class ConfigMatchesLog(SafetyInvariant):
    """A replica uses the voter set of the last change in its log, and its snapshot has the voters at its offset."""

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        view, expected = self.view, self.view.copies[step.node].history.latest
        if frozenset(replica.voters.keys) != expected:
            yield f"{replica.key} uses {list_keys(replica.voters.keys)}, its log has {list_keys(expected)}"
        snapshot = replica.snapshot
        if snapshot is not None and snapshot.end_offset <= len(view.committed):
            expected = view.history.below(snapshot.end_offset)
            if frozenset(snapshot.voters.keys) != expected:
                found = f"{list_keys(snapshot.voters.keys)}, not {list_keys(expected)}"
                yield f"{replica.key}: its snapshot of {snapshot.end_offset} has the voters {found}"


@dataclass
class NeverTwoLeadersInSameEpoch(SafetyInvariant):
    """No two replicas lead the same epoch or consider different replicas its leader, at any time."""

    _leaders: dict[tuple[str, Epoch], NodeId] = field(default_factory=dict)
    _keys: dict[Epoch, ReplicaKey] = field(default_factory=dict)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        epoch, leader = replica.epoch, replica.leader
        if leader != NO_LEADER and (wrong := rules.one_leader(self._leaders, METADATA_LOG, epoch, leader)):
            yield f"by {replica.key}: {wrong}"
        if replica.is_leader and self._keys.setdefault(epoch, replica.key) != replica.key:
            yield f"{replica.key} leads epoch {epoch}, and so did {self._keys[epoch]}"


@dataclass
class OneVotePerEpoch(SafetyInvariant):
    """A disk votes at most once per epoch, its own candidacy included, across restarts."""

    _votes: dict[tuple[Disk, Epoch], ReplicaKey] = field(default_factory=dict)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        cause, voted = step.cause, []
        if replica.role is Role.CANDIDATE:
            voted.append((replica.epoch, replica.key))
        if isinstance(cause, VoteRequest) and not cause.pre_vote:
            answers = [send.message for send in step.sends if isinstance(send.message, VoteResponse)]
            if any(answer.vote_granted for answer in answers):
                voted.append((cause.candidate_epoch, ReplicaKey(cause.candidate_id, cause.candidate_uuid)))
        for epoch, candidate in voted:
            first = self._votes.setdefault((self.view.disk(step.node), epoch), candidate)
            if first != candidate:
                yield f"{replica.key} votes for {candidate} in epoch {epoch}, after {first}"


class LeaderHasAllAckedValues(SafetyInvariant):
    """A leader has everything that it and the leaders of earlier epochs have committed."""

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        view = self.view
        leaders = [(step.node, replica)] if view.new_commit is None else list(view.running.items())
        for node, leader in leaders:
            if leader.is_leader:
                needed = rules.committed_before(view.committed_by, leader.epoch + 1)
                if wrong := rules.has_committed(view.copies[node].matched, needed):
                    yield f"{leader.key} leads epoch {leader.epoch}, and what it has of that {wrong}"


class AckedValueNotLost(SafetyInvariant):
    """Every committed record is on the disk of at least one committed voter."""

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        return self.check_stopped(step)

    def check_stopped(self, step: ReplicaStep) -> Iterator[str]:
        view, needed = self.view, len(self.view.committed)
        voters, holds = view.voters, []
        for node, copy in view.copies.items():
            if node in view.keys and is_voter_of(view.keys[node], voters):
                if copy.matched >= needed:
                    return
                holds.append(copy.matched)
        if needed:
            yield f"{len(view.committed)} are committed, of which the voters {list_keys(view.voters)} have {holds}"


class HighWatermarkHasMajority(SafetyInvariant):
    """A commit is on the disks of a majority of the leader's latest voters, and ends with a record of its epoch."""

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        view, commit = self.view, self.view.new_commit
        if commit is None:
            return
        end = commit.end_offset
        epoch, _ = view.committed[end - 1]
        if epoch != commit.epoch:
            yield f"{replica.key} commits {end - 1} of epoch {epoch} in epoch {commit.epoch}"

        def has(voter: ReplicaKey) -> bool:
            return any(copy.durable >= end for copy in view.copies_of(voter))

        if not any(rules.have_majority(voters, has) for voters in commit.sets):
            ends = {node: copy.durable for node, copy in view.copies.items()}
            yield f"{replica.key} commits {end} by {' or '.join(map(list_keys, commit.sets))}; on disks are {ends}"


@dataclass
class HighWatermarkMonotone(SafetyInvariant):
    """The high watermark of an incarnation never decreases."""

    _before: dict[int, Offset] = field(default_factory=dict)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        before = self._before.get(step.incarnation, 0)
        self._before[step.incarnation] = replica.high_watermark
        if wrong := rules.mark_stays(before, replica.high_watermark):
            yield f"{replica.key} {wrong}"


@dataclass
class ChangesTakeTurns(SafetyInvariant):
    """A leader appends a change of the voters only after it has committed a record of its epoch and all earlier
    changes, and adds only replicas that have its whole log.
    """

    _last: dict[tuple[NodeId, Epoch], Offset] = field(default_factory=dict)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        if not replica.is_leader:
            return
        copy, place = self.view.copies[step.node], (step.node, replica.epoch)
        last = copy.history.last_change
        before, self._last[place] = self._last.get(place, last), last
        if last == before:
            return
        waiting = [offset for offset in copy.changes if offset >= replica.high_watermark]
        if len(waiting) > 1:
            yield f"{replica.key} has {len(waiting)} uncommitted changes of the voters, at {waiting}"
        if replica.epoch not in self.view.committed_by:
            too_early = f"before it has committed a record of epoch {replica.epoch}"
            yield f"{replica.key} changes the voters at {last} {too_early}"
        if isinstance(change := copy.changes.get(last), AddVoterRecord):
            added = ReplicaKey(change.voter_id, change.voter_uuid)
            running = self.view.running.get(added.id)
            has_truncated = running is not None and running.epoch > replica.epoch  # its whole log, in a later epoch
            end = max((copy.end for copy in self.view.copies_of(added)), default=0)
            if end < last and not has_truncated:
                yield f"{replica.key} adds {added} at {last}, which has {end}"


@dataclass
class AckedChangeIsCommitted(SafetyInvariant):
    """A change of the voters that a response confirms to the operator is committed, if the request asks for that."""

    _asked: dict[int, VoterRequest] = field(default_factory=dict)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        cause, changes = step.cause, self.view.changes.values()
        awaits_commit = not isinstance(cause, AddVoterRequest) or cause.ack_when_committed
        if isinstance(cause, VoterRequest) and step.sender == DRIVER and awaits_commit:
            self._asked[cause.correlation_id] = cause
        for send in step.sends:
            answer = send.message
            if send.to != DRIVER or not isinstance(answer, Response) or answer.error is not ErrorCode.NONE:
                continue
            asked = self._asked.get(answer.correlation_id)
            if asked is None:
                continue
            kind = AddVoterRecord if isinstance(asked, AddVoterRequest) else RemoveVoterRecord
            key = (asked.voter_id, asked.voter_uuid)
            made = (change for change in changes if isinstance(change, kind))
            if key not in ((change.voter_id, change.voter_uuid) for change in made):
                yield f"{replica.key} confirms the change of {key[0]}:{key[1]}, which is not committed"


@dataclass(slots=True)
class _FetchTimes:
    """When a leader last received a fetch of each node; a node is not silent for longer than `voters` is unchanged."""

    voters: Voters = frozenset()
    since_ms: TimeMs = 0
    overdue_ms: TimeMs | None = None
    fetched_ms: dict[NodeId, TimeMs] = field(default_factory=dict)


@dataclass
class CheckQuorumResign(SafetyInvariant):
    """A leader resigns within 2 fetch timeouts without fetches from a majority; after a pause, within another one."""

    _fetch_times: dict[tuple[NodeId, Epoch], _FetchTimes] = field(default_factory=dict)

    def check(self, step: ReplicaStep, replica: QuorumReplica) -> Iterator[str]:
        voters = self.view.copies[step.node].history.latest
        if not replica.is_leader or not voters:
            return
        cause, now_ms = step.cause, step.now_ms
        fetches = self._fetch_times.setdefault((step.node, replica.epoch), _FetchTimes())
        if voters != fetches.voters:
            fetches.voters, fetches.since_ms = voters, now_ms
        if isinstance(cause, Fetch) and cause.current_leader_epoch == replica.epoch and step.sender is not None:
            fetches.fetched_ms[step.sender] = now_ms
        times = [
            now_ms if matches(voter, replica.key) else max(fetches.fetched_ms.get(voter.id, 0), fetches.since_ms)
            for voter in voters
        ]
        silent_ms, fetch_ms = now_ms - sorted(times)[-majority(voters)], replica.config.fetch_ms
        if silent_ms <= 2 * fetch_ms:
            fetches.overdue_ms = None
            return
        fetches.overdue_ms = now_ms if fetches.overdue_ms is None else fetches.overdue_ms
        if now_ms - fetches.overdue_ms > fetch_ms:
            yield f"{replica.key} still leads although no majority has fetched for {silent_ms} ms"


SAFETY_INVARIANTS: tuple[type[SafetyInvariant], ...] = tuple(SafetyInvariant.__subclasses__())
