"""Changes of the voters, one at a time (KIP-853).

A change is asked for, waits for its turn, is appended, and counts as done when the new set has committed it:

    asked      the leader answers at once where it cannot be: not the leader, a voter already, no such voter, the last
               one, endpoints or a new id where the voters are static (D12, D14, D20, D1)
    waiting    until a record of the leader's own epoch is committed (D15), no other change is uncommitted (D11), and
               the replica to be added has all that the leader has (D12)
    appended   in force from here on (D8), until it is committed by a majority of the new voters

Whoever asked is answered when that is over, or after `WITHIN_MS`, by which an appended change is not undone (D16); or
when the leader is it no more, by which it may be.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ErrorCode
from protocol.ids import NO_OFFSET, NodeId, Offset, TimeMs
from protocol.messages.quorum import (
    AddVoterRecord,
    AddVoterRequest,
    ControlRecord,
    RemoveVoterRecord,
    RemoveVoterRequest,
)
from protocol.quorum.leadership import Leadership
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet

WITHIN_MS = 30_000

VoterRequest = AddVoterRequest | RemoveVoterRequest


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

    @property
    def record(self) -> ControlRecord:
        voter = self.voter
        if isinstance(self.request, AddVoterRequest):
            return AddVoterRecord(voter_id=voter.id, voter_uuid=voter.uuid, endpoints=self.request.endpoints)
        return RemoveVoterRecord(voter_id=voter.id, voter_uuid=voter.uuid)


def refusal(request: VoterRequest, voters: VoterSet, *, static: bool) -> tuple[ErrorCode, str]:
    """Why a change can not be made of these voters, NONE where it can."""
    voter = ReplicaKey(request.voter_id, request.voter_uuid)
    same_id = voters.key_of(voter.id)
    if isinstance(request, RemoveVoterRequest):
        if voter not in voters:
            return ErrorCode.VOTER_NOT_FOUND, f"{voter} is no voter; voters: {_list(voters)}"
        if len(voters) == 1:
            return ErrorCode.INVALID_REQUEST, f"{voter} is the last voter"
    elif not voter.uuid:
        return ErrorCode.INVALID_REQUEST, f"replica {voter.id} without a uuid can be no voter"
    elif voter in voters:
        return ErrorCode.DUPLICATE_VOTER, f"{voter} is a voter already"
    elif static and request.endpoints:
        return ErrorCode.INVALID_REQUEST, "endpoints are given, and controller.quorum.voters lists them"
    elif static and same_id is None:
        return ErrorCode.INVALID_REQUEST, f"controller.quorum.voters does not list replica {voter.id}"
    elif not static and same_id is not None:
        return ErrorCode.DUPLICATE_VOTER, f"{same_id} has the id of {voter}; remove it first"
    return ErrorCode.NONE, ""


def may_append(
    change: Change, history: VoterHistory, leadership: Leadership, high_watermark: Offset, end: Offset
) -> bool:
    """Whether it is the turn of a waiting change."""
    if high_watermark <= leadership.start_offset or history.last_change >= high_watermark:
        return False
    if isinstance(change.request, RemoveVoterRequest):
        return True
    progress = leadership.progress.get(change.voter)
    return progress is not None and progress.end_offset >= end


def _list(voters: VoterSet) -> str:
    return ", ".join(map(str, voters.keys))
