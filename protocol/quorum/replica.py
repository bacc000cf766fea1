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

This module moves between the roles of `election.py`; what a leader and a follower do is in modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from protocol.contract import Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.ids import NO_LEADER, NO_OFFSET, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.quorum import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    QuorumRequest,
    QuorumResponse,
    RemoveVoterRequest,
    VoteRequest,
    VoteResponse,
)
from protocol.messages.records import MetadataRecord
from protocol.quorum.context import ELECTION_TIMER, FETCH_TIMER, QuorumConfig, QuorumContext
from protocol.quorum.election import Ballot, Role, grants
from protocol.quorum.follower import FollowerSide
from protocol.quorum.leader import BEGIN_TIMER, CHANGE_TIMER, SILENT_PREFIX, LeaderSide
from protocol.quorum.leadership import Leadership
from protocol.quorum.log import QuorumLog, Snapshot
from protocol.quorum.membership import VoterRequest, not_leader, response_to
from protocol.quorum.voters import ReplicaKey, VoterSet, is_meant

TIMERS = frozenset({ELECTION_TIMER, FETCH_TIMER, BEGIN_TIMER, CHANGE_TIMER})


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
        self._out = out
        self._context = QuorumContext(node_id, config, storage, rng, out, can_vote)
        self._follower = FollowerSide(self._context)
        self._leader: LeaderSide | None = None
        self._ballot: Ballot | None = None
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
        return self._context.key

    @property
    def role(self) -> Role:
        return self._context.role

    @property
    def epoch(self) -> Epoch:
        return self._context.epoch

    @property
    def leader(self) -> NodeId:
        """The leader of this epoch as far as it is known, -1 where not."""
        return self._context.leader

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def is_voter(self) -> bool:
        return self._context.is_voter

    @property
    def voters(self) -> VoterSet:
        return self._context.voters

    @property
    def high_watermark(self) -> Offset:
        """Everything below is committed."""
        return self._context.high_watermark

    @property
    def log(self) -> QuorumLog:
        """For checkers to read."""
        return self._context.log

    @property
    def snapshot(self) -> Snapshot | None:
        return self._context.log.snapshot

    @property
    def leadership(self) -> Leadership | None:
        """What a leader knows of the others, for descriptions and checkers."""
        return None if self._leader is None else self._leader.leadership

    def shown_by(self, replica: ReplicaKey) -> Offset:
        """The end of another replica's log, as its fetches have shown it to this leader; -1 where nothing is known."""
        shown = None if self._leader is None else self._leader.leadership.progress.get(replica)
        return NO_OFFSET if shown is None else shown.end_offset

    @property
    def is_caught_up(self) -> bool:
        """Whether it has everything that its leader has told it is committed."""
        return self.high_watermark >= self._follower.leaders_high_watermark

    @property
    def awaited(self) -> int | None:
        """The correlation id of its newest fetch, as a follower."""
        return self._follower.awaited

    @property
    def is_changing(self) -> bool:
        """Whether somebody waits for a change of the voters."""
        return self._leader is not None and self._leader.is_changing

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Committed batches from `from_offset` on."""
        batches = self._context.log.read(from_offset, max_bytes)
        return [batch for batch in batches if batch.next_offset <= self.high_watermark]

    def append(self, records: Sequence[MetadataRecord], payload: bytes | None = None) -> Offset:
        """Appends records as the leader, in one batch, encoded as `payload` if that is given; the offset behind them.
        ProtocolInvariantError where it does not lead.
        """
        if self._leader is None:
            raise ProtocolInvariantError(f"{self.key} appends to the metadata log without leading it")
        return self._leader.append(records, payload)

    def take_snapshot(self, end_offset: Offset, data: bytes) -> None:
        """The committed state below `end_offset` is `data`; what the log has of it may go."""
        if end_offset > self.high_watermark:
            raise ProtocolInvariantError(f"a snapshot of {end_offset} above the high watermark {self.high_watermark}")
        if self.snapshot is None or end_offset > self.snapshot.end_offset:
            self._context.log.take_snapshot(end_offset, data)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> None:
        """ForeignDirectoryError where the disk belongs to another cluster."""
        context = self._context
        context.load()
        if context.is_alone:
            self._stand(now_ms)
        elif context.leader == context.node_id:
            self._move(Role.RESIGNED)
            context.wait_for_election(now_ms)
        elif context.leader != NO_LEADER:
            self._follow(now_ms, context.epoch, context.leader)
        else:
            self._detach(now_ms, context.epoch)

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> bool:
        """Whether the message was one of the log's replicas."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return False
        if isinstance(message, QuorumRequest) and message.cluster_id != self.config.cluster_id:
            self._context.answer(sender, message, ErrorCode.INCONSISTENT_CLUSTER_ID)
        else:
            handler(now_ms, sender, message)
        return True

    def fire(self, now_ms: TimeMs, name: str) -> bool:
        """Whether the timer was the log's."""
        if name == ELECTION_TIMER:
            self._election_due(now_ms)
        elif name == FETCH_TIMER:
            self._follower.ask(now_ms)
        elif self._leader is not None and name.startswith(SILENT_PREFIX):
            if not self._leader.voter_is_silent(now_ms, name):
                self._resign(now_ms, self._leader, "no majority fetches")
        elif self._leader is not None and name == BEGIN_TIMER:
            self._leader.announce(now_ms)
        elif self._leader is not None and name == CHANGE_TIMER:
            self._leader.give_up_changes(now_ms)
        return name in TIMERS or name.startswith(SILENT_PREFIX)

    def settle(self, now_ms: TimeMs) -> None:
        """What every input ends with: what it appended is flushed, committed where a majority has it, and told."""
        self._context.log.flush()
        if self._leader is not None:
            self._leader.settle(now_ms)
            if self._leader.is_superseded:
                self._resign(now_ms, self._leader, "no voter any more")

    def shut_down(self) -> None:
        """The node goes: a leader lets the others elect the next one at once."""
        if self._leader is not None:
            self._leader.say_farewell()

    # -- epochs and roles ----------------------------------------------------------------------------------------------

    def _move(self, role: Role) -> None:
        context = self._context
        if self._leader is not None:
            self._leader.end()
            self._leader = None
        context.role = role
        self._ballot = None
        self._follower.forget()
        self._out.trace("quorum_role", None, role=role.value, epoch=context.epoch, leader=context.leader)

    def _detach(self, now_ms: TimeMs, epoch: Epoch) -> None:
        """There is no leader to follow in this epoch."""
        if epoch > self.epoch:
            self._context.save(epoch=epoch, leader=NO_LEADER, voted=None)
        self._move(Role.UNATTACHED)
        self._context.wait_for_election(now_ms)
        self._follower.ask(now_ms)

    def _follow(self, now_ms: TimeMs, epoch: Epoch, leader: NodeId) -> None:
        if epoch > self.epoch:
            self._context.save(epoch=epoch, leader=leader, voted=None)
        elif self.leader != leader:
            self._context.save(leader=leader)
        self._move(Role.FOLLOWER)
        self._follower.expect_the_leader(now_ms)
        self._follower.ask(now_ms)

    def _learn(self, now_ms: TimeMs, epoch: Epoch, leader: NodeId, *, from_leader: bool = False) -> None:
        """Somebody knows of this epoch and its leader (-1: none). Who has given that leader up, since it was not heard
        of, follows it again only if it says so itself.
        """
        if leader == self._context.node_id:
            leader = NO_LEADER  # this replica before it ended, or before its disk was replaced
        if epoch > self.epoch:
            if leader == NO_LEADER:
                self._detach(now_ms, epoch)
            else:
                self._follow(now_ms, epoch, leader)
        elif epoch == self.epoch and leader != NO_LEADER:
            if self.leader not in (NO_LEADER, leader):
                raise ProtocolInvariantError(f"epoch {epoch} has two leaders, {self.leader} and {leader}")
            again = from_leader and self.role is not Role.FOLLOWER
            if again or self.leader == NO_LEADER:
                self._follow(now_ms, epoch, leader)

    def _election_due(self, now_ms: TimeMs) -> None:
        """The leader was not heard of, or an election came to nothing."""
        if not self._context.may_stand:
            self._detach(now_ms, self.epoch)
        elif self._context.is_alone:
            self._stand(now_ms)
        else:
            self._canvass(now_ms)

    def _canvass(self, now_ms: TimeMs) -> None:
        """Asks whether it would win an election, and meanwhile for the leader."""
        self._move(Role.PROSPECTIVE)
        self._context.wait_for_election(now_ms)
        self._follower.ask(now_ms)
        self._ask_for_votes(pre_vote=True)
        self._count(now_ms)

    def _stand(self, now_ms: TimeMs) -> None:
        """Begins an epoch as its candidate."""
        self._context.save(epoch=self.epoch + 1, leader=NO_LEADER, voted=self.key)
        self._move(Role.CANDIDATE)
        self._context.wait_for_election(now_ms)
        self._out.cancel_timer(FETCH_TIMER)
        self._ask_for_votes(pre_vote=False)
        self._count(now_ms)

    def _lead(self, now_ms: TimeMs) -> None:
        self._context.save(leader=self._context.node_id)
        self._move(Role.LEADER)
        self._out.cancel_timer(ELECTION_TIMER)
        self._leader = LeaderSide(self._context, now_ms)

    def _resign(self, now_ms: TimeMs, leader: LeaderSide, why: str) -> None:
        self._out.trace("quorum_resigned", None, epoch=self.epoch, reason=why)
        leader.say_farewell()
        self._move(Role.RESIGNED)
        self._context.wait_for_election(now_ms)

    # -- votes ---------------------------------------------------------------------------------------------------------

    def _ask_for_votes(self, *, pre_vote: bool) -> None:
        context = self._context
        me = context.membership(self.voters)
        ballot = self._ballot = Ballot(self.voters)
        for voter in self.voters.keys:
            if voter == me:
                ballot.granted.add(voter)
                continue
            number = context.next_correlation_id()
            ballot.asked[number] = voter
            self._out.send(
                voter.id,
                VoteRequest(
                    correlation_id=number,
                    cluster_id=self.config.cluster_id,
                    candidate_id=self.key.id,
                    candidate_uuid=self.key.uuid,
                    candidate_epoch=self.epoch,
                    voter_id=voter.id,
                    voter_uuid=voter.uuid,
                    last_offset_epoch=context.log.last_epoch,
                    last_offset=context.log.end_offset,
                    pre_vote=pre_vote,
                ),
            )

    def _vote(self, now_ms: TimeMs, sender: NodeId, request: VoteRequest) -> None:
        context = self._context
        if not is_meant(ReplicaKey(request.voter_id, request.voter_uuid), self.key):
            context.answer(sender, request, ErrorCode.INVALID_VOTER_KEY)
            return
        if request.candidate_epoch < self.epoch:
            context.answer(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._learn(now_ms, request.candidate_epoch, NO_LEADER)
        candidate = ReplicaKey(request.candidate_id, request.candidate_uuid)
        log_end = (request.last_offset_epoch, request.last_offset)
        granted = context.can_vote and grants(context.standing, candidate, log_end, pre_vote=request.pre_vote)
        if granted and not request.pre_vote and context.state.voted is None:
            context.save(voted=candidate)
            context.wait_for_election(now_ms)
        context.answer(sender, request, vote_granted=granted)

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
        elif ballot.is_lost and self.role is Role.PROSPECTIVE and self.leader not in (NO_LEADER, self.key.id):
            self._follow(now_ms, self.epoch, self.leader)
        elif ballot.is_lost:
            self._ballot = None
            self._out.set_timer(ELECTION_TIMER, now_ms + self._context.backoff_ms())

    # -- beginnings and ends of epochs ---------------------------------------------------------------------------------

    def _begin_epoch(self, now_ms: TimeMs, sender: NodeId, request: BeginQuorumEpochRequest) -> None:
        if not is_meant(ReplicaKey(request.voter_id, request.voter_uuid), self.key):
            self._context.answer(sender, request, ErrorCode.INVALID_VOTER_KEY)
        elif request.leader_epoch < self.epoch:
            self._context.answer(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
        else:
            self._learn(now_ms, request.leader_epoch, request.leader_id, from_leader=True)
            self._context.answer(sender, request)

    def _epoch_begun(self, now_ms: TimeMs, sender: NodeId, response: QuorumResponse) -> None:
        self._learn(now_ms, response.leader_epoch, response.leader_id)

    def _end_epoch(self, now_ms: TimeMs, sender: NodeId, request: EndQuorumEpochRequest) -> None:
        context = self._context
        if request.leader_epoch < self.epoch:
            context.answer(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._learn(now_ms, request.leader_epoch, request.leader_id)
        context.answer(sender, request)
        if self.role is Role.FOLLOWER and context.may_stand:
            ids = [voter.voter_id for voter in request.preferred_successors]
            place = ids.index(self.key.id) if self.key.id in ids else len(ids)
            if place == 0:
                self._canvass(now_ms)
            else:
                context.has_fetched = False
                wait_ms = min(place * context.backoff_ms(), self.config.fetch_ms)
                self._out.set_timer(ELECTION_TIMER, now_ms + wait_ms)

    # -- replication ---------------------------------------------------------------------------------------------------

    def _leader_of(
        self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest | FetchSnapshotRequest
    ) -> LeaderSide | None:
        """The leader that a request is to; it is refused where this is none, or one of another epoch. Anybody may
        fetch, so a later epoch is not believed here: votes and their winner tell of it.
        """
        epoch, error = request.current_leader_epoch, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._leader is not None and epoch == self.epoch:
            return self._leader
        if self._leader is not None:
            error = ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        self._context.answer(sender, request, error)
        return None

    def _fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest) -> None:
        leader = self._leader_of(now_ms, sender, request)
        if leader is not None:
            leader.fetch(now_ms, sender, request)

    def _fetch_snapshot(self, now_ms: TimeMs, sender: NodeId, request: FetchSnapshotRequest) -> None:
        leader = self._leader_of(now_ms, sender, request)
        if leader is not None:
            leader.fetch_snapshot(sender, request)

    def _fetched(self, now_ms: TimeMs, sender: NodeId, response: QuorumFetchResponse) -> None:
        from_leader = sender == response.leader_id and response.error is ErrorCode.NONE
        self._learn(now_ms, response.leader_epoch, response.leader_id, from_leader=from_leader)
        self._follower.fetched(now_ms, sender, response)

    def _snapshot_fetched(self, now_ms: TimeMs, sender: NodeId, response: FetchSnapshotResponse) -> None:
        self._learn(now_ms, response.leader_epoch, response.leader_id)
        self._follower.snapshot_fetched(now_ms, sender, response)

    def _change_voters(self, now_ms: TimeMs, sender: NodeId, request: VoterRequest) -> None:
        own = self.config.cluster_id
        if request.cluster_id not in ("", own):
            message = f"cluster_id: found {request.cluster_id!r}; allowed: {own!r}"
            self._out.send(sender, response_to(request, ErrorCode.INCONSISTENT_CLUSTER_ID, message))
        elif self._leader is None:
            self._out.send(sender, not_leader(request, self.leader, self.epoch))
        else:
            self._leader.change_voters(now_ms, sender, request)
