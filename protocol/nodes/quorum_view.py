"""A controller's role in the quorum, for operators and experiments."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import Epoch
from protocol.quorum.election import Role
from protocol.quorum.replica import QuorumReplica
from protocol.quorum.voters import ReplicaKey

OBSERVER = "observer"


@dataclass(frozen=True, slots=True)
class QuorumView:
    """A controller's own view: `role` is `leader` for the active controller, `observer` for one without a vote, else
    the role of its replica; `uuid` is that of its disk; `voters` is the latest set of voters in its log.
    """

    role: str
    uuid: str
    epoch: Epoch
    is_active: bool
    voters: tuple[ReplicaKey, ...]


def quorum_view(replica: QuorumReplica, is_active: bool) -> QuorumView:
    """The view of a controller with this replica; a leader that is not active yet is shown as `candidate`."""
    role = replica.role.value
    if replica.is_leader:
        role = Role.LEADER.value if is_active else Role.CANDIDATE.value
    elif not replica.is_voter:
        role = OBSERVER
    return QuorumView(role, replica.key.uuid, replica.epoch, is_active, replica.voters.keys)
