"""Controllers of a release that knows nothing of changes of the voters among others that do: an upgrade, node by node.

Such a controller says nothing of its disk: its fetches and votes have no uuid, for their versions have no field for it.
"""

from __future__ import annotations

import pytest

from experiments.hunt.quorum.lab import QuorumLab
from protocol.errors import ErrorCode
from protocol.ids import NodeId
from protocol.messages.base import Message
from protocol.messages.codec import decode, encode
from protocol.messages.quorum import (
    AddVoterResponse,
    BeginQuorumEpochRequest,
    FetchSnapshotRequest,
    QuorumFetchRequest,
    VoteRequest,
)
from protocol.quorum.voters import NO_UUID
from tests.sim.quorum_helpers import answer, ask, change, leader, replica, settle

FORMER: dict[type[Message], int] = {
    VoteRequest: 0,
    BeginQuorumEpochRequest: 0,
    QuorumFetchRequest: 13,
    FetchSnapshotRequest: 0,
}
"""The versions in which that release sends; of all others there is one."""


class MixedReleases(QuorumLab):
    """Static voters, of which those in `former` are of the release before."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed, 3, static=True)
        self.former: set[NodeId] = set()

    def restart(self, node: NodeId) -> None:
        self.crash(node)
        self.start(node)

    def _send(self, source: NodeId, target: NodeId, message: Message) -> None:
        if source in self.former:
            if isinstance(message, VoteRequest) and message.pre_vote:
                return  # they know of none either
            uuids = {name: NO_UUID for name in type(message).SINCE if name.endswith("_uuid")}
            message = decode(encode(message.model_copy(update=uuids), FORMER.get(type(message))))
        super()._send(source, target, message)


@pytest.mark.covers("D21", "D35")
def test_voters_change_when_all_of_them_can_follow_that() -> None:
    lab = MixedReleases("upgrade")
    lab.start(*lab.disks)
    settle(lab)
    first, second = (node for node in lab.ids if node != leader(lab).key.id)
    lab.former = {second}
    lab.restart(second)
    settle(lab)
    committed = len(lab.committed)
    refused = answer(lab, ask(lab, True, replica(lab, first).key, timeout_ms=2_000))
    assert isinstance(refused, AddVoterResponse)
    assert refused.error is ErrorCode.REQUEST_TIMED_OUT
    assert refused.message == f"not done within 2000 ms: voter {second} has not fetched with a uuid"
    assert all(not key.uuid for key in leader(lab).voters.keys), "nothing has changed"
    lab.append()
    settle(lab)
    assert len(lab.committed) == committed + 1, "the quorum goes on"
    lab.former = set()
    lab.restart(second)
    settle(lab)
    assert change(lab, True, replica(lab, first).key) is ErrorCode.NONE
    settle(lab)
    assert replica(lab, first).key in leader(lab).voters
