"""Changes of the voters, one at a time (KIP-853).

A change is asked for, waits for its turn, is appended, and counts as done when the new set has committed it:

    asked      answered at once where it cannot be: not the leader, a voter already, no such voter, the last one; where
               the voters are static anything but another disk of one of them (D12, D14, D20, D1)
    waiting    until a record of the leader's own epoch is committed (D15), no other change is uncommitted (D11), all
               voters fetch with a uuid, which those of releases that know of no changes do not (D35), and the replica
               to be added has all that the leader has (D12)
    appended   in force from here on (D8), until it is committed by a majority of the new voters

Whoever asked is answered when that is over, or after the time that the request gives it, by which an appended change is
not undone (D16); or when the leader is it no more, by which it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from protocol.quorum.leadership import Leadership
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet, is_meant

VoterRequest = AddVoterRequest | RemoveVoterRequest
VoterResponse = AddVoterResponse | RemoveVoterResponse


@dataclass(slots=True)
class Change:
    """A change that somebody waits for; `offset` is that of its record, -1 as long as it is waiting."""

    asked_by: NodeId
    request: VoterRequest
    until_ms: TimeMs
    offset: Offset = NO_OFFSET

    @property
    def voter(self) -> ReplicaKey:
        return ReplicaKey(self.request.voter_id, self.request.voter_uuid)

    def record(self, voters: VoterSet) -> ControlRecord:
        """What makes the change of these voters."""
        voter = self.voter
        if isinstance(self.request, AddVoterRequest):
            return AddVoterRecord(voter_id=voter.id, voter_uuid=voter.uuid, endpoints=self.request.endpoints)
        gone = voters.key_of(voter.id) or voter
        return RemoveVoterRecord(voter_id=gone.id, voter_uuid=gone.uuid)


def response_to(
    request: VoterRequest,
    error: ErrorCode = ErrorCode.NONE,
    message: str = "",
    current_leader: CurrentLeader | None = None,
) -> VoterResponse:
    """The answer to a request; `current_leader` where another is to be asked."""
    kind = AddVoterResponse if isinstance(request, AddVoterRequest) else RemoveVoterResponse
    leader = current_leader or CurrentLeader()
    return kind(correlation_id=request.correlation_id, error=error, message=message, current_leader=leader)


def not_leader(request: VoterRequest, leader: NodeId, epoch: Epoch) -> VoterResponse:
    """The answer of a replica that does not lead and knows this leader (-1: none) in this epoch (D13)."""
    current = CurrentLeader(leader_id=leader, leader_epoch=epoch)
    return response_to(request, ErrorCode.NOT_CONTROLLER, leader_text(leader, epoch), current)


def leader_text(leader: NodeId, epoch: Epoch) -> str:
    """Who leads, in words."""
    return f"epoch {epoch} has no leader" if leader == NO_LEADER else f"{leader} leads in epoch {epoch}"


def refusal(request: VoterRequest, voters: VoterSet, *, static: bool) -> tuple[ErrorCode, str]:
    """Why a change can not be made of these voters, NONE where it can."""
    if request.timeout_ms < 0:
        return ErrorCode.INVALID_REQUEST, f"timeout_ms: found {request.timeout_ms}; allowed: from 0"
    voter = ReplicaKey(request.voter_id, request.voter_uuid)
    same_id = voters.key_of(voter.id)
    if isinstance(request, RemoveVoterRequest):
        return _removal_refusal(voter, same_id, voters, static=static)
    if static and request.endpoints:
        return ErrorCode.INVALID_REQUEST, "endpoints are given, and controller.quorum.voters lists them"
    wrong = _wrong_endpoint(request.endpoints)
    if wrong:
        return ErrorCode.INVALID_REQUEST, wrong
    return _addition_refusal(voter, same_id, static=static)


def _removal_refusal(
    voter: ReplicaKey, same_id: ReplicaKey | None, voters: VoterSet, *, static: bool
) -> tuple[ErrorCode, str]:
    if same_id is None:
        return ErrorCode.VOTER_NOT_FOUND, f"no voter has id {voter.id}; voters: {_list(voters)}"
    if not is_meant(same_id, voter):
        return ErrorCode.VOTER_NOT_FOUND, f"{voter} is no voter: the voter of that id is {same_id}"
    if static:
        return ErrorCode.INVALID_REQUEST, "controller.quorum.voters lists who votes; only a disk can be replaced"
    if len(voters) == 1:
        return ErrorCode.INVALID_REQUEST, f"{same_id} is the last voter"
    return ErrorCode.NONE, ""


def _addition_refusal(voter: ReplicaKey, same_id: ReplicaKey | None, *, static: bool) -> tuple[ErrorCode, str]:
    if voter.id < 0:
        return ErrorCode.INVALID_REQUEST, f"voter_id: found {voter.id}; allowed: from 0"
    if not voter.uuid:
        return ErrorCode.INVALID_REQUEST, f"replica {voter.id} without a uuid can be no voter"
    if voter == same_id:
        return ErrorCode.DUPLICATE_VOTER, f"{voter} is a voter already"
    if static and same_id is None:
        return ErrorCode.INVALID_REQUEST, f"controller.quorum.voters does not list replica {voter.id}"
    if not static and same_id is not None:
        return ErrorCode.DUPLICATE_VOTER, f"{same_id} has the id of {voter}; remove it first"
    return ErrorCode.NONE, ""


def _wrong_endpoint(endpoints: Sequence[Endpoint]) -> str:
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) < len(names):
        return f"endpoints: found the names {', '.join(names)}; allowed: each once"
    wrong = next((endpoint for endpoint in endpoints if not 0 < endpoint.port <= MAX_PORT), None)
    return "" if wrong is None else f"endpoints: {wrong.name}: found port {wrong.port}; allowed: 1 to {MAX_PORT}"


def obstacle(change: Change, history: VoterHistory, leadership: Leadership, high_watermark: Offset, end: Offset) -> str:
    """What a waiting change has to wait for, in words; empty where it is its turn."""
    if high_watermark <= leadership.start_offset:
        return f"nothing of epoch {leadership.epoch} is committed"
    if history.last_change >= high_watermark:
        return "another change is not committed"
    unable = leadership.without_uuid(history.latest)
    if unable is not None and unable.id != change.voter.id:
        return f"voter {unable.id} has not fetched with a uuid"
    progress = leadership.progress.get(change.voter)
    if isinstance(change.request, RemoveVoterRequest) or change.voter == leadership.me:
        return ""
    if progress is not None and progress.end_offset >= end:
        return ""
    has = "does not fetch" if progress is None else f"has {progress.end_offset} of {end} records"
    return f"{change.voter} {has}"


def _list(voters: VoterSet) -> str:
    return ", ".join(map(str, voters.keys))
