"""A rolling upgrade from a release before KIP-853, which has no changes of the voters.

Controllers of that release send no uuids: their versions of fetches and votes lack the fields.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.hunt.quorum.harness import QuorumHarness
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
"""The versions that the earlier release sends; other messages have one version only."""


class MixedReleases(QuorumHarness):
    """Static voters; those in `former` run the earlier release."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed, 3, static=True)
        self.former: set[NodeId] = set()

    def restart(self, node: NodeId) -> None:
        self.crash(node)
        self.start(node)

    def _send(self, source: NodeId, target: NodeId, message: Message) -> None:
        if source in self.former:
            if isinstance(message, VoteRequest) and message.pre_vote:
                return  # the earlier release has no pre-vote
            uuids = {name: NO_UUID for name in type(message).SINCE if name.endswith("_uuid")}
            message = decode(encode(replace(message, **uuids), FORMER.get(type(message))))
        super()._send(source, target, message)


@pytest.mark.covers("D21", "D35")
def test_voters_change_only_when_all_of_them_support_changes() -> None:
    harness = MixedReleases("upgrade")
    harness.start(*harness.disks)
    settle(harness)
    first, second = (node for node in harness.ids if node != leader(harness).key.id)
    harness.former = {second}
    harness.restart(second)
    settle(harness)
    committed = len(harness.view.committed)
    refused = answer(harness, ask(harness, True, replica(harness, first).key, timeout_ms=2_000))
    assert isinstance(refused, AddVoterResponse)
    assert refused.error is ErrorCode.REQUEST_TIMED_OUT
    assert refused.message == f"not done within 2000 ms: voter {second} has not fetched with a uuid"
    assert all(not key.uuid for key in leader(harness).voters.keys), "no voter has changed"
    harness.append()
    settle(harness)
    assert len(harness.view.committed) == committed + 1, "the quorum stays available"
    harness.former = set()
    harness.restart(second)
    settle(harness)
    assert change(harness, True, replica(harness, first).key) is ErrorCode.NONE
    settle(harness)
    assert replica(harness, first).key in leader(harness).voters
