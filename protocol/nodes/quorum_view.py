"""A controller's part in the quorum, in the words of operators and experiments."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Epoch
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

OBSERVER = "observer"


@dataclass(frozen=True, slots=True)
class QuorumView:
    """A controller's part as it sees it: `role` is `leader` of the active controller, `observer` of one that has no
    vote, else that of its replica; `uuid` is that of its disk; `voters` are those that it goes by.
    """

    role: str
    uuid: str
    epoch: Epoch
    is_active: bool
    voters: tuple[ReplicaKey, ...]


def quorum_view(replica: QuorumReplica, is_active: bool) -> QuorumView:
    """The view of a controller with this replica. A leader that is not active yet counts as the candidate it was."""
    role = replica.role.value
    if replica.is_leader:
        role = Role.LEADER.value if is_active else Role.CANDIDATE.value
    elif not replica.is_voter:
        role = OBSERVER
    return QuorumView(role, replica.key.uuid, replica.epoch, is_active, replica.voters.keys)
