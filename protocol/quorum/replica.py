"""A replica of the metadata log: KRaft as a part of a node (KIP-595, KIP-853, KIP-996).

The node hands it the inputs that are its own (`receive`, `fire`), and calls `settle` at the end of every input. What
the node builds from the log it takes by pulling: `read` up to `high_watermark`, and `snapshot` where the log begins
behind what it has. A leader appends by `append`; what is appended is replicated, and counts when the high watermark
has passed it. Who ceases to lead finds `epoch` changed.

Rules that hold wherever the code goes:

- What is promised is on the disk before it is said: the quorum state before a vote or an epoch, records before the
  fetch that tells of them, a leader's own before they count for the high watermark. `settle` flushes once for all that
  an input has brought.
- A message of a later epoch is believed, before anything else is asked of it; one of an earlier epoch is answered with
  the present one and changes nothing. Answers count only if they are to the newest request of their kind.
- Nothing below the high watermark is ever truncated.
- Voters are those of the newest records of the own log, committed or not (`voters.py`). Whoever is none of them, or
  has no uuid, is an observer: it fetches, and begins no election. One with a uuid votes if it is asked, since it may be
  a voter that has not heard of it (D25). Whose removal may be uncommitted stands for election still, with votes other
  than its own: it may be the only one that has the record, and then nobody else can win.

Without a leader a replica asks the others in turn: its voters, and the servers that its configuration names (D2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from protocol.contract import Outbox, Storage
from protocol.errors import ErrorCode, ForeignDirectoryError, ProtocolInvariantError
from protocol.ids import NO_LEADER, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.metadata_batch import pack_records
from protocol.messages.quorum import (
    AddVoterRequest,
    AddVoterResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChangeRecord,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumRequest,
    QuorumResponse,
    RemoveVoterRequest,
    RemoveVoterResponse,
    VoteRequest,
    VoteResponse,
)
from protocol.messages.records import MetadataRecord
from protocol.quorum import state_file
from protocol.quorum.election import Ballot, Role, Standing, grants
from protocol.quorum.leadership import Leadership
from protocol.quorum.log import QuorumLog, Snapshot, decode_snapshot
from protocol.quorum.membership import WITHIN_MS, Change, VoterRequest, may_append, refusal
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet

LOG = "__cluster_metadata/0"
ELECTION_TIMER = "quorum-election"
FETCH_TIMER = "quorum-fetch"
CHECK_TIMER = "quorum-check"
BEGIN_TIMER = "quorum-begin"
CHANGE_TIMER = "quorum-change"
TIMERS = frozenset({ELECTION_TIMER, FETCH_TIMER, CHECK_TIMER, BEGIN_TIMER, CHANGE_TIMER})
CHUNK_BYTES = 1_048_576
"""How much of a snapshot travels in one answer."""

_RESPONSES: dict[type[QuorumRequest], type[QuorumResponse]] = {
    VoteRequest: VoteResponse,
    BeginQuorumEpochRequest: BeginQuorumEpochResponse,
    EndQuorumEpochRequest: EndQuorumEpochResponse,
    QuorumFetchRequest: QuorumFetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
    AddVoterRequest: AddVoterResponse,
    RemoveVoterRequest: RemoveVoterResponse,
}


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """`voters` are static ones (`controller.quorum.voters`), `bootstrap` the servers to ask for the leader; timeouts in
    milliseconds: an election timeout is drawn from [`election_ms`, 2 `election_ms`), a follower gives up its leader
    after `fetch_ms`, a leader itself after one and a half times that; fetches are renewed every `renewal_ms`.
    """

    cluster_id: str
    voters: tuple[NodeId, ...] = ()
    bootstrap: tuple[NodeId, ...] = ()
    election_ms: int = 1_000
    fetch_ms: int = 2_000
    backoff_ms: int = 1_000
    renewal_ms: int = 500


@dataclass(slots=True)
class _Parked:
    """A fetch that waits for news."""

    sender: NodeId
    correlation_id: int
    offset: Offset
    high_watermark: Offset


@dataclass(slots=True)
class _Download:
    """The part of a snapshot that has come."""

    epoch: Epoch
    end_offset: Offset
    data: bytearray


class QuorumReplica:
    """See the module docstring. `can_vote` is false for observers that are never to be voters: they have no uuid."""

    def __init__(
        self,
        node_id: NodeId,
        config: QuorumConfig,
        storage: Storage,
        rng: Random,
        out: Outbox,
        *,
        can_vote: bool = True,
    ) -> None:
        self.config = config
        self.high_watermark: Offset = 0
        self.role = Role.UNATTACHED
        self._node_id = node_id
        self._storage = storage
        self._rng = rng
        self._out = out
        self._can_vote = can_vote
        self._state = QuorumState(config.cluster_id, NO_UUID)
        self.log = QuorumLog(storage, LOG, VoterSet.of(ReplicaKey(voter, NO_UUID) for voter in config.voters))
        self._correlation_id = rng.getrandbits(30)  # an answer to a former life is none to this one
        self._asked: int | None = None
        self._has_fetched = False
        self._probed = 0
        self._ballot: Ballot | None = None
        self._leadership: Leadership | None = None
        self._parked: dict[ReplicaKey, _Parked] = {}
        self._download: _Download | None = None
        self._changes: list[Change] = []
        self._handlers: dict[type[Message], Callable[[TimeMs, NodeId, Any], None]] = {
            VoteRequest: self._vote,
            VoteResponse: self._voted,
            BeginQuorumEpochRequest: self._begin_epoch,
            BeginQuorumEpochResponse: self._epoch_begun,
            EndQuorumEpochRequest: self._end_epoch,
            EndQuorumEpochResponse: self._epoch_begun,
            QuorumFetchRequest: self._fetch,
            QuorumFetchResponse: self._fetched,
            FetchSnapshotRequest: self._fetch_snapshot,
            FetchSnapshotResponse: self._snapshot_fetched,
            AddVoterRequest: self._change_voters,
            RemoveVoterRequest: self._change_voters,
        }

    # -- what the node may ask -----------------------------------------------------------------------------------------

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self._node_id, self._state.uuid)

    @property
    def epoch(self) -> Epoch:
        return self._state.epoch

    @property
    def leader(self) -> NodeId:
        """The leader of this epoch as far as it is known, -1 where not."""
        return self._state.leader

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        return self._membership() is not None

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.latest

    @property
    def is_changing(self) -> bool:
        """Whether somebody waits for a change of the voters."""
        return bool(self._changes)

    @property
    def snapshot(self) -> Snapshot | None:
        return self.log.snapshot

    @property
    def leadership(self) -> Leadership | None:
        """What a leader knows of the others, for descriptions and checkers."""
        return self._leadership

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Committed batches from `from_offset` on."""
        return [b for b in self.log.read(from_offset, max_bytes) if b.next_offset <= self.high_watermark]

    def append(self, records: Sequence[MetadataRecord], payload: bytes | None = None) -> Offset:
        """Appends records as the leader, in one batch, encoded as `payload` if that is given; the offset behind them.
        ProtocolInvariantError where it does not lead.
        """
        if not self.is_leader:
            raise ProtocolInvariantError(f"{self.key} appends to the metadata log without leading it")
        batch = RecordBatch(
            base_offset=self.log.end_offset,
            leader_epoch=self.epoch,
            record_count=len(records),
            payload=pack_records(records) if payload is None else payload,
        )
        self.log.append(batch)
        return batch.next_offset

    def take_snapshot(self, end_offset: Offset, data: bytes) -> None:
        """The committed state below `end_offset` is `data`; what the log has of it may go."""
        if end_offset > self.high_watermark:
            raise ProtocolInvariantError(f"a snapshot of {end_offset} above the high watermark {self.high_watermark}")
        if self.snapshot is None or end_offset > self.snapshot.end_offset:
            self.log.take_snapshot(end_offset, data)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> None:
        """ForeignDirectoryError where the disk belongs to another cluster."""
        raw = self._storage.read_file(state_file.FILE)
        if raw is not None:
            self._state = state_file.decode(raw)
            found, own = self._state.cluster_id, self.config.cluster_id
            if found not in ("", own):
                raise ForeignDirectoryError(f"{state_file.FILE}: clusterId: found {found!r}; allowed: {own!r}")
        if self._can_vote and not self._state.uuid:
            self._save(uuid=f"{self._rng.getrandbits(128):032x}")
        if self.log.last_epoch > self.epoch:
            self._save(epoch=self.log.last_epoch, leader=NO_LEADER, voted=None)
        self.high_watermark = 0 if self.snapshot is None else self.snapshot.end_offset
        if self.voters.keys and self._is_alone():
            self._stand(now_ms)
        elif self.leader == self._node_id:
            self._move(Role.RESIGNED)
            self._wait_for_election(now_ms)
        elif self.leader != NO_LEADER:
            self._follow(now_ms, self.epoch, self.leader)
        else:
            self._detach(now_ms, self.epoch)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> bool:
        """Whether the message was one of the log's replicas."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return False
        if isinstance(message, QuorumRequest) and message.cluster_id != self.config.cluster_id:
            self._answer(sender, message, ErrorCode.INCONSISTENT_CLUSTER_ID)
        else:
            handler(now_ms, sender, message)
        return True

    def fire(self, now_ms: TimeMs, name: str) -> bool:
        """Whether the timer was the log's."""
        if name == ELECTION_TIMER:
            self._election_due(now_ms)
        elif name == FETCH_TIMER:
            self._fetch_due(now_ms)
        elif name == CHECK_TIMER:
            self._check_quorum(now_ms)
        elif name == BEGIN_TIMER:
            self._announce(now_ms)
        elif name == CHANGE_TIMER:
            self._give_up_changes(now_ms)
        return name in TIMERS

    def settle(self, now_ms: TimeMs) -> None:
        """What every input ends with: what it appended is flushed, committed where a majority has it, and told."""
        self.log.flush()
        if self._leadership is not None:
            self._advance(self._leadership)
            self._make_changes(self._leadership)
            self._answer_parked()
            if not self.is_voter and self.log.voters.last_change < self.high_watermark:
                self._resign(now_ms, "no voter any more")

    def shut_down(self) -> None:
        """The node goes: a leader lets the others elect the next one at once."""
        if self._leadership is not None:
            self._say_farewell(self._leadership)

    # -- epochs and roles ----------------------------------------------------------------------------------------------

    def _membership(self, voters: VoterSet | None = None) -> ReplicaKey | None:
        """This replica in a set of voters, the newest if none is given, by its key, or by its id where that is all that
        the set knows of it.
        """
        voter = (voters or self.voters).key_of(self._node_id)
        return voter if voter is not None and self._can_vote and voter.uuid in (NO_UUID, self._state.uuid) else None

    def _may_stand(self) -> bool:
        """Whether it is a voter, or was one before a change that is not known to be committed."""
        history = self.log.voters
        before = history.before(history.last_change) if history.last_change >= self.high_watermark else None
        return self.is_voter or (before is not None and self._membership(before) is not None)

    def _is_alone(self) -> bool:
        return self.is_voter and len(self.voters) == 1

    def _save(self, **changes: Any) -> None:
        """Changes the quorum state, durably."""
        values = {name: getattr(self._state, name) for name in ("cluster_id", "uuid", "epoch", "leader", "voted")}
        self._state = QuorumState(**(values | changes | {"cluster_id": self.config.cluster_id}))
        self._storage.write_file(state_file.FILE, self._state.encode())

    def _move(self, role: Role) -> None:
        if role is not Role.LEADER and self._leadership is not None:
            self._leadership = None
            self._parked.clear()
            for timer in (CHECK_TIMER, BEGIN_TIMER, CHANGE_TIMER):
                self._out.cancel_timer(timer)
            for change in self._changes:
                self._answer(change.asked_by, change.request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._changes.clear()
        self.role = role
        self._ballot = None
        self._asked = None
        self._download = None
        self._has_fetched = False
        self._out.trace("quorum_role", None, role=role.value, epoch=self.epoch, leader=self.leader)

    def _detach(self, now_ms: TimeMs, epoch: Epoch) -> None:
        """There is no leader to follow in this epoch."""
        if epoch > self.epoch:
            self._save(epoch=epoch, leader=NO_LEADER, voted=None)
        self._move(Role.UNATTACHED)
        self._wait_for_election(now_ms)
        self._fetch_due(now_ms)

    def _follow(self, now_ms: TimeMs, epoch: Epoch, leader: NodeId) -> None:
        if epoch > self.epoch:
            self._save(epoch=epoch, leader=leader, voted=None)
        elif self.leader != leader:
            self._save(leader=leader)
        self._move(Role.FOLLOWER)
        self._out.set_timer(ELECTION_TIMER, now_ms + self.config.fetch_ms)
        self._fetch_due(now_ms)

    def _wait_for_election(self, now_ms: TimeMs) -> None:
        self._out.set_timer(
            ELECTION_TIMER, now_ms + self.config.election_ms + self._rng.randrange(self.config.election_ms)
        )

    def _learn(self, now_ms: TimeMs, epoch: Epoch, leader: NodeId, *, from_leader: bool = False) -> None:
        """Somebody knows of this epoch and its leader (-1: none). Who asks for votes because the leader was not heard
        of follows it again only if it says so itself.
        """
        if leader == self._node_id:
            leader = NO_LEADER  # this replica before it ended, or before its disk was replaced
        if epoch > self.epoch:
            if leader == NO_LEADER:
                self._detach(now_ms, epoch)
            else:
                self._follow(now_ms, epoch, leader)
        elif epoch == self.epoch and leader != NO_LEADER:
            if self.leader not in (NO_LEADER, leader):
                raise ProtocolInvariantError(f"epoch {epoch} has two leaders, {self.leader} and {leader}")
            if (
                self.leader == NO_LEADER
                or self.role is Role.UNATTACHED
                or (from_leader and self.role is not Role.FOLLOWER)
            ):
                self._follow(now_ms, epoch, leader)

    def _election_due(self, now_ms: TimeMs) -> None:
        """The leader was not heard of, or an election came to nothing."""
        if self.role is Role.FOLLOWER:
            self._out.trace("quorum_leader_lost", None, leader=self.leader, epoch=self.epoch)
        if not self._may_stand():
            self._detach(now_ms, self.epoch)
        elif self._is_alone():
            self._stand(now_ms)
        else:
            self._canvass(now_ms)

    def _canvass(self, now_ms: TimeMs) -> None:
        """Asks whether it would win an election."""
        self._move(Role.PROSPECTIVE)
        self._wait_for_election(now_ms)
        self._fetch_due(now_ms)
        self._ask_for_votes(pre_vote=True)

    def _stand(self, now_ms: TimeMs) -> None:
        """Begins an epoch as its candidate."""
        self._save(epoch=self.epoch + 1, leader=NO_LEADER, voted=self.key)
        self._move(Role.CANDIDATE)
        self._wait_for_election(now_ms)
        self._out.cancel_timer(FETCH_TIMER)
        self._ask_for_votes(pre_vote=False)
        self._count(now_ms)

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        me = self._membership()
        ballot = self._ballot = Ballot(self.voters)
        for voter in self.voters.keys:
            if voter == me:
                ballot.granted.add(voter)
                continue
            number = self._next_correlation_id()
            ballot.asked[number] = voter
            self._out.send(
                voter.id,
                VoteRequest(
                    correlation_id=number,
                    cluster_id=self.config.cluster_id,
                    candidate_id=self._node_id,
                    candidate_uuid=self._state.uuid,
                    candidate_epoch=self.epoch,
                    voter_id=voter.id,
                    voter_uuid=voter.uuid,
                    last_offset_epoch=self.log.last_epoch,
                    last_offset=self.log.end_offset,
                    pre_vote=pre_vote,
                ),
            )

    def _vote(self, now_ms: TimeMs, sender: NodeId, request: VoteRequest) -> None:
        if (request.voter_id, request.voter_uuid or self._state.uuid) != self.key:
            self._answer(sender, request, ErrorCode.INVALID_VOTER_KEY)
            return
        if request.candidate_epoch < self.epoch:
            self._answer(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._learn(now_ms, request.candidate_epoch, NO_LEADER)
        candidate = ReplicaKey(request.candidate_id, request.candidate_uuid)
        log_end = (request.last_offset_epoch, request.last_offset)
        standing = Standing(self.role, self.leader, self._state.voted, self._has_fetched, self.log.end)
        granted = self._can_vote and grants(standing, candidate, log_end, pre_vote=request.pre_vote)
        if granted and not request.pre_vote and self._state.voted is None:
            self._save(voted=candidate)
            self._wait_for_election(now_ms)
        self._answer(sender, request, vote_granted=granted)

    def _voted(self, now_ms: TimeMs, sender: NodeId, response: VoteResponse) -> None:
        self._learn(now_ms, response.leader_epoch, response.leader_id)
        if self._ballot is not None and response.leader_epoch == self.epoch:
            self._ballot.note(response.correlation_id, response.vote_granted)
            self._count(now_ms)

    def _count(self, now_ms: TimeMs) -> None:
        ballot = self._ballot
        if ballot is None:
            return
        if ballot.is_won and self.role is Role.PROSPECTIVE:
            self._stand(now_ms)
        elif ballot.is_won:
            self._lead(now_ms)
        elif ballot.is_lost and self.role is Role.PROSPECTIVE and self.leader not in (NO_LEADER, self._node_id):
            self._follow(now_ms, self.epoch, self.leader)
        elif ballot.is_lost:
            self._ballot = None
            self._out.set_timer(ELECTION_TIMER, now_ms + self._backoff_ms())

    def _backoff_ms(self) -> int:
        return self.config.election_ms // 2 + self._rng.randrange(1, self.config.backoff_ms + 1)

    # -- leading -------------------------------------------------------------------------------------------------------

    def _lead(self, now_ms: TimeMs) -> None:
        self._save(leader=self._node_id)
        self._leadership = Leadership(self.epoch, self.log.end_offset, now_ms, self.key)
        self._move(Role.LEADER)
        self._out.cancel_timer(ELECTION_TIMER)
        self._out.cancel_timer(FETCH_TIMER)
        voters = tuple((key.id, key.uuid) for key in self.voters.keys)
        self.append([LeaderChangeRecord(leader_id=self._node_id, leader_uuid=self._state.uuid, voters=voters)])
        self._out.set_timer(CHECK_TIMER, now_ms + self._patience_ms)
        self._announce(now_ms)

    @property
    def _patience_ms(self) -> int:
        return self.config.fetch_ms * 3 // 2

    def _announce(self, now_ms: TimeMs) -> None:
        """Tells voters that do not fetch who leads, and goes on telling them."""
        assert self._leadership is not None
        for voter in self._leadership.silent(self.voters, now_ms - self.config.fetch_ms // 2):
            self._out.send(
                voter.id,
                BeginQuorumEpochRequest(
                    correlation_id=self._next_correlation_id(),
                    cluster_id=self.config.cluster_id,
                    voter_id=voter.id,
                    voter_uuid=voter.uuid,
                    leader_id=self._node_id,
                    leader_epoch=self.epoch,
                ),
            )
        self._out.set_timer(BEGIN_TIMER, now_ms + self.config.fetch_ms // 2)

    def _begin_epoch(self, now_ms: TimeMs, sender: NodeId, request: BeginQuorumEpochRequest) -> None:
        if (request.voter_id, request.voter_uuid or self._state.uuid) != self.key:
            self._answer(sender, request, ErrorCode.INVALID_VOTER_KEY)
            return
        late = request.leader_epoch < self.epoch
        if not late:
            self._learn(now_ms, request.leader_epoch, request.leader_id, from_leader=True)
        self._answer(sender, request, ErrorCode.FENCED_LEADER_EPOCH if late else ErrorCode.NONE)

    def _epoch_begun(
        self, now_ms: TimeMs, sender: NodeId, response: BeginQuorumEpochResponse | EndQuorumEpochResponse
    ) -> None:
        self._learn(now_ms, response.leader_epoch, response.leader_id)

    def _check_quorum(self, now_ms: TimeMs) -> None:
        assert self._leadership is not None
        until_ms = self._leadership.majority_until_ms(self.voters, self._patience_ms, now_ms)
        if until_ms > now_ms:
            self._out.set_timer(CHECK_TIMER, until_ms)
        else:
            self._resign(now_ms, "no majority fetches")

    def _resign(self, now_ms: TimeMs, why: str) -> None:
        assert self._leadership is not None
        self._out.trace("quorum_resigned", None, epoch=self.epoch, reason=why)
        self._say_farewell(self._leadership)
        self._move(Role.RESIGNED)
        self._wait_for_election(now_ms)

    def _say_farewell(self, leadership: Leadership) -> None:
        successors = leadership.successors(self.voters)
        for voter in successors:
            self._out.send(
                voter.id,
                EndQuorumEpochRequest(
                    correlation_id=self._next_correlation_id(),
                    cluster_id=self.config.cluster_id,
                    leader_id=self._node_id,
                    leader_epoch=self.epoch,
                    preferred_successors=tuple((key.id, key.uuid) for key in successors),
                ),
            )

    def _end_epoch(self, now_ms: TimeMs, sender: NodeId, request: EndQuorumEpochRequest) -> None:
        if request.leader_epoch < self.epoch:
            self._answer(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._learn(now_ms, request.leader_epoch, request.leader_id)
        self._answer(sender, request)
        if self.role is Role.FOLLOWER and self._may_stand():
            ids = [node for node, _ in request.preferred_successors]
            place = ids.index(self._node_id) if self._node_id in ids else len(ids)
            if place == 0:
                self._canvass(now_ms)
            else:
                self._has_fetched = False
                self._out.set_timer(ELECTION_TIMER, now_ms + min(place * self._backoff_ms(), self.config.fetch_ms))

    # -- replication: the leader's side --------------------------------------------------------------------------------

    def _why_not(self, now_ms: TimeMs, epoch: Epoch) -> ErrorCode:
        """Why a request to the leader of `epoch` is not for this replica."""
        if epoch > self.epoch:
            self._learn(now_ms, epoch, NO_LEADER)
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.NONE

    def _fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        error = self._why_not(now_ms, request.current_leader_epoch)
        if error is not ErrorCode.NONE:
            self._answer(sender, request, error)
            return
        assert self._leadership is not None
        replica = ReplicaKey(request.replica_id, request.replica_uuid)
        lacking = self.log.lacks(request.fetch_offset, request.last_fetched_epoch)
        if isinstance(lacking, Snapshot):
            self._answer(sender, request, snapshot_epoch=lacking.epoch, snapshot_end_offset=lacking.end_offset)
            return
        if lacking is not None:
            self._answer(sender, request, diverging_epoch=lacking.epoch, diverging_end_offset=lacking.end_offset)
            return
        self._leadership.fetched(replica, request.fetch_offset, self.log.end_offset, now_ms)
        renewed = replica in self._parked
        parked = _Parked(sender, request.correlation_id, request.fetch_offset, request.high_watermark)
        self._parked[replica] = parked
        if renewed:
            self._answer_fetch(replica, parked)

    def _answer_parked(self) -> None:
        for replica, parked in sorted(self._parked.items()):
            if parked.offset < self.log.end_offset or parked.high_watermark < self.high_watermark:
                self._answer_fetch(replica, parked)

    def _answer_fetch(self, replica: ReplicaKey, parked: _Parked) -> None:
        del self._parked[replica]
        response = QuorumFetchResponse(
            correlation_id=parked.correlation_id,
            leader_id=self._node_id,
            leader_epoch=self.epoch,
            high_watermark=self.high_watermark,
            batches=tuple(self.log.read(parked.offset)),
        )
        self._out.send(parked.sender, response)

    def _advance(self, leadership: Leadership) -> None:
        """Raises the high watermark to what a majority has."""
        end = leadership.majority_end(self.voters, self.log.end_offset)
        if end is not None and end > self.high_watermark:
            self.high_watermark = end

    def _fetch_snapshot(self, now_ms: TimeMs, sender: NodeId, request: FetchSnapshotRequest) -> None:
        error = self._why_not(now_ms, request.current_leader_epoch)
        snapshot, raw = self.snapshot, self.log.raw_snapshot
        if error is ErrorCode.NONE:
            wanted = (request.snapshot_epoch, request.snapshot_end_offset)
            if snapshot is None or wanted != (snapshot.epoch, snapshot.end_offset):
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < len(raw):
                error = ErrorCode.POSITION_OUT_OF_RANGE
        if error is not ErrorCode.NONE:
            self._answer(sender, request, error)
            return
        self._answer(
            sender,
            request,
            snapshot_epoch=request.snapshot_epoch,
            snapshot_end_offset=request.snapshot_end_offset,
            size=len(raw),
            position=request.position,
            data=raw[request.position : request.position + CHUNK_BYTES],
        )

    # -- replication: the follower's side ------------------------------------------------------------------------------

    def _fetch_due(self, now_ms: TimeMs) -> None:
        """Asks the leader, or somebody who may know it, for what is next; again after a while if nothing comes."""
        if self.role in (Role.LEADER, Role.CANDIDATE):
            return
        self._out.set_timer(FETCH_TIMER, now_ms + self.config.renewal_ms)
        target = self.leader if self.role is Role.FOLLOWER else self._next_server()
        if target is None:
            return
        self._asked = self._next_correlation_id()
        if self._download is not None and self.role is Role.FOLLOWER:
            self._out.send(
                target,
                FetchSnapshotRequest(
                    correlation_id=self._asked,
                    cluster_id=self.config.cluster_id,
                    replica_id=self._node_id,
                    replica_uuid=self._state.uuid,
                    current_leader_epoch=self.epoch,
                    snapshot_epoch=self._download.epoch,
                    snapshot_end_offset=self._download.end_offset,
                    position=len(self._download.data),
                ),
            )
            return
        self._out.send(
            target,
            QuorumFetchRequest(
                correlation_id=self._asked,
                cluster_id=self.config.cluster_id,
                replica_id=self._node_id,
                replica_uuid=self._state.uuid,
                current_leader_epoch=self.epoch,
                fetch_offset=self.log.end_offset,
                last_fetched_epoch=self.log.last_epoch,
                high_watermark=self.high_watermark,
            ),
        )

    def _next_server(self) -> NodeId | None:
        """Somebody who may know the leader, in turn."""
        servers = sorted({*self.config.bootstrap, *(key.id for key in self.voters.keys)} - {self._node_id})
        self._probed += 1
        return servers[self._probed % len(servers)] if servers else None

    def _fetched(self, now_ms: TimeMs, sender: NodeId, response: QuorumFetchResponse) -> None:
        from_leader = sender == response.leader_id and response.error is ErrorCode.NONE
        self._learn(now_ms, response.leader_epoch, response.leader_id, from_leader=from_leader)
        if not self._is_awaited(sender, response):
            return
        self._heard(now_ms)
        if response.snapshot_end_offset >= 0:
            self._download = _Download(response.snapshot_epoch, response.snapshot_end_offset, bytearray())
        elif response.diverging_end_offset >= 0:
            self._truncate(response.diverging_epoch, response.diverging_end_offset)
        else:
            for batch in response.batches:
                if batch.base_offset == self.log.end_offset:
                    self.log.append(batch)
            self.log.flush()
            self.high_watermark = max(self.high_watermark, min(response.high_watermark, self.log.end_offset))
        self._fetch_due(now_ms)

    def _is_awaited(self, sender: NodeId, response: QuorumResponse) -> bool:
        """Whether this answers the newest question, and is the leader's own."""
        if response.correlation_id != self._asked or sender != self.leader or self.role is not Role.FOLLOWER:
            return False
        return response.error is ErrorCode.NONE and response.leader_epoch == self.epoch

    def _heard(self, now_ms: TimeMs) -> None:
        self._has_fetched = True
        self._out.set_timer(ELECTION_TIMER, now_ms + self.config.fetch_ms)

    def _truncate(self, epoch: Epoch, end_offset: Offset) -> None:
        """The leader's part of `epoch`, or of the one before it, ends there: what is behind it here goes."""
        own = self.log.end_of_epoch(epoch)
        target = min(own.end_offset, end_offset) if own.epoch == epoch else own.end_offset
        if target < self.high_watermark:
            raise ProtocolInvariantError(f"{self.key} is to truncate to {target}, below its {self.high_watermark}")
        self.log.truncate(target)
        self._out.trace("quorum_truncated", None, end_offset=target, epoch=self.epoch)

    def _snapshot_fetched(self, now_ms: TimeMs, sender: NodeId, response: FetchSnapshotResponse) -> None:
        self._learn(now_ms, response.leader_epoch, response.leader_id)
        download = self._download
        if download is None or response.correlation_id != self._asked:
            return
        if response.error is not ErrorCode.NONE or not self._is_awaited(sender, response):
            self._download = None
            return
        self._heard(now_ms)
        download.data += response.data
        if len(download.data) >= response.size:
            self._download = None
            snapshot = decode_snapshot(bytes(download.data))
            if snapshot.end_offset > self.high_watermark:
                self.log.install(snapshot)
                self.high_watermark = snapshot.end_offset
                self._out.trace("quorum_snapshot", None, end_offset=snapshot.end_offset, epoch=snapshot.epoch)
        self._fetch_due(now_ms)

    # -- changes of the voters -----------------------------------------------------------------------------------------

    def _change_voters(self, now_ms: TimeMs, sender: NodeId, request: VoterRequest) -> None:
        if not self.is_leader:
            self._answer(sender, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        error, detail = refusal(request, self.voters, static=bool(self.config.voters))
        if error is not ErrorCode.NONE:
            self._answer(sender, request, error, detail=detail)
            return
        self._changes.append(Change(sender, request, now_ms + WITHIN_MS))
        self._out.set_timer(CHANGE_TIMER, min(change.until_ms for change in self._changes))

    def _make_changes(self, leadership: Leadership) -> None:
        """Answers what is committed, and appends what may be; a change that another has overtaken is refused."""
        for change in list(self._changes):
            if 0 <= change.offset < self.high_watermark:
                self._changes.remove(change)
                self._answer(change.asked_by, change.request)
            elif change.offset < 0:
                error, detail = refusal(change.request, self.voters, static=bool(self.config.voters))
                if error is not ErrorCode.NONE:
                    self._changes.remove(change)
                    self._answer(change.asked_by, change.request, error, detail=detail)
                elif may_append(change, self.log.voters, leadership, self.high_watermark, self.log.end_offset):
                    change.offset = self.append([change.record]) - 1
                    self.log.flush()
                    self._out.trace("quorum_voters", None, voters=tuple(map(str, self.voters.keys)))
                    self._advance(leadership)

    def _give_up_changes(self, now_ms: TimeMs) -> None:
        for change in [change for change in self._changes if change.until_ms <= now_ms]:
            self._changes.remove(change)
            self._answer(change.asked_by, change.request, ErrorCode.REQUEST_TIMED_OUT, detail="not done in time")
        if self._changes:
            self._out.set_timer(CHANGE_TIMER, min(change.until_ms for change in self._changes))

    # -- answers -------------------------------------------------------------------------------------------------------

    def _next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def _answer(self, to: NodeId, request: QuorumRequest, error: ErrorCode = ErrorCode.NONE, **fields: Any) -> None:
        response = _RESPONSES[type(request)]
        self._out.send(
            to,
            response(
                correlation_id=request.correlation_id,
                error=error,
                leader_id=self.leader,
                leader_epoch=self.epoch,
                **fields,
            ),
        )
