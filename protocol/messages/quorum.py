"""What the replicas of the metadata log say to each other (KIP-595, KIP-853, KIP-996), and the records by which they
change who they are.

A replica is known by its id and the uuid of its disk together: a replaced disk is another replica under the same id
(D4). `replica_uuid` is empty for observers that can never be voters (D23). `leader_epoch` is always the epoch of the
metadata log, not that of a partition. Names and fields are those of requirements G10-G19, without their arrays of
topics and partitions: there is one such log. Every answer tells the epoch of who answers and its leader (-1: unknown),
so that all learn of a new one from whomever they ask.

An operator asks for changes of the voters, and for a description, by administration requests (`admin.py`), which only
the leader serves.

Control records stand in the same log as all other records and take an offset each; the metadata image passes over
them. They count from the moment at which they are appended (D8).

Releases before KIP-853 send the versions that know of no uuids; those are read as a replica whose uuid nobody knows,
and as long as a voter is one, the voters stay as they are (D35).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from protocol.ids import NO_EPOCH, NO_LEADER, NO_OFFSET
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.base import Int16, Int32, Int64, Message, Request, Response
from protocol.messages.batch import RecordBatch
from protocol.messages.records import MetadataRecord

MAX_PORT = 65_535


class Endpoint(Message):
    """Where a voter listens. `security_protocol` is Kafka's number; 0 is plain text."""

    name: str
    host: str
    port: Int32
    security_protocol: Int16 = 0


class Voter(Message):
    """A voter by its id and the uuid of its disk."""

    voter_id: Int32
    voter_uuid: str


class ControlRecord(MetadataRecord):
    """Base of the records that are about the log itself and its replicas."""


class LeaderChangeRecord(ControlRecord):
    """The first record of every leader's epoch (D10)."""

    leader_id: Int32
    leader_uuid: str
    voters: tuple[Voter, ...]


class AddVoterRecord(ControlRecord):
    """From here on this replica is a voter (G10)."""

    voter_id: Int32
    voter_uuid: str
    endpoints: tuple[Endpoint, ...] = ()


class RemoveVoterRecord(ControlRecord):
    """From here on this replica is no voter (G11)."""

    voter_id: Int32
    voter_uuid: str


class QuorumRequest(Request):
    """Base of the requests between replicas of the metadata log."""

    CONTROL: ClassVar[bool] = True

    cluster_id: str


class QuorumResponse(Response):
    """Base of their answers."""

    CONTROL: ClassVar[bool] = True

    leader_id: Int32 = NO_LEADER
    leader_epoch: Int32 = NO_EPOCH


class VoteRequest(QuorumRequest):
    """A candidate asks for a vote in `candidate_epoch`; with `pre_vote` it asks whether it would get one, in the epoch
    that it has (KIP-996). (`last_offset_epoch`, `last_offset`) is where its log ends.
    """

    SINCE: ClassVar[Mapping[str, int]] = {"candidate_uuid": 1, "voter_uuid": 1, "pre_vote": 2}

    candidate_id: Int32
    candidate_epoch: Int32
    voter_id: Int32
    last_offset_epoch: Int32
    last_offset: Int64
    candidate_uuid: str = ""
    voter_uuid: str = ""
    pre_vote: bool = False


class VoteResponse(QuorumResponse):
    vote_granted: bool = False


class BeginQuorumEpochRequest(QuorumRequest):
    """The leader of an epoch makes itself known to a voter that has not fetched from it."""

    SINCE: ClassVar[Mapping[str, int]] = {"voter_uuid": 1}

    voter_id: Int32
    leader_id: Int32
    leader_epoch: Int32
    voter_uuid: str = ""


class BeginQuorumEpochResponse(QuorumResponse):
    """Nothing but what every answer tells."""


class EndQuorumEpochRequest(QuorumRequest):
    """The leader of an epoch goes; its voters, the one that has most of the log first, may elect another at once."""

    leader_id: Int32
    leader_epoch: Int32
    preferred_successors: tuple[Voter, ...]


class EndQuorumEpochResponse(QuorumResponse):
    """Nothing but what every answer tells."""


class QuorumFetchRequest(QuorumRequest):
    """A replica that has the log up to `fetch_offset`, its last record of `last_fetched_epoch`, asks for more and means
    it as a parked fetch; by it the leader knows what the replica has. `high_watermark` is the last that it heard of.
    """

    SINCE: ClassVar[Mapping[str, int]] = {"replica_uuid": 14}

    replica_id: Int32
    current_leader_epoch: Int32
    fetch_offset: Int64
    last_fetched_epoch: Int32
    high_watermark: Int64
    replica_uuid: str = ""


class QuorumFetchResponse(QuorumResponse):
    """Batches from the fetch offset on; or where the leader's log parts from the follower's (`diverging_epoch` ends
    at `diverging_end_offset`); or the snapshot to fetch, where the log begins behind the fetch offset.
    """

    high_watermark: Int64 = 0
    batches: tuple[RecordBatch, ...] = ()
    diverging_epoch: Int32 = NO_EPOCH
    diverging_end_offset: Int64 = NO_OFFSET
    snapshot_epoch: Int32 = NO_EPOCH
    snapshot_end_offset: Int64 = NO_OFFSET


class FetchSnapshotRequest(QuorumRequest):
    """Bytes of a snapshot from `position` on."""

    SINCE: ClassVar[Mapping[str, int]] = {"replica_uuid": 1}

    replica_id: Int32
    current_leader_epoch: Int32
    snapshot_epoch: Int32
    snapshot_end_offset: Int64
    position: Int64
    replica_uuid: str = ""


class FetchSnapshotResponse(QuorumResponse):
    """`size` is that of the whole snapshot, in bytes."""

    snapshot_epoch: Int32 = NO_EPOCH
    snapshot_end_offset: Int64 = NO_OFFSET
    size: Int64 = 0
    position: Int64 = 0
    data: bytes = b""


VOTER_CHANGE_TIMEOUT_MS = 30_000


class CurrentLeader(Message):
    """Who leads, as far as the one that was asked knows; -1: it does not (D13)."""

    leader_id: Int32 = NO_LEADER
    leader_epoch: Int32 = NO_EPOCH


class AddVoterRequest(AdminRequest):
    """An operator makes a replica a voter (G13). `cluster_id` may be empty: then it is not checked."""

    cluster_id: str = ""
    voter_id: Int32
    voter_uuid: str
    endpoints: tuple[Endpoint, ...] = ()
    timeout_ms: Int32 = VOTER_CHANGE_TIMEOUT_MS


class AddVoterResponse(AdminResponse):
    """Answered when the change is committed; NOT_CONTROLLER comes with the leader to ask instead (G14)."""

    current_leader: CurrentLeader = CurrentLeader()


class RemoveVoterRequest(AdminRequest):
    """An operator ends a replica's vote (G15, N18). `cluster_id` as in `AddVoterRequest`."""

    cluster_id: str = ""
    voter_id: Int32
    voter_uuid: str
    timeout_ms: Int32 = VOTER_CHANGE_TIMEOUT_MS


class RemoveVoterResponse(AdminResponse):
    """As `AddVoterResponse`."""

    current_leader: CurrentLeader = CurrentLeader()


class DescribeQuorumRequest(AdminRequest):
    """Who replicates the metadata log, and how far each of them is (G19)."""


class ReplicaState(Message):
    """A replica of the metadata log as its leader knows it. `last_fetch_ms` is by the leader's clock, -1 where it has
    not fetched in this epoch; its `log_end_offset` is not known then, -1, and its `lag` that of an empty log.
    `is_promotable` says whether it is a voter, or an observer that could become one (D29).
    """

    replica_id: Int32
    replica_uuid: str
    endpoints: tuple[Endpoint, ...] = ()
    log_end_offset: Int64 = NO_OFFSET
    lag: Int64 = 0
    last_fetch_ms: Int64 = -1
    is_promotable: bool = False


class DescribeQuorumResponse(AdminResponse):
    """The leader's own description, at `now_ms` by its clock. NOT_CONTROLLER tells the leader to ask instead, and
    nothing else.
    """

    cluster_id: str = ""
    leader_id: Int32 = NO_LEADER
    leader_uuid: str = ""
    leader_epoch: Int32 = NO_EPOCH
    high_watermark: Int64 = NO_OFFSET
    now_ms: Int64 = -1
    voters: tuple[ReplicaState, ...] = ()
    observers: tuple[ReplicaState, ...] = ()
