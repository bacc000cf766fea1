"""State that the parts of a replica of the metadata log share: identity, durable election state, log, current role."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from protocol.config import (
    CONTROLLER_QUORUM_AUTO_JOIN_ENABLE,
    CONTROLLER_QUORUM_BOOTSTRAP_SERVERS,
    CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS,
    CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS,
    CONTROLLER_QUORUM_FETCH_MAX_BYTES,
    CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES,
    CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
    CONTROLLER_QUORUM_VOTERS,
    METADATA_RETENTION_BYTES,
    ClusterConfig,
    node_ids,
)
from protocol.contract import Outbox, Storage
from protocol.errors import ErrorCode, ForeignDirectoryError
from protocol.ids import METADATA_LOG, NO_LEADER, Epoch, NodeId, Offset, TimeMs
from protocol.messages.quorum import FETCH_BYTES, QuorumRequest, QuorumResponse, VoteRequest
from protocol.quorum import state_file
from protocol.quorum.election import LogEnd, Role, VotingState, can_grant_vote
from protocol.quorum.kafka_rules import ENDED_LEADER_PROTECTED, UNCOMMITTED_REMOVAL_OBEYED, VOTE_REPEATED
from protocol.quorum.log import QuorumLog
from protocol.quorum.state_file import QuorumState, disk_uuid
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet, matches_voter
from protocol.values import immutable

RENEWAL_MS = 500
"""Milliseconds between two fetches of a follower, at most (Kafka's maximum wait of a metadata fetch)."""
ELECTION_TIMER = "quorum-election"
FETCH_TIMER = "quorum-fetch"
JOIN_TIMER = "quorum-join"


@immutable
class QuorumConfig:
    """The quorum's part of the cluster configuration. `voters` are the static voters (`controller.quorum.voters`;
    empty: the log holds the voters), `bootstrap` the servers from which a replica without a leader discovers one.

    Times are in milliseconds. An election timeout is drawn from [`election_ms`, 2 `election_ms`), the backoff after a
    lost election adds up to `backoff_ms`. A follower starts an election after `fetch_ms` without a response from its
    leader, and fetches at least every `renewal_ms`; a leader resigns after 1.5 `fetch_ms` without fetches from a
    majority. A fetch requests `fetch_bytes` of the log or `snapshot_bytes` of a snapshot. `retention_bytes` as in
    `QuorumLog`. `joins`: a controller without a vote makes itself a voter.
    """

    cluster_id: str
    voters: tuple[NodeId, ...] = ()
    bootstrap: tuple[NodeId, ...] = ()
    election_ms: int = 1_000
    fetch_ms: int = 2_000
    backoff_ms: int = 1_000
    renewal_ms: int = 500
    retention_bytes: int = 0
    fetch_bytes: int = FETCH_BYTES
    snapshot_bytes: int = FETCH_BYTES
    joins: bool = False
    kafka_rules: frozenset[str] = frozenset()
    """The rules of Kafka's in force (`kafka_rules.py`)."""

    @staticmethod
    def of(config: ClusterConfig, controllers: Sequence[NodeId], cluster_id: str) -> QuorumConfig:
        servers = node_ids(config.values[CONTROLLER_QUORUM_BOOTSTRAP_SERVERS])
        return QuorumConfig(
            cluster_id,
            voters=node_ids(config.values[CONTROLLER_QUORUM_VOTERS]),
            bootstrap=servers or tuple(controllers),
            election_ms=config.int_value(CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS),
            fetch_ms=config.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS),
            backoff_ms=config.int_value(CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS),
            renewal_ms=max(1, min(RENEWAL_MS, config.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS) // 4)),
            retention_bytes=config.int_value(METADATA_RETENTION_BYTES),
            fetch_bytes=config.int_value(CONTROLLER_QUORUM_FETCH_MAX_BYTES),
            snapshot_bytes=config.int_value(CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES),
            joins=bool(config.values[CONTROLLER_QUORUM_AUTO_JOIN_ENABLE]),
        )

    def decides(self, rule: str) -> bool:
        """Whether this rule of Kafka's decides, rather than isray's own."""
        return rule in self.kafka_rules

    @property
    def is_static(self) -> bool:
        """Whether the voters are configured rather than recorded in the log."""
        return bool(self.voters)


class QuorumContext:
    """The state of a replica. `has_fetched`: it follows a leader that has answered a fetch in this epoch."""

    def __init__(
        self, node_id: NodeId, config: QuorumConfig, storage: Storage, rng: Random, out: Outbox, can_vote: bool
    ) -> None:
        self.node_id = node_id
        self.config = config
        self.rng = rng
        self.out = out
        self.can_vote = can_vote
        self.role = Role.UNATTACHED
        self.has_fetched = False
        self.high_watermark: Offset = 0
        self._adopt(QuorumState(config.cluster_id, NO_UUID))
        self.log: QuorumLog
        self._storage = storage
        self._key = ReplicaKey(node_id, NO_UUID)
        self._correlation_id = rng.getrandbits(30)  # responses to an earlier incarnation do not match

    def load(self) -> None:
        """Reads election state, snapshot and log from disk; generates the disk's uuid if it has none. Raises
        ForeignDirectoryError for a disk of another cluster, CorruptLogError for a damaged one, which are not modified.
        """
        raw = self._storage.read_file(state_file.FILE)
        if raw is not None:
            self._adopt(state_file.decode(raw))
            found, own = self.state.cluster_id, self.config.cluster_id
            if found not in ("", own):
                raise ForeignDirectoryError(f"{state_file.FILE}: clusterId: found {found!r}; allowed: {own!r}")
        static = VoterSet.of(ReplicaKey(voter, NO_UUID) for voter in self.config.voters)
        self.log = QuorumLog(self._storage, METADATA_LOG, static, self.config.retention_bytes, self.config.kafka_rules)
        if self.can_vote and not self.state.uuid:
            self.save(uuid=disk_uuid(self.rng))
        if self.log.last_epoch > self.epoch:
            self.save(epoch=self.log.last_epoch, leader=NO_LEADER, voted=None)
        self.high_watermark = 0 if self.log.snapshot is None else self.log.snapshot.end_offset

    def save(self, **changes: Any) -> None:
        """Changes fields of the election state (`uuid`, `epoch`, `leader`, `voted`) and writes it durably."""
        values = {name: getattr(self.state, name) for name in ("uuid", "epoch", "leader", "voted")}
        self._adopt(QuorumState(self.config.cluster_id, **(values | changes)))
        self._storage.write_file(state_file.FILE, state_file.encode(self.state))

    def _adopt(self, state: QuorumState) -> None:
        self.state = state
        self.epoch: Epoch = state.epoch
        self.leader: NodeId = state.leader

    @property
    def key(self) -> ReplicaKey:
        if self._key.uuid != self.state.uuid:
            self._key = ReplicaKey(self.node_id, self.state.uuid)
        return self._key

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.latest

    def grants_vote(self, candidate: ReplicaKey, log_end: LogEnd, *, pre_vote: bool) -> bool:
        """Whether it grants a candidate whose log ends at `log_end` its vote, or would (`pre_vote`)."""
        voted = self.state.voted
        is_repeated = not pre_vote and voted is not None and matches_voter(voted, candidate)
        if is_repeated and self.config.decides(VOTE_REPEATED):
            log_end = max(log_end, self.log.end)
        state = VotingState(self.role, self.leader, voted, self.has_fetched, self.log.end)
        return self.can_vote and can_grant_vote(state, candidate, log_end, pre_vote=pre_vote)

    def forget_fetches(self) -> None:
        """Its leader leads no more: no fetch is delayed there, and an election deposes no leader."""
        self.has_fetched = self.has_fetched and self.config.decides(ENDED_LEADER_PROTECTED)

    def membership(self, voters: VoterSet) -> ReplicaKey | None:
        """The key under which this replica is in a voter set, None if it is not. A set without uuids matches by id."""
        voter = voters.key_of(self.node_id)
        return voter if voter is not None and self.can_vote and matches_voter(voter, self.key) else None

    @property
    def is_voter(self) -> bool:
        return self.membership(self.voters) is not None

    @property
    def is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters) == 1

    @property
    def can_be_candidate(self) -> bool:
        """Whether it may start elections: a voter, or one until a change that it does not know to be committed."""
        if self.config.decides(UNCOMMITTED_REMOVAL_OBEYED):
            return self.is_voter
        history = self.log.voters
        is_uncommitted = history.last_change >= self.high_watermark
        return self.is_voter or (is_uncommitted and self.membership(history.before(history.last_change)) is not None)

    def vote_request(self, voter: ReplicaKey, *, pre_vote: bool) -> VoteRequest:
        """A request for the vote of a voter in the present epoch."""
        return VoteRequest(
            correlation_id=self.next_correlation_id(),
            cluster_id=self.config.cluster_id,
            candidate_id=self.key.id,
            candidate_uuid=self.key.uuid,
            candidate_epoch=self.epoch,
            voter_id=voter.id,
            voter_uuid=voter.uuid,
            last_offset_epoch=self.log.last_epoch,
            last_offset=self.log.end_offset,
            pre_vote=pre_vote,
        )

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def respond(self, to: NodeId, request: QuorumRequest, error: ErrorCode = ErrorCode.NONE, **fields: Any) -> None:
        """Sends the response to a request. Every response carries this replica's epoch and known leader."""
        response = request.response_type()
        assert issubclass(response, QuorumResponse)
        fields |= {"error": error, "leader_id": self.leader, "leader_epoch": self.epoch}
        self.out.send(to, response(correlation_id=request.correlation_id, **fields))

    def reset_election_timer(self, now_ms: TimeMs) -> None:
        timeout_ms = self.config.election_ms + self.rng.randrange(self.config.election_ms)
        self.out.set_timer(ELECTION_TIMER, now_ms + timeout_ms)

    def backoff_ms(self) -> int:
        return self.config.election_ms // 2 + self.rng.randrange(1, self.config.backoff_ms + 1)
