"""Changes of the voter set, one at a time (KIP-853).

The leader takes an AddVoter or RemoveVoter request through these states:

    received   rejected at once if this replica does not lead, the replica is already a voter, the voter does not exist
               or is the last one (D12, D14, D20); with static voters, unless it replaces the disk of one of them (D1)
    waiting    until a record of the leader's own epoch is committed (D15), no other change is uncommitted (D11), every
               voter fetches with a uuid, which releases before KIP-853 do not (D35), and the replica to be added has
               caught up with the leader (D12)
    appended   in use from here on (D8), until a majority of the new voter set has committed it

The leader responds when the change is committed, or at the request's timeout; an expired change that was appended may
still be committed (D16). An AddVoter request may ask for the response when the change is appended; it can then be lost
with the leader (KIP-1186). A leader that loses its epoch responds NOT_CONTROLLER; the change may be lost.

With `controller.quorum.auto.join.enable` a controller without a vote makes itself a voter (KIP-853; Kafka 4.2.0,
KAFKA-19078). Every fetch timeout it requests from its leader what its log says is missing (`joining_request`): the end
of the vote of its former disk, which has its id, and then a vote of its own. So a controller whose disk was replaced
needs no operator, and one whose vote an operator has ended is soon a voter again, unless it has been stopped
(KAFKA-19850).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, NO_OFFSET, Epoch, NodeId, Offset, TimeMs
from protocol.messages.quorum import (
    MAX_PORT,
    AddVoterRecord,
    AddVoterRequest,
    AddVoterResponse,
    ControlRecord,
    CurrentLeader,
    Endpoint,
    RemoveVoterRecord,
    RemoveVoterRequest,
    RemoveVoterResponse,
)
from protocol.quorum.kafka_rules import CAUGHT_UP_ONCE
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet, matches_voter

VoterRequest = AddVoterRequest | RemoveVoterRequest
VoterResponse = AddVoterResponse | RemoveVoterResponse


@dataclass(slots=True)
class Change:
    """A change without a response yet: its requester, the deadline, and the offset of its record (-1: waiting)."""

    requester: NodeId
    request: VoterRequest
    until_ms: TimeMs
    offset: Offset = NO_OFFSET

    @property
    def voter(self) -> ReplicaKey:
        return ReplicaKey(self.request.voter_id, self.request.voter_uuid)

    def is_done(self, high_watermark: Offset) -> bool:
        """Whether its record is committed, or appended if that is all that the request asks for."""
        awaits_commit = not isinstance(self.request, AddVoterRequest) or self.request.ack_when_committed
        return self.offset >= 0 and (self.offset < high_watermark or not awaits_commit)

    def record(self, voters: VoterSet) -> ControlRecord:
        voter = self.voter
        if isinstance(self.request, AddVoterRequest):
            return AddVoterRecord(voter_id=voter.id, voter_uuid=voter.uuid, endpoints=self.request.endpoints)
        removed = voters.key_of(voter.id) or voter
        return RemoveVoterRecord(voter_id=removed.id, voter_uuid=removed.uuid)


def joining_request(me: ReplicaKey, voters: VoterSet, **fields: Any) -> VoterRequest | None:
    """The next request with which a controller makes itself one of these voters, with `fields`; None if it is one."""
    same_id = voters.key_of(me.id)
    if same_id is None:
        return AddVoterRequest(voter_id=me.id, voter_uuid=me.uuid, ack_when_committed=False, **fields)
    if matches_voter(same_id, me):
        return None
    return RemoveVoterRequest(voter_id=same_id.id, voter_uuid=same_id.uuid, **fields)


def response_to(
    request: VoterRequest, error: ErrorCode, message: str, leader: CurrentLeader | None = None
) -> VoterResponse:
    """The response to a voter request; with NOT_CONTROLLER `leader` is the one to send the request to."""
    kind = AddVoterResponse if isinstance(request, AddVoterRequest) else RemoveVoterResponse
    number, leader = request.correlation_id, leader or CurrentLeader()
    return kind(correlation_id=number, error=error, message=message, current_leader=leader)


def not_leader(request: VoterRequest, leader: NodeId, epoch: Epoch) -> VoterResponse:
    """The response of a replica that does not lead but knows the leader (-1: none) of its epoch (D13)."""
    current = CurrentLeader(leader_id=leader, leader_epoch=epoch)
    return response_to(request, ErrorCode.NOT_CONTROLLER, leader_text(leader, epoch), current)


def leader_text(leader: NodeId, epoch: Epoch) -> str:
    return f"epoch {epoch} has no leader" if leader == NO_LEADER else f"{leader} leads in epoch {epoch}"


def rejection(request: VoterRequest, voters: VoterSet, *, static: bool) -> tuple[ErrorCode, str]:
    """The error and message with which a leader with these voters rejects a request, NONE if it accepts it."""
    if request.timeout_ms < 0:
        return ErrorCode.INVALID_REQUEST, f"timeout_ms: found {request.timeout_ms}; allowed: from 0"
    voter = ReplicaKey(request.voter_id, request.voter_uuid)
    same_id = voters.key_of(voter.id)
    if isinstance(request, RemoveVoterRequest):
        return _removal_rejection(voter, same_id, voters, static=static)
    if static and request.endpoints:
        return ErrorCode.INVALID_REQUEST, "endpoints are set by controller.quorum.voters"
    error = _endpoint_error(request.endpoints)
    if error:
        return ErrorCode.INVALID_REQUEST, error
    return _addition_rejection(voter, same_id, static=static)


def _removal_rejection(
    voter: ReplicaKey, same_id: ReplicaKey | None, voters: VoterSet, *, static: bool
) -> tuple[ErrorCode, str]:
    if same_id is None:
        return ErrorCode.VOTER_NOT_FOUND, f"no voter has id {voter.id}; voters: {', '.join(map(str, voters.keys))}"
    if not matches_voter(same_id, voter):
        return ErrorCode.VOTER_NOT_FOUND, f"{voter} is not a voter: the voter of that id is {same_id}"
    if static:
        return ErrorCode.INVALID_REQUEST, "controller.quorum.voters lists the voters; only a disk can be replaced"
    if len(voters) == 1:
        return ErrorCode.INVALID_REQUEST, f"{same_id} is the last voter"
    return ErrorCode.NONE, ""


def _addition_rejection(voter: ReplicaKey, same_id: ReplicaKey | None, *, static: bool) -> tuple[ErrorCode, str]:
    if voter.id < 0:
        return ErrorCode.INVALID_REQUEST, f"voter_id: found {voter.id}; allowed: from 0"
    if not voter.uuid:
        return ErrorCode.INVALID_REQUEST, f"replica {voter.id} has no uuid and cannot be a voter"
    if voter == same_id:
        return ErrorCode.DUPLICATE_VOTER, f"{voter} is already a voter"
    if static and same_id is None:
        return ErrorCode.INVALID_REQUEST, f"controller.quorum.voters does not list replica {voter.id}"
    if not static and same_id is not None:
        return ErrorCode.DUPLICATE_VOTER, f"{same_id} has the id of {voter}; remove it first"
    return ErrorCode.NONE, ""


def _endpoint_error(endpoints: Sequence[Endpoint]) -> str:
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) < len(names):
        return f"endpoints: found the names {', '.join(names)}; allowed: each once"
    invalid = next((endpoint for endpoint in endpoints if not 0 < endpoint.port <= MAX_PORT), None)
    return "" if invalid is None else f"endpoints: {invalid.name}: found port {invalid.port}; allowed: 1 to {MAX_PORT}"


def blocking_reason(
    change: Change,
    history: VoterHistory,
    leader_state: LeaderState,
    high_watermark: Offset,
    end: Offset,
    kafka_rules: frozenset[str] = frozenset(),
) -> str:
    """Why a waiting change cannot be appended yet (empty: it can be). `end` is the leader's log end offset."""
    if high_watermark <= leader_state.start_offset:
        return f"no record of epoch {leader_state.epoch} is committed"
    if history.last_change >= high_watermark:
        return "another change is not committed"
    unable = leader_state.voter_without_uuid(history.latest)
    if unable is not None and unable.id != change.voter.id:
        return f"voter {unable.id} has not fetched with a uuid"
    progress = leader_state.progress.get(change.voter)
    if isinstance(change.request, RemoveVoterRequest) or change.voter == leader_state.local:
        return ""
    caught_up_once = CAUGHT_UP_ONCE in kafka_rules and progress is not None and progress.caught_up_ms >= 0
    if caught_up_once or (progress is not None and progress.end_offset >= end):
        return ""
    has = "does not fetch" if progress is None else f"has {progress.end_offset} of {end} records"
    return f"{change.voter} {has}"
