"""What the parts of a replica of the metadata log share: who it is, what it has on its disk, where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from protocol.config import (
    CONTROLLER_QUORUM_BOOTSTRAP_SERVERS,
    CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS,
    CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS,
    CONTROLLER_QUORUM_FETCH_TIMEOUT_MS,
    CONTROLLER_QUORUM_VOTERS,
    ClusterConfig,
    node_ids,
)
from protocol.contract import Outbox, Storage
from protocol.errors import ErrorCode, ForeignDirectoryError
from protocol.ids import METADATA_LOG, NO_LEADER, Epoch, NodeId, Offset, TimeMs
from protocol.messages.quorum import (
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
    VoteRequest,
    VoteResponse,
)
from protocol.quorum import state_file
from protocol.quorum.election import Role, Standing
from protocol.quorum.log import QuorumLog
from protocol.quorum.state_file import QuorumState
from protocol.quorum.voters import NO_UUID, ReplicaKey, VoterSet, is_meant

RENEWAL_MS = 500
"""How often at least a follower asks its leader (Kafka's wait of a metadata fetch)."""
ELECTION_TIMER = "quorum-election"
FETCH_TIMER = "quorum-fetch"

_RESPONSES: dict[type[QuorumRequest], type[QuorumResponse]] = {
    VoteRequest: VoteResponse,
    BeginQuorumEpochRequest: BeginQuorumEpochResponse,
    EndQuorumEpochRequest: EndQuorumEpochResponse,
    QuorumFetchRequest: QuorumFetchResponse,
    FetchSnapshotRequest: FetchSnapshotResponse,
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

    @staticmethod
    def of(config: ClusterConfig, controllers: Sequence[NodeId], cluster_id: str) -> QuorumConfig:
        """What the config of a cluster with these controllers says."""
        servers = node_ids(config.values[CONTROLLER_QUORUM_BOOTSTRAP_SERVERS])
        return QuorumConfig(
            cluster_id,
            voters=node_ids(config.values[CONTROLLER_QUORUM_VOTERS]),
            bootstrap=servers or tuple(controllers),
            election_ms=config.int_value(CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS),
            fetch_ms=config.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS),
            backoff_ms=config.int_value(CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS),
            renewal_ms=max(1, min(RENEWAL_MS, config.int_value(CONTROLLER_QUORUM_FETCH_TIMEOUT_MS) // 4)),
        )

    @property
    def is_static(self) -> bool:
        return bool(self.voters)


class QuorumContext:
    """See the module docstring. `has_fetched` tells a follower's leader has answered it in this epoch."""

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
        self.state = QuorumState(config.cluster_id, NO_UUID)
        self.log: QuorumLog
        self._storage = storage
        self._key = ReplicaKey(node_id, NO_UUID)
        self._correlation_id = rng.getrandbits(30)  # an answer to a former life is none to this one

    def load(self) -> None:
        """Takes up what the disk holds; gives it a uuid where it has none. ForeignDirectoryError for one of another
        cluster, CorruptLogError for one that is damaged, other StorageErrors as the disk has them; such a disk is left
        as it is.
        """
        raw = self._storage.read_file(state_file.FILE)
        if raw is not None:
            self.state = state_file.decode(raw)
            found, own = self.state.cluster_id, self.config.cluster_id
            if found not in ("", own):
                raise ForeignDirectoryError(f"{state_file.FILE}: clusterId: found {found!r}; allowed: {own!r}")
        static = VoterSet.of(ReplicaKey(voter, NO_UUID) for voter in self.config.voters)
        self.log = QuorumLog(self._storage, METADATA_LOG, static)
        if self.can_vote and not self.state.uuid:
            self.save(uuid=f"{self.rng.getrandbits(128):032x}")
        if self.log.last_epoch > self.epoch:
            self.save(epoch=self.log.last_epoch, leader=NO_LEADER, voted=None)
        self.high_watermark = 0 if self.log.snapshot is None else self.log.snapshot.end_offset

    def save(self, **changes: Any) -> None:
        """Changes the quorum state, durably."""
        values = {name: getattr(self.state, name) for name in ("uuid", "epoch", "leader", "voted")}
        self.state = QuorumState(self.config.cluster_id, **(values | changes))
        self._storage.write_file(state_file.FILE, self.state.encode())

    # -- who it is -----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> ReplicaKey:
        if self._key.uuid != self.state.uuid:
            self._key = ReplicaKey(self.node_id, self.state.uuid)
        return self._key

    @property
    def epoch(self) -> Epoch:
        return self.state.epoch

    @property
    def leader(self) -> NodeId:
        """The leader of this epoch as far as it is known, -1 where not."""
        return self.state.leader

    @property
    def voters(self) -> VoterSet:
        """The newest."""
        return self.log.voters.latest

    @property
    def standing(self) -> Standing:
        return Standing(self.role, self.leader, self.state.voted, self.has_fetched, self.log.end)

    def membership(self, voters: VoterSet) -> ReplicaKey | None:
        """This replica in a set of voters, by its key, or by its id where that is all that the set knows of it."""
        voter = voters.key_of(self.node_id)
        return voter if voter is not None and self.can_vote and is_meant(voter, self.key) else None

    @property
    def is_voter(self) -> bool:
        return self.membership(self.voters) is not None

    @property
    def is_alone(self) -> bool:
        """Whether it is the one voter."""
        return self.is_voter and len(self.voters) == 1

    @property
    def may_stand(self) -> bool:
        """Whether it is a voter, or was one before a change that is not known to be committed."""
        history = self.log.voters
        if history.last_change >= self.high_watermark and self.membership(history.before(history.last_change)):
            return True
        return self.is_voter

    # -- what it says --------------------------------------------------------------------------------------------------

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def answer(self, to: NodeId, request: QuorumRequest, error: ErrorCode = ErrorCode.NONE, **fields: Any) -> None:
        """The answer to a request, which tells of the epoch and its leader in any case."""
        response = _RESPONSES[type(request)]
        number = request.correlation_id
        self.out.send(
            to, response(correlation_id=number, error=error, leader_id=self.leader, leader_epoch=self.epoch, **fields)
        )

    def wait_for_election(self, now_ms: TimeMs) -> None:
        """The election timer is set anew, to a drawn time."""
        self.out.set_timer(
            ELECTION_TIMER, now_ms + self.config.election_ms + self.rng.randrange(self.config.election_ms)
        )

    def backoff_ms(self) -> int:
        """How long to wait after a lost election."""
        return self.config.election_ms // 2 + self.rng.randrange(1, self.config.backoff_ms + 1)
