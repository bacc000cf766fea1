"""Two known defects of Raft implementations that lose committed records, step by step: with its guard the quorum
recovers, without it a leader lacks a committed value. Only LeaderHasAllAckedValues is checked.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from experiments.hunt.mutants.registry import mutated
from experiments.hunt.quorum.harness import PropertyViolatedError, QuorumHarness
from experiments.hunt.quorum.operator import Operator
from experiments.hunt.quorum.safety import LeaderHasAllAckedValues
from protocol.ids import NodeId
from protocol.messages.records import ConfigRecord
from protocol.quorum.replica import QuorumReplica
from tests.sim.quorum_helpers import SOON_MS, leader, started

LARGE = ConfigRecord(topic_id=None, name="large", value="x" * 1_100_000)
"""Larger than a fetch response: it is sent without the records after it."""


def split(harness: QuorumHarness, *parts: Collection[NodeId]) -> None:
    """Partitions the nodes into `parts`; a node in no part is isolated."""
    part_of = {node: index for index, part in enumerate(parts) for node in part}
    pairs = {(a, b) for a in harness.disks for b in harness.disks if a != b}
    harness.cuts = {(a, b) for a, b in pairs if part_of.get(a, -1 - a) != part_of.get(b, -1 - b)}


def leader_among(harness: QuorumHarness, nodes: Collection[NodeId], above: int) -> QuorumReplica:
    """Waits for a leader among `nodes` with an epoch above `above`."""

    def found() -> list[QuorumReplica]:
        replicas = [harness.nodes[node].replica for node in sorted(nodes)]
        return [replica for replica in replicas if replica.is_leader and replica.epoch > above]

    assert harness.run_until(lambda: bool(found()), SOON_MS)
    return found()[0]


def change_before_a_record_of_its_epoch() -> QuorumHarness:
    """The leader of four voters appends the addition of a fifth, which only that fifth fetches. Another leader is
    elected and removes the first one at once, committed by two of three. Then the first leader and the added replica,
    with one more vote, have a majority of five.
    """
    harness = started("changes", 5)
    harness.invariants = [LeaderHasAllAckedValues(harness.view)]
    operator = Operator(harness)
    operator.grow(4)
    assert harness.run_until(harness.is_settled, SOON_MS)
    first, added = harness.nodes[1000].replica, harness.nodes[1004].replica
    split(harness, (1000, 1004), (1001, 1002, 1003))
    operator.request_change(True, added.key, 1000)
    assert harness.run_until(lambda: added.is_voter, 1_000)
    second = leader_among(harness, (1001, 1002, 1003), first.epoch)
    partner, third = (node for node in (1001, 1002, 1003) if node != second.key.id)
    split(harness, (1000, 1004), (second.key.id, partner))
    operator.request_change(False, first.key, second.key.id)
    harness.run_for(1_000)
    split(harness, (1000, 1004, third), (second.key.id, partner))
    leader_among(harness, (1000, 1004), second.epoch)
    return harness


def high_watermark_over_a_former_epoch() -> QuorumHarness:
    """A leader replicates a record to two of five voters, and the other three elect another leader. Then one of the two
    leads again and replicates the record to a third voter, but not yet the records it has appended since. Then the
    other leader is elected once more, by voters with less up-to-date logs.
    """
    harness = started("former epochs", 5, static=True)
    harness.invariants = [LeaderHasAllAckedValues(harness.view)]
    assert harness.run_until(harness.is_settled, SOON_MS)
    first = leader(harness)
    two, three = [first.key.id], [node for node in harness.ids if node != first.key.id]
    two.append(three.pop())
    split(harness, two)
    first.append(harness.now_ms, [LARGE])
    harness.observe(first.key.id)
    end = first.log.end_offset
    assert harness.run_until(lambda: harness.nodes[two[1]].replica.log.end_offset == end, 1_000)
    split(harness, three)
    second = leader_among(harness, three, first.epoch)
    third = next(node for node in three if node != second.key.id)
    split(harness, (*two, third))
    again = leader_among(harness, two, second.epoch)
    assert harness.run_until(lambda: known_end(again, third) == end, 10_000)
    assert harness.nodes[third].replica.log.end_offset == end < again.log.end_offset
    split(harness, three)
    leader_among(harness, three, again.epoch)
    return harness


def known_end(first: QuorumReplica, node: NodeId) -> int:
    """The log end offset of a follower that its leader knows."""
    assert first.leader_state is not None
    return max((shown.end_offset for key, shown in first.leader_state.progress.items() if key.id == node), default=-1)


BUGS = {
    "change-before-a-record-of-its-epoch": change_before_a_record_of_its_epoch,
    "high-watermark-over-former-epochs": high_watermark_over_a_former_epoch,
}


@pytest.mark.covers("D15")
@pytest.mark.parametrize("guard", BUGS)
def test_with_the_guard_the_quorum_recovers(guard: str) -> None:
    harness = BUGS[guard]()
    harness.heal()
    assert harness.run_until(harness.is_settled, SOON_MS)


@pytest.mark.covers("D15")
@pytest.mark.parametrize("guard", BUGS)
def test_without_the_guard_a_committed_value_is_lost(guard: str) -> None:
    with mutated(guard), pytest.raises(PropertyViolatedError) as found:
        BUGS[guard]()
    assert found.value.name == "LeaderHasAllAckedValues"
