"""Requests between replicas of the metadata log, control records, and administration of the quorum (KIP-595, KIP-853,
KIP-996).

A replica is identified by its node id and the uuid of its disk, so a replaced disk is another replica with the same id
(D4). `replica_uuid` is empty for observers that can never be voters (D23). `leader_epoch` is the epoch of the metadata
log, not that of a partition. Names and fields are those of requirements G10-G19, without the arrays of topics and
partitions, because there is one metadata log. Every response can announce a new leader.

Control records are in the log like all other records; the metadata image skips them. They take effect when they are
appended (D8). Releases before KIP-853 send versions without uuids. A missing uuid is empty, and as long as a voter has
none, the voters cannot be changed (D35).
"""

from __future__ import annotations

from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Int16, Int32, Int64, Message, Request, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.records import MetadataRecord

MAX_PORT = 65_535
FETCH_BYTES = 1_048_576
"""Bytes that a fetch of the metadata log or of a snapshot requests by default (KIP-1219)."""


class Endpoint(Message):
    """An endpoint of a voter. `security_protocol` is Kafka's number; 0 is PLAINTEXT."""

    name: str
    host: str
    port: Int32
    security_protocol: Int16 = 0


class Voter(Message):
    """A voter by its id and the uuid of its disk (D4)."""

    voter_id: Int32
    voter_uuid: str


class ControlRecord(MetadataRecord):
    """Base of the records about the log itself and its voters."""


class LeaderChangeRecord(ControlRecord):
    """The first record of a leader's epoch, with the leader and the voters (D10)."""

    leader_id: Int32
    leader_uuid: str
    voters: tuple[Voter, ...]


class AddVoterRecord(ControlRecord):
    """Adds a voter, from this record on (G10)."""

    voter_id: Int32
    voter_uuid: str
    endpoints: tuple[Endpoint, ...] = ()


class RemoveVoterRecord(ControlRecord):
    """Removes a voter, from this record on (G11)."""

    voter_id: Int32
    voter_uuid: str


class QuorumRequest(Request, control=True):
    """Base of the requests between replicas of the metadata log. Requests of another cluster id are rejected."""

    cluster_id: str


class QuorumResponse(Response, control=True):
    """Base of the responses between replicas: the sender's epoch and the leader that it knows (-1: none)."""

    leader_id: Int32 = NO_LEADER
    leader_epoch: Int32 = NO_EPOCH


class VoteRequest(QuorumRequest, since={"candidate_uuid": 1, "voter_uuid": 1, "pre_vote": 2}):
    """A candidate requests a vote in `candidate_epoch`; with `pre_vote` it asks, in its current epoch, whether it would
    get one (KIP-996). (`last_offset_epoch`, `last_offset`) is the end of its log (G17).
    """

    candidate_id: Int32
    candidate_epoch: Int32
    voter_id: Int32
    last_offset_epoch: Int32
    last_offset: Int64
    candidate_uuid: str = ""
    voter_uuid: str = ""
    pre_vote: bool = False


class VoteResponse(QuorumResponse):
    """Whether the voter grants its vote, or would grant it."""

    vote_granted: bool = False


class BeginQuorumEpochRequest(QuorumRequest, since={"voter_uuid": 1}):
    """The leader of an epoch announces itself to a voter that does not fetch from it (G18)."""

    voter_id: Int32
    leader_id: Int32
    leader_epoch: Int32
    voter_uuid: str = ""


class BeginQuorumEpochResponse(QuorumResponse):
    """Acknowledges the epoch; no fields of its own."""


class EndQuorumEpochRequest(QuorumRequest):
    """A leader resigns. `preferred_successors`: its voters, longest log first; the first starts an election at once."""

    leader_id: Int32
    leader_epoch: Int32
    preferred_successors: tuple[Voter, ...]


class EndQuorumEpochResponse(QuorumResponse):
    """Acknowledges the epoch; no fields of its own."""


class QuorumFetchRequest(QuorumRequest, since={"replica_uuid": 14}):
    """A replica whose log ends at `fetch_offset` after a record of `last_fetched_epoch` requests what follows, and
    knows `high_watermark` (G16). The leader delays the request until there is more, and responds with about
    `max_bytes`, at least one batch.
    """

    replica_id: Int32
    current_leader_epoch: Int32
    fetch_offset: Int64
    last_fetched_epoch: Int32
    high_watermark: Int64
    max_bytes: Int32 = FETCH_BYTES
    replica_uuid: str = ""


class QuorumFetchResponse(QuorumResponse):
    """The batches from the fetch offset on; or the end of an epoch at which the follower's log diverges; or the id of
    the snapshot to fetch if the leader's log starts above the fetch offset.
    """

    high_watermark: Int64 = 0
    batches: tuple[RecordBatch, ...] = ()
    diverging_epoch: Int32 = NO_EPOCH
    diverging_end_offset: Int64 = NO_OFFSET
    snapshot_epoch: Int32 = NO_EPOCH
    snapshot_end_offset: Int64 = NO_OFFSET


class FetchSnapshotRequest(QuorumRequest, since={"replica_uuid": 1}):
    """Requests at most `max_bytes` of a snapshot, at least 1, from `position` on (KIP-630)."""

    replica_id: Int32
    current_leader_epoch: Int32
    snapshot_epoch: Int32
    snapshot_end_offset: Int64
    position: Int64
    max_bytes: Int32 = FETCH_BYTES
    replica_uuid: str = ""


class FetchSnapshotResponse(QuorumResponse):
    """Bytes of a snapshot from `position` on; `size` is the size of the whole snapshot in bytes."""

    snapshot_epoch: Int32 = NO_EPOCH
    snapshot_end_offset: Int64 = NO_OFFSET
    size: Int64 = 0
    position: Int64 = 0
    data: bytes = b""


VOTER_CHANGE_TIMEOUT_MS = 30_000


class CurrentLeader(Message):
    """The leader that the responding replica knows; -1 if it knows none (D13)."""

    leader_id: Int32 = NO_LEADER
    leader_epoch: Int32 = NO_EPOCH


class AddVoterRequest(AdminRequest, since={"ack_when_committed": 1}):
    """Adds a voter (G13). An empty `cluster_id` is not checked. `timeout_ms` limits the wait for the commit, or without
    `ack_when_committed` for the append (KIP-1186).
    """

    cluster_id: str = ""
    voter_id: Int32
    voter_uuid: str
    endpoints: tuple[Endpoint, ...] = ()
    timeout_ms: Int32 = VOTER_CHANGE_TIMEOUT_MS
    ack_when_committed: bool = True


class AddVoterResponse(AdminResponse):
    """Sent when the change is committed or rejected, or as soon as it is appended where the request asks for that.
    NOT_CONTROLLER comes with the current leader (G14).
    """

    current_leader: CurrentLeader = CurrentLeader()


class RemoveVoterRequest(AdminRequest):
    """Removes a voter (G15, N18). Fields as in `AddVoterRequest`."""

    cluster_id: str = ""
    voter_id: Int32
    voter_uuid: str
    timeout_ms: Int32 = VOTER_CHANGE_TIMEOUT_MS


class RemoveVoterResponse(AdminResponse):
    """Sent when the change is committed or rejected, as `AddVoterResponse`."""

    current_leader: CurrentLeader = CurrentLeader()


class DescribeQuorumRequest(AdminRequest):
    """Requests the replicas of the metadata log and their progress (G19)."""


class ReplicaState(Message):
    """A replica of the metadata log as its leader knows it. `last_fetch_ms` is the leader's time of its last fetch, -1
    if it has not fetched in this epoch; then `log_end_offset` is -1 and `lag` that of an empty log.
    `last_caught_up_ms` is when it had all records of the leader last, -1 if never in this epoch. `is_promotable` is
    true for observers that can become voters, and for voters that the leader has heard from within the fetch timeout
    (D29).
    """

    replica_id: Int32
    replica_uuid: str
    endpoints: tuple[Endpoint, ...] = ()
    log_end_offset: Int64 = NO_OFFSET
    lag: Int64 = 0
    last_fetch_ms: Int64 = -1
    last_caught_up_ms: Int64 = -1
    is_promotable: bool = False


class DescribeQuorumResponse(AdminResponse):
    """The leader's view of all replicas at `now_ms` by its clock. NOT_CONTROLLER: only leader id and epoch are set."""

    cluster_id: str = ""
    leader_id: Int32 = NO_LEADER
    leader_uuid: str = ""
    leader_epoch: Int32 = NO_EPOCH
    high_watermark: Int64 = NO_OFFSET
    now_ms: Int64 = -1
    voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()
