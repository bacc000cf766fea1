"""A rolling upgrade from a release before KIP-853, which has no changes of the voters.

Controllers of that release send no uuids: their versions of fetches and votes lack the fields.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.hunt.quorum.harness import QuorumHarness, ReplicaNode
from protocol.contract import Effect, Send
from protocol.errors import ErrorCode
from protocol.ids import NodeId, TimeMs
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


class FormerRelease(ReplicaNode):
    """A replica of the earlier release, which has no pre-vote and sends no uuids."""

    def settle(self, now_ms: TimeMs) -> list[Effect]:
        effects = super().settle(now_ms)
        return [as_it_sends(effect) for effect in effects if not is_pre_vote(effect)]


def is_pre_vote(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, VoteRequest) and effect.message.pre_vote


def as_it_sends(effect: Effect) -> Effect:
    if not isinstance(effect, Send):
        return effect
    kind = type(effect.message)
    uuids = {name: NO_UUID for name in kind.SINCE if name.endswith("_uuid")}
    return Send(effect.to, decode(encode(replace(effect.message, **uuids), FORMER.get(kind))))


class MixedReleases(QuorumHarness):
    """Static voters; those in `former` run the earlier release."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed, 3, static=True)
        self.former: set[NodeId] = set()

    def restart(self, node: NodeId) -> None:
        self.crash(node)
        self.start(node)

    def build(self, node: NodeId, kind: type[ReplicaNode] = ReplicaNode) -> ReplicaNode:
        return super().build(node, FormerRelease if node in self.former else kind)


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
