"""A replica of the metadata log: KRaft as a part of a node (KIP-595, KIP-630, KIP-853, KIP-996).

How a node uses it
------------------
The node passes every message and timer to `receive` and `fire`, which return whether the input belonged to the quorum,
and calls `settle` at the end of every input. The node pulls: it reads batches of `log` up to `high_watermark`, and
takes `snapshot` if the log starts after its own position. A leader adds records with `append`; they are committed once
`high_watermark` has passed them. The node detects the end of its leadership by `is_leader` and `epoch`.

Rules
-----
1. Durable first. The election state is written before a vote or an epoch leaves the replica, and records are flushed
   before a fetch reports them or the leader counts them for the high watermark. `settle` flushes once per input.
2. A replica adopts the epoch of a vote request, of BeginQuorumEpoch and EndQuorumEpoch and of any response if it is
   later than its own. It answers a request of an earlier epoch with an error and its own epoch. A fetch cannot change
   the epoch, because any node may fetch.
3. Truncation never goes below the high watermark.
4. The voters are those of the last control record in the replica's log, committed or not (`voters.py`). Every other
   replica is an observer: it fetches and never starts an election. An observer with a uuid grants votes on request,
   because it may be a voter that lacks the record which added it (D25). A voter whose removal is not known to be
   committed may still be a candidate, without voting for itself: if it alone has the removal record, no other voter can
   win an election.

This module moves between the roles; `leader.py` and `follower.py` are what a replica does in them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from protocol.contract import Outbox, Storage
from protocol.errors import ErrorCode, ProtocolInvariantError
from protocol.events.quorum import QuorumLeaderResigned, QuorumRoleChanged
from protocol.ids import NO_LEADER, NO_OFFSET, Epoch, NodeId, Offset, TimeMs
from protocol.messages.base import Message
from protocol.messages.batch import RecordBatch
from protocol.messages.quorum import (
    AddVoterRequest,
    AddVoterResponse,
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
    RemoveVoterResponse,
    VoteRequest,
    VoteResponse,
)
from protocol.messages.records import MetadataRecord
from protocol.quorum import kafka_rules as rules
from protocol.quorum.context import ELECTION_TIMER, FETCH_TIMER, JOIN_TIMER, QuorumConfig, QuorumContext
from protocol.quorum.election import FOLLOWER, Election, Role, is_electing
from protocol.quorum.follower import QuorumFollower
from protocol.quorum.leader import BEGIN_TIMER, CHANGE_TIMER, VOTER_TIMER_PREFIX, QuorumLeader
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.log import QuorumLog, Snapshot
from protocol.quorum.membership import VoterRequest, VoterResponse, not_leader, response_to
from protocol.quorum.voters import ReplicaKey, VoterSet, matches_voter

TIMERS = frozenset({ELECTION_TIMER, FETCH_TIMER, JOIN_TIMER, BEGIN_TIMER, CHANGE_TIMER})


class QuorumReplica:
    """One replica of the metadata log. Effects are added to `out`. `rng` draws election timeouts. `can_vote` is false
    for brokers: permanent observers without a uuid. Call `start` first. After a StorageError the node must exit.
    """

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
        self.config, self._decides = config, config.decides
        self._out = out
        self._context = QuorumContext(node_id, config, storage, rng, out, can_vote)
        self._follower = QuorumFollower(self._context)
        self._leader: QuorumLeader | None = None
        self._election: Election | None = None
        self.log: QuorumLog
        """The log, from `start` on; to be read only."""
        self._handlers: dict[type[Message], Callable[[QuorumReplica, TimeMs, NodeId, Any], None]] = {
            VoteRequest: QuorumReplica._handle_vote_request,
            VoteResponse: QuorumReplica._handle_vote_response,
            BeginQuorumEpochRequest: QuorumReplica._handle_begin_epoch,
            BeginQuorumEpochResponse: QuorumReplica._handle_epoch_response,
            EndQuorumEpochRequest: QuorumReplica._handle_end_epoch,
            EndQuorumEpochResponse: QuorumReplica._handle_epoch_response,
            QuorumFetchRequest: QuorumReplica._handle_fetch,
            QuorumFetchResponse: QuorumReplica._handle_fetch_response,
            FetchSnapshotRequest: QuorumReplica._handle_fetch,
            FetchSnapshotResponse: QuorumReplica._handle_fetch_snapshot_response,
            AddVoterRequest: QuorumReplica._handle_voter_change,
            RemoveVoterRequest: QuorumReplica._handle_voter_change,
            AddVoterResponse: QuorumReplica._handle_voter_response,
            RemoveVoterResponse: QuorumReplica._handle_voter_response,
        }

    # -- state that the node and tools read ----------------------------------------------------------------------------

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
        """The known leader of this epoch, -1 if none is known."""
        return self._context.leader

    @property
    def voted(self) -> ReplicaKey | None:
        """The candidate that it voted for in this epoch."""
        return self._context.state.voted

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
        """The offset below which every record is known to be committed."""
        return self._context.high_watermark

    @property
    def snapshot(self) -> Snapshot | None:
        return self.log.snapshot

    @property
    def leader_state(self) -> LeaderState | None:
        return None if self._leader is None else self._leader.leader_state

    def fetched_end_offset(self, replica: ReplicaKey) -> Offset:
        """The log end offset that another replica has reported to this leader by its fetches, -1 if it has not."""
        progress = None if self._leader is None else self._leader.leader_state.progress.get(replica)
        return NO_OFFSET if progress is None else progress.end_offset

    @property
    def is_caught_up(self) -> bool:
        """Whether it has every record that its leader has reported as committed."""
        return self.high_watermark >= self._follower.leaders_high_watermark

    @property
    def pending_fetch_id(self) -> int | None:
        """The correlation id of the newest fetch, None if there is none in this role."""
        return self._follower.pending_request_id

    @property
    def has_pending_changes(self) -> bool:
        return self._leader is not None and bool(self._leader.changes)

    def read(self, from_offset: Offset, max_bytes: int) -> Sequence[RecordBatch]:
        """Committed batches from the one that contains `from_offset` on, about `max_bytes` in all."""
        batches = self._context.log.read(from_offset, max_bytes)
        return [batch for batch in batches if batch.next_offset <= self.high_watermark]

    def append(self, now_ms: TimeMs, records: Sequence[MetadataRecord], payload: bytes | None = None) -> Offset:
        """Appends records as one batch; returns the log end offset. ProtocolInvariantError if not leader."""
        if self._leader is None:
            raise ProtocolInvariantError(f"{self.key} appends to the metadata log but is not its leader")
        return self._leader.append(now_ms, records, payload)

    def take_snapshot(self, end_offset: Offset, data: bytes) -> None:
        """Stores the state below `end_offset`, unless it has a newer one. ProtocolInvariantError if uncommitted."""
        if end_offset > self.high_watermark:
            raise ProtocolInvariantError(f"snapshot at {end_offset}, above the high watermark {self.high_watermark}")
        if self.snapshot is None or end_offset > self.snapshot.end_offset:
            self._context.log.take_snapshot(end_offset, data)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def start(self, now_ms: TimeMs) -> None:
        """Reads the disk and takes up the role that it implies: the only voter becomes a candidate at once, the last
        known leader of the epoch resigned, others follower or unattached. StorageError as `QuorumContext.load`.
        """
        context = self._context
        context.load()
        self.log = context.log
        was_candidate = context.state.voted == context.key and context.leader != context.node_id
        if was_candidate and self._decides(rules.CANDIDACY_RESUMED):
            context.save(leader=NO_LEADER)
            self._request_election(now_ms)
        elif context.is_only_voter:
            self._become_candidate(now_ms)
        elif context.leader == context.node_id:
            self._transition_to(Role.RESIGNED)
            context.reset_election_timer(now_ms)
        elif context.leader == NO_LEADER or (
            self.voters.key_of(self.leader) is None and self._decides(rules.LEADER_WITHOUT_ENDPOINT)
        ):
            self._become_unattached(now_ms, context.epoch)
        else:
            self._become_follower(now_ms, context.epoch, context.leader)

    @property
    def message_types(self) -> Collection[type[Message]]:
        return self._handlers.keys()

    def receive(self, now_ms: TimeMs, sender: NodeId, message: Message) -> bool:
        """Handles a message of the quorum; returns whether it is one. Rejects requests of another cluster id."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return False
        if isinstance(message, QuorumRequest) and message.cluster_id != self.config.cluster_id:
            self._context.respond(sender, message, ErrorCode.INCONSISTENT_CLUSTER_ID)
        else:
            handler(self, now_ms, sender, message)
        return True

    def fire(self, now_ms: TimeMs, name: str) -> bool:
        """Handles a timer if it is one of the quorum's; returns whether it is."""
        if name == ELECTION_TIMER:
            self._elect(now_ms)
        elif name == FETCH_TIMER:
            self._follower.send_fetch(now_ms)
        elif name == JOIN_TIMER:
            self._follower.join(now_ms)
        elif self._leader is not None and name.startswith(VOTER_TIMER_PREFIX):
            if not self._leader.expire_voter(now_ms, name):
                self._resign(now_ms, self._leader, "no majority fetches")
        elif self._leader is not None and name == BEGIN_TIMER:
            self._leader.send_begin_epoch(now_ms)
        elif self._leader is not None and name == CHANGE_TIMER:
            self._leader.expire_changes(now_ms)
        return name in TIMERS or name.startswith(VOTER_TIMER_PREFIX)

    def _elect(self, now_ms: TimeMs) -> None:
        """The leader has not answered for the fetch timeout, or an election has had no winner."""
        if self.role is Role.RESIGNED and self._decides(rules.RESIGNED_ENTERS_NEXT_EPOCH):
            self._context.save(epoch=self.epoch + 1, leader=NO_LEADER, voted=None)
        if not self._context.can_be_candidate:
            if self.role is FOLLOWER and self._decides(rules.OBSERVER_KEEPS_LEADER):
                self._follower.reset_fetch_timeout(now_ms)
            else:
                self._become_unattached(now_ms, self.epoch)
        elif self.role is Role.PROSPECTIVE and self._has_leader and self._decides(rules.PRE_VOTE_GIVEN_UP):
            self._become_follower(now_ms, self.epoch, self.leader)
        elif self._context.is_only_voter:
            self._become_candidate(now_ms)
        else:
            self._become_prospective(now_ms)

    def settle(self, now_ms: TimeMs) -> None:
        """Ends an input: flushes; a leader commits, completes fetches, and resigns once it is removed (D18)."""
        self.log.flush()
        if self._leader is not None and self._leader.settle(now_ms):
            self._resign(now_ms, self._leader, "no voter any more")

    def resign(self, now_ms: TimeMs, why: str) -> None:
        """Ends the leadership, if there is one, for a reason of the node's own."""
        if self._leader is not None:
            self._resign(now_ms, self._leader, why)

    def shut_down(self) -> None:
        """Called before the node exits: a leader sends EndQuorumEpoch, so that the others elect without waiting."""
        if self._leader is not None:
            self._leader.send_end_epoch()

    # -- epochs and roles ----------------------------------------------------------------------------------------------

    def _transition_to(self, role: Role) -> None:
        context = self._context
        if self._leader is not None:
            self._leader.close()
            self._leader = None
        context.role = role
        self._election = None
        self._follower.reset()
        self._out.trace(QuorumRoleChanged(role.value, context.epoch, context.leader))

    def _become_unattached(self, now_ms: TimeMs, epoch: Epoch) -> None:
        keeps_timer = self._decides(rules.ELECTION_TIMEOUT_KEPT) and is_electing(self.role, self._election)
        is_later = epoch > self.epoch
        if is_later:
            self._context.save(epoch=epoch, leader=NO_LEADER, voted=None)
        self._transition_to(Role.UNATTACHED)
        if not keeps_timer or not is_later:
            self._context.reset_election_timer(now_ms)
        self._follower.send_fetch(now_ms)

    @property
    def _has_leader(self) -> bool:
        """Whether it knows a leader that it has followed."""
        return self._follower.has_followed and self.leader not in (NO_LEADER, self.key.id)

    def _become_follower(self, now_ms: TimeMs, epoch: Epoch, leader: NodeId) -> None:
        if epoch > self.epoch:
            self._context.save(epoch=epoch, leader=leader, voted=None)
        elif self.leader != leader:
            self._context.save(leader=leader)
        self._transition_to(Role.FOLLOWER)
        self._follower.restart_joining(now_ms)
        self._follower.reset_fetch_timeout(now_ms)
        self._follower.send_fetch(now_ms)

    def _observe_epoch(self, now_ms: TimeMs, epoch: Epoch, leader: NodeId, *, from_leader: bool = False) -> None:
        """Takes up an epoch and its leader (-1: unknown) from a message. After a fetch timeout the same leader is
        followed again only after a message `from_leader` itself.
        """
        context = self._context
        if epoch == context.epoch and leader == context.leader and context.role is FOLLOWER:
            return
        if leader == context.node_id:
            leader = NO_LEADER  # an earlier incarnation of this node
        if epoch > context.epoch:
            if leader == NO_LEADER:
                self._become_unattached(now_ms, epoch)
            else:
                self._become_follower(now_ms, epoch, leader)
        elif epoch == context.epoch and leader != NO_LEADER:
            if context.leader not in (NO_LEADER, leader):
                raise ProtocolInvariantError(f"epoch {epoch} has two leaders, {context.leader} and {leader}")
            again = from_leader and context.role is not FOLLOWER
            if self._decides(rules.LEADER_IGNORED_IN_PRE_VOTE):
                again = not self._follower.has_followed
            if again or context.leader == NO_LEADER:
                self._become_follower(now_ms, epoch, leader)

    def _become_prospective(self, now_ms: TimeMs) -> None:
        """Starts a pre-vote, and meanwhile looks for a leader."""
        self._transition_to(Role.PROSPECTIVE)
        self._context.reset_election_timer(now_ms)
        self._follower.send_fetch(now_ms)
        self._request_votes(pre_vote=True)
        self._count_votes(now_ms)

    def _become_candidate(self, now_ms: TimeMs) -> None:
        self._context.save(epoch=self.epoch + 1, leader=NO_LEADER, voted=self.key)
        self._request_election(now_ms)

    def _request_election(self, now_ms: TimeMs) -> None:
        self._transition_to(Role.CANDIDATE)
        self._context.reset_election_timer(now_ms)
        self._out.cancel_timer(FETCH_TIMER)
        self._request_votes(pre_vote=False)
        self._count_votes(now_ms)

    def _become_leader(self, now_ms: TimeMs) -> None:
        self._context.save(leader=self._context.node_id)
        self._transition_to(Role.LEADER)
        self._out.cancel_timer(ELECTION_TIMER)
        self._leader = QuorumLeader(self._context, now_ms)

    def _resign(self, now_ms: TimeMs, leader: QuorumLeader, why: str) -> None:
        self._out.trace(QuorumLeaderResigned(self.epoch, why))
        leader.send_end_epoch()
        self._transition_to(Role.RESIGNED)
        self._context.reset_election_timer(now_ms)

    # -- votes ---------------------------------------------------------------------------------------------------------

    def _request_votes(self, *, pre_vote: bool) -> None:
        context = self._context
        me = context.membership(self.voters)
        election = self._election = Election(self.voters)
        for voter in self.voters.keys:
            if voter == me:
                election.granted.add(voter)
                continue
            request = context.vote_request(voter, pre_vote=pre_vote)
            election.pending[request.correlation_id] = voter
            self._out.send(voter.id, request)

    def _handle_vote_request(self, now_ms: TimeMs, sender: NodeId, request: VoteRequest) -> None:
        context = self._context
        key_matches = matches_voter(ReplicaKey(request.voter_id, request.voter_uuid), self.key)
        if not key_matches and not self._decides(rules.EPOCH_BEFORE_VOTER_KEY):
            context.respond(sender, request, ErrorCode.INVALID_VOTER_KEY)
            return
        if request.candidate_epoch < self.epoch:
            context.respond(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._observe_epoch(now_ms, request.candidate_epoch, NO_LEADER)
        if not key_matches:
            context.respond(sender, request, ErrorCode.INVALID_VOTER_KEY)
            return
        candidate, pre_vote = ReplicaKey(request.candidate_id, request.candidate_uuid), request.pre_vote
        log_end = (request.last_offset_epoch, request.last_offset)
        granted = context.grants_vote(candidate, log_end, pre_vote=pre_vote)
        if granted and not pre_vote and context.state.voted is None:
            context.save(voted=candidate)
            context.reset_election_timer(now_ms)
        context.respond(sender, request, vote_granted=granted)

    def _handle_vote_response(self, now_ms: TimeMs, sender: NodeId, response: VoteResponse) -> None:
        self._observe_epoch(now_ms, response.leader_epoch, response.leader_id)
        if self._election is not None and response.leader_epoch == self.epoch:
            self._election.record_vote(response.correlation_id, response.vote_granted)
            self._count_votes(now_ms)

    def _count_votes(self, now_ms: TimeMs) -> None:
        if (election := self._election) is None:
            return
        if election.is_won and self.role is Role.PROSPECTIVE:
            self._become_candidate(now_ms)
        elif election.is_won:
            self._become_leader(now_ms)
        elif election.is_lost and self.role is Role.PROSPECTIVE and self._has_leader:
            self._become_follower(now_ms, self.epoch, self.leader)
        elif election.is_lost and self.role is Role.PROSPECTIVE and self._decides(rules.PRE_VOTE_GIVEN_UP):
            self._become_unattached(now_ms, self.epoch)
        elif election.is_lost:
            self._election = None
            self._out.set_timer(ELECTION_TIMER, now_ms + self._context.backoff_ms())

    # -- BeginQuorumEpoch and EndQuorumEpoch ---------------------------------------------------------------------------

    def _handle_begin_epoch(self, now_ms: TimeMs, sender: NodeId, request: BeginQuorumEpochRequest) -> None:
        key_matches = matches_voter(ReplicaKey(request.voter_id, request.voter_uuid), self.key)
        if not key_matches and not self._decides(rules.EPOCH_BEFORE_VOTER_KEY):
            self._context.respond(sender, request, ErrorCode.INVALID_VOTER_KEY)
        elif request.leader_epoch < self.epoch:
            self._context.respond(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
        else:
            self._observe_epoch(now_ms, request.leader_epoch, request.leader_id, from_leader=True)
            self._context.respond(sender, request, ErrorCode.NONE if key_matches else ErrorCode.INVALID_VOTER_KEY)

    def _handle_epoch_response(self, now_ms: TimeMs, sender: NodeId, response: QuorumResponse) -> None:
        self._observe_epoch(now_ms, response.leader_epoch, response.leader_id)

    def _handle_end_epoch(self, now_ms: TimeMs, sender: NodeId, request: EndQuorumEpochRequest) -> None:
        context = self._context
        if request.leader_epoch < self.epoch:
            context.respond(sender, request, ErrorCode.FENCED_LEADER_EPOCH)
            return
        self._observe_epoch(now_ms, request.leader_epoch, request.leader_id)
        context.respond(sender, request)
        if self.role is Role.FOLLOWER and context.can_be_candidate:
            ids = [voter.voter_id for voter in request.preferred_successors]
            place = [*ids, self.key.id].index(self.key.id)
            if place == 0:
                self._become_prospective(now_ms)
            else:
                context.forget_fetches()
                wait_ms = min(place * context.backoff_ms(), self.config.fetch_ms)
                self._out.set_timer(ELECTION_TIMER, now_ms + wait_ms)

    # -- replication ---------------------------------------------------------------------------------------------------

    def _handle_fetch(self, now_ms: TimeMs, sender: NodeId, request: QuorumFetchRequest | FetchSnapshotRequest) -> None:
        asked, own = request.current_leader_epoch, self._context.epoch
        if asked != own:
            error = ErrorCode.FENCED_LEADER_EPOCH if asked < own else ErrorCode.UNKNOWN_LEADER_EPOCH
            self._context.respond(sender, request, error)
        elif self._leader is None:
            self._context.respond(sender, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif isinstance(request, QuorumFetchRequest):
            self._leader.fetch(now_ms, sender, request)
        else:
            self._leader.fetch_snapshot(sender, request)

    def _handle_fetch_response(self, now_ms: TimeMs, sender: NodeId, response: QuorumFetchResponse) -> None:
        from_leader = sender == response.leader_id and response.error is ErrorCode.NONE
        self._observe_epoch(now_ms, response.leader_epoch, response.leader_id, from_leader=from_leader)
        self._follower.handle_fetch_response(now_ms, sender, response)

    def _handle_fetch_snapshot_response(self, now_ms: TimeMs, sender: NodeId, response: FetchSnapshotResponse) -> None:
        self._observe_epoch(now_ms, response.leader_epoch, response.leader_id)
        self._follower.handle_snapshot_response(now_ms, sender, response)

    def _handle_voter_change(self, now_ms: TimeMs, sender: NodeId, request: VoterRequest) -> None:
        own = self.config.cluster_id
        if request.cluster_id not in ("", own):
            message = f"cluster_id: found {request.cluster_id!r}; allowed: {own!r}"
            self._out.send(sender, response_to(request, ErrorCode.INCONSISTENT_CLUSTER_ID, message))
        elif self._leader is None:
            self._out.send(sender, not_leader(request, self.leader, self.epoch))
        else:
            self._leader.change_voters(now_ms, sender, request)

    def _handle_voter_response(self, now_ms: TimeMs, sender: NodeId, response: VoterResponse) -> None:
        """The response to a request by which this replica joins: what is missing then, its log says."""
        self._follower.restart_joining(now_ms)
